"""The driver: one asyncio loop that feeds the agent machine with events and performs its commands.

It wakes for a descriptor, a deadline or a message, and never to look whether something changed. Events pass one
first-in-first-out inbox, so that a step is never taken inside another. It decides nothing: what to do about a dead
worker, a signal or a full budget is in ``machine``, ``group`` and ``policy``.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.agent.channel import ChannelServer, new_socket_folder
from phalanx.agent.console import Console
from phalanx.agent.evidence import Evidence
from phalanx.agent.flight import FlightRecord
from phalanx.agent.group import (
    AnnounceStop,
    DeadlinePassed,
    ExceptionSeen,
    MembersRemain,
    RoundSettled,
    Say,
    SpawnFailed,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.keeper import Keeper
from phalanx.agent.machine import (
    AgentMachine,
    AgentState,
    CollectEvidence,
    EvidenceCollected,
    Finish,
    JobBegan,
    OpenRound,
    PassOn,
    RoundFailed,
    SignalPassed,
)
from phalanx.agent.messages import ExceptionRecorded, ExcludeAsked
from phalanx.agent.report import bug_report, failure_report, save_flight
from phalanx.agent.signals import watch_signals
from phalanx.agent.spec import Ended, JobSpec
from phalanx.agent.verdict import EX_BUG, Ending, Verdict
from phalanx.agent.workers import Workers
from phalanx.multiprocessing.context import SpawnError
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers
from phalanx.multiprocessing.trees import ProcessTree
from phalanx.rendezvous.ports import HeldPort
from phalanx.rendezvous.round import Round

__all__ = ["Driver"]

DRAIN_BETWEEN_ROUNDS_S = 2.0  # a console that nobody reads must not keep a job from restarting
# A worker needs one, and one for each forked child that has something to say. More would eat our descriptors.
CONNECTIONS_PER_WORKER, CONNECTIONS_SPARE = 4, 32
HELD_S = 0.1  # how soon a worker that a debugger holds is looked at again
REFUSALS_SAID_MAX = 20  # a worker that sends nonsense in a loop must not fill the console
FOREVER_S = 1e8  # three years: threading's waits take no infinity


class Driver:
    """Runs one job on this node. ``await run()`` tells how it ended; a driver runs once."""

    def __init__(self, spec: JobSpec, keeper: Keeper, console: Console) -> None:
        self._spec = spec
        self._keeper = keeper
        self._console = console
        self._machine = AgentMachine(spec.nproc, max_restarts=spec.max_restarts, grace_s=spec.grace_s)
        self._flight = FlightRecord()
        self._tree = ProcessTree(
            spec.job_token, spare=(keeper.pid,), include_own_children=spec.adopts_orphans
        )
        self._watched: set[int] = set()  # descriptors of this round: exits of workers, exits in the tree
        self._inbox: deque[object] = deque()
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._workers: Workers | None = None
        self._round: Round | None = None
        self._port: HeldPort | None = None
        self._told: dict[int, ExceptionRecorded] = {}  # of this round, by local rank: the last that each told
        self._refusals = 0
        self._evidence = Evidence()
        self._bug: BaseException | None = None
        self._hurry = asyncio.Event()  # a stop signal came when nothing but the console was waited for
        self._lagging: list[Workers] = []  # earlier rounds whose last lines the console has not taken yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._perform: dict[type, Callable[[Any], None]] = {
            AnnounceStop: self._announce_stop,
            CollectEvidence: self._collect_evidence,
            Finish: self._finish,
            NameStuck: self._name_stuck,
            OpenRound: self._open_round,
            PassOn: self._pass_on,
            Say: lambda command: console.say(command.text),
            SignalTree: self._signal_tree,
            SignalWorkers: self._signal_workers,
            SpawnWorkers: self._spawn_workers,
        }

    # Running

    async def run(self) -> Ended:
        """Run the job to its end: workers gone, logs drained. The caller prints what is still to be said."""
        gc.enable()  # a command starts without it
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._ended: asyncio.Future[Verdict] = self._loop.create_future()
        self._folder = new_socket_folder()
        self._channel = ChannelServer(
            os.path.join(self._folder, "agent.sock"),
            self._on_message,
            connections_max=CONNECTIONS_PER_WORKER * self._spec.nproc + CONNECTIONS_SPARE,
            on_refusal=self._on_refusal,
        )
        handled = watch_signals(
            self._loop,
            stop=self._spec.stop_signals,
            pass_on=self._spec.pass_signals,
            on_stop=self._on_stop_signal,
            on_pass=lambda number: self._post(SignalPassed(number)),
            on_child=self._tree.reap_adopted,  # workers and the keeper are left to their owners
        )
        self._loop.add_reader(self._keeper.fileno(), self._on_keeper_gone)
        try:
            await self._channel.start()
            self._post(JobBegan())
            verdict = await self._ended
            is_orderly = await self._close()
            return Ended(verdict.exit_code, self._last_words(verdict), is_orderly, handled)
        finally:
            self._unwatch()
            await self._channel.close()
            self._tree.close()
            if self._port is not None:
                self._port.release()
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
            # Held back until the caller has given them a meaning again: the loop, as it closes, restores the default
            # one, and a warning signal would kill a launcher whose job has just succeeded.
            signal.pthread_sigmask(signal.SIG_BLOCK, handled)

    async def _close(self) -> bool:
        """End what a bug has left running, and let the console catch up; False when somebody was in a hurry."""
        if self._bug is not None and self._workers is not None:
            # On a thread, because what is wrong with this loop is not known; the keeper does it if we are interrupted.
            try:
                ending = self._loop.run_in_executor(None, self._workers.end_at_once, self._spec.grace_s)
                await self._or_hurry(ending)
            except Exception as second:  # noqa: BLE001 # one bug seldom comes alone; the first is the one to report
                self._flight.add(self._loop.time(), "BUG", second, [])
                return False
            return not self._hurry.is_set() and self._tree.is_empty
        for workers in [*self._lagging, *([self._workers] if self._workers is not None else [])]:
            try:
                await self._or_hurry(asyncio.ensure_future(workers.drain(FOREVER_S)))
            except RuntimeError as error:  # the log thread has crashed, and said how
                self._console.say(str(error))
            workers.release()
        return self._tree.is_empty  # the machine ends on an empty tree, or names who could not be killed

    async def _or_hurry(self, work: asyncio.Future[Any]) -> None:
        """Wait for the work, or until a stop signal comes now that the verdict is spoken."""
        hurry = self._loop.create_task(self._hurry.wait())
        await asyncio.wait((work, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if work.done():
            await work

    def _last_words(self, verdict: Verdict) -> str:
        if verdict.ending is not Ending.FAILED:
            return ""
        flight_path = save_flight(self._flight, self._spec.logs.run_log_dir, is_bug=self._bug is not None)
        if self._bug is not None:
            return bug_report(self._bug, flight_path)
        self._evidence.hand_up(verdict, self._spec.error_file)
        return failure_report(
            verdict,
            self._evidence.processes,
            name=self._spec.name,
            restart_count=self._round.restart_count if self._round is not None else 0,
            log_folder=self._spec.logs.run_log_dir,
            stderr_tail=self._evidence.tail_of_cause(verdict),
        )

    def _post(self, event: object) -> None:
        """Queue an event; unless a step is being taken already, take steps until none is left."""
        if self._bug is not None:
            return
        self._inbox.append(event)
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            self._pumping = False
        self._set_timer()

    def _take(self, event: object) -> None:
        now = self._loop.time()
        try:
            commands = self._machine.step(event, now)
            self._flight.add(now, self._machine.state.name, event, commands)
            for command in commands:
                self._perform[type(command)](command)
        except Exception as error:  # noqa: BLE001 # the border between our bugs and the user's job
            self._on_bug(error, event)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._machine.deadline is not None and self._bug is None:
            self._timer = self._loop.call_at(self._machine.deadline, self._post, DeadlinePassed())

    # Events

    def _on_stop_signal(self, number: int) -> None:
        if self._ended.done():
            self._hurry.set()
        self._post(StopAsked(number, self._spec.grace_s))

    def _on_workers_ready(self) -> None:
        if self._workers is None:
            return
        if codes := self._workers.reap():
            self._post(WorkersExited(codes))
        elif (fd := self._workers.fileno()) in self._watched:
            # Ended, and not to be reaped yet: a debugger holds it. Look again soon instead of all the time.
            self._loop.remove_reader(fd)
            self._loop.call_later(HELD_S, self._look_again, fd)

    def _look_again(self, fd: int) -> None:
        if fd in self._watched:
            self._loop.add_reader(fd, self._on_workers_ready)

    def _on_tree_changed(self) -> None:
        if self._tree.all_ended():  # a scan per death would cost a large group dearly
            self._tree.members()
            self._post(TreeEmptied() if self._tree.is_empty else MembersRemain())

    def _on_message(self, local_rank: int, message: object) -> None:
        if isinstance(message, ExceptionRecorded):
            self._told[local_rank] = message
            self._post(ExceptionSeen(local_rank, message.monotonic_ns / 1e9))
        elif isinstance(message, ExcludeAsked):
            self._console.say(f"local rank {local_rank} asks to exclude this node: {message.reason}")

    def _on_refusal(self, reason: str) -> None:
        self._refusals += 1
        if not self._ended.done() and self._refusals <= REFUSALS_SAID_MAX:
            last = "; further ones are not told" if self._refusals == REFUSALS_SAID_MAX else ""
            self._console.say(f"a connection of a worker was refused: {reason}{last}")

    def _on_keeper_gone(self) -> None:
        self._loop.remove_reader(self._keeper.fileno())
        if self._machine.state is not AgentState.ENDED:
            self._console.say(
                "the keeper process is gone: if this launcher is killed now, processes of the job may stay; "
                "the job goes on"
            )

    def _on_bug(self, error: BaseException, event: object) -> None:
        """A bug of ours: record it, take no more steps, and let ``_close`` end the workers in order; exit 70."""
        if self._bug is not None:
            return
        self._bug = error
        self._inbox.clear()
        self._unwatch()
        self._flight.add(self._loop.time(), "BUG", event, [repr(error)])
        if not self._ended.done():
            self._ended.set_result(Verdict(ending=Ending.FAILED, exit_code=EX_BUG))

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._on_bug(context.get("exception") or RuntimeError(context["message"]), context["message"])

    # Commands

    def _open_round(self, command: OpenRound) -> None:
        try:
            settled, self._port = self._spec.rendezvous.open_round(
                command.number, restart_count=command.restart_count, reason=command.reason
            )
        except OSError as error:
            self._post(RoundFailed(str(error)))
            return
        self._channel.new_round(command.number)
        self._post(RoundSettled(settled))

    def _spawn_workers(self, command: SpawnWorkers) -> None:
        self._round = command.round
        self._workers = None
        self._told.clear()
        try:
            self._workers = Workers(
                self._spec, command.round, self._channel.path, keeper=self._keeper, tree=self._tree
            )
            if self._port is not None:
                self._port.release()
            pids = self._workers.start()
        except SpawnError as error:
            self._post(SpawnFailed(error.local_rank, error.exit_code, str(error)))
        except OSError as error:  # the log folder has gone, or is full
            self._post(SpawnFailed(0, 1, f"its logs cannot be opened: {error}"))
        else:
            if self._spec.tells_log_folder and command.round.number == 1:
                self._console.say(f"logs: {self._spec.logs.run_log_dir}")
            self._post(WorkersSpawned(pids))
            self._watch(self._workers.fileno(), self._on_workers_ready)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._watched.add(fd)
        self._loop.add_reader(fd, callback)

    def _unwatch(self) -> None:
        """Nothing of this round is to wake us any more; its descriptors may be closed from now on."""
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _signal_workers(self, command: SignalWorkers) -> None:
        if self._workers is not None:
            self._workers.send_signal(command.signal)

    def _signal_tree(self, command: SignalTree) -> None:
        if command.signal == signal.SIGKILL and self._workers is not None:
            self._workers.send_signal(
                signal.SIGKILL
            )  # by their own handles, where /proc does not show the tree
        self._tree.send(command.signal)
        if self._tree.is_empty:
            self._post(TreeEmptied())
        else:
            self._watch(self._tree.fileno(), self._on_tree_changed)

    def _name_stuck(self, command: NameStuck) -> None:
        for member in self._tree.members():
            self._console.say(
                f"process {member.pid} ({member.command}, state {member.state}) was killed and the kernel does not "
                "let it go; it may hold its devices until this machine is restarted"
            )

    def _pass_on(self, command: PassOn) -> None:
        if self._workers is None:
            return
        name = signal.Signals(command.signal).name
        for local_rank in self._workers.pass_on(command.signal):
            self._console.say(
                f"{name} was not passed to local rank {local_rank}, which has no handler for it"
            )

    def _announce_stop(self, command: AnnounceStop) -> None:
        self._channel.announce_stop(signal.Signals(command.signal).name, command.grace_s)

    def _collect_evidence(self, command: CollectEvidence) -> None:
        self._unwatch()
        task = self._loop.create_task(self._collect(self._workers, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, workers: Workers | None, command: CollectEvidence) -> None:
        try:
            drained = workers is None or await workers.drain(DRAIN_BETWEEN_ROUNDS_S)
            assert self._round is not None, "workers are of a round"
            failures = self._evidence.collect(self._round, workers, command.exits, self._told)
            if workers is not None and not drained:
                self._lagging.append(workers)
            elif workers is not None and failures:
                workers.release()
        except Exception as error:  # noqa: BLE001 # a task's border: nobody awaits it
            self._on_bug(error, command)
        else:
            self._post(EvidenceCollected(failures))

    def _finish(self, command: Finish) -> None:
        if not self._ended.done():
            self._ended.set_result(command.verdict)
