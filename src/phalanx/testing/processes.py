"""The performer of a simulated node: it stands where ``agent/node.py`` and ``agent/processes/`` stand in production.

Commands become processes of a simulated node and their ends become events, in the order and with the delays of a
kernel. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import Signals
from typing import Any

from phalanx.agent.driver import Driver
from phalanx.agent.events import AnnounceCheckpoint, CollectEvidence, EvidenceCollected, PassOn, WorkerTold
from phalanx.agent.group import (
    AnnounceStop,
    ExceptionSeen,
    Exit,
    MembersRemain,
    Say,
    SpawnFailed,
    SpawnWorkers,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.restarts.causes import what_cannot_heal
from phalanx.agent.restarts.progress import Progress
from phalanx.agent.stacks import EndSlow, SaveStacks, StacksSaved, TimerExpired
from phalanx.agent.verdict.verdict import Failure
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers, WarnWorkers
from phalanx.rendezvous.events import (
    CheckpointDone,
    Fence,
    HoldPort,
    NodeExcluded,
    PortHeld,
    ReleasePort,
    Slept,
)
from phalanx.rendezvous.round import Round
from phalanx.testing.loop import HAIR_S, NodeLoop
from phalanx.testing.nodes import Keeper, Node
from phalanx.testing.single_restarts import SimulatedSingleRestarts
from phalanx.testing.timeline import Entry
from phalanx.testing.trace import Fault, Line, Trace
from phalanx.testing.workload import PORT_TAKEN, Employer, Worker, Workload

__all__ = ["SimulatedProcesses"]

CHANNEL_S = (0.0002, 0.005)  # from an exception to the agent, over the socket
ALARM_BEFORE_FENCE = 0.3  # of the ttl; this and the next are agent/node.py's
SLEPT_MIN_S = 0.05
DRAIN_S = (0.0, 0.1)  # logs and error files
STACKS_S = (0.001, 4.5)  # until they are saved
SCRIPT = "train.py"


class SimulatedProcesses:
    """``perform`` maps each command to what does it, for one agent on one node."""

    def __init__(
        self,
        agent: str,
        node: Node,
        loop: NodeLoop,
        driver: Driver,
        keeper: Keeper,
        workload: Workload,
        trace: Trace,
        *,
        nproc: int,
        ttl_s: float,
        has_single_restarts: bool = False,
        progressed: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._agent = agent
        self._node = node
        self._loop = loop
        self._driver = driver
        self._keeper = keeper
        self._workload = workload
        self._progressed = progressed
        self._trace = trace
        self._nproc = nproc
        self.round: Round | None = None
        self.workers: dict[int, Worker] = {}
        self._ended: dict[int, int] = {}
        self._recorded_at: dict[int, float] = {}
        self.progress = Progress()
        self._is_watching_tree = False
        self._next_port = 29400 + node.rng.randrange(1000)
        self._ttl_s = ttl_s
        self._boot_offset_s = self._offset_s()
        self._alarm: Entry | None = None
        self.perform: dict[type, Callable[[Any], None]] = {
            AnnounceCheckpoint: lambda _: self._ask_to_save(),
            AnnounceStop: _nothing,
            CollectEvidence: self._collect_evidence,
            EndSlow: self._end_slow,
            Fence: self._set_fence,
            HoldPort: self._hold_port,
            NameStuck: self._name_stuck,
            PassOn: _nothing,
            ReleasePort: _nothing,
            SaveStacks: self._save_stacks,
            Say: lambda command: self.say(command.text),
            SignalTree: self._signal_tree,
            SignalWorkers: self._signal_workers,
            SpawnWorkers: self._spawn_workers,
            WarnWorkers: _nothing,
        }
        self._single_restarts = SimulatedSingleRestarts(self, driver) if has_single_restarts else None
        if self._single_restarts is not None:
            self.perform |= self._single_restarts.perform

    def say(self, text: str) -> None:
        """A line on the console."""
        self._trace.add(Line(self._agent, text))

    @property
    def is_empty(self) -> bool:
        """Whether no process of the job is left here."""
        return not self._node.of_job(self._agent)

    # Commands

    def _spawn_workers(self, command: SpawnWorkers) -> None:
        self.round = command.round
        self.workers.clear()
        self._ended.clear()
        self._recorded_at.clear()
        self.progress = Progress()
        self._is_watching_tree = False
        one = self._workload.rng.randrange(self._nproc)
        if self.cannot_start(one, command.round):
            self._driver.post(SpawnFailed(one, 127, "No such file or directory"))
            return
        pids = {
            local_rank: self.start(local_rank, command.round).process.pid for local_rank in range(self._nproc)
        }
        self._driver.post(WorkersSpawned(pids))

    def cannot_start(self, local_rank: int, settled: Round) -> bool:
        """Whether the command is missing just now; then that is a fault of this worker."""
        if self._workload.rng.random() >= self._workload.habits.cannot_start:
            return False
        self._trace.add(Fault("cannot start", self._agent, settled.rank(local_rank), settled.number))
        return True

    def start(self, local_rank: int, settled: Round) -> Worker:
        """Start one worker; one that has ended may have had its place."""
        self._recorded_at.pop(local_rank, None)
        employer = Employer(
            self._agent,
            ended=self._worker_ended,
            recorded=self._recorded,
            child_ended=self._child_ended,
            progressed=lambda worker, step: self._told(worker, self._made_progress, step),
            checkpointed=lambda worker, step: self._told(worker, self._checkpoint_done, step),
            exclude=lambda worker: self._told(worker, self._exclude, worker.local_rank),
        )
        worker = self._workload.start(self._node, self._agent, employer, settled, local_rank)
        self.workers[local_rank] = worker
        return worker

    def _signal_workers(self, command: SignalWorkers) -> None:
        for worker in self.workers.values():
            worker.process.signal(command.signal)

    def _save_stacks(self, command: SaveStacks) -> None:
        self._trace.add(Line(self._agent, f"stacks saved: {command.reason}"))
        saved = StacksSaved(command.number)
        self._node.after(self._node.rng.uniform(*STACKS_S), self._loop.call_soon, self._driver.post, saved)

    def _end_slow(self, command: EndSlow) -> None:
        for worker in self.workers.values():
            if worker.process.pid == command.pid and worker.local_rank not in self._ended:
                self._trace.add(Fault("too slow", self._agent, worker.rank, worker.round.number))
                worker.process.signal(command.signal)

    def is_too_slow(self, local_rank: int, scope: str) -> None:
        """The timer of this worker is over."""
        expired = TimerExpired(self.workers[local_rank].process.pid, Signals.SIGKILL, scope)
        self._loop.call_soon(self._driver.post, expired)

    def _signal_tree(self, command: SignalTree) -> None:
        for process in self._node.of_job(self._agent):
            process.signal(command.signal, "its agent swept")
        self._is_watching_tree = True
        if self.is_empty:
            self._driver.post(TreeEmptied())

    def _ask_to_save(self) -> None:
        for worker in self.workers.values():
            self._node.after(self._node.rng.uniform(*CHANNEL_S), worker.ask_to_save)

    def _name_stuck(self, command: NameStuck) -> None:
        for process in self._node.of_job(self._agent):
            self.say(f"process {process.pid} was killed and the kernel does not let it go")

    def _set_fence(self, command: Fence) -> None:
        """As ``agent/node.py``, with an alarm by boot time that is early enough to renew the lease."""
        at = None if command.at is None else command.at + self._boot_offset_s
        self._keeper.fence(at)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if at is not None:
            due = self._node.clock.true_at_boottime(at - self._ttl_s * ALARM_BEFORE_FENCE) + HAIR_S
            self._alarm = self._node.after(due - self._node.timeline.now, self._loop.call_soon, self._ring)

    def _ring(self) -> None:
        for event in self.look_at_the_clocks():
            self._driver.post(event)

    def look_at_the_clocks(self) -> list[object]:
        """Whether the node was suspended since the last look."""
        offset_s = self._offset_s()
        slept_s = offset_s - self._boot_offset_s
        if slept_s < SLEPT_MIN_S:
            return []
        self._boot_offset_s = offset_s
        return [Slept(slept_s)]

    def _offset_s(self) -> float:
        return self._node.clock.boottime() - self._node.clock.monotonic()

    def _hold_port(self, command: HoldPort) -> None:
        self._next_port += 1
        self._driver.post(PortHeld(command.number, self._next_port))

    def _collect_evidence(self, command: CollectEvidence) -> None:
        if self._single_restarts is not None:
            self._single_restarts.unwatch()
        failures = tuple(self.failure(end) for end in command.exits if end.exit_code != 0 or end.is_straggler)
        self.after_drain(self._collected, failures, self.progress)

    def after_drain(self, callback: Callable[..., None], *args: object) -> None:
        """Call back when logs and error files are read."""
        self._loop.call_later(self._node.rng.uniform(*DRAIN_S), callback, *args)

    def _collected(self, failures: tuple[Failure, ...], progress: Progress) -> None:
        self._driver.post(EvidenceCollected(failures, progress.step, progress.checkpoint))

    def failure(self, end: Exit) -> Failure:
        """What can be said of one worker's end."""
        assert self.round is not None, "workers are of a round"
        known: dict[str, Any] = {
            "rank": self.round.rank(end.local_rank),
            "local_rank": end.local_rank,
            "host": self._node.name,
            "group_rank": self.round.group_rank,
            "group_world_size": self.round.group_world_size,
            "round": self.round.number,
            "exited_at": end.at,
        }
        if end.why_not_started:
            return Failure(
                **known,
                pid=0,
                exit_code=end.exit_code,
                why_not_started=end.why_not_started,
                cannot_heal="a command that cannot be executed",
            )
        worker = self.workers[end.local_rank]
        signs = [one for one in (end.signed_at, self._recorded_at.get(end.local_rank)) if one is not None]
        exception = worker.message.partition(":")[0]
        return Failure(
            **known,
            pid=worker.process.pid,
            exit_code=end.exit_code or 1,
            signed_at=min(signs, default=None),
            stopped_at=None if end.is_straggler else end.stopped_at,
            own_exit_code=1 if worker.message else None,
            summary=worker.message or _cause_of(end.exit_code),
            exception=exception,
            message=worker.message,
            master_port_taken=worker.rank == 0 and worker.message == PORT_TAKEN,
            cannot_heal=what_cannot_heal(exception, SCRIPT, end.exit_code, is_silent=not worker.message),
        )

    # What happens to processes

    def _worker_ended(self, worker: Worker) -> None:
        exit_code = worker.process.exit_code
        assert exit_code is not None
        if self.workers.get(worker.local_rank) is not worker:
            return
        if not self._ended:
            self._loop.call_soon(self._reap)
        self._ended[worker.local_rank] = exit_code
        self._tree_changed_soon()

    def _reap(self) -> None:
        codes, self._ended = self._ended, {}
        if codes:
            self._driver.post(WorkersExited(codes))

    def _child_ended(self, worker: Worker) -> None:
        self._tree_changed_soon()
        if self._single_restarts is not None and self.workers.get(worker.local_rank) is worker:
            self._loop.call_soon(self._single_restarts.changed, worker.local_rank)

    def _tree_changed_soon(self) -> None:
        if self._is_watching_tree:
            self._loop.call_soon(self._tree_changed)

    def _tree_changed(self) -> None:
        if self._is_watching_tree:
            self._driver.post(TreeEmptied() if self.is_empty else MembersRemain())

    def _recorded(self, worker: Worker, message: str) -> None:
        if self.workers.get(worker.local_rank) is not worker:
            return
        at = self._recorded_at[worker.local_rank] = self._node.clock.monotonic()
        event = ExceptionSeen(worker.local_rank, at, message[:200])
        self._node.after(self._node.rng.uniform(*CHANNEL_S), self._loop.call_soon, self._driver.post, event)

    # What workers tell over the socket

    def _told(self, worker: Worker, take: Callable[[int], object], number: int) -> None:
        def unless_old() -> None:
            if self.workers.get(worker.local_rank) is worker:
                take(number)

        self._node.after(self._node.rng.uniform(*CHANNEL_S), self._loop.call_soon, unless_old)

    def _made_progress(self, step: int) -> None:
        self.progress.made(step)
        self._progressed(step)

    def _checkpoint_done(self, step: int) -> None:
        self.progress.checkpoint_done(step)
        self._driver.post(WorkerTold(CheckpointDone(step)))

    def _exclude(self, local_rank: int) -> None:
        self._driver.post(WorkerTold(NodeExcluded(f"local rank {local_rank} asks for it: a test")))


def _nothing(_command: object) -> None:
    """The simulated world has neither sockets nor signals that are passed on."""


def _cause_of(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {Signals(-exit_code).name}"
    return f"exit code {exit_code}"
