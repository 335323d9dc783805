"""The agent of one node: rounds of a worker group until the job has succeeded, failed for good, or was told to stop.

    FORMING ──settled──▶ RUNNING ──group ended──▶ COLLECTING ──▶ FORMING (the policy tries again) or ENDED
                            └──asked to stop──▶ LEAVING ──group ended──▶ COLLECTING ──▶ ENDED

It owns the group machine and asks the restart policy; it decides, and ``driver`` performs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from signal import Signals
from typing import Any, ClassVar

from phalanx.agent.group import (
    DeadlinePassed,
    ExceptionSeen,
    Exit,
    GroupMachine,
    GroupState,
    MembersRemain,
    RoundSettled,
    Say,
    SpawnFailed,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.policy import Budget, GiveUp, decide, describe
from phalanx.agent.verdict import EX_UNAVAILABLE, Ending, Failure, Verdict, judge
from phalanx.machine import Arrow, Machine, Void
from phalanx.multiprocessing.machine import StopRepeated
from phalanx.records import Struct

__all__ = [
    "AgentMachine",
    "AgentState",
    "CollectEvidence",
    "EvidenceCollected",
    "Finish",
    "JobBegan",
    "OpenRound",
    "PassOn",
    "RoundFailed",
    "SignalPassed",
]


class AgentState(Enum):
    """Where the job is, seen from this node."""

    NEW = auto()
    FORMING = auto()
    RUNNING = auto()
    LEAVING = auto()
    COLLECTING = auto()
    ENDED = auto()


# Events (those of the group are taken too)


class JobBegan(Struct):
    """The driver is ready."""


class RoundFailed(Struct):
    """No round could be formed."""

    reason: str


class EvidenceCollected(Struct):
    """Logs are drained and error files read: the failures of the round that ended (empty when all succeeded)."""

    failures: tuple[Failure, ...]


class SignalPassed(Struct):
    """A signal that stops nothing arrived; workers are to have it too."""

    signal: int


# Commands


class OpenRound(Struct):
    """Agree on the next round."""

    number: int
    restart_count: int
    reason: str


class CollectEvidence(Struct):
    """Drain the logs, read what the failed workers left, and report ``EvidenceCollected``."""

    exits: tuple[Exit, ...]


class PassOn(Struct):
    """Deliver a signal to each worker that is prepared for it."""

    signal: int


class Finish(Struct):
    """The job is over."""

    verdict: Verdict


class AgentMachine(Machine[AgentState]):
    """See the module's docstring. ``verdict`` is set when ``state`` is ENDED."""

    def __init__(self, nproc: int, *, max_restarts: int, grace_s: float) -> None:
        self.state = AgentState.NEW
        self.verdict: Verdict | None = None
        self._nproc = nproc
        self._grace_s = grace_s
        self._round_number = 0
        self._budget = Budget(max_restarts=max_restarts)
        self._asked: StopAsked | None = None
        self.group = GroupMachine(nproc, grace_s=grace_s)

    # Arrows

    def _begin(self, event: JobBegan, now: float) -> list[Any]:
        return self._next_round("")

    def _settled(self, event: RoundSettled, now: float) -> list[Any]:
        self.state = AgentState.RUNNING
        self.group = GroupMachine(self._nproc, grace_s=self._grace_s)
        return self._ask_group(event, now)

    def _not_formed(self, event: RoundFailed, now: float) -> list[Any]:
        return self._end(Verdict(ending=Ending.FAILED, exit_code=EX_UNAVAILABLE, reason=event.reason))

    def _ask_group(self, event: object, now: float) -> list[Any]:
        commands = self.group.step(event, now)
        self.deadline = self.group.deadline
        if self.group.state is GroupState.ENDED and self.state is not AgentState.COLLECTING:
            self.state = AgentState.COLLECTING
            commands = [*commands, CollectEvidence(self.group.exits())]
        return commands

    def _stop_before_workers(self, event: StopAsked, now: float) -> list[Any]:
        self._asked = event
        return self._end(self._stopped())

    def _leave(self, event: StopAsked, now: float) -> list[Any]:
        self._asked = event
        self.state = AgentState.LEAVING
        return [Say(self._stop_line(event)), *self._ask_group(event, now)]

    def _leave_faster(self, event: StopAsked, now: float) -> list[Any]:
        return self._ask_group(StopRepeated(), now)

    def _remember_stop(self, event: StopAsked, now: float) -> None:
        self._asked = self._asked or event  # the first one names the exit code

    def _judge(self, event: EvidenceCollected, now: float) -> list[Any]:
        if not event.failures and not self.group.was_stopped:
            return self._end(Verdict(ending=Ending.SUCCEEDED, exit_code=0))
        if self._asked is not None:
            return self._end(self._judge_after_stop(event.failures))
        decision = decide(event.failures, self._budget)
        if isinstance(decision, GiveUp):
            return self._end(judge(event.failures, reason=decision.reason))
        self._budget = decision.budget
        return [
            Say(f"{decision.reason}; starting all {self._nproc} workers anew"),
            *self._next_round(decision.reason),
        ]

    def _pass_on(self, event: SignalPassed, now: float) -> list[Any]:
        return [PassOn(event.signal)]

    # Parts of arrows

    def _next_round(self, reason: str) -> list[Any]:
        self.state = AgentState.FORMING
        self._round_number += 1
        return [OpenRound(self._round_number, self._budget.charged, reason)]

    def _stop_line(self, event: StopAsked) -> str:
        name = Signals(event.signal).name
        if self.group.state is GroupState.STOPPING:
            return f"{name}: the workers are being stopped already; again to end them at once"
        many = f"{self._nproc} workers" if self._nproc > 1 else "the worker"
        return f"{name}: asked {many} to stop, {event.grace_s:g} s of grace; again to end at once"

    def _stopped(self) -> Verdict:
        assert self._asked is not None, "a job is stopped because somebody asked"
        signal = self._asked.signal
        return Verdict(
            ending=Ending.STOPPED, exit_code=128 + signal, reason=f"stopped by {Signals(signal).name}"
        )

    def _judge_after_stop(self, failures: Sequence[Failure]) -> Verdict:
        """A failure that came before the request is still the end of the job, unless it would have been retried."""
        own = [one for one in failures if not one.is_collateral]
        if own and isinstance(decide(own, self._budget), GiveUp):
            return judge(
                failures, reason=f"{describe(own[0])} before {Signals(self._asked_signal()).name} arrived"
            )
        return self._stopped()

    def _asked_signal(self) -> int:
        assert self._asked is not None
        return self._asked.signal

    def _end(self, verdict: Verdict) -> list[Any]:
        self.state = AgentState.ENDED
        self.deadline = None
        self.verdict = verdict
        return [Finish(verdict)]

    def check(self) -> None:
        """The budget holds, the verdict is the end, and workers live only inside a round."""
        assert self._budget.charged <= self._budget.max_restarts, "the budget is overdrawn"
        assert (self.verdict is not None) == (self.state is AgentState.ENDED), (
            "a verdict is the end, and the end has one"
        )
        live = self.group.live and self.group.state is not GroupState.ENDED
        assert not live or self.state in (AgentState.RUNNING, AgentState.LEAVING), (
            "workers run only in a round"
        )

    _EARLY = Void("no round has settled, so no worker exists")
    _LATE = Void("this round's workers are gone; only evidence of them is still read")
    _OVER = Void("the verdict is spoken")
    _GROUP: ClassVar[dict[AgentState, Arrow | Void]] = {
        AgentState.RUNNING: _ask_group,
        AgentState.LEAVING: _ask_group,
    }
    _GROUP_OR_LATE: ClassVar[dict[AgentState, Arrow | Void]] = {
        **_GROUP,
        AgentState.FORMING: _LATE,
        AgentState.COLLECTING: _LATE,
        AgentState.ENDED: _OVER,
    }

    table: ClassVar[dict[type, dict[AgentState, Arrow | Void]]] = {
        JobBegan: {AgentState.NEW: _begin, AgentState.ENDED: Void("told to stop before it began")},
        RoundSettled: {AgentState.FORMING: _settled, AgentState.ENDED: _OVER},
        RoundFailed: {AgentState.FORMING: _not_formed, AgentState.ENDED: _OVER},
        WorkersSpawned: _GROUP,
        SpawnFailed: _GROUP,
        WorkersExited: _GROUP_OR_LATE,
        ExceptionSeen: {AgentState.NEW: _EARLY, **_GROUP_OR_LATE},
        TreeEmptied: _GROUP_OR_LATE,
        MembersRemain: _GROUP_OR_LATE,
        DeadlinePassed: {AgentState.NEW: _EARLY, **_GROUP_OR_LATE},
        EvidenceCollected: {AgentState.COLLECTING: _judge},
        StopAsked: {
            AgentState.NEW: _stop_before_workers,
            AgentState.FORMING: _stop_before_workers,
            AgentState.RUNNING: _leave,
            AgentState.LEAVING: _leave_faster,
            AgentState.COLLECTING: _remember_stop,
            AgentState.ENDED: _OVER,
        },
        SignalPassed: {
            AgentState.NEW: _EARLY,
            AgentState.FORMING: _EARLY,
            AgentState.RUNNING: _pass_on,
            AgentState.LEAVING: _pass_on,
            AgentState.COLLECTING: _LATE,
            AgentState.ENDED: _OVER,
        },
    }
