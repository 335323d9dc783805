"""The workers of this node, performed: started, signalled, watched, and examined when they have ended.

It turns commands into system calls and deaths into events. Everything is by descriptor: one is readable when a worker
has ended, another when some process of the job has.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from phalanx.agent.channel.messages import ExceptionRecorded
from phalanx.agent.channel.server import ChannelServer
from phalanx.agent.driver import Driver
from phalanx.agent.events import CollectEvidence, EvidenceCollected, PassOn
from phalanx.agent.evidence.collect import Evidence
from phalanx.agent.group import (
    Exit,
    MembersRemain,
    SpawnFailed,
    SpawnWorkers,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.passing import ASK_FOR_CHECKPOINT
from phalanx.agent.processes.console import Console
from phalanx.agent.processes.keeper import Keeper
from phalanx.agent.processes.stacks import Stacks
from phalanx.agent.processes.workers import Workers, terminal_rank
from phalanx.agent.restarts.progress import Progress
from phalanx.agent.sentences import debugging, not_passed
from phalanx.agent.spec import JobSpec
from phalanx.agent.verdict.verdict import Failure
from phalanx.multiprocessing.context import SpawnError
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers, WarnWorkers
from phalanx.multiprocessing.trees import ProcessTree
from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.agent.single.performer import SingleRestarts

__all__ = ["Processes"]

DRAIN_BETWEEN_ROUNDS_S = 2.0  # a console that nobody reads must not keep a job from restarting
NAMES_AFTER_S = 5.0  # who asks should_stop() for the first time after a warning hears of it then
HELD_S = 0.1  # how soon a worker that a debugger holds is looked at again


class Processes:
    """``perform`` maps each command to what does it. ``on_round`` is called before the workers of a round start.

    ``channel`` is that of the workers: who hears there that it is being stopped needs no signal that says it, who is
    deaf to SIGTERM is ended otherwise, and the last words of those that ended belong to their evidence.
    """

    def __init__(
        self,
        spec: JobSpec,
        driver: Driver,
        keeper: Keeper,
        console: Console,
        *,
        channel: ChannelServer,
        on_round: Callable[[Round], None],
        on_timers: Callable[[], None] | None = None,
    ) -> None:
        self._spec = spec
        self._driver = driver
        self._keeper = keeper
        self._console = console
        self._channel = channel
        self._on_round = on_round
        self._loop = asyncio.get_running_loop()
        self.tree = ProcessTree(spec.job_token, spare=(keeper.pid,), include_own_children=spec.adopts_orphans)
        self.workers: Workers | None = None
        self.round: Round | None = None
        self.evidence = Evidence(spec.membership.straggler_s, spec.why_ended)
        self.lagging: list[Workers] = []
        """Earlier rounds whose last lines the console has not taken yet."""
        self.progress = Progress()
        """Of this round."""
        self.perform: dict[type, Callable[[Any], None]] = {}
        self._single_restarts: SingleRestarts | None = None
        if spec.restart_scope == "worker":
            from phalanx.agent.single.performer import SingleRestarts

            self._single_restarts = SingleRestarts(self, driver)
            self.perform.update(self._single_restarts.perform)
        self._are_asked = False  # the workers of this round were asked to stop
        self._not_warned: set[int] = set()  # local ranks of this round, which are to be named soon
        self._warned_by = 0
        self._naming: asyncio.TimerHandle | None = None
        self._told_of_terminal = ""
        self._told: dict[int, ExceptionRecorded] = {}  # of this round, by local rank: the last that each told
        self._watched: set[int] = set()  # descriptors of this round: exits of workers, exits in the tree
        self._tasks: set[asyncio.Task[None]] = set()
        self.perform |= {
            CollectEvidence: self._collect_evidence,
            NameStuck: self._say_stuck,
            PassOn: self._pass_on,
            SignalTree: self._signal_tree,
            SignalWorkers: self._signal_workers,
            SpawnWorkers: self._spawn_workers,
            WarnWorkers: self._warn,
            **Stacks(self, driver, console, spec.watchdog).perform,
        }
        if spec.watchdog is not None:
            spec.watchdog.attach(self._loop, driver.post, on_timers)

    def told(self, local_rank: int, message: ExceptionRecorded) -> None:
        """A worker said over the channel that it has recorded an exception."""
        self._told[local_rank] = message

    def unwatch(self) -> None:
        """Nothing of this round is to wake us any more; its descriptors may be closed from now on."""
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched.clear()
        if self._single_restarts is not None:
            self._single_restarts.unwatch()

    def leave(self) -> None:
        """As ``unwatch``, for good."""
        self.unwatch()
        if self._spec.watchdog is not None:
            self._spec.watchdog.detach()

    def forget(self, local_rank: int) -> None:
        """This worker gets a successor: what it said, and how its machine was, explains nothing of that one's end."""
        self._told.pop(local_rank, None)
        self.evidence.begin_single(local_rank)

    # Starting

    def _spawn_workers(self, command: SpawnWorkers) -> None:
        self.round = command.round
        self.workers = None
        self._told.clear()
        self.progress = Progress()
        self._are_asked = False
        self._not_warned.clear()
        if self._naming is not None:
            self._naming.cancel()
        if self._spec.watchdog is not None:
            self._spec.watchdog.new_round()
        if self._spec.debug_rank is not None:
            self._say_who_has_the_terminal(command.round)
        try:
            workers = Workers(
                self._spec, command.round, self._channel.path, keeper=self._keeper, tree=self.tree
            )
            self.workers = workers
            if root := self._spec.logs.temporary_root:
                self._keeper.tidy_logs(root)
            self._on_round(command.round)
            self.evidence.begin()
            pids = workers.start()
        except SpawnError as error:
            self._driver.post(SpawnFailed(error.local_rank, error.exit_code, str(error)))
        except OSError as error:  # the log folder has gone, or is full
            self._driver.post(SpawnFailed(0, 1, f"its logs cannot be opened: {error}"))
        else:
            if self._spec.tells_log_folder and command.round.number == 1:
                self._console.say(f"logs: {self._spec.logs.run_log_dir}")
            self._driver.post(WorkersSpawned(pids))
            self._watch(workers.fileno(), self._on_workers_ready)

    def _say_who_has_the_terminal(self, settled: Round) -> None:
        assert self._spec.debug_rank is not None, "it was asked for"
        is_here = terminal_rank(self._spec, settled) is not None
        told = debugging(
            self._spec.debug_rank, settled.world_size, is_here=is_here, has_terminal=os.isatty(0)
        )
        if told != self._told_of_terminal:
            self._told_of_terminal = told
            self._console.say(told)

    def interrupt_debugged(self) -> bool:
        """Send Ctrl-C to the worker that has the terminal; False when there is none, or all are being stopped."""
        if self.workers is None or self.workers.terminal_rank is None or self._are_asked:
            return False
        return self.workers.interrupt(self.workers.terminal_rank)

    def _watch(self, fd: int, callback: Callable[[], None]) -> None:
        self._watched.add(fd)
        self._loop.add_reader(fd, callback)

    # Watching

    def _on_workers_ready(self) -> None:
        if self.workers is None:
            return
        if codes := self.workers.reap():
            if self._spec.restore_terminal is not None and self.workers.terminal_rank in codes:
                self._spec.restore_terminal()
            self._not_warned -= codes.keys()
            for local_rank, code in codes.items():
                self._channel.wills.worker_ended(local_rank, code)
            self._driver.post(WorkersExited(codes))
        elif (fd := self.workers.fileno()) in self._watched:
            # Ended, and not to be reaped yet: a debugger holds it. Look again soon instead of all the time.
            self._loop.remove_reader(fd)
            self._loop.call_later(HELD_S, self._look_again, fd)

    def _look_again(self, fd: int) -> None:
        if fd in self._watched:
            self._loop.add_reader(fd, self._on_workers_ready)

    def _on_tree_changed(self) -> None:
        if self.tree.all_ended():  # a scan per death would cost a large group dearly
            self.tree.members()
            self._driver.post(TreeEmptied() if self.tree.is_empty else MembersRemain())

    # Signals

    def _signal_workers(self, command: SignalWorkers) -> None:
        self._are_asked = True
        self._say_not_warned()
        if self.workers is None:
            return
        if command.signal == signal.SIGTERM:
            for local_rank in self._channel.deaf:  # as the default action of SIGTERM would
                self.workers.send_to(local_rank, signal.SIGKILL)
        self.workers.send_signal(command.signal)

    def _signal_tree(self, command: SignalTree) -> None:
        self._are_asked = True
        if command.signal == signal.SIGKILL and self.workers is not None:
            # By their own handles, where /proc does not show the tree.
            self.workers.send_signal(signal.SIGKILL)
        self.tree.send(command.signal)
        if self.tree.is_empty:
            self._driver.post(TreeEmptied())
        else:
            self._watch(self.tree.fileno(), self._on_tree_changed)

    def _say_stuck(self, _command: NameStuck) -> None:
        for member in self.tree.members():
            self._console.say(
                f"process {member.pid} ({member.command}, state {member.state}) was killed and the kernel does not "
                "let it go; it may hold its devices until this machine is restarted"
            )

    def _warn(self, command: WarnWorkers) -> None:
        if self.workers is not None:
            self._not_warned = set(self.workers.pass_on(command.signal))
            self._warned_by = command.signal
            self._naming = self._loop.call_later(NAMES_AFTER_S, self._say_not_warned)

    def _say_not_warned(self) -> None:
        if self._naming is not None:
            self._naming.cancel()  # it names who is not warned of now, and may be later
        left_out, self._not_warned = self._not_warned - self._channel.connected, set()
        if left_out:
            self._console.say(not_passed(self._warned_by, left_out))

    def _pass_on(self, command: PassOn) -> None:
        if self.workers is None:
            return
        left_out = set(self.workers.pass_on(command.signal))
        if command.signal in ASK_FOR_CHECKPOINT:
            left_out -= self._channel.connected  # they are told, and may look for it
        if left_out:
            self._console.say(not_passed(command.signal, left_out))

    # Evidence

    def _collect_evidence(self, command: CollectEvidence) -> None:
        self.unwatch()
        self.begin(self._collect(self.workers, command))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it beside the loop, to its end."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drained(self, workers: Workers, exits: Iterable[Exit]) -> bool:
        """Wait for the last words and lines of ended workers, as long as there is time for it."""
        await self._channel.hear_out({one.local_rank for one in exits})
        return await workers.drain(DRAIN_BETWEEN_ROUNDS_S)

    def failures(self, exits: Iterable[Exit]) -> tuple[Failure, ...]:
        """What ended workers of this round left, of those that failed."""
        assert self.round is not None, "workers are of a round"
        return self.evidence.collect(
            self.round, self.workers, exits, self._told, log_dir=self._spec.logs.run_log_dir
        )

    async def _collect(self, workers: Workers | None, command: CollectEvidence) -> None:
        try:
            drained = workers is None or await self.drained(workers, command.exits)
            failures = self.failures(command.exits)
            if workers is not None and not drained:
                self.lagging.append(workers)
            elif workers is not None and failures:
                workers.release()
        except Exception as error:  # noqa: BLE001 # a task's border: nobody awaits it
            self._driver.found_bug(error, command)
        else:
            self._driver.post(EvidenceCollected(failures, self.progress.step, self.progress.checkpoint))
