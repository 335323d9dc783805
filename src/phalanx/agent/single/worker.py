"""One worker whose restarts are single (``--restart-scope worker``). Pure.

    RUNNING ──failed──▶ SWEEPING ──nothing of it is left──▶ EXAMINING ──evidence──▶ WAITING ──granted──▶ DELAYED
       ▲          │                                            ▲                                           │
       │          └──what SIGKILL does not end──▶ STUCK        │                                           │
       └────────────────────────── started ── STARTING ──not───┘     STARTING ◀────────── time ────────────┘

Between its end and its restart the others run on. What it left behind is ended first, with a stop machine of its
own; whether there is a restart is the leader's answer. A group that is stopped meanwhile takes it for ended; and
what is stuck stops the group, for nothing may be started beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, ClassVar

from phalanx.agent.group import Exit
from phalanx.agent.verdict.verdict import Failure
from phalanx.machine import Arrow, Machine, Void
from phalanx.multiprocessing.machine import (
    DeadlinePassed,
    MembersRemain,
    SignalTree,
    StopMachine,
    StopState,
    SweepRequested,
    TreeEmptied,
    WorkerExited,
)
from phalanx.records import Struct, changed
from phalanx.rendezvous.round import Round

__all__ = [
    "AskLeader",
    "BranchEmptied",
    "BranchRemains",
    "ExamineWorker",
    "OfWorker",
    "SignalBranch",
    "SingleEnded",
    "SingleState",
    "SingleWorker",
    "SingleWorkers",
    "StartWorker",
    "WorkerExamined",
    "WorkerGranted",
    "WorkerNotStarted",
    "WorkerStarted",
    "granted_line",
]


class SingleState(Enum):
    """Where one worker is."""

    RUNNING = auto()
    SWEEPING = auto()
    STUCK = auto()
    EXAMINING = auto()
    WAITING = auto()
    DELAYED = auto()
    STARTING = auto()


# Events


class OfWorker(Struct):
    """Base of the events that concern one worker alone."""

    local_rank: int


class SingleEnded(Struct):
    """The worker has ended badly."""

    exit: Exit


class BranchEmptied(OfWorker):
    """A scan found nothing of what the worker had started."""


class BranchRemains(OfWorker):
    """A scan after a death found something of it."""


class WorkerExamined(OfWorker):
    """Its logs are drained, and what it left is read."""

    failures: tuple[Failure, ...]
    step: int | None = None
    """The furthest that workers of this node have told of in this round."""
    checkpoint: int | None = None


class WorkerGranted(OfWorker):
    """The leader has charged the failure: there is another life, ``delay_s`` from now."""

    restart_count: int
    reason: str
    delay_s: float


class WorkerStarted(OfWorker):
    """It runs again."""

    pid: int


class WorkerNotStarted(OfWorker):
    """It could not be started; that is a failure of its own."""

    exit_code: int
    reason: str


# Commands


class SignalBranch(Struct):
    """Send ``signal`` to all that this ended worker has started, to nothing else, and tell if there is none."""

    local_rank: int
    signal: int


class ExamineWorker(Struct):
    """Drain its logs, read what it left, and report ``WorkerExamined``."""

    exit: Exit


class AskLeader(Struct):
    """Ask the leader for another life of this worker; the last one took ``life_s``."""

    examined: WorkerExamined
    life_s: float


class StartWorker(Struct):
    """Start this worker alone; the round tells its restart count and the reason."""

    local_rank: int
    round: Round


class SingleWorker(Machine[SingleState]):
    """One worker. ``exit``: how its latest life ended, from SWEEPING on."""

    def __init__(self, local_rank: int, settled: Round, now: float) -> None:
        self.state = SingleState.RUNNING
        self.local_rank = local_rank
        self.exit: Exit | None = None
        self._round = settled
        self._began_at = now
        self._life_s = 0.0
        self._stop = StopMachine((local_rank,))

    @property
    def is_over(self) -> bool:
        """No process of it is there, and none is being started."""
        return self.state not in (SingleState.RUNNING, SingleState.STARTING)

    # Arrows

    def _failed(self, event: SingleEnded, now: float) -> list[Any]:
        self.state = SingleState.SWEEPING
        self.exit = event.exit
        self._life_s = now - self._began_at
        self._stop = StopMachine((self.local_rank,))
        self._stop.step(WorkerExited(self.local_rank), now)
        return self._sweep(SweepRequested(), now)

    def _emptied(self, event: BranchEmptied, now: float) -> list[Any]:
        return self._sweep(TreeEmptied(), now)

    def _remains(self, event: BranchRemains, now: float) -> list[Any]:
        return self._sweep(MembersRemain(), now)

    def _sweep_time(self, event: DeadlinePassed, now: float) -> list[Any]:
        return self._sweep(event, now)

    def _examined(self, event: WorkerExamined, now: float) -> list[Any]:
        self.state = SingleState.WAITING
        return [AskLeader(event, self._life_s)]

    def _granted(self, event: WorkerGranted, now: float) -> list[Any]:
        self._round = changed(self._round, restart_count=event.restart_count, reason=event.reason)
        if event.delay_s > 0:
            self.state, self.deadline = SingleState.DELAYED, now + event.delay_s
            return []
        return self._start(now)

    def _delay_time(self, event: DeadlinePassed, now: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        return self._start(now)

    def _started(self, event: WorkerStarted, now: float) -> None:
        self.state = SingleState.RUNNING
        self.exit = None
        self._began_at = now

    def _not_started(self, event: WorkerNotStarted, now: float) -> list[Any]:
        self.state = SingleState.EXAMINING
        self._life_s = 0.0
        self.exit = Exit(self.local_rank, event.exit_code, now, None, None, event.reason)
        return [ExamineWorker(self.exit)]

    # Parts of arrows

    def _start(self, now: float) -> list[Any]:
        self.state, self.deadline = SingleState.STARTING, None
        return [StartWorker(self.local_rank, self._round)]

    def _sweep(self, event: object, now: float) -> list[Any]:
        commands = self._stop.step(event, now)
        self.deadline = self._stop.deadline
        if self._stop.is_stuck:
            self.state = (
                SingleState.STUCK
            )  # it is named when all have been stopped, if it is still there then
            return []
        if self._stop.state is StopState.ENDED:
            assert self.exit is not None, "it has ended"
            self.state = SingleState.EXAMINING
            return [ExamineWorker(self.exit)]
        signals = [one.signal for one in commands if isinstance(one, SignalTree)]
        assert len(signals) == len(commands), "a worker that has ended gets no signal of its own"
        return [SignalBranch(self.local_rank, one) for one in signals]

    def check(self) -> None:
        """A deadline stands while something is swept or delayed; whoever is over has an end."""
        is_timed = self.state in (SingleState.SWEEPING, SingleState.DELAYED)
        assert (self.deadline is not None) == is_timed, (self.state, self.deadline)
        assert not self.is_over or self.exit is not None, "it ended somehow"

    _NOT_SWEPT = Void(
        "nothing of it is being ended: the scan was the sweep's last, or came when we had given up"
    )
    _LATE = Void("a deadline of the past, or another worker's")

    table: ClassVar[dict[type, dict[SingleState, Arrow | Void]]] = {
        SingleEnded: {SingleState.RUNNING: _failed},
        BranchEmptied: {
            **dict.fromkeys(SingleState, _NOT_SWEPT),
            SingleState.SWEEPING: _emptied,
        },
        BranchRemains: {
            **dict.fromkeys(SingleState, _NOT_SWEPT),
            SingleState.SWEEPING: _remains,
        },
        WorkerExamined: {SingleState.EXAMINING: _examined},
        WorkerGranted: {SingleState.WAITING: _granted},
        WorkerStarted: {SingleState.STARTING: _started},
        WorkerNotStarted: {SingleState.STARTING: _not_started},
        DeadlinePassed: {
            **dict.fromkeys(SingleState, _LATE),
            SingleState.SWEEPING: _sweep_time,
            SingleState.DELAYED: _delay_time,
        },
    }


class SingleWorkers:
    """The workers of a group with single restarts."""

    def __init__(self) -> None:
        self._workers: dict[int, SingleWorker] = {}

    def begin(self, local_ranks: Iterable[int], settled: Round, now: float) -> None:
        """All of them run."""
        self._workers = {one: SingleWorker(one, settled, now) for one in local_ranks}

    @property
    def deadline(self) -> float | None:
        """When to call ``time_passed``."""
        return min((one.deadline for one in self._workers.values() if one.deadline is not None), default=None)

    def over(self) -> tuple[Exit, ...]:
        """The ends of those that have failed and are not started again yet."""
        return tuple(one.exit for one in self._workers.values() if one.is_over and one.exit is not None)

    @property
    def stuck(self) -> set[int]:
        """Local ranks of those that have left what SIGKILL does not end."""
        return {one.local_rank for one in self._workers.values() if one.state is SingleState.STUCK}

    def failed(self, end: Exit, now: float) -> list[Any]:
        """One has ended badly."""
        return self._workers[end.local_rank].step(SingleEnded(end), now)

    def step(self, event: OfWorker, now: float) -> list[Any]:
        """Something has happened to one of them."""
        return self._workers[event.local_rank].step(event, now)

    def time_passed(self, now: float) -> list[Any]:
        """Take what is due. Nothing is started when something is stuck."""
        due = [one for one in self._workers.values() if one.deadline is not None and now >= one.deadline]
        commands: list[Any] = []
        for one in sorted(due, key=lambda it: it.state is SingleState.DELAYED):
            if one.state is SingleState.DELAYED and self.stuck:
                break
            commands += one.step(DeadlinePassed(), now)
        return commands


def granted_line(event: WorkerGranted) -> str:
    """One printed line: ``rank 3 failed: … (restart 2 of 5); started again alone``."""
    when = f"is started again alone in {event.delay_s:.1f} s" if event.delay_s > 0 else "started again alone"
    return f"{event.reason}; {when}"
