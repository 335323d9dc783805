"""The group and the agent of a job with single restarts (``--restart-scope worker``). Pure.

A worker that fails stops nobody: it goes through the steps of ``worker``, and the others run on. For the rest, a group
is stopped as any other, for any other reason; who was between two lives then counts as ended, and its failure as void.
Only what a worker left and nobody can kill stops the group by itself: nothing may be started beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGTERM
from typing import Any, ClassVar

from phalanx.agent.events import EvidenceCollected
from phalanx.agent.group import (
    DeadlinePassed,
    Exit,
    GroupMachine,
    GroupState,
    Say,
    StopAsked,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine, AgentState
from phalanx.agent.restarts.policy import exclusion
from phalanx.agent.sentences import stopped_for
from phalanx.agent.single.worker import (
    AskLeader,
    OfWorker,
    SingleWorkers,
    StartWorker,
    WorkerGranted,
    WorkerNotStarted,
    WorkerStarted,
    granted_line,
)
from phalanx.agent.state import OVER
from phalanx.agent.verdict.stored import failures_text
from phalanx.machine import Arrow, Void
from phalanx.multiprocessing.machine import WorkerExited
from phalanx.records import changed
from phalanx.rendezvous import events
from phalanx.rendezvous.stored import Outcome, Report

__all__ = ["SingleAgent", "SingleGroup"]

_Table = Mapping[type, Mapping[Any, Arrow | Void]]


def _with(table: _Table, *pairs: tuple[Arrow, Arrow]) -> dict[type, dict[Any, Arrow | Void]]:
    """The table of the base, with arrows of our own in the place of some of its."""

    def own(arrow: Arrow | Void) -> Arrow | Void:
        return next((new for old, new in pairs if arrow is old), arrow)

    return {event: {state: own(arrow) for state, arrow in row.items()} for event, row in table.items()}


class SingleGroup(GroupMachine):
    """See the module's docstring. A worker between two lives counts as one that has not ended."""

    def __init__(self, nproc: int, *, grace_s: float, straggler_s: float | None = None) -> None:
        super().__init__(nproc, grace_s=grace_s, straggler_s=straggler_s)
        self._workers = SingleWorkers()
        self._overdue_at: float | None = None
        self._void: set[int] = set()

    def row(self, event: object) -> type:
        """What concerns one worker is one kind here: its own machine sorts it out."""
        return OfWorker if isinstance(event, OfWorker) else type(event)

    @property
    def running(self) -> set[int]:
        """As the base: who is between two lives has ended."""
        return self.live - {end.local_rank for end in self._workers.over()}

    @property
    def running_ranks(self) -> list[int]:
        """Their global ranks."""
        assert self.round is not None, "workers are of a round"
        return [self.round.rank(one) for one in self.running]

    @property
    def was_stopped(self) -> bool:
        """As the base; who was between two lives did not succeed."""
        return super().was_stopped or bool(self._void)

    def exits(self) -> tuple[Exit, ...]:
        """As the base; failures that were answered, or need no answer any more, are marked."""
        return tuple(
            changed(one, is_void=True) if one.local_rank in self._void else one for one in super().exits()
        )

    # Arrows

    def _spawned_all(self, event: WorkersSpawned, now: float) -> list[Any]:
        assert self.round is not None, "workers are of a round"
        self._workers.begin(event.pids, self.round, now)
        return self._spawned(event, now)

    def _exited_single(self, event: WorkersExited, now: float) -> list[Any]:
        commands: list[Any] = []
        for local_rank, code in event.codes.items():
            if code != 0:
                end = Exit(local_rank, code, now, None, self._signed_at.get(local_rank))
                commands += self._workers.failed(end, now)
        succeeded = {local_rank: code for local_rank, code in event.codes.items() if code == 0}
        if succeeded:
            self.deadline = self._overdue_at
            commands += self._exited(WorkersExited(succeeded), now)
            self._overdue_at = (
                self.deadline
            )  # counted from the first success; void when the group is stopped now
        return self._timed(commands)

    def _of_one(self, event: OfWorker, now: float) -> list[Any]:
        if isinstance(event, WorkerStarted):
            self.pids[event.local_rank] = event.pid
        return self._timed(self._workers.step(event, now))

    def _of_one_late(self, event: OfWorker, now: float) -> list[Any]:
        """The group is being stopped: only who was being started at that moment is news, for it is stopped, too."""
        if isinstance(event, WorkerStarted):
            self.pids[event.local_rank] = event.pid
        if isinstance(event, WorkerNotStarted):
            self._codes[event.local_rank] = (event.exit_code, now)
            self._void.add(event.local_rank)
            return self._settle(self._stop.step(WorkerExited(event.local_rank), now))
        return []

    def _time(self, event: DeadlinePassed, now: float) -> list[Any]:
        if self._overdue_at is not None and now >= self._overdue_at:
            return self._stop_stragglers(event, now)
        commands = self._timed(self._workers.time_passed(now))
        return [*commands, *self._stop_beside(stuck, now)] if (stuck := self._workers.stuck) else commands

    def _stop_beside(self, stuck: set[int], now: float) -> list[Any]:
        request = StopAsked(SIGTERM, self.grace_s, cause="failure")
        reason = f"{self._ranks(stuck)} failed and left something that cannot be killed"
        return [Say(stopped_for(reason, self, request)), *self._asked(request, now)]

    def _asked(self, event: StopAsked, now: float) -> list[Any]:
        for end in self._workers.over():
            self._codes[end.local_rank] = (end.exit_code, end.at)
            self._void |= {end.local_rank} - self.stragglers - self._workers.stuck
            self._stop.step(WorkerExited(end.local_rank), now)
        return super()._asked(event, now)

    def _timed(self, commands: list[Any]) -> list[Any]:
        for one in commands:
            if isinstance(one, StartWorker):  # the signs of the life before are its own
                self._signed_at.pop(one.local_rank, None)
        if self.state is GroupState.RUNNING:
            times = (self._overdue_at, self._workers.deadline)
            self.deadline = min((at for at in times if at is not None), default=None)
        return commands

    table: ClassVar[dict[type, dict[GroupState, Arrow | Void]]] = {
        **_with(
            GroupMachine.table,
            (GroupMachine._spawned, _spawned_all),
            (GroupMachine._exited, _exited_single),
            (GroupMachine._stragglers_due, _time),
            (GroupMachine._asked, _asked),
        ),
        OfWorker: {
            GroupState.RUNNING: _of_one,
            GroupState.STOPPING: _of_one_late,
            GroupState.ENDED: Void("its life is over with the group's"),
        },
    }


