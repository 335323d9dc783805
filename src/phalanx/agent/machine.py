"""The agent of one node: its workers in each round, until the job has an end or this node leaves it.

    WAITING ──round formed──▶ RUNNING ──group ended──▶ COLLECTING ──evidence──▶ WAITING, or CLOSING
                                 └──asked to stop──▶ LEAVING ──group ended──▶ COLLECTING ──▶ CLOSING ──▶ ENDED

It owns two machines and stands between them: the group machine has the workers of this node, the membership (of
``rendezvous``) has what the job's nodes agree on. What the membership notices is taken here and becomes a stop, a
start or the end; what happens to the group becomes a report. It decides, and ``driver`` performs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from phalanx.agent import sentences
from phalanx.agent.announcing import NoStepLeft
from phalanx.agent.events import (
    AnnounceCheckpoint,
    CollectEvidence,
    EvidenceCollected,
    Finish,
    JobBegan,
    PassOn,
    SignalPassed,
    WorkerTold,
)
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    DeadlinePassed,
    ExceptionSeen,
    GroupMachine,
    GroupState,
    MembersRemain,
    RoundSettled,
    Say,
    SpawnFailed,
    StopAsked,
    StragglersFound,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.leaving import Leaving, request_by, request_of, warned
from phalanx.agent.membership import Membership
from phalanx.agent.outcomes import failure_seen, place_given_up, report_of, with_stopped, with_unheard
from phalanx.agent.passing import PassedSignals, told_of
from phalanx.agent.restarts.policy import RestartPolicy, exclusion
from phalanx.agent.stacks import OfStacks, StacksMachine
from phalanx.agent.state import EARLY, LATE, OVER, WITH_WORKERS, AgentState
from phalanx.agent.verdict.stored import verdict_from
from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, EX_USAGE, Ending, Failure, Verdict
from phalanx.machine import Arrow, Machine, Void
from phalanx.multiprocessing.machine import StopRepeated
from phalanx.rendezvous import asks, events
from phalanx.rendezvous.stored import Outcome, Report

__all__ = ["AgentMachine", "AgentState"]


class AgentMachine(Machine[AgentState]):
    """See the module's docstring. ``verdict`` is known from state CLOSING on."""

    group_kind: ClassVar[type[GroupMachine]] = GroupMachine

    def __init__(
        self,
        nproc: int,
        *,
        membership: Membership,
        restarts: RestartPolicy,
        graces: Graces,
        straggler_s: float | None = None,
        pass_signals: Collection[int] = (),
        stops_all_as: str | None = None,
    ) -> None:
        self.state = AgentState.NEW
        self.verdict: Verdict | None = None
        self.membership = membership
        self._nproc = nproc
        self._graces = graces
        self._restarts = restarts
        self._straggler_s = straggler_s
        self._leaving = Leaving(stops_all_as)
        self._passed = PassedSignals(pass_signals)
        self._ended_by_us = False  # JobDecided or a failed meeting came while workers were still there
        self._failures: tuple[Failure, ...] = ()  # of the last round that ended here
        self._was_cut = False  # this round's workers were stopped because the store was not heard
        self.group = self.group_kind(nproc, grace_s=graces.restart_s)
        self.stacks = StacksMachine(self.group)

    def step(self, event: object, now: float) -> list[Any]:
        """As the base; a deadline of the membership that has passed comes first, whatever the event is.

        After a freeze this node may have lost its place long ago: then what it finds dead was killed by its keeper.
        """
        early: list[Any] = []
        due = self.membership.deadline
        if due is not None and now >= due and self.state is not AgentState.NEW:
            early = self._tell(events.TimePassed(), now)
        commands = super().step(event, now)
        times = [self.membership.deadline, self.group.deadline]
        times += [self.stacks.deadline] if self.state in WITH_WORKERS else []
        self.deadline = min((at for at in times if at is not None), default=None)
        if self.state is AgentState.ENDED:
            self.deadline = None
        return [*early, *commands]

    def row(self, event: object) -> type:
        """What comes from the store is one kind here, and what is about stacks: their machines sort it out."""
        return next((kind for kind in (events.Heard, OfStacks) if isinstance(event, kind)), type(event))

    # Arrows

    def _begin(self, event: JobBegan, now: float) -> list[Any]:
        self.state = AgentState.WAITING
        return self._tell(events.MeetingBegan(), now)

    def _hear(self, event: object, now: float) -> list[Any]:
        return self._tell(event, now)

    def _hear_last(self, event: object, now: float) -> list[Any]:
        commands = self._tell(event, now)
        if self.membership.is_closed:
            assert self.verdict is not None, "the store is left when the end is known"
            self.state = AgentState.ENDED
            commands.append(Finish(self.verdict))
        return commands

    def _ask_group(self, event: object, now: float) -> list[Any]:
        was = self.group.state
        commands = self.group.step(event, now)
        if failed := failure_seen(event, was, self.group):
            commands += self._tell(failed, now)
        if self.group.state is GroupState.ENDED and self.state in (AgentState.RUNNING, AgentState.LEAVING):
            self.state = AgentState.COLLECTING
            commands = [*commands, CollectEvidence(self.group.exits())]
        return commands

    def _exception_seen(self, event: ExceptionSeen, now: float) -> list[Any]:
        return [*self._ask_group(event, now), *self._tell(events.FirstSignSeen(event.message), now)]

    def _time_passed(self, event: DeadlinePassed, now: float) -> list[Any]:
        commands = self._ask_stacks(event, now)
        if self.group.deadline is None or now < self.group.deadline:
            return commands  # it was theirs, or the membership's
        return [*commands, *self._ask_group(event, now)]

    def _ask_stacks(self, event: object, now: float) -> list[Any]:
        commands: list[Any] = []
        for one in self.stacks.step(event, now):
            commands += self._tell(one, now) if isinstance(one, asks.AskSent | asks.AskDone) else [one]
        return commands

    def _stop_before_begin(self, event: StopAsked, now: float) -> list[Any]:
        self._leaving.note(event, now)
        self.verdict = self._leaving.stopped()
        self.state = AgentState.ENDED
        return [Say(f"{self.verdict.reason} before anything was started"), Finish(self.verdict)]

    def _stop_without_workers(self, event: StopAsked, now: float) -> list[Any]:
        commands = [Say(sentences.asked_early(event)), *self._tell(self._leaving.note(event, now), now)]
        return [*commands, *self._close(self._leaving.stopped(), now)]

    def _leave(self, event: StopAsked, now: float) -> list[Any]:
        self.state = AgentState.LEAVING
        request = warned(event, self._graces)
        told = Say(sentences.asked(request, self.group))
        return [told, *self._tell(self._leaving.note(event, now), now), *self._ask_group(request, now)]

    def _leave_faster(self, event: StopAsked, now: float) -> list[Any]:
        return [*self._ask_group(StopRepeated(), now), *self._hurry(event, now)]

    def _remember_stop(self, event: StopAsked, now: float) -> list[Any]:
        return [] if self._leaving.is_asked else self._tell(self._leaving.note(event, now), now)

    def _hurry(self, event: StopAsked, now: float) -> list[Any]:
        if self._leaving.is_double(now):
            return []  # the double of the request that ended the workers, or found none
        return self._tell(events.HurryAsked(), now)

    def _judge(self, event: EvidenceCollected, now: float) -> list[Any]:
        self.state = AgentState.WAITING
        self._failures = event.failures
        report = report_of(
            event.failures,
            was_stopped=self.group.was_stopped,
            stopped=self.group.stopped_ranks,
            has_own_reason=self._was_cut or self._leaving.is_asked,
            step=event.step,
            checkpoint=event.checkpoint,
        )
        if self.group.is_stuck:
            return self._give_up_place(report, event.failures, now)
        excluded = exclusion(event.failures, self._restarts)
        commands = self._tell(events.NodeExcluded(excluded), now) if excluded else []
        commands += self._tell(events.WorkersGone(report), now)
        if self.state is not AgentState.WAITING:
            return commands  # the job was decided at once
        if self._ended_by_us:
            assert self.verdict is not None, "the end came before the workers had gone"
            verdict = self.verdict
        elif not self._leaving.is_asked:
            return commands
        elif report.outcome is Outcome.SUCCEEDED and not self._leaving.is_for_all:
            verdict = Verdict(ending=Ending.SUCCEEDED, exit_code=0)
        else:
            verdict = self._leaving.judge(event.failures, self.group, self._restarts)
        return [*commands, *self._close(with_stopped(verdict, self.group.stopped_ranks), now)]

    def _give_up_place(self, report: Report, failures: Sequence[Failure], now: float) -> list[Any]:
        """Something of the job is left that nobody can kill: no round may run beside it on this node."""
        self.state = AgentState.CLOSING  # whatever the others decide now is not about this node
        commands = [*self._tell(events.LeaveAsked(), now), *self._tell(events.WorkersGone(report), now)]
        if self.verdict is not None and self.verdict.exit_code:
            verdict = self.verdict
        elif self._leaving.is_asked:
            verdict = self._leaving.judge(failures, self.group, self._restarts)
        else:
            verdict = place_given_up(failures, self.group.stopped_ranks)
        return [*commands, *self._close(with_stopped(verdict, self.group.stopped_ranks), now)]

    def _pass_on(self, event: SignalPassed, now: float) -> list[Any]:
        if not self._passed.is_new_here(event.signal, now):
            return []
        told = [one for each in told_of(event.signal) for one in self._tell(each, now)]
        return [PassOn(event.signal), *told]

    def _pass_on_others(self, notice: events.SignalHeard, now: float) -> list[Any]:
        if self.state not in WITH_WORKERS:
            return []
        return [PassOn(notice.number)] if self._passed.is_new_elsewhere(notice, now) else []

    def _asked_by_others(self, notice: asks.AskHeard, now: float) -> list[Any]:
        if notice.what is asks.Ask.STACKS:
            return self._answered(notice, now)
        if notice.what is asks.Ask.NO_STEP:
            return self._ask_group(NoStepLeft(), now) if self.state in WITH_WORKERS else []
        return [AnnounceCheckpoint(notice.reason, notice.id)] if self.state is AgentState.RUNNING else []

    def _answered(self, notice: asks.AskAnswered | asks.AskHeard, now: float) -> list[Any]:
        return self._ask_stacks(notice, now) if self.state in WITH_WORKERS else []

    def _told_by_worker(self, event: WorkerTold, now: float) -> list[Any]:
        return self._tell(event.what, now)

    # What the membership notices

    def _tell(self, event: object, now: float) -> list[Any]:
        """Let the membership take an event; its notices are taken here, its commands go to the driver."""
        commands: list[Any] = []
        for one in self.membership.step(event, now):
            notice = self._notices.get(type(one))
            commands += [one] if notice is None else notice(self, one, now) or []
        return commands

    def _told(self, notice: events.Told, now: float) -> list[Any]:
        return [Say(notice.text)]

    def _formed(self, notice: events.RoundFormed, now: float) -> list[Any]:
        assert self.state is AgentState.WAITING, f"a round formed in state {self.state.name}"
        self.state = AgentState.RUNNING
        self._was_cut = False
        grace_s = self._graces.restart_s
        self.group = self.group_kind(self._nproc, grace_s=grace_s, straggler_s=self._straggler_s)
        self.stacks = StacksMachine(self.group, self.stacks)
        return [*map(Say, sentences.formed(notice.round)), *self._ask_group(RoundSettled(notice.round), now)]

    def _stop_round(self, notice: events.StopRound, now: float) -> list[Any]:
        if self.state not in (AgentState.RUNNING, AgentState.LEAVING):
            return []
        if notice.are_stragglers and self.group.state is GroupState.RUNNING:
            return self._ask_group(StragglersFound(), now)
        self._was_cut |= notice.is_own
        if notice.grace_s is None and (self.group.state is GroupState.STOPPING or self._leaving.is_asked):
            return []  # for another reason already, with a grace of its own
        return self._stop_workers(notice.reason, request_of(notice, self._graces), now)

    def _stop_workers(self, reason: str, request: StopAsked, now: float) -> list[Any]:
        if self.group.state is GroupState.STOPPING:
            return self._ask_group(request, now)  # only a shorter time is news
        told = Say(sentences.stopped_for(reason, self.group, request))
        return [told, *self._ask_group(request, now)]

    def _decided(self, notice: events.JobDecided, now: float) -> list[Any]:
        try:
            verdict = verdict_from(notice.text)
        except ValueError as reason:
            verdict = Verdict(ending=Ending.FAILED, exit_code=EX_UNAVAILABLE, reason=str(reason))
        if self._leaving.is_for_all and (verdict.exit_code or not self.group.is_stuck):
            # Ours, or another one that was there before: all nodes end by the same.
            self.verdict, self._ended_by_us = verdict, True
            return []
        was_stopped = verdict.ending is Ending.STOPPED
        is_news = was_stopped and self.state in (AgentState.WAITING, AgentState.COLLECTING)
        return [*([Say(verdict.reason)] if is_news else []), *self._end_by(verdict, now)]

    def _not_met(self, notice: events.MeetingFailed, now: float) -> list[Any]:
        code = EX_USAGE if notice.is_mistake else EX_UNAVAILABLE
        return self._end_by(Verdict(ending=Ending.FAILED, exit_code=code, reason=notice.reason), now)

    def _barrier_passed(self, notice: events.BarrierPassed, now: float) -> list[Any]:
        told = Say(sentences.BARRIER_PASSED)
        return [told, *self._end_by(Verdict(ending=Ending.SUCCEEDED, exit_code=0), now)]

    def _end_by(self, verdict: Verdict, now: float) -> list[Any]:
        """The job is over, whoever says so: at once without workers, else when they are gone."""
        if self.membership.has_untold:
            verdict = with_unheard(verdict, self._failures)
        if self.state is AgentState.WAITING:
            return self._close(verdict, now)
        if self.state in (AgentState.CLOSING, AgentState.ENDED) or self._leaving.is_asked:
            return []  # who was told to stop ends by that
        self.verdict = verdict
        self._ended_by_us = True
        if self.state is not AgentState.RUNNING:
            return []
        request = request_by(verdict, self._graces)
        return self._stop_workers(sentences.over(verdict), request, now)

    # Parts of arrows

    def _close(self, verdict: Verdict, now: float) -> list[Any]:
        self.state = AgentState.CLOSING
        self.verdict = verdict
        return self._tell(events.PartEnded(), now)

    def check(self) -> None:
        """A verdict is there at the end, and workers live only inside a round."""
        is_over = self.state in (AgentState.CLOSING, AgentState.ENDED)
        assert not is_over or self.verdict is not None, "the end has a verdict"
        live = self.group.live and self.group.state is not GroupState.ENDED
        assert not live or self.state in WITH_WORKERS, "workers run only in a round"

    _notices: ClassVar[dict[type, Arrow]] = {
        events.Told: _told,
        events.RoundFormed: _formed,
        events.StopRound: _stop_round,
        events.JobDecided: _decided,
        events.MeetingFailed: _not_met,
        events.BarrierPassed: _barrier_passed,
        events.SignalHeard: _pass_on_others,
        asks.AskHeard: _asked_by_others,
        asks.AskAnswered: _answered,
    }

    _GROUP: ClassVar[dict[AgentState, Arrow | Void]] = dict.fromkeys(WITH_WORKERS, _ask_group)
    _GROUP_OR_LATE: ClassVar[dict[AgentState, Arrow | Void]] = {
        **_GROUP,
        AgentState.WAITING: LATE,
        AgentState.COLLECTING: LATE,
        AgentState.CLOSING: OVER,
        AgentState.ENDED: OVER,
    }
    _EVERYWHERE: ClassVar[dict[AgentState, Arrow | Void]] = {
        **dict.fromkeys(
            (AgentState.WAITING, AgentState.RUNNING, AgentState.LEAVING, AgentState.COLLECTING), _hear
        ),
        AgentState.CLOSING: _hear_last,
        AgentState.ENDED: OVER,
    }
    table: ClassVar[dict[type, dict[AgentState, Arrow | Void]]] = {
        events.Heard: {AgentState.NEW: Void("nothing was asked of the store yet"), **_EVERYWHERE},
        JobBegan: {AgentState.NEW: _begin, AgentState.ENDED: Void("told to stop before it began")},
        WorkersSpawned: _GROUP,
        SpawnFailed: _GROUP,
        WorkersExited: _GROUP_OR_LATE,
        ExceptionSeen: {
            **_GROUP_OR_LATE,
            AgentState.NEW: EARLY,
            **dict.fromkeys(WITH_WORKERS, _exception_seen),
        },
        OfStacks: {**_GROUP_OR_LATE, AgentState.NEW: EARLY, **dict.fromkeys(WITH_WORKERS, _ask_stacks)},
        WorkerTold: {  # what it said last may be read when it is gone
            **dict.fromkeys(AgentState, _told_by_worker),
            **dict.fromkeys((AgentState.CLOSING, AgentState.ENDED), OVER),
            AgentState.NEW: EARLY,
        },
        TreeEmptied: _GROUP_OR_LATE,
        MembersRemain: _GROUP_OR_LATE,
        DeadlinePassed: {
            **dict.fromkeys(AgentState, Void("it was the membership's")),
            **dict.fromkeys(WITH_WORKERS, _time_passed),
        },
        EvidenceCollected: {AgentState.COLLECTING: _judge},
        StopAsked: {
            AgentState.NEW: _stop_before_begin,
            AgentState.WAITING: _stop_without_workers,
            AgentState.RUNNING: _leave,
            AgentState.LEAVING: _leave_faster,
            AgentState.COLLECTING: _remember_stop,
            AgentState.CLOSING: _hurry,
            AgentState.ENDED: OVER,
        },
        SignalPassed: {
            **_GROUP_OR_LATE,
            **dict.fromkeys((AgentState.NEW, AgentState.WAITING), EARLY),
            **dict.fromkeys(WITH_WORKERS, _pass_on),
        },
    }
