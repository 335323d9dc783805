"""Single restarts: one worker, the group, the agent; every pair, stories, random histories."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from tests.agent.test_machine import (
    PIDS,
    TERM,
    AnyHistory,
    Noticed,
    Others,
    a_round,
    failures_of,
    only,
    report_of,
    settle,
)

from phalanx.agent.events import CollectEvidence, EvidenceCollected, JobBegan
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    DeadlinePassed,
    ExceptionSeen,
    Exit,
    GroupState,
    RoundSettled,
    Say,
    SpawnFailed,
    SpawnWorkers,
    StopAsked,
    StragglersFound,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentState
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.single.machine import SingleAgent, SingleGroup
from phalanx.agent.single.worker import (
    BranchEmptied,
    BranchRemains,
    ExamineWorker,
    OfWorker,
    SignalBranch,
    SingleEnded,
    SingleState,
    SingleWorker,
    StartWorker,
    WorkerExamined,
    WorkerGranted,
    WorkerNotStarted,
    WorkerStarted,
)
from phalanx.agent.verdict.stored import evidence_from
from phalanx.agent.verdict.verdict import Failure
from phalanx.machine import UnlistedEvent, Void
from phalanx.multiprocessing.machine import TREE_KILL_S, NameStuck, SignalTree, SignalWorkers
from phalanx.rendezvous import events
from phalanx.rendezvous.stored import Outcome

END = Exit(1, 3, 5.0, None, None)
GRANTED = events.StartSingle(1, 4, "rank 1 failed (restart 4 of 9)", 0.0)

# One worker


def worker_in(state: SingleState) -> SingleWorker:
    worker = SingleWorker(1, a_round(1), 0)
    swept: list[object] = [SingleEnded(END), BranchEmptied(1)]
    examined: list[object] = [*swept, WorkerExamined(1, ())]
    ways: dict[SingleState, list[object]] = {
        SingleState.RUNNING: [],
        SingleState.SWEEPING: [SingleEnded(END)],
        SingleState.STUCK: [SingleEnded(END)],
        SingleState.EXAMINING: swept,
        SingleState.WAITING: examined,
        SingleState.DELAYED: [*examined, WorkerGranted(1, 2, "", 9.0)],
        SingleState.STARTING: [*examined, WorkerGranted(1, 2, "", 0.0)],
    }
    for event in ways[state]:
        worker.step(event, 0)
    if state is SingleState.STUCK:
        worker.step(DeadlinePassed(), 0.5)
        worker.step(DeadlinePassed(), 5.5)
    assert worker.state is state
    return worker


EVENTS: list[object] = [
    SingleEnded(END),
    BranchEmptied(1),
    BranchRemains(1),
    WorkerExamined(1, ()),
    WorkerGranted(1, 2, "", 0.0),
    WorkerStarted(1, 500),
    WorkerNotStarted(1, 127, "not found"),
    DeadlinePassed(),
]
# An answer without its question, an end without a beginning.
IMPOSSIBLE = {
    "SingleEnded": set(SingleState) - {SingleState.RUNNING},
    "WorkerExamined": set(SingleState) - {SingleState.EXAMINING},
    "WorkerGranted": set(SingleState) - {SingleState.WAITING},
    "WorkerStarted": set(SingleState) - {SingleState.STARTING},
    "WorkerNotStarted": set(SingleState) - {SingleState.STARTING},
}


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", list(SingleState), ids=str)
def test_each_pair_of_a_life_is_an_arrow_a_reasoned_void_or_refused(
    state: SingleState, event: object
) -> None:
    worker = worker_in(state)
    entry = worker.table[type(event)].get(state)
    if state in IMPOSSIBLE.get(type(event).__name__, ()):
        assert entry is None
        with pytest.raises(UnlistedEvent):
            worker.step(event, 1)
        assert worker.state is state
        return
    assert entry is not None
    commands = worker.step(event, 1)
    worker.check()
    if isinstance(entry, Void):
        assert len(entry.reason.split()) > 2
        assert (commands, worker.state) == ([], state)


def test_what_a_worker_left_gets_term_then_kill_and_is_given_up_when_it_stays() -> None:
    worker = SingleWorker(1, a_round(1), 0)
    assert worker.step(SingleEnded(END), 5) == [SignalBranch(1, TERM)]
    assert worker.deadline == 5.5
    assert worker.step(BranchRemains(1), 5.2) == [SignalBranch(1, TERM)], "for those who were born meanwhile"
    assert worker.step(DeadlinePassed(), 5.5) == [SignalBranch(1, 9)]
    assert worker.step(DeadlinePassed(), 10.5) == []
    assert worker.state is SingleState.STUCK, "and is not examined: no life may follow"


def test_a_life_is_as_long_as_it_ran() -> None:
    worker = worker_in(SingleState.STARTING)
    worker.step(WorkerStarted(1, 7), 10)
    worker.step(SingleEnded(END), 17)
    worker.step(BranchEmptied(1), 18)
    (asked,) = worker.step(WorkerExamined(1, ()), 19)
    assert asked.life_s == 7


# The group and its agent


def agent(nproc: int = 2, **options: Any) -> tuple[SingleAgent, Others]:
    others = Others()
    machine = SingleAgent(
        nproc,
        membership=others,
        **{"restarts": RestartPolicy(max_restarts=9), "graces": Graces.alike(30), **options},
    )
    machine.step(JobBegan(), 0)
    settle(machine, 1)
    return machine, others


def failure(local_rank: int) -> Failure:
    return Failure(rank=local_rank, local_rank=local_rank, pid=1, exit_code=3, exited_at=5)


def fail(machine: SingleAgent, local_rank: int, now: float, code: int = 3) -> list[Any]:
    """It fails, leaves nothing, and its evidence is read: the leader is asked."""
    commands = machine.step(WorkersExited({local_rank: code}), now)
    assert commands == [SignalBranch(local_rank, TERM)]
    (examine,) = machine.step(BranchEmptied(local_rank), now)
    assert examine.exit.exit_code == code
    return machine.step(WorkerExamined(local_rank, (failure(local_rank),), 12, 10), now)


def test_a_failed_worker_asks_and_is_started_when_it_is_answered_while_the_others_run_on() -> None:
    machine, others = agent()
    assert machine.step(ExceptionSeen(1, 4.0, "ValueError: x"), 4) == []
    fail(machine, 1, 5)
    (asked,) = others.told(events.SingleFailed)
    assert (asked.local_rank, asked.report.outcome, asked.report.life_s) == (1, Outcome.FAILED, 5)
    assert (asked.report.step, asked.report.checkpoint) == (12, 10)
    assert [one.rank for one in evidence_from(asked.report.evidence).failures] == [1]
    assert not others.told(events.WorkerFailed)
    assert not others.told(events.FirstSignSeen)
    told, start = machine.step(Noticed((GRANTED,)), 6)
    assert told == Say("rank 1 failed (restart 4 of 9); started again alone")
    assert start == StartWorker(1, start.round)
    assert (start.round.number, start.round.restart_count, start.round.reason) == (1, 4, GRANTED.reason)
    assert machine.step(WorkerStarted(1, 500), 6) == []
    assert machine.group.pids == {0: 100, 1: 500}
    assert machine.state is AgentState.RUNNING


def test_a_success_is_final_and_the_last_of_all_lives_ends_the_group() -> None:
    machine, others = agent()
    fail(machine, 1, 5)
    assert machine.step(WorkersExited({0: 0}), 6) == []
    machine.step(Noticed((GRANTED,)), 7)
    machine.step(WorkerStarted(1, 500), 7)
    assert machine.step(WorkersExited({1: 0}), 8) == [SignalTree(TERM)]
    assert report_of(machine, others, 9) == (Outcome.SUCCEEDED, ())


@pytest.mark.parametrize("delay_s", [0.0, 2.0])
def test_signs_of_an_earlier_life_are_not_the_next_ones(delay_s: float) -> None:
    machine, _ = agent()
    machine.step(ExceptionSeen(1, 4.0), 4)
    fail(machine, 1, 5)
    machine.step(Noticed((events.StartSingle(1, 1, "r", delay_s),)), 6)
    if delay_s:
        machine.step(DeadlinePassed(), 8)
    machine.step(WorkerStarted(1, 500), 8)
    machine.step(WorkersExited({1: 1}), 9)
    (examine,) = machine.step(BranchEmptied(1), 9)
    assert examine.exit.signed_at is None


def test_both_fail_in_one_look_and_each_asks() -> None:
    machine, others = agent()
    commands = machine.step(WorkersExited({0: 1, 1: 2}), 5)
    assert commands == [SignalBranch(0, TERM), SignalBranch(1, TERM)]
    for one in (1, 0):
        machine.step(BranchEmptied(one), 5)
        machine.step(WorkerExamined(one, (failure(one),)), 5)
    assert [one.local_rank for one in others.told(events.SingleFailed)] == [1, 0]


@pytest.mark.parametrize("delay_s", [None, 20.0], ids=["waits", "is delayed"])
def test_who_is_between_two_lives_when_the_group_is_stopped_has_ended_and_failed_in_nothing(
    delay_s: float | None,
) -> None:
    machine, others = agent()
    fail(machine, 1, 5)
    if delay_s is not None:
        machine.step(Noticed((events.StartSingle(1, 1, "r", delay_s),)), 5)
        assert machine.deadline == 25
    commands = machine.step(Noticed((events.StopRound("a node joined", None),)), 6)
    assert only(commands, SignalWorkers) == SignalWorkers(TERM)
    machine.step(WorkersExited({0: -TERM}), 7)
    commands = machine.step(TreeEmptied(), 7)
    collect = only(commands, CollectEvidence)
    assert [(one.local_rank, one.is_void) for one in collect.exits] == [(0, False), (1, True)]
    machine.step(EvidenceCollected(failures_of(collect)), 8)
    (gone,) = others.told(events.WorkersGone)
    assert gone.report.outcome is Outcome.STOPPED
    assert evidence_from(gone.report.evidence).failures == ()


def test_a_group_without_a_live_worker_is_stopped_at_once() -> None:
    machine, _ = agent()
    fail(machine, 0, 5)
    fail(machine, 1, 5)
    commands = machine.step(Noticed((events.StopRound("lost", None),)), 6)
    assert only(commands, SignalTree) == SignalTree(TERM)


def test_who_is_told_to_stop_between_two_lives_ends_by_the_signal() -> None:
    machine, _ = agent(nproc=2, restarts=RestartPolicy(max_restarts=0))
    fail(machine, 1, 5)
    machine.step(StopAsked(TERM, 30), 6)
    machine.step(WorkersExited({0: 0}), 7)
    commands = machine.step(TreeEmptied(), 7)
    machine.step(EvidenceCollected(failures_of(only(commands, CollectEvidence))), 8)
    assert machine.verdict is not None
    assert machine.verdict.exit_code == 128 + TERM


def test_who_is_being_started_when_the_group_is_stopped_is_stopped_too() -> None:
    machine, _ = agent()
    fail(machine, 1, 5)
    machine.step(Noticed((GRANTED,)), 6)
    machine.step(Noticed((events.StopRound("lost", None),)), 6)
    assert machine.step(WorkerStarted(1, 500), 6) == []
    assert machine.group.live == {0, 1}
    assert machine.step(WorkersExited({0: -TERM}), 7) == []
    assert machine.step(WorkersExited({1: -TERM}), 7) == [SignalTree(TERM)]


def test_who_could_not_be_started_when_the_group_is_stopped_is_not_waited_for() -> None:
    machine, _ = agent()
    fail(machine, 1, 5)
    machine.step(Noticed((GRANTED,)), 6)
    machine.step(Noticed((events.StopRound("lost", None),)), 6)
    machine.step(WorkerNotStarted(1, 127, "not found"), 6)
    assert machine.step(WorkersExited({0: -TERM}), 7) == [SignalTree(TERM)]


def test_an_answer_and_a_scan_that_come_too_late_change_nothing() -> None:
    machine, _ = agent()
    fail(machine, 1, 5)
    machine.step(WorkersExited({0: 4}), 5)
    machine.step(Noticed((events.StopRound("lost", None),)), 6)
    assert machine.step(Noticed((GRANTED,)), 6) == []
    assert machine.step(BranchEmptied(0), 6) == []
    assert machine.step(WorkerExamined(0, ()), 6) == []


def test_stragglers_are_counted_from_the_first_success_whatever_waits_meanwhile() -> None:
    machine, others = agent(straggler_s=60)
    fail(machine, 1, 5)
    machine.step(Noticed((events.StartSingle(1, 1, "r", 20.0),)), 5)
    machine.step(WorkersExited({0: 0}), 10)
    assert machine.deadline == 25
    assert machine.step(DeadlinePassed(), 25)[0] == StartWorker(1, machine.group._workers._workers[1]._round)  # type: ignore[attr-defined]
    machine.step(WorkerStarted(1, 500), 25)
    assert machine.deadline == 70
    fail(machine, 1, 69)
    commands = machine.step(DeadlinePassed(), 70)
    assert only(commands, Say).text.startswith("rank 1 still ran 60 s after others had ended")
    outcome, failures = report_of(machine, others, 71)
    assert outcome is Outcome.FAILED, "to come back for ever is no way to end"
    assert [one.rank for one in failures] == [1]


def test_stragglers_that_the_leader_finds_may_be_waiting() -> None:
    machine, others = agent()
    machine.step(WorkersExited({0: 0}), 4)
    fail(machine, 1, 5)
    machine.step(Noticed((events.StopRound("late", None, True),)), 9)
    assert machine.group.exits()[1].is_straggler
    assert not machine.group.exits()[1].is_void
    del others


def test_a_group_that_cannot_be_started_at_all_is_the_affair_of_all() -> None:
    others = Others()
    machine = SingleAgent(2, membership=others, restarts=RestartPolicy(), graces=Graces.alike(30))
    machine.step(JobBegan(), 0)
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(SpawnFailed(1, 127, "not found"), 0)
    assert others.told(events.WorkerFailed)


def test_a_worker_that_asks_to_be_excluded_by_its_exit_code_says_so_first() -> None:
    machine, others = agent(restarts=RestartPolicy(max_restarts=9, exclude_on=(3,)))
    fail(machine, 1, 5)
    kinds = [type(one) for one in others.heard]
    assert kinds.index(events.NodeExcluded) < kinds.index(events.SingleFailed)


# What nobody can kill


def three() -> tuple[SingleAgent, Others]:
    others = Others()
    restarts = RestartPolicy(max_restarts=9)
    machine = SingleAgent(3, membership=others, restarts=restarts, graces=Graces.alike(30))
    machine.step(JobBegan(), 0)
    machine.step(Noticed((events.RoundFormed(a_round(1, nproc=3)),)), 0)
    machine.step(WorkersSpawned({0: 100, 1: 101, 2: 102}), 0)
    return machine, others


def stuck() -> tuple[SingleAgent, Others, list[Any]]:
    machine, others = three()
    machine.step(WorkersExited({1: 3}), 5)
    assert machine.step(DeadlinePassed(), 5.5) == [SignalBranch(1, 9)]
    return machine, others, machine.step(DeadlinePassed(), 10.5)


def test_what_nobody_can_kill_stops_all_and_the_node_gives_up_its_place() -> None:
    machine, others, commands = stuck()
    reason = "rank 1 failed and left something that cannot be killed"
    assert only(commands, Say) == Say(f"{reason}: asked 2 workers to stop, 30 s of grace")
    assert only(commands, SignalWorkers) == SignalWorkers(TERM)
    assert others.told(events.WorkerFailed) == [events.WorkerFailed()], "no straggler"
    machine.step(WorkersExited({0: -TERM, 2: -TERM}), 11)
    machine.step(DeadlinePassed(), 11.5)
    commands = machine.step(DeadlinePassed(), 16.5)
    assert NameStuck() in commands
    collect = only(commands, CollectEvidence)
    assert [(one.local_rank, one.is_void, one.stopped_at) for one in collect.exits] == [
        (0, False, 10.5),
        (1, False, None),
        (2, False, 10.5),
    ]
    machine.step(EvidenceCollected(failures_of(collect)), 17)
    assert others.told(events.LeaveAsked)
    assert machine.verdict is not None
    assert machine.verdict.exit_code == 3
    (gone,) = others.told(events.WorkersGone)
    assert [one.rank for one in evidence_from(gone.report.evidence).failures if not one.is_collateral] == [1]
    assert not others.told(events.SingleFailed)


def test_what_ends_after_all_while_the_others_are_stopped_is_a_failure_of_the_round() -> None:
    machine, others, _ = stuck()
    machine.step(WorkersExited({0: -TERM, 2: -TERM}), 11)
    outcome, failures = report_of(machine, others, 12)
    assert outcome is Outcome.FAILED
    assert [one.rank for one in failures if not one.is_collateral] == [1]
    assert not others.told(events.LeaveAsked), "nothing is left, and the node may run the next round"


def test_nobody_is_started_in_the_very_moment_in_which_another_ones_rest_is_given_up() -> None:
    machine, _ = three()
    machine.step(WorkersExited({1: 3}), 5)
    fail(machine, 0, 5)
    machine.step(Noticed((events.StartSingle(0, 1, "r", 5.5),)), 5)
    machine.step(DeadlinePassed(), 5.5)
    assert machine.deadline == 10.5
    commands = machine.step(DeadlinePassed(), 10.5)
    assert not [one for one in commands if isinstance(one, StartWorker)]
    assert only(commands, Say).text.endswith("asked 1 worker to stop, 30 s of grace")
    assert [(one.local_rank, one.is_void) for one in machine.group.exits()] == [(0, True), (1, False)]


def test_nobody_runs_beside_what_is_stuck() -> None:
    machine, _ = agent(2)
    machine.step(WorkersExited({1: 3}), 5)
    fail(machine, 0, 5)
    machine.step(DeadlinePassed(), 5.5)
    commands = machine.step(DeadlinePassed(), 10.5)
    assert only(commands, Say).text.endswith("cannot be killed: no worker runs here now")
    assert only(commands, SignalTree) == SignalTree(TERM)


# Every pair of the group


def group_in(state: GroupState) -> SingleGroup:
    group = SingleGroup(2, grace_s=30)
    spawned: list[object] = [RoundSettled(a_round(1)), WorkersSpawned(PIDS)]
    ways: dict[GroupState, list[object]] = {
        GroupState.IDLE: [],
        GroupState.STARTING: spawned[:1],
        GroupState.RUNNING: [*spawned, WorkersExited({1: 3})],
        GroupState.STOPPING: [*spawned, WorkersExited({1: 3}), StopAsked(TERM, 30)],
        GroupState.ENDED: [*spawned, WorkersExited({0: 0, 1: 0}), TreeEmptied()],
    }
    for event in ways[state]:
        group.step(event, 0)
    assert group.state is state
    return group


OF_WORKER: list[OfWorker] = [one for one in EVENTS if isinstance(one, OfWorker)]


@pytest.mark.parametrize("event", OF_WORKER, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", list(GroupState), ids=str)
def test_each_pair_of_the_group_is_listed_or_impossible(state: GroupState, event: OfWorker) -> None:
    group = group_in(state)
    if state in (GroupState.IDLE, GroupState.STARTING):
        with pytest.raises(UnlistedEvent):
            group.step(event, 1)
        return
    if state is GroupState.RUNNING and not isinstance(event, BranchEmptied | BranchRemains):
        with pytest.raises(UnlistedEvent):  # the worker's machine refuses: it is being swept
            group.step(event, 1)
        return
    group.step(event, 1)
    group.check()


@pytest.mark.parametrize("event", OF_WORKER, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", list(AgentState), ids=str)
def test_each_pair_of_the_agent_is_listed_or_impossible(state: AgentState, event: OfWorker) -> None:
    entry = SingleAgent.table[OfWorker].get(state)
    if state is AgentState.NEW:
        assert entry is None, "no worker is there before the first round, and nobody can tell of one"
    elif state in (AgentState.RUNNING, AgentState.LEAVING):
        assert not isinstance(entry, Void)
    else:
        assert isinstance(entry, Void)
        assert "this round" not in entry.reason or state is AgentState.COLLECTING


@pytest.mark.parametrize("event", [StragglersFound(), DeadlinePassed(), ExceptionSeen(0, 1.0)], ids=str)
def test_what_the_base_has_is_there(event: object) -> None:
    for state in (GroupState.RUNNING, GroupState.STOPPING, GroupState.ENDED):
        group_in(state).step(event, 1)


# Any history


class SingleHistory(AnyHistory):
    """As the base, with workers that come back while others run."""

    kind = SingleAgent

    def perform(self, command: Any) -> list[object]:
        match command:
            case SpawnWorkers():
                self.examined: list[tuple[int, object]] = []
                self.asked_before = len(self.others.told(events.SingleFailed))
                self.answered = self.asked_before
                self.killed_at: dict[int, float] = {}
                self.given_up = 0
            case SignalWorkers() | SignalTree():
                assert self.machine.group.state is GroupState.STOPPING, "nobody else is touched"
            case SignalBranch(local_rank, signal):
                assert local_rank not in self.alive, "it has ended"
                if signal == 9:
                    self.children_left &= self.is_stuck
                if self.children_left:
                    self.killed_at[local_rank] = self.now if signal == 9 else inf
                    return []
                self.killed_at.pop(local_rank, None)
                return [BranchEmptied(local_rank)]
            case ExamineWorker(end):
                assert end.local_rank not in self.alive
                assert end.local_rank not in self.killed_at, "nothing of it is left"
                self.examined.append(
                    (self.starts, WorkerExamined(end.local_rank, (failure(end.local_rank),)))
                )
            case StartWorker(local_rank, told):
                assert local_rank not in self.alive, "one life at a time"
                assert self.machine.group.state is GroupState.RUNNING
                assert told.number == self.starts
                assert self.given_up != self.starts, "nothing is started beside what cannot be killed"
                if told.restart_count % 5 == 4:
                    return [WorkerNotStarted(local_rank, 127, "gone")]
                self.alive.add(local_rank)
                return [WorkerStarted(local_rank, 500)]
        return super().perform(command)

    @precondition(lambda self: bool(getattr(self, "examined", None)))
    @rule()
    def an_examination_ends(self) -> None:
        starts, event = self.examined.pop(0)
        if starts == self.starts:  # else the driver keeps it for itself
            self.post(event)

    @precondition(lambda self: len(self.others.told(events.SingleFailed)) > getattr(self, "answered", 1e9))
    @rule(delay_s=st.sampled_from([0.0, 0.0, 3.0]))
    def the_leader_answers(self, delay_s: float) -> None:
        asked = self.others.told(events.SingleFailed)[self.answered]
        self.answered += 1
        if self.machine.state in (AgentState.RUNNING, AgentState.LEAVING):
            self.post(Noticed((events.StartSingle(asked.local_rank, self.answered, "r", delay_s),)))

    @precondition(lambda self: self.children_left)
    @rule()
    def the_children_end(self) -> None:
        self.children_left = False
        self.killed_at = {}
        if self.machine.group.state is GroupState.STOPPING and not self.alive:
            self.post(TreeEmptied())
        elif self.machine.group.state is GroupState.RUNNING:
            for one in range(self.nproc):
                self.post(BranchEmptied(one))

    @precondition(lambda self: self.is_stuck and self.alive and not self.to_report)
    @rule(data=st.data())
    def a_worker_leaves_what_cannot_be_killed(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(rank)
        self.children_left = True
        self.post(WorkersExited({rank: 1}))
        for _ in range(data.draw(st.sampled_from((0, 2, 2, 3)))):
            self.time_passes(5.0)

    @rule(seconds=st.floats(0.01, 10))
    def time_passes(self, seconds: float) -> None:
        super().time_passes(seconds)
        if any(self.now >= at + TREE_KILL_S for at in getattr(self, "killed_at", {}).values()):
            assert self.machine.group.state is not GroupState.RUNNING, "what cannot be killed stops the group"
            self.given_up = self.starts

    @invariant()
    def a_worker_that_has_not_ended_is_known_to_live(self) -> None:
        if getattr(self, "machine", None) is not None and self.machine.group.state is GroupState.RUNNING:
            assert self.alive <= self.machine.group.live


TestAnyHistoryOfSingleWorkers = SingleHistory.TestCase
TestAnyHistoryOfSingleWorkers.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