class SingleAgent(AgentMachine):
    """As the base; a failed worker is the affair of the leader and of that worker alone."""

    group_kind = SingleGroup

    def row(self, event: object) -> type:
        """As the base; what concerns one worker is one kind."""
        return OfWorker if isinstance(event, OfWorker) else super().row(event)

    def _ask_group(self, event: object, now: float) -> list[Any]:
        commands: list[Any] = []
        for one in super()._ask_group(event, now):
            commands += self._ask_leader(one, now) if isinstance(one, AskLeader) else [one]
        return commands

    def _tell(self, event: object, now: float) -> list[Any]:
        is_of_one = isinstance(event, (events.WorkerFailed, events.FirstSignSeen))
        if is_of_one and self.group.state is GroupState.RUNNING:
            return []  # the round goes on
        return super()._tell(event, now)

    def _judge_others(self, event: EvidenceCollected, now: float) -> list[Any]:
        void = {one.local_rank for one in self.group.exits() if one.is_void}
        kept = tuple(one for one in event.failures if one.local_rank not in void)
        return self._judge(EvidenceCollected(kept, event.step, event.checkpoint), now)

    def _ask_leader(self, command: AskLeader, now: float) -> list[Any]:
        commands: list[Any] = []
        examined = command.examined
        assert isinstance(self.group, SingleGroup), "it was made here"
        if reason := exclusion(examined.failures, self._restarts):
            commands = self._tell(events.NodeExcluded(reason), now)
        report = Report(
            outcome=Outcome.FAILED,
            step=examined.step,
            checkpoint=examined.checkpoint,
            # If this is the end of the job, these are stopped for it.
            evidence=failures_text(examined.failures, stopped=self.group.running_ranks),
            life_s=command.life_s,
        )
        return [*commands, *self._tell(events.SingleFailed(examined.local_rank, report), now)]

    def _granted(self, notice: events.StartSingle, now: float) -> list[Any]:
        if self.state is not AgentState.RUNNING or self.group.state is not GroupState.RUNNING:
            return []  # it is stopped meanwhile
        granted = WorkerGranted(notice.local_rank, notice.restart_count, notice.reason, notice.delay_s)
        return [Say(granted_line(granted)), *self._ask_group(granted, now)]

    _notices: ClassVar[dict[type, Arrow]] = {**AgentMachine._notices, events.StartSingle: _granted}
    table: ClassVar[dict[type, dict[AgentState, Arrow | Void]]] = {
        **_with(
            AgentMachine.table,
            (AgentMachine._ask_group, _ask_group),
            (AgentMachine._judge, _judge_others),
        ),
        OfWorker: {
            AgentState.WAITING: Void("its round is over, and its life with it"),
            AgentState.RUNNING: _ask_group,
            AgentState.LEAVING: _ask_group,
            AgentState.COLLECTING: Void("its group has ended, and no life follows"),
            AgentState.CLOSING: OVER,
            AgentState.ENDED: OVER,
        },
    }
