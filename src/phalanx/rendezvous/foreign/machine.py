"""The membership of an agent whose rendezvous is a handler that somebody else has written. Pure.

    IDLE ─▶ PREPARING ──port──▶ MEETING ──met──▶ RUNNING ──workers gone──▶ PREPARING, AWAITING, or DECIDED
               ▲                                    └──nodes arrived──▶ STOPPING ──workers gone──▶ PREPARING
               └───────────────nodes arrived──────────── AWAITING ──others done──▶ DECIDED ─▶ CLOSING ─▶ CLOSED

Such a handler knows rounds and newcomers, but neither losses nor reports of others. So each node asks the restart
policy about its own failures, and speaks its own verdict; what the nodes share is the count of restarts.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Any, ClassVar

from phalanx.machine import Arrow, Machine, Void
from phalanx.rendezvous.asks import Ask, AskDone, AskHeard, AskSent
from phalanx.rendezvous.events import (
    BarrierPassed,
    CheckpointDone,
    EndAsked,
    FirstSignSeen,
    HoldPort,
    HurryAsked,
    JobDecided,
    LeaveAsked,
    MeetingBegan,
    MeetingFailed,
    NodeExcluded,
    PartEnded,
    PortHeld,
    PortNotHeld,
    RoundFormed,
    SignalSent,
    StopRound,
    TimePassed,
    Told,
    WorkerFailed,
    WorkersGone,
)
from phalanx.rendezvous.foreign.events import (
    AwaitOthers,
    CloseHandler,
    HandlerClosed,
    LeaveHandler,
    LookFailed,
    Meet,
    Met,
    NodesArrived,
    NoMeeting,
    NotMet,
    NotNeeded,
    OthersDone,
    WatchNodes,
)
from phalanx.rendezvous.jitter import jitter
from phalanx.rendezvous.policy import EndJob, MemberReport, Policy, RoundReports
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.stored import Member, Outcome, Phase, Report, RoundRecord

__all__ = ["ForeignMachine", "ForeignState"]

# torchelastic's agent waits so long for the others; a handler tells nobody of a node that died, so there is a limit.
EXIT_BARRIER_S = 300.0
SAY_MEETING_AFTER_S = 5.0


class ForeignState(Enum):
    """What this node is doing with the handler."""

    IDLE = auto()
    PREPARING = auto()
    MEETING = auto()
    RUNNING = auto()
    STOPPING = auto()
    AWAITING = auto()
    DECIDED = auto()
    CLOSING = auto()
    CLOSED = auto()


class ForeignMachine(Machine[ForeignState]):
    """See the module's docstring. It stands where the ``MemberMachine`` stands otherwise."""

    def __init__(self, settings: MembershipSettings, policy: Policy, *, backend: str) -> None:
        self.state = ForeignState.IDLE
        self._settings = settings
        self._policy = policy
        self._backend = backend
        self._number = 0
        self._restart_count = 0
        self._policy_state = ""
        self._reason = ""
        self._round: Round | None = None
        self._is_leaving = False
        self._said_failed_look = False
        self._opened_at = self._settled_at = 0.0
        self._asks = 0

    @property
    def has_untold(self) -> bool:
        """No: this node judges its own failures."""
        return False

    @property
    def is_closed(self) -> bool:
        """Whether the handler is let go of."""
        return self.state is ForeignState.CLOSED

    @property
    def running(self) -> Round | None:
        """The round whose workers may be alive here."""
        return self._round if self.state in (ForeignState.RUNNING, ForeignState.STOPPING) else None

    # Meeting

    def _begin(self, event: MeetingBegan, now: float) -> list[Any]:
        told = Told(
            f"nodes meet through the rendezvous handler {self._backend!r}: each node counts its own restarts "
            "and speaks its own verdict"
        )
        return [told, *self._next("", now)]

    def _next(self, reason: str, now: float, *, delay_s: float = 0.0) -> list[Any]:
        self.state = ForeignState.PREPARING
        self.deadline = now + delay_s if delay_s else None
        self._number += 1
        self._opened_at = self._settled_at = now
        self._reason = reason
        if delay_s:
            return [Told(f"{reason}; round {self._number} waits {delay_s:.1f} s before it starts")]
        return [HoldPort(self._number)]

    def _backoff_over(self, event: TimePassed, now: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        return [HoldPort(self._number)]

    def _meet(self, event: PortHeld, now: float) -> list[Any]:
        self.state = ForeignState.MEETING
        self.deadline = now + SAY_MEETING_AFTER_S
        return [Meet(self._number, self._restart_count, self._reason, event.port)]

    def _no_port(self, event: PortNotHeld, now: float) -> list[Any]:
        return self._fail(event.reason)

    def _say_meeting(self, event: TimePassed, now: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        self.deadline = None
        return [Told(f"waiting: the rendezvous handler {self._backend!r} has not formed a round yet")]

    def _met(self, event: Met, now: float) -> list[Any]:
        self.state = ForeignState.RUNNING
        self.deadline = None
        self._settled_at = now
        self._round = event.round
        self._number = event.round.number
        self._restart_count = event.round.restart_count
        return [RoundFormed(event.round), WatchNodes()]

    def _not_met(self, event: NotMet, now: float) -> list[Any]:
        return self._fail(event.reason)

    def _no_meeting(self, event: NoMeeting, now: float) -> list[Any]:
        return self._fail(f"the rendezvous is closed, because the job is over: {event.reason}")

    def _not_needed(self, event: NotNeeded, now: float) -> list[Any]:
        told = Told("the job has ended well; this node was a spare and was not needed")
        return [told, *self._decide(self._policy.succeeded(self._record()))]

    def _fail(self, reason: str) -> list[Any]:
        self.state = ForeignState.DECIDED
        self.deadline = None
        self._is_leaving = True  # the others may have met without us
        return [MeetingFailed(reason)]

    # Running

    def _arrived(self, event: NodesArrived, now: float) -> list[Any]:
        self.state = ForeignState.STOPPING
        self._reason = f"{event.count} node{'s' if event.count > 1 else ''} waiting for another round"
        return [StopRound(self._reason, cause=StopCause.PLANNED)]

    def _look_failed(self, event: LookFailed, now: float) -> list[Any]:
        if self._said_failed_look:
            return []
        self._said_failed_look = True
        return [Told(f"whether nodes are waiting is not known: {event.reason}; the workers go on")]

    def _gone(self, event: WorkersGone, now: float) -> list[Any]:
        if self._is_leaving:
            self.state = ForeignState.DECIDED
            return []
        if event.report.outcome is Outcome.FAILED:
            return self._ask_policy(event.report, now)
        if event.report.outcome is Outcome.STOPPED or self.state is ForeignState.STOPPING:
            return self._next(
                self._reason if self.state is ForeignState.STOPPING else "the workers stopped", now
            )
        assert self._round is not None, "workers are of a round"
        self.state = ForeignState.AWAITING
        limit_s = self._settings.exit_barrier_s
        self.deadline = now + (EXIT_BARRIER_S if limit_s is None else limit_s)
        return [AwaitOthers(self._round)]

    def _ask_policy(self, report: Report, now: float) -> list[Any]:
        decision = self._policy.decide(self._own_report(report, now))
        if isinstance(decision, EndJob):
            return self._decide(decision.text)
        self._restart_count = decision.restart_count
        self._policy_state = decision.policy_state
        return self._next(decision.reason, now, delay_s=decision.delay_s)

    def _record(self) -> RoundRecord:
        return RoundRecord(
            number=self._number,
            phase=Phase.COLLECTING,
            restart_count=self._restart_count,
            policy_state=self._policy_state,
        )

    def _own_report(self, report: Report, now: float) -> RoundReports:
        settled = self._round
        assert settled is not None, "workers are of a round"
        settings = self._settings
        own = Member(node_id=settings.node_id, registration=1, host=settings.host, slots=settings.slots)
        member = MemberReport(
            member=own,
            group_rank=settled.group_rank,
            first_rank=settled.first_rank,
            report=report,
            signed_at=None,
            is_lost=False,
            is_leaving=False,
        )
        return RoundReports(
            round=self._record(),
            world_size=settled.world_size,
            members=(member,),
            open_s=now - self._opened_at,
            ran_s=now - self._settled_at,
            jitter=jitter(f"{settings.node_id} {self._number}"),
        )

    def _excluded(self, event: NodeExcluded, now: float) -> list[Any]:
        return [
            Told(f"this node is used all the same: its rendezvous handler excludes nobody ({event.reason})")
        ]

    # After success

    def _others_done(self, event: OthersDone, now: float) -> list[Any]:
        return self._decide(self._policy.succeeded(self._record()))

    def _run_again(self, event: NodesArrived, now: float) -> list[Any]:
        told = Told("this node's workers have succeeded, but others need another round: all run again")
        return [told, *self._next("other nodes need another round", now)]

    def _barrier(self, event: TimePassed, now: float) -> list[Any]:
        if self.deadline is None or now < self.deadline:
            return []
        self.state = ForeignState.DECIDED
        self.deadline = None
        self._is_leaving = True
        return [BarrierPassed()]

    def _decide(self, text: str) -> list[Any]:
        self.state = ForeignState.DECIDED
        self.deadline = None
        return [JobDecided(text)]

    # Going

    def _leave(self, event: LeaveAsked, now: float) -> list[Any]:
        self._is_leaving = True
        return []

    def _end_all(self, event: EndAsked, now: float) -> list[Any]:
        self._is_leaving = True
        cannot = "has no word that stops running workers: the other nodes were not told to stop (--stop-all)"
        return [Told(f"the rendezvous handler {self._backend!r} {cannot}")]

    def _ask(self, event: AskSent, now: float) -> list[Any]:
        """Other nodes cannot be asked; this one's workers hear of a checkpoint that it wants."""
        self._asks += 1
        is_heard = event.what is Ask.CHECKPOINT
        return [AskHeard(event.what, f"{self._number}.{self._asks}", event.reason)] if is_heard else []

    def _part_ended(self, event: PartEnded, now: float) -> list[Any]:
        was_decided = self.state is ForeignState.DECIDED
        self.state = ForeignState.CLOSING
        self.deadline = None
        return [CloseHandler() if was_decided and not self._is_leaving else LeaveHandler()]

    def _hurry(self, event: HurryAsked, now: float) -> list[Any]:
        return [LeaveHandler()]

    def _closed(self, event: HandlerClosed, now: float) -> list[Any]:
        self.state = ForeignState.CLOSED
        return [Told(f"the rendezvous was not closed: {event.reason}")] if event.reason else []

    def check(self) -> None:
        """Workers live only in a round that formed."""
        assert self.running is not None or self.state not in (ForeignState.RUNNING, ForeignState.STOPPING), (
            "workers without a round"
        )
        assert self._restart_count >= 0, "the budget is overdrawn"

    # The table

    _PAST = Void("a deadline of the past")
    _OTHER_ROUND = Void("of a round that is over already")
    _TOLD_LATER = Void("the handler has no word for it; the policy hears of it when the workers are gone")
    _OVER: ClassVar[dict[ForeignState, Arrow | Void]] = dict.fromkeys(
        (ForeignState.DECIDED, ForeignState.CLOSING, ForeignState.CLOSED), Void("this node's part is over")
    )
    _BEFORE_THE_END = (
        ForeignState.PREPARING,
        ForeignState.MEETING,
        ForeignState.RUNNING,
        ForeignState.STOPPING,
        ForeignState.AWAITING,
    )
    _BETWEEN: ClassVar[dict[ForeignState, Arrow | Void]] = dict.fromkeys(
        (ForeignState.PREPARING, ForeignState.MEETING, ForeignState.STOPPING), _OTHER_ROUND
    )
    _WITH_WORKERS: ClassVar[dict[ForeignState, Arrow | Void]] = dict.fromkeys(
        (ForeignState.RUNNING, ForeignState.STOPPING), _TOLD_LATER
    )

    table: ClassVar[dict[type, dict[ForeignState, Arrow | Void]]] = {
        MeetingBegan: {ForeignState.IDLE: _begin},
        PortHeld: {ForeignState.PREPARING: _meet, **_OVER},
        PortNotHeld: {ForeignState.PREPARING: _no_port, **_OVER},
        Met: {ForeignState.MEETING: _met, **_OVER},
        NotMet: {ForeignState.MEETING: _not_met, **_OVER},
        NoMeeting: {ForeignState.MEETING: _no_meeting, **_OVER},
        NotNeeded: {ForeignState.MEETING: _not_needed, **_OVER},
        NodesArrived: {
            **_BETWEEN,
            ForeignState.RUNNING: _arrived,
            ForeignState.AWAITING: _run_again,
            **_OVER,
        },
        LookFailed: {
            **_BETWEEN,
            ForeignState.RUNNING: _look_failed,
            ForeignState.AWAITING: _look_failed,
            **_OVER,
        },
        OthersDone: {
            **_BETWEEN,
            ForeignState.RUNNING: _OTHER_ROUND,
            ForeignState.AWAITING: _others_done,
            **_OVER,
        },
        WorkersGone: {ForeignState.RUNNING: _gone, ForeignState.STOPPING: _gone},
        WorkerFailed: _WITH_WORKERS,
        FirstSignSeen: _WITH_WORKERS,
        CheckpointDone: {**dict.fromkeys(_BEFORE_THE_END, _TOLD_LATER), **_OVER},
        SignalSent: _WITH_WORKERS,
        AskSent: dict.fromkeys((ForeignState.RUNNING, ForeignState.STOPPING), _ask),
        AskDone: _WITH_WORKERS,
        NodeExcluded: {**dict.fromkeys(_BEFORE_THE_END, _excluded), **_OVER},
        LeaveAsked: {**dict.fromkeys(_BEFORE_THE_END, _leave), **_OVER},
        EndAsked: {**dict.fromkeys(_BEFORE_THE_END, _end_all), **_OVER},
        PartEnded: dict.fromkeys(
            (ForeignState.PREPARING, ForeignState.MEETING, ForeignState.AWAITING, ForeignState.DECIDED),
            _part_ended,
        ),
        HurryAsked: {
            **dict.fromkeys(
                (*_BEFORE_THE_END, ForeignState.DECIDED),
                Void("the workers are ended first; then it leaves at once"),
            ),
            ForeignState.CLOSING: _hurry,
        },
        HandlerClosed: {
            ForeignState.CLOSING: _closed,
            ForeignState.CLOSED: Void("it was left before it was closed"),
        },
        TimePassed: {
            **dict.fromkeys(ForeignState, _PAST),
            ForeignState.PREPARING: _backoff_over,
            ForeignState.MEETING: _say_meeting,
            ForeignState.AWAITING: _barrier,
        },
    }
