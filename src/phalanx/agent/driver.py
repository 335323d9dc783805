"""The driver: one asyncio loop that feeds the agent machine with events and performs its commands.

It wakes for a descriptor, a deadline or a message, and never to look whether something changed. Events pass one
first-in-first-out inbox, so that a step is never taken inside another. It decides nothing: what to do about a dead
worker, a signal or a full budget is in ``machine``, ``group`` and ``policy``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.agent.channel import ChannelServer
from phalanx.agent.console import Console
from phalanx.agent.evidence import Evidence
from phalanx.agent.flight import FlightRecord
from phalanx.agent.group import (
    DeadlinePassed,
    ExceptionSeen,
    MembersRemain,
    RoundSettled,
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
    AnnounceStop,
    CollectEvidence,
    EvidenceCollected,
    Finish,
    JobBegan,
    OpenRound,
    PassOn,
    RoundFailed,
    Say,
    SignalPassed,
)
from phalanx.agent.messages import ExceptionRecorded, ExcludeAsked
from phalanx.agent.report import bug_report, failure_report, hand_up, save_flight
from phalanx.agent.spec import JobSpec
from phalanx.agent.verdict import EX_BUG, Ending, Verdict
from phalanx.agent.workers import Workers
from phalanx.multiprocessing.context import SpawnError
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers
from phalanx.multiprocessing.trees import ProcessTree
from phalanx.rendezvous.ports import HeldPort

__all__ = ["Driver"]

DRAIN_BETWEEN_ROUNDS_S = 2.0  # a console that nobody reads must not keep a job from restarting
DRAIN_LOOK_S = 0.5  # how soon a stop signal is noticed while only the console is waited for


class Driver:
    """Runs one job on this node. ``await run()`` returns the exit code; a driver runs once."""

    def __init__(self, spec: JobSpec, keeper: Keeper, console: Console) -> None:
        self._spec = spec
        self._keeper = keeper
        self._console = console
        self._machine = AgentMachine(spec.nproc, max_restarts=spec.max_restarts, grace_s=spec.grace_s)
        self._flight = FlightRecord()
        self._tree = ProcessTree(spec.job_token, spare=(keeper.pid,), include_own_children=spec.own_process)
        self._watched: set[int] = set()  # descriptors of this round: exits of workers, exits in the tree
        self._inbox: deque[object] = deque()
        self._pumping = False
        self._timer: asyncio.TimerHandle | None = None
        self._workers: Workers | None = None
        self._port: HeldPort | None = None
        self._evidence = Evidence()
        self._bug: BaseException | None = None
        self._hurry = False  # a stop signal came when nothing but the console was waited for
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

    async def run(self) -> int:
        """Run the job to its end: workers gone, logs drained, report printed."""
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._ended: asyncio.Future[Verdict] = self._loop.create_future()
        self._folder = tempfile.mkdtemp(prefix="phalanx-", dir=_short_folder())
        self._channel = ChannelServer(
            os.path.join(self._folder, "agent.sock"),
            self._on_message,
            on_refusal=lambda reason: self._console.say(f"a connection of a worker was refused: {reason}"),
        )
        handled = self._watch_signals()
        try:
            await self._channel.start()
            self._post(JobBegan())
            verdict = await self._ended
            return await self._close(verdict)
        finally:
            for number in handled:
                self._loop.remove_signal_handler(number)
            if self._timer is not None:
                self._timer.cancel()
            await self._channel.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _close(self, verdict: Verdict) -> int:
        """Nothing is left to supervise: let the console catch up, then have the last word."""
        lagging = [*self._lagging, *([self._workers] if self._workers is not None else [])]
        for workers in lagging:
            while not await workers.drain(DRAIN_LOOK_S) and not self._hurry:
                pass  # the reader of the console decides how long; a stop signal decides otherwise
            workers.release()
        if verdict.ending is Ending.FAILED:
            self._console.finish(self._report(verdict))
        return verdict.exit_code

    def _report(self, verdict: Verdict) -> str:
        flight_path = save_flight(self._flight, self._spec.logs.root_log_dir)
        if self._bug is not None:
            return bug_report(self._bug, flight_path)
        cause = verdict.cause
        restarts = self._workers.round.restart_count if self._workers is not None else 0
        if self._spec.error_file and cause is not None and cause.rank in self._evidence.processes:
            hand_up(self._evidence.processes[cause.rank], verdict.exit_code, self._spec.error_file)
        return failure_report(
            verdict,
            self._evidence.processes,
            name=self._spec.name,
            restart_count=restarts,
            log_folder=self._spec.logs.root_log_dir,
            stderr_tail=self._evidence.stderr_tails.get(cause.rank, b"") if cause is not None else b"",
        )

    def _post(self, event: object) -> None:
        """Queue an event; unless a step is being taken already, take steps until none is left."""
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
        if self._machine.deadline is not None:
            self._timer = self._loop.call_at(self._machine.deadline, self._post, DeadlinePassed())

    # Events

    def _watch_signals(self) -> list[int]:
        handled = []
        stop = [number for number in self._spec.stop_signals if not _is_inherited_nohup(number)]
        for number in stop:
            self._loop.add_signal_handler(number, self._on_stop_signal, number)
            handled.append(number)
        for number in self._spec.pass_signals:
            if number not in stop:
                self._loop.add_signal_handler(number, self._post, SignalPassed(number))
                handled.append(number)
        if self._spec.own_process:
            self._loop.add_signal_handler(signal.SIGCHLD, self._reap_adopted)
            handled.append(signal.SIGCHLD)
        self._loop.add_reader(self._keeper.fileno(), self._on_keeper_gone)
        return handled

    def _on_stop_signal(self, number: int) -> None:
        if self._machine.state is AgentState.ENDED:
            self._hurry = True
        self._post(StopAsked(number, self._spec.grace_s))

    def _on_workers_ready(self) -> None:
        if self._workers is not None and (codes := self._workers.reap()):
            self._post(WorkersExited(codes))

    def _on_tree_changed(self) -> None:
        if self._tree.all_ended():  # a scan per death would cost a large group dearly
            self._post(MembersRemain() if self._tree.members() else TreeEmptied())

    def _on_message(self, local_rank: int, message: object) -> None:
        if isinstance(message, ExceptionRecorded):
            self._post(ExceptionSeen(local_rank, message.monotonic_ns / 1e9))
        elif isinstance(message, ExcludeAsked):
            self._console.say(f"local rank {local_rank} asks to exclude this node: {message.reason}")

    def _on_keeper_gone(self) -> None:
        self._loop.remove_reader(self._keeper.fileno())
        if self._machine.state is not AgentState.ENDED:
            self._console.say(
                "the keeper process is gone: if this launcher is killed now, processes of the job may stay; "
                "the job goes on"
            )

    def _reap_adopted(self) -> None:
        self._tree.reap_adopted()  # workers and the keeper are left to their owners

    def _on_bug(self, error: BaseException, event: object) -> None:
        """A bug of ours: record it, end the workers in order as far as that still works, exit 70."""
        self._inbox.clear()
        self._flight.add(self._loop.time(), "BUG", event, [repr(error)])
        if not self._ended.done():
            self._bug = error
            if self._workers is not None:
                self._workers.end_at_once(self._spec.grace_s)
            self._ended.set_result(
                Verdict(ending=Ending.FAILED, exit_code=EX_BUG, reason="ended by a bug of phalanx")
            )

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
        self._workers = Workers(
            self._spec, command.round, self._channel.path, keeper=self._keeper, tree=self._tree
        )
        if self._port is not None:
            self._port.release()
        try:
            pids = self._workers.start()
        except SpawnError as error:
            self._post(SpawnFailed(error.local_rank, error.exit_code, str(error)))
            return
        self._post(WorkersSpawned(pids))
        self._watch(self._workers.fileno(), self._on_workers_ready)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._watched.add(fd)
        self._loop.add_reader(fd, callback)

    def _signal_workers(self, command: SignalWorkers) -> None:
        if self._workers is not None:
            self._workers.send_signal(command.signal)

    def _signal_tree(self, command: SignalTree) -> None:
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
        assert self._workers is not None, "evidence is of workers"
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched.clear()
        self._start(self._collect(self._workers, command))

    async def _collect(self, workers: Workers, command: CollectEvidence) -> None:
        drained = await workers.drain(DRAIN_BETWEEN_ROUNDS_S)
        failures = self._evidence.collect(workers, command.exits)
        if not drained:
            self._lagging.append(workers)
        elif failures:
            workers.release()
        self._post(EvidenceCollected(failures))

    def _finish(self, command: Finish) -> None:
        if not self._ended.done():
            self._ended.set_result(command.verdict)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_inherited_nohup(number: int) -> bool:
    """A hang-up signal that was ignored when we began (``nohup``) stays ignored."""
    return number == signal.SIGHUP and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _short_folder() -> str | None:
    """A folder whose path leaves room for a Unix socket's 107 bytes; None is the usual temporary folder."""
    return "/tmp" if len(tempfile.gettempdir()) > 60 else None
