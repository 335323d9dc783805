"""The performer of a simulated node: it stands where ``agent/node.py`` and ``agent/processes.py`` stand in production.

Commands become processes of a simulated node and their ends become events, in the order and with the delays of a
kernel. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import Signals
from typing import Any

from phalanx.agent.causes import what_cannot_heal
from phalanx.agent.driver import Driver
from phalanx.agent.events import CollectEvidence, EvidenceCollected, PassOn, WorkerTold
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
from phalanx.agent.progress import Progress
from phalanx.agent.verdict import Failure
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
from phalanx.testing.timeline import Entry
from phalanx.testing.trace import Fault, Line, Trace
from phalanx.testing.workload import Employer, Worker, Workload

__all__ = ["SimulatedProcesses"]

CHANNEL_S = (0.0002, 0.005)  # from an exception to the agent, over the socket
ALARM_BEFORE_FENCE = 0.3  # of the ttl; this and the next are agent/node.py's
SLEPT_MIN_S = 0.05
DRAIN_S = (0.0, 0.1)  # logs and error files
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
    ) -> None:
        self._agent = agent
        self._node = node
        self._loop = loop
        self._driver = driver
        self._keeper = keeper
        self._workload = workload
        self._trace = trace
        self._nproc = nproc
        self._round: Round | None = None
        self._workers: dict[int, Worker] = {}
        self._ended: dict[int, int] = {}
        self._recorded_at: dict[int, float] = {}
        self._progress = Progress()
        self._is_watching_tree = False
        self._next_port = 29400 + node.rng.randrange(1000)
        self._ttl_s = ttl_s
        self._boot_offset_s = self._offset_s()
        self._alarm: Entry | None = None
        self.perform: dict[type, Callable[[Any], None]] = {
            AnnounceStop: _nothing,
            CollectEvidence: self._collect_evidence,
            Fence: self._set_fence,
            HoldPort: self._hold_port,
            NameStuck: self._name_stuck,
            PassOn: _nothing,
            ReleasePort: _nothing,
            Say: lambda command: self.say(command.text),
            SignalTree: self._signal_tree,
            SignalWorkers: self._signal_workers,
            SpawnWorkers: self._spawn_workers,
            WarnWorkers: _nothing,
        }

    def say(self, text: str) -> None:
        """A line on the console."""
        self._trace.add(Line(self._agent, text))

    @property
    def is_empty(self) -> bool:
        """Whether no process of the job is left here."""
        return not self._node.of_job(self._agent)

    # Commands

    def _spawn_workers(self, command: SpawnWorkers) -> None:
        self._round = command.round
        self._workers.clear()
        self._ended.clear()
        self._recorded_at.clear()
        self._progress = Progress()
        self._is_watching_tree = False
        if self._workload.rng.random() < self._workload.habits.cannot_start:
            self._cannot_start(command.round)
            return
        employer = Employer(
            self._agent,
            ended=self._worker_ended,
            recorded=self._recorded,
            child_ended=self._tree_changed_soon,
            progressed=lambda worker, step: self._told(worker, self._made_progress, step),
            checkpointed=lambda worker, step: self._told(worker, self._checkpoint_done, step),
            exclude=lambda worker: self._told(worker, self._exclude, worker.local_rank),
        )
        for local_rank in range(self._nproc):
            self._workers[local_rank] = self._workload.start(
                self._node, self._agent, employer, command.round, local_rank
            )
        pids = {local_rank: worker.process.pid for local_rank, worker in self._workers.items()}
        self._driver.post(WorkersSpawned(pids))

    def _cannot_start(self, settled: Round) -> None:
        local_rank = self._workload.rng.randrange(self._nproc)
        self._trace.add(Fault("cannot start", self._agent, settled.rank(local_rank), settled.number))
        self._driver.post(SpawnFailed(local_rank, 127, "No such file or directory"))

    def _signal_workers(self, command: SignalWorkers) -> None:
        for worker in self._workers.values():
            worker.process.signal(command.signal)

    def _signal_tree(self, command: SignalTree) -> None:
        for process in self._node.of_job(self._agent):
            process.signal(command.signal, "its agent swept")
        self._is_watching_tree = True
        if self.is_empty:
            self._driver.post(TreeEmptied())

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
        failures = tuple(
            self._failure(end) for end in command.exits if end.exit_code != 0 or end.is_straggler
        )
        delay_s = self._node.rng.uniform(*DRAIN_S)
        self._loop.call_later(delay_s, self._collected, failures, self._progress)

    def _collected(self, failures: tuple[Failure, ...], progress: Progress) -> None:
        self._driver.post(EvidenceCollected(failures, progress.step, progress.checkpoint))

    def _failure(self, end: Exit) -> Failure:
        assert self._round is not None, "workers are of a round"
        known: dict[str, Any] = {
            "rank": self._round.rank(end.local_rank),
            "local_rank": end.local_rank,
            "host": self._node.name,
            "group_rank": self._round.group_rank,
            "group_world_size": self._round.group_world_size,
            "round": self._round.number,
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
        worker = self._workers[end.local_rank]
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
            cannot_heal=what_cannot_heal(exception, SCRIPT, end.exit_code, is_silent=not worker.message),
        )

    # What happens to processes

    def _worker_ended(self, worker: Worker) -> None:
        exit_code = worker.process.exit_code
        assert exit_code is not None
        if self._workers.get(worker.local_rank) is not worker:
            return
        if not self._ended:
            self._loop.call_soon(self._reap)
        self._ended[worker.local_rank] = exit_code
        self._tree_changed_soon()

    def _reap(self) -> None:
        codes, self._ended = self._ended, {}
        if codes:
            self._driver.post(WorkersExited(codes))

    def _tree_changed_soon(self) -> None:
        if self._is_watching_tree:
            self._loop.call_soon(self._tree_changed)

    def _tree_changed(self) -> None:
        if self._is_watching_tree:
            self._driver.post(TreeEmptied() if self.is_empty else MembersRemain())

    def _recorded(self, worker: Worker, message: str) -> None:
        if self._workers.get(worker.local_rank) is not worker:
            return
        at = self._recorded_at[worker.local_rank] = self._node.clock.monotonic()
        event = ExceptionSeen(worker.local_rank, at, message[:200])
        self._node.after(self._node.rng.uniform(*CHANNEL_S), self._loop.call_soon, self._driver.post, event)

    # What workers tell over the socket

    def _told(self, worker: Worker, take: Callable[[int], object], number: int) -> None:
        def unless_old() -> None:
            if self._workers.get(worker.local_rank) is worker:
                take(number)

        self._node.after(self._node.rng.uniform(*CHANNEL_S), self._loop.call_soon, unless_old)

    def _made_progress(self, step: int) -> None:
        self._progress.made(step)

    def _checkpoint_done(self, step: int) -> None:
        self._progress.checkpoint_done(step)
        self._driver.post(WorkerTold(CheckpointDone(step)))

    def _exclude(self, local_rank: int) -> None:
        self._driver.post(WorkerTold(NodeExcluded(f"local rank {local_rank} asks for it: a test")))


def _nothing(_command: object) -> None:
    """The simulated world has neither sockets nor signals that are passed on."""


def _cause_of(exit_code: int) -> str:
    if exit_code < 0:
        return f"killed by {Signals(-exit_code).name}"
    return f"exit code {exit_code}"
