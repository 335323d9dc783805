"""The worker group of one node in one round: started together, watched, and ended together.

It decides when the group must stop (a worker failed, a worker could not be started, all are done, somebody asked)
and keeps what the verdict needs: who ended when, and who had been asked to stop by then. *How* a group is stopped is
the stop machine's affair, which it owns. It never restarts anything: that is the agent machine's decision.
"""

from __future__ import annotations

from enum import Enum, auto
from signal import Signals
from typing import Any, ClassVar

from phalanx.agent.announcing import Announced, AnnounceStop, NoStepLeft
from phalanx.agent.exits import Exit
from phalanx.machine import Arrow, Machine, Void
from phalanx.multiprocessing.machine import (
    DeadlinePassed,
    MembersRemain,
    StopMachine,
    StopRepeated,
    StopRequested,
    StopState,
    SweepRequested,
    TreeEmptied,
    WorkerExited,
)
from phalanx.records import Struct
from phalanx.rendezvous.round import Round

__all__ = [
    "AnnounceStop",
    "DeadlinePassed",
    "ExceptionSeen",
    "Exit",
    "GroupMachine",
    "GroupState",
    "MembersRemain",
    "RoundSettled",
    "Say",
    "SpawnFailed",
    "SpawnWorkers",
    "StopAsked",
    "StragglersFound",
    "TreeEmptied",
    "WorkersExited",
    "WorkersSpawned",
]


RANKS_NAMED_MAX = 8  # a line is for people


class GroupState(Enum):
    """Where the group is."""

    IDLE = auto()
    STARTING = auto()
    RUNNING = auto()
    STOPPING = auto()
    ENDED = auto()


# Events


class RoundSettled(Struct):
    """The membership is agreed: this node's workers can start."""

    round: Round


class WorkersSpawned(Struct):
    """All workers of this node run; local rank → process id."""

    pids: dict[int, int]


class SpawnFailed(Struct):
    """One worker's command could not be executed; those that ran already have been ended."""

    local_rank: int
    exit_code: int
    reason: str


class WorkersExited(Struct):
    """Workers found ended in one look: local rank → exit code (negative: the signal that killed it)."""

    codes: dict[int, int]


class ExceptionSeen(Struct):
    """A worker told that it has recorded an exception, ``at`` monotonic seconds. It may still run for a while."""

    local_rank: int
    at: float
    message: str = ""


class StragglersFound(Struct):
    """Workers of other nodes ended so long ago that those which still run here count as failed."""


class StopAsked(Struct):
    """The workers are to stop: somebody outside asked this agent, by a signal, or they are not needed any more."""

    signal: int
    grace_s: float
    warn_signal: int | None = None
    """What workers get ahead of it; then they have ``warn_s`` to end by themselves."""
    warn_s: float = 0.0
    by_program: bool = False
    """The program that hosts this agent asked, and nobody has sent a signal."""
    cause: str = "asked"
    """For workers, which may agree on a step to stop at: asked, planned, failure, loss, end."""


# Commands


class SpawnWorkers(Struct):
    """Start the workers of this round, all of them or none."""

    round: Round


class Say(Struct):
    """Print one line."""

    text: str


