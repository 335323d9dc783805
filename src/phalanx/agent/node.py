"""The agent where its processes are real: workers, their channel, signals, the keeper, logs, evidence, ports.

It performs the commands that concern this machine and tells the driver what happens to them; the store is the
session's. It wakes for a descriptor, a deadline or a message, and never to look whether something changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.agent.channel import messages
from phalanx.agent.channel.listening import new_socket_folder
from phalanx.agent.channel.messages import ExceptionRecorded, ExcludeAsked, ProgressMade
from phalanx.agent.channel.server import ChannelServer
from phalanx.agent.driver import Driver
from phalanx.agent.events import AnnounceCheckpoint, JobBegan, SignalPassed, WorkerTold
from phalanx.agent.group import AnnounceStop, ExceptionSeen, Say, StopAsked
from phalanx.agent.machine import AgentMachine, AgentState
from phalanx.agent.membership import Membership
from phalanx.agent.processes.console import Console
from phalanx.agent.processes.keeper import Keeper
from phalanx.agent.processes.performer import Processes
from phalanx.agent.processes.signals import watch_signals
from phalanx.agent.processes.workers import Workers
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.sentences import one_line
from phalanx.agent.spec import Ended, Host, JobSpec
from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.early import remembered
from phalanx.multiprocessing.descriptors import make_room
from phalanx.rendezvous.events import (
    CheckpointDone,
    Fence,
    HoldPort,
    NodeExcluded,
    PortHeld,
    PortNotHeld,
    ReleasePort,
    Slept,
)
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.ports import HeldPort, hold_port
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.session import Session
from phalanx.store.values import SharedValues

if TYPE_CHECKING:
    from phalanx.agent.observer import JobObserver
    from phalanx.rendezvous.foreign.session import ForeignSession

__all__ = ["Node"]

# A worker needs one, and one for each forked child that has something to say. More would eat our descriptors.
CONNECTIONS_PER_WORKER, CONNECTIONS_SPARE = 4, 32
REFUSALS_SAID_MAX = 20  # a worker that sends nonsense in a loop must not fill the console
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)  # as asyncio's accept has them
SLEPT_MIN_S = 0.05  # two clocks that are read one after the other differ by less
ALARM_BEFORE_FENCE = (
    0.3  # of the ttl: between the next renewal, which is due, and the silence that stops the workers
)
FOREVER_S = 1e8  # three years: threading's waits take no infinity


class Node:
    """Runs one agent's part in a job. ``await run()`` tells how it ended; a node runs once."""

    def __init__(self, spec: JobSpec, keeper: Keeper, console: Console) -> None:
        self._spec = spec
        self._keeper = keeper
        self._console = console
        self._port: HeldPort | None = None
        self._last_port: int | None = None
        self._is_fenced = spec.make_handler is None and spec.membership.ttl_s != float("inf")
        self._boot_offset_s = _boot_offset_s() if self._is_fenced else 0.0
        self._alarm: int | None = None
        self._refusals = 0
        self._is_told_to_stop = False
        self._hurry = asyncio.Event()  # a stop signal came when nothing but the console was waited for

    async def run(self) -> Ended:
        """Take part in the job to its end: workers gone, logs drained. The caller prints what is still to be said."""
        gc.enable()  # a command starts without it
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        folder = new_socket_folder()
        channel_path = os.path.join(folder, "agent.sock")
        self._keeper.tidy_socket(channel_path)
        if self._is_fenced:  # it may come to serve the store to all nodes
            make_room(self._spec.membership.max_nodes + self._spec.nproc)
        self._make_parts(channel_path)
        handled = watch_signals(
            self._loop,
            stop=self._spec.stop_signals,
            pass_on=self._spec.pass_signals,
            on_stop=self._on_own_signal,
            on_pass=lambda number: self._driver.post(SignalPassed(number)),
            on_child=self._processes.tree.reap_adopted,  # workers and the keeper are left to their owners
        )
        self._loop.add_reader(self._keeper.fileno(), self._on_keeper_gone)
        if self._spec.host is not None:
            self._loop.add_reader(self._spec.host.fileno(), self._on_host, self._spec.host)
        try:
            for number in remembered():
                self._on_stop_signal(number)
            await self._channel.start()
            self._driver.post(JobBegan())
            verdict = await self._driver.ended
            is_orderly = await self._close()
            last_words = self._last_words(verdict)
            return Ended(verdict.exit_code, last_words, is_orderly, handled, verdict, self._is_told_to_stop)
        finally:
            self._unwatch()
            await self._channel.close()
            await self._session.aclose()
            self._processes.tree.close()
            self._processes.evidence.postmortem.close()
            self._release_port(None)
            if self._alarm is not None:
                os.close(self._alarm)
            with contextlib.suppress(OSError):
                os.rmdir(folder)
            # Held back until the caller has given them a meaning again: the loop, as it closes, restores the default
            # one, and a warning signal would kill a launcher whose job has just succeeded.
            signal.pthread_sigmask(signal.SIG_BLOCK, handled)

    def _make_parts(self, channel_path: str) -> None:
        spec = self._spec
        self._observer = self._make_observer()
        membership: Membership
        if spec.make_handler is None:
            membership = MemberMachine(spec.membership, leader_policy(spec.restarts))
        else:
            from phalanx.rendezvous.foreign.machine import ForeignMachine

            membership = ForeignMachine(spec.membership, leader_policy(spec.restarts), backend=spec.backend)
        agent = AgentMachine
        if spec.restart_scope == "worker":
            from phalanx.agent.single.machine import SingleAgent as agent  # noqa: N813 # one of the two kinds
        self._driver = Driver(
            agent(
                spec.nproc,
                membership=membership,
                restarts=spec.restarts,
                graces=spec.graces,
                straggler_s=spec.membership.straggler_s,
                pass_signals=spec.pass_signals,
                stops_all_as=spec.membership.host if spec.stop_all else None,
            ),
            on_bug=self._unwatch,
            look_first=self._look_at_the_clocks,
            observer=self._observer,
        )
        self._session = self._make_session()
        self._channel = ChannelServer(
            channel_path,
            self._on_message,
            connections_max=CONNECTIONS_PER_WORKER * spec.nproc + CONNECTIONS_SPARE,
            on_refusal=lambda reason: self._on_refusal("of a worker", reason),
        )
        self._processes = Processes(
            spec,
            self._driver,
            self._keeper,
            self._console,
            channel=self._channel,
            on_round=self._on_round,
            on_timers=None if self._observer is None else self._observer.timers_moved,
        )
        own: dict[type, Callable[[Any], None]] = {
            AnnounceCheckpoint: lambda asked: self._channel.announce_checkpoint(asked.reason, asked.request),
            AnnounceStop: lambda one: self._channel.announce_stop(
                signal.Signals(one.signal).name, one.grace_s, one.cause
            ),
            Fence: self._set_fence,
            HoldPort: self._hold_port,
            ReleasePort: self._release_port,
            Say: lambda command: self._console.say(command.text),
        }
        self._driver.bind(own, self._processes.perform, self._session.perform)

    def _make_session(self) -> Session | ForeignSession:
        spec, post, on_bug = self._spec, self._driver.post, self._driver.found_bug
        if spec.make_handler is None:
            return Session(
                spec.open_store,
                post,
                ttl_s=spec.membership.ttl_s,
                on_bug=on_bug,
                on_refusal=lambda reason: self._on_refusal("to the store", reason),
            )
        from phalanx.rendezvous.foreign.session import ForeignSession

        return ForeignSession(spec.make_handler, post, settings=spec.membership, on_bug=on_bug)

    def _make_observer(self) -> JobObserver | None:
        spec = self._spec
        if spec.observe is None:
            return None
        from phalanx.agent.observer import JobObserver, observing_of

        return JobObserver(observing_of(spec), spec.observe, self._console.say)

    async def _close(self) -> bool:
        """End what a bug has left running, and let the console catch up; False when somebody was in a hurry."""
        workers = self._processes.workers
        if self._driver.bug is not None and workers is not None:
            # On a thread, because what is wrong with this loop is not known; the keeper does it if we are interrupted.
            try:
                ending = self._loop.run_in_executor(None, workers.end_at_once, self._spec.graces.stop_s)
                await self._or_hurry(ending)
            except Exception as second:  # noqa: BLE001 # one bug seldom comes alone; the first is the one to report
                self._driver.flight.add(self._loop.time(), "BUG", second, [])
                return False
            return not self._hurry.is_set() and self._processes.tree.is_empty
        # Who told us to stop waits for our end; the log files are whole without a reader.
        patience_s = self._spec.graces.stop_s if self._is_told_to_stop else FOREVER_S
        everyone: list[Workers] = [*self._processes.lagging, *([workers] if workers is not None else [])]
        for one in everyone:
            try:
                await self._or_hurry(asyncio.ensure_future(one.drain(patience_s)))
            except RuntimeError as error:  # the log thread has crashed, and said how
                self._console.say(str(error))
            one.release()
        # The machine ends on an empty tree, or names who could not be killed.
        return self._processes.tree.is_empty

    async def _or_hurry(self, work: asyncio.Future[Any]) -> None:
        """Wait for the work, or until a stop signal comes now that the verdict is spoken."""
        hurry = self._loop.create_task(self._hurry.wait())
        await asyncio.wait((work, hurry), return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if work.done():
            await work

    def _last_words(self, verdict: Verdict) -> str:
        if verdict.ending is not Ending.FAILED and not self._spec.report_file:
            return ""  # most jobs end like that, and need none of it
        from phalanx.agent.report.files import last_words

        if verdict.ending is not Ending.FAILED:
            self._spec.logs.discard_if_empty()  # so that the report names no folder that will be gone
        return last_words(
            verdict,
            name=self._spec.name,
            settled=self._processes.round,
            log_dir=self._spec.logs.run_log_dir,
            flight=self._driver.flight,
            bug=self._driver.bug,
            error_file=self._spec.error_file,
            report_file=self._spec.report_file,
        )

    # Events

    def _on_host(self, host: Host) -> None:
        for number in host.asked():
            if number in self._spec.pass_signals:
                self._driver.post(SignalPassed(number))
            else:
                self._on_stop_signal(abs(number), by_program=number < 0)
        if host.is_gone:
            self._loop.remove_reader(host.fileno())
            if not self._is_told_to_stop:  # a host that has asked, and ends before we do, is in no hurry
                self._on_stop_signal(signal.SIGTERM)

    def _on_own_signal(self, number: int) -> None:
        """With ``debug_rank`` Ctrl-C is for the debugger at the terminal; other signals, and a host, stop the job."""
        if number != signal.SIGINT or not self._processes.interrupt_debugged():
            self._on_stop_signal(number)

    def _on_stop_signal(self, number: int, *, by_program: bool = False) -> None:
        self._is_told_to_stop = True
        if self._driver.ended.done():
            self._hurry.set()
        self._driver.post(StopAsked(number, self._spec.graces.stop_s, by_program=by_program))

    def _on_message(self, local_rank: int, message: object) -> None:
        if isinstance(message, ExceptionRecorded):
            self._processes.told(local_rank, message)
            self._driver.post(ExceptionSeen(local_rank, message.monotonic_ns / 1e9, message.message[:200]))
        elif isinstance(message, messages.CheckpointDone):
            self._processes.progress.checkpoint_done(message.step)
            self._driver.post(WorkerTold(CheckpointDone(message.step)))
        elif isinstance(message, ProgressMade):
            self._processes.progress.made(message.step)
            if self._observer is not None:
                self._observer.progressed(message.step)
        elif isinstance(message, ExcludeAsked):
            reason = one_line(message.reason) or "it gave no reason"
            self._driver.post(WorkerTold(NodeExcluded(f"{reason} (said by local rank {local_rank})")))

    def _on_refusal(self, what: str, reason: str) -> None:
        self._refusals += 1
        if not self._driver.ended.done() and self._refusals <= REFUSALS_SAID_MAX:
            last = "; further ones are not told" if self._refusals == REFUSALS_SAID_MAX else ""
            self._console.say(f"a connection {what} was refused: {reason}{last}")

    def _on_keeper_gone(self) -> None:
        self._loop.remove_reader(self._keeper.fileno())
        if self._driver.machine.state is not AgentState.ENDED:
            self._console.say(
                "the keeper process is gone: if this launcher is killed now, processes of the job may stay; "
                "the job goes on"
            )

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS and "socket" in context:
            # A listener of ours, full for the moment: asyncio tries again in a second, and so does who wants in.
            self._on_refusal("to the store", f"no descriptor is free ({error.strerror})")
            return
        self._driver.found_bug(error or RuntimeError(context["message"]), context["message"])

    def _unwatch(self) -> None:
        self._processes.leave()
        self._driver.stop_timer()
        if self._observer is not None:
            self._observer.close()
        if self._alarm is not None:
            self._loop.remove_reader(self._alarm)

    # Commands

    def _on_round(self, settled: Round) -> None:
        """Workers are about to start: they find an empty store of values, and rank 0 a port that is free."""
        store = self._session.store
        run_id = self._spec.membership.run_id or (store.run_id if store is not None else None) or ""
        values = None if store is None else SharedValues(store, JobKeys(run_id).values(settled.number))
        self._channel.new_round(settled.number, values)
        self._release_port(None)

    def _hold_port(self, command: HoldPort) -> None:
        self._release_port(None)
        earlier = () if self._last_port is None else (self._last_port,)
        try:
            self._port = hold_port(
                self._spec.membership.master_port, among=self._spec.master_port_range, not_these=earlier
            )
        except OSError as error:
            self._driver.post(PortNotHeld(command.number, str(error)))
            return
        self._last_port = self._port.number
        self._driver.post(PortHeld(command.number, self._port.number))

    def _release_port(self, command: ReleasePort | None) -> None:
        if self._port is not None:
            self._port.release()
            self._port = None

    def _set_fence(self, command: Fence) -> None:
        """The machine's clock stands still while this computer is suspended, the keeper's goes on."""
        if not self._is_fenced:
            return
        at = None if command.at is None else command.at + self._boot_offset_s
        self._keeper.fence(at)
        self._set_alarm(at)

    def _set_alarm(self, fenced_at: float | None) -> None:
        """Be woken in time to renew the lease, by a clock that goes on in a suspended computer: loop timers do not."""
        from phalanx.agent.processes.fence import boot_timer, set_boot_timer

        if self._alarm is None:
            self._alarm = boot_timer()
            self._loop.add_reader(self._alarm, self._on_alarm)
        early_s = self._spec.membership.ttl_s * ALARM_BEFORE_FENCE
        set_boot_timer(self._alarm, None if fenced_at is None else int((fenced_at - early_s) * 1e9))

    def _on_alarm(self) -> None:
        assert self._alarm is not None, "it rings"
        with contextlib.suppress(BlockingIOError):
            os.read(self._alarm, 8)
        for event in self._look_at_the_clocks():
            self._driver.post(event)

    def _look_at_the_clocks(self) -> list[object]:
        """Whether this computer was suspended since the last look."""
        if not self._is_fenced:
            return []
        offset_s = _boot_offset_s()
        slept_s = offset_s - self._boot_offset_s
        if slept_s < SLEPT_MIN_S:
            return []
        self._boot_offset_s = offset_s
        return [Slept(slept_s)]


def _boot_offset_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