class GroupMachine(Machine[GroupState]):
    """See the module's docstring. ``exits`` is complete when ``state`` is ENDED.

    ``grace_s`` is for workers that are stopped because one of them failed, or because they still run.
    """

    def __init__(self, nproc: int, *, grace_s: float, straggler_s: float | None = None) -> None:
        self.state = GroupState.IDLE
        self.nproc = nproc
        self.grace_s = grace_s
        self._straggler_s = straggler_s
        self.stragglers: set[int] = set()
        self.round: Round | None = None
        self.pids: dict[int, int] = {}
        self._codes: dict[int, tuple[int, float]] = {}
        self._signed_at: dict[int, float] = {}
        self._stopped_at: dict[int, float] = {}
        self._not_started: SpawnFailed | None = None
        self._asked_early: list[StopAsked] = []
        self._announced = Announced()
        self._stop = StopMachine(range(nproc))

    @property
    def live(self) -> set[int]:
        """Local ranks that have been started and have not ended."""
        return set(self.pids) - set(self._codes)

    @property
    def running(self) -> set[int]:
        """Those of them that would hear of a stop."""
        return self.live

    @property
    def was_stopped(self) -> bool:
        """Some worker was asked to stop while it ran."""
        return bool(self._stopped_at)

    @property
    def stopped_ranks(self) -> list[int]:
        """Global ranks of those that were asked to stop, but for stragglers, who have failed by that."""
        if self.round is None:
            return []
        return [self.round.rank(one) for one in self._stopped_at if one not in self.stragglers]

    @property
    def is_stuck(self) -> bool:
        """It has ended, and something is left all the same that the kernel does not let go."""
        return self._stop.is_stuck

    def exits(self) -> tuple[Exit, ...]:
        """One entry per worker that has ended; in state ENDED, one per worker that was started.

        A worker that the kernel would not let go counts as killed: it was sent SIGKILL and never came back.
        """
        codes = dict(self._codes)
        if self.state is GroupState.ENDED:
            for local_rank in self.live:
                codes[local_rank] = (-Signals.SIGKILL, self._stopped_at.get(local_rank, 0.0))
        found = [
            Exit(
                local_rank,
                code,
                at,
                self._stopped_at.get(local_rank),
                self._signed_at.get(local_rank),
                self._not_started.reason
                if self._not_started is not None and self._not_started.local_rank == local_rank
                else "",
                local_rank in self.stragglers,
            )
            for local_rank, (code, at) in sorted(codes.items())
        ]
        return tuple(found)

    # Arrows

    def _enter(self, event: RoundSettled, now: float) -> list[Any]:
        self.state = GroupState.STARTING
        self.round = event.round
        return [SpawnWorkers(event.round)]

    def _spawned(self, event: WorkersSpawned, now: float) -> list[Any]:
        self.state = GroupState.RUNNING
        self.pids = dict(event.pids)
        commands: list[Any] = []
        for early in self._asked_early:
            was_asked = self.state is GroupState.STOPPING
            commands += self._asked_again(early, now) if was_asked else self._asked(early, now)
        return commands

    def _asked_too_early(self, event: StopAsked, now: float) -> None:
        self._asked_early.append(event)

    def _not_spawned(self, event: SpawnFailed, now: float) -> list[Any]:
        self._not_started = event
        self._codes[event.local_rank] = (event.exit_code, now)
        for local_rank in range(self.nproc):  # the stop machine waits for no worker that does not exist
            self._stop.step(WorkerExited(local_rank), now)
        return self._sweep(now)

    def _exited(self, event: WorkersExited, now: float) -> list[Any]:
        commands = self._take_exits(event, now)
        if any(code != 0 for code in event.codes.values()) and self.live:
            told = Say(self._failure_line(event.codes))
            return [*commands, told, *self._asked(self._because_of_failure(), now)]
        if not self.live:
            return commands + self._sweep(now)
        if self._straggler_s is not None and self.deadline is None:
            self.deadline = now + self._straggler_s
        return commands

    def _stragglers_due(self, event: DeadlinePassed, now: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        return self._stop_stragglers(event, now)

    def _stop_stragglers(self, event: object, now: float) -> list[Any]:
        self.stragglers = set(self.live)
        # The leader of the job may know of a limit that this agent was not given.
        late = "long" if self._straggler_s is None else f"{self._straggler_s:g} s"
        told = Say(
            f"{self._ranks(self.live)} still ran {late} after others had ended (--straggler-timeout): "
            f"asked to stop, {self.grace_s:g} s of grace"
        )
        return [told, *self._asked(self._because_of_failure(), now)]

    def _exited_while_stopping(self, event: WorkersExited, now: float) -> list[Any]:
        return self._settle(self._take_exits(event, now))

    def _sign(self, event: ExceptionSeen, now: float) -> None:
        self._signed_at.setdefault(event.local_rank, event.at)

    def _asked(self, event: StopAsked, now: float) -> list[Any]:
        self.state = GroupState.STOPPING
        for local_rank in self.live:
            self._stopped_at[local_rank] = now
        request = StopRequested(event.signal, event.grace_s, event.warn_signal, event.warn_s)
        time_s = event.grace_s + (event.warn_s if request.has_warning else 0.0)
        commands = self._settle(self._stop.step(request, now))
        ends_at = now + time_s if self._stop.ends_at is None else self._stop.ends_at
        return [self._announced.first(event.signal, time_s, ends_at, event.cause), *commands]

    def _asked_again(self, event: StopAsked, now: float) -> list[Any]:
        request = StopRequested(event.signal, event.grace_s, event.warn_signal, event.warn_s)
        commands = self._settle(self._stop.step(request, now))
        return [*self._announced.again(event.signal, self._stop.ends_at, event.cause, now), *commands]

    def _no_step(self, event: NoStepLeft, now: float) -> list[Any]:
        return self._announced.no_step_left(self._stop.ends_at, now)

    def _delegate(self, event: object, now: float) -> list[Any]:
        return self._settle(self._stop.step(event, now))

    def _deadline_passed(self, event: DeadlinePassed, now: float) -> list[Any]:
        was = self._stop.state
        commands = self._settle(self._stop.step(event, now))
        told = {
            (StopState.WARNED, StopState.ASKED): "still run after the warning and are asked to stop",
            (StopState.ASKED, StopState.TREE_TERM): "did not end within the grace and will be killed",
        }.get((was, self._stop.state))
        return commands if told is None else [Say(f"{self._ranks(self.live)} {told}"), *commands]

    # Parts of arrows

    def _take_exits(self, event: WorkersExited, now: float) -> list[Any]:
        commands: list[Any] = []
        for local_rank, code in event.codes.items():
            self._codes[local_rank] = (code, now)
        for local_rank in event.codes:
            commands += self._stop.step(WorkerExited(local_rank), now)
        return commands

    def _failure_line(self, codes: dict[int, int]) -> str:
        failed = {local_rank for local_rank, code in codes.items() if code != 0}
        others = f"{len(self.live)} other worker{'s' if len(self.live) > 1 else ''}"
        return f"{self._ranks(failed)} failed: asked {others} to stop, {self.grace_s:g} s of grace"

    def _because_of_failure(self) -> StopAsked:
        return StopAsked(Signals.SIGTERM, self.grace_s, cause="failure")

    def _ranks(self, local_ranks: set[int]) -> str:
        assert self.round is not None, "workers are of a round"
        ranks = sorted(self.round.rank(one) for one in local_ranks)
        listed = ", ".join(map(str, ranks[:RANKS_NAMED_MAX]))
        more = f" and {len(ranks) - RANKS_NAMED_MAX} more" if len(ranks) > RANKS_NAMED_MAX else ""
        return f"rank{'s' if len(ranks) > 1 else ''} {listed}{more}"

    def _sweep(self, now: float) -> list[Any]:
        self.state = GroupState.STOPPING
        return self._settle(self._stop.step(SweepRequested(), now))

    def _settle(self, commands: list[Any]) -> list[Any]:
        self.deadline = self._stop.deadline
        if self._stop.state is StopState.ENDED:
            self.state = GroupState.ENDED
            self.deadline = None
        return commands

    def check(self) -> None:
        """Exits are of our workers; an ended group waits for nothing."""
        assert set(self._codes) <= set(range(self.nproc)), "an exit of a worker that does not exist"
        assert self.state is not GroupState.ENDED or self.deadline is None, "an ended group waits for nothing"

    _NO_WORKERS = Void("no worker exists yet")
    _OVER = Void("the group has ended; what remains to be done is the agent's")

    table: ClassVar[dict[type, dict[GroupState, Arrow | Void]]] = {
        RoundSettled: {GroupState.IDLE: _enter},
        WorkersSpawned: {GroupState.STARTING: _spawned},
        SpawnFailed: {GroupState.STARTING: _not_spawned},
        WorkersExited: {
            GroupState.RUNNING: _exited,
            GroupState.STOPPING: _exited_while_stopping,
            GroupState.ENDED: Void(
                "the kernel let go of a worker after our bounded wait: it counts as killed"
            ),
        },
        ExceptionSeen: {
            GroupState.IDLE: _NO_WORKERS,
            GroupState.STARTING: _sign,
            GroupState.RUNNING: _sign,
            GroupState.STOPPING: _sign,
            GroupState.ENDED: _OVER,
        },
        StopAsked: {
            GroupState.IDLE: Void("the agent ends without workers"),
            GroupState.STARTING: _asked_too_early,
            GroupState.RUNNING: _asked,
            GroupState.STOPPING: _asked_again,
            GroupState.ENDED: _OVER,
        },
        NoStepLeft: {
            GroupState.STARTING: _no_step,
            GroupState.RUNNING: _no_step,
            GroupState.STOPPING: _no_step,
            GroupState.ENDED: _OVER,
        },
        StragglersFound: {
            GroupState.STARTING: Void("they begin only now, in a round that is over: it is stopped for that"),
            GroupState.RUNNING: _stop_stragglers,
            GroupState.STOPPING: Void("they are being stopped for another reason"),
            GroupState.ENDED: _OVER,
        },
        StopRepeated: {
            GroupState.STARTING: Void("the request itself is still waiting for the workers"),
            GroupState.STOPPING: _delegate,
            GroupState.ENDED: _OVER,
        },
        TreeEmptied: {
            GroupState.STOPPING: _delegate,
            GroupState.ENDED: Void("a bounded wait ran out just before the last process went"),
        },
        MembersRemain: {
            GroupState.STOPPING: _delegate,
            GroupState.ENDED: Void("they were named and given up"),
        },
        DeadlinePassed: {
            GroupState.IDLE: Void("a deadline of the past"),
            GroupState.STARTING: Void("a deadline of the past"),
            GroupState.RUNNING: _stragglers_due,
            GroupState.STOPPING: _deadline_passed,
            GroupState.ENDED: Void("a deadline of the past"),
        },
    }
