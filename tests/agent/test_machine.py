"""The agent machine and the group machine that it owns: stories, every (event, state) pair, and random histories.

What the job's nodes agree on is ``tests/rendezvous``' affair; here a stand-in says what the test wants.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

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
    AnnounceStop,
    DeadlinePassed,
    ExceptionSeen,
    GroupMachine,
    GroupState,
    MembersRemain,
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
from phalanx.agent.machine import AgentMachine, AgentState
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.stacks import StacksSaved, TimerExpired
from phalanx.agent.verdict.stored import evidence_from, verdict_text
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict
from phalanx.machine import UnlistedEvent, Void
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers, StopRepeated
from phalanx.rendezvous import asks, events
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.stored import Outcome

TERM, INT, KILL = 15, 2, 9
PIDS = {0: 100, 1: 101}
SUCCESS = verdict_text(Verdict(ending=Ending.SUCCEEDED, exit_code=0))
STOPPED = verdict_text(Verdict(ending=Ending.STOPPED, exit_code=130, reason="n2 was told to stop"))


class Noticed(events.Heard):
    """Something comes from the store, and this is what the membership makes of it."""

    notices: tuple[Any, ...]


class Others:
    """The membership: it says what it is told to, keeps what it hears, and leaves the store when its part ends."""

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.is_closed = False
        self.has_untold = False
        self.heard: list[Any] = []
        self.when_due: list[Any] = []

    def step(self, event: object, now: float) -> list[Any]:
        self.heard.append(event)
        if isinstance(event, Noticed):
            return list(event.notices)
        if isinstance(event, events.TimePassed):
            self.deadline, due = None, self.when_due
            return due
        if isinstance(event, events.SessionClosed):
            self.is_closed = True
        if isinstance(event, events.HurryAsked):
            return [events.CloseSession()] if self.told(events.PartEnded) else []
        return [events.CloseSession()] if isinstance(event, events.PartEnded) else []

    def told(self, kind: type) -> list[Any]:
        return [one for one in self.heard if isinstance(one, kind)]


def a_round(number: int, restart_count: int = 0, nproc: int = 2, *, nodes: int = 1) -> Round:
    return Round(
        number=number,
        restart_count=restart_count,
        reason="",
        group_rank=0,
        group_world_size=nodes,
        first_rank=0,
        local_world_size=nproc,
        world_size=nproc * nodes,
        master_addr="127.0.0.1",
        master_port=29500,
    )


def waiting(nproc: int = 2, **options: Any) -> tuple[AgentMachine, Others]:
    others = Others()
    restarts = RestartPolicy(max_restarts=options.pop("max_restarts", 0))
    machine = AgentMachine(
        nproc, membership=others, restarts=restarts, **{"graces": Graces.alike(30), **options}
    )
    assert machine.step(JobBegan(), 0) == []
    assert others.heard == [events.MeetingBegan()]
    return machine, others


def running(**options: Any) -> tuple[AgentMachine, Others]:
    """An agent with two workers that run since second 0."""
    machine, others = waiting(**options)
    settle(machine, 1)
    return machine, others


def settle(machine: AgentMachine, number: int, now: float = 0) -> None:
    settled = a_round(number)
    assert machine.step(Noticed((events.RoundFormed(settled),)), now) == [SpawnWorkers(settled)]
    assert machine.step(WorkersSpawned(PIDS), now) == []
    assert machine.state is AgentState.RUNNING


def failures_of(command: CollectEvidence) -> tuple[Failure, ...]:
    """What a driver without error files would make of the exits."""
    return tuple(
        Failure(
            rank=one.local_rank,
            local_rank=one.local_rank,
            pid=1,
            exit_code=one.exit_code,
            exited_at=one.at,
            signed_at=one.signed_at,
            stopped_at=None if one.is_straggler else one.stopped_at,
            why_not_started=one.why_not_started,
        )
        for one in command.exits
        if one.exit_code != 0 or one.is_straggler
    )


def only(commands: list[Any], kind: type) -> Any:
    """The one command of this kind."""
    (found,) = [one for one in commands if isinstance(one, kind)]
    return found


def collect(machine: AgentMachine, commands: list[Any], now: float) -> list[Any]:
    return machine.step(EvidenceCollected(failures_of(only(commands, CollectEvidence))), now)


def report_of(machine: AgentMachine, others: Others, now: float) -> tuple[Outcome, tuple[Failure, ...]]:
    """End the tree, collect the evidence, and return what the others are told of it."""
    collect(machine, machine.step(TreeEmptied(), now), now)
    (gone,) = others.told(events.WorkersGone)
    return gone.report.outcome, evidence_from(gone.report.evidence).failures


def end_of(machine: AgentMachine, commands: list[Any], now: float = 100) -> Verdict:
    """The verdict of an agent whose part is over, once the store is left."""
    assert events.CloseSession() in commands
    states = [machine.state]
    finish = only(machine.step(events.SessionClosed(), now), Finish)
    states.append(machine.state)
    assert states == [AgentState.CLOSING, AgentState.ENDED]
    assert machine.deadline is None
    verdict: Verdict = finish.verdict
    return verdict


# One round


def test_workers_that_all_succeed_are_reported_after_the_sweep_and_the_verdict_ends_the_agent() -> None:
    machine, others = running()
    assert machine.step(WorkersExited({0: 0}), 1) == []
    assert machine.step(WorkersExited({1: 0}), 2) == [SignalTree(TERM)]
    assert report_of(machine, others, 2) == (Outcome.SUCCEEDED, ())
    assert machine.state is AgentState.WAITING
    assert not others.told(events.WorkerFailed)
    verdict = end_of(machine, machine.step(Noticed((events.JobDecided(SUCCESS),)), 3))
    assert (verdict.ending, verdict.exit_code) == (Ending.SUCCEEDED, 0)


def test_a_failed_worker_stops_the_others_and_is_told_before_they_have_ended() -> None:
    machine, others = running()
    assert machine.step(WorkersExited({1: 7}), 1) == [
        Say("rank 1 failed: asked 1 other worker to stop, 30 s of grace"),
        AnnounceStop(TERM, 30, "failure"),
        SignalWorkers(TERM),
    ]
    assert others.told(events.WorkerFailed) == [events.WorkerFailed()]
    assert machine.deadline == 31
    assert machine.step(WorkersExited({0: -TERM}), 2) == [SignalTree(TERM)]
    assert len(others.told(events.WorkerFailed)) == 1
    outcome, failures = report_of(machine, others, 2)
    assert outcome is Outcome.FAILED
    assert [(one.rank, one.is_collateral) for one in failures] == [(1, False), (0, True)]


def test_two_workers_found_dead_in_one_look_are_both_primary() -> None:
    machine, others = running()
    machine.step(WorkersExited({0: 3, 1: 7}), 1)
    _, failures = report_of(machine, others, 1)
    assert [one.exit_code for one in failures] == [3, 7]
    assert not any(one.is_collateral for one in failures)


def test_an_exception_told_early_makes_its_rank_the_first_although_it_exits_last() -> None:
    machine, others = running()
    machine.step(ExceptionSeen(1, 6.0, "ValueError: x"), 6.1)
    assert others.heard[-1] == events.FirstSignSeen("ValueError: x")
    machine.step(WorkersExited({0: 1}), 7)
    machine.step(WorkersExited({1: 1}), 9)
    assert report_of(machine, others, 9)[1][0].rank == 1


def test_rounds_follow_each_other_with_a_new_group_each() -> None:
    machine, others = running()
    for number in (2, 3):
        machine.step(WorkersExited({0: 1, 1: 1}), number)
        collect(machine, machine.step(TreeEmptied(), number), number)
        settle(machine, number, number)
    assert len(others.told(events.WorkersGone)) == 2


def test_a_round_of_several_nodes_is_told_with_its_reason_and_one_of_a_lone_node_only_when_it_is_a_restart() -> (
    None
):
    machine, _ = waiting()
    commands = machine.step(Noticed((events.RoundFormed(a_round(1, nodes=3)),)), 0)
    assert commands[0] == Say("round 1 has 3 nodes, 6 workers; ranks 0 to 1 are here")


def test_workers_that_ignore_the_request_lose_their_tree_after_the_grace() -> None:
    machine, others = running()
    machine.step(WorkersExited({1: 7}), 1)
    assert machine.step(DeadlinePassed(), 31) == [
        Say("rank 0 did not end within the grace and will be killed"),
        SignalTree(TERM),
    ]
    assert machine.deadline == pytest.approx(31.5)
    assert machine.step(MembersRemain(), 31.2) == [SignalTree(TERM)]
    assert machine.step(DeadlinePassed(), 31.5) == [SignalTree(KILL)]
    assert machine.step(WorkersExited({0: -KILL}), 31.6) == []
    assert report_of(machine, others, 31.6)[1][0].exit_code == 7


def test_a_worker_that_the_kernel_does_not_let_go_is_named_and_never_a_success() -> None:
    machine, others = running()
    machine.step(WorkersExited({1: 0}), 1)
    machine.step(StopAsked(TERM, 3), 2)
    machine.step(DeadlinePassed(), 5)
    machine.step(DeadlinePassed(), 5.5)
    commands = machine.step(DeadlinePassed(), 10.5)
    assert NameStuck() in commands
    exits = only(commands, CollectEvidence).exits
    assert {one.local_rank: one.exit_code for one in exits} == {0: -KILL, 1: 0}
    assert end_of(machine, collect(machine, commands, 11)).exit_code == 128 + TERM
    assert others.told(events.WorkersGone)[0].report.outcome is Outcome.STOPPED
    assert machine.step(WorkersExited({0: -KILL}), 100) == []


def test_a_command_that_cannot_be_executed_is_a_failure_with_the_shells_code() -> None:
    machine, others = waiting()
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    assert machine.step(SpawnFailed(1, 127, "'x' was not found"), 0) == [SignalTree(TERM)]
    assert others.heard[-1] == events.WorkerFailed()
    outcome, (failure,) = report_of(machine, others, 0)
    assert (outcome, failure.exit_code, failure.why_not_started) == (Outcome.FAILED, 127, "'x' was not found")


def test_signals_that_stop_nothing_and_checkpoints_are_passed_on() -> None:
    machine, others = running()
    assert machine.step(SignalPassed(10), 1) == [PassOn(10)]
    machine.step(WorkerTold(events.CheckpointDone(7)), 2)
    assert others.heard[-1] == events.CheckpointDone(7)
    assert machine.state is AgentState.RUNNING


def test_what_schedulers_send_ahead_of_the_end_asks_all_nodes_for_a_checkpoint_and_other_signals_do_not() -> (
    None
):
    machine, others = running(pass_signals=(10, 12, 28))
    machine.step(SignalPassed(12), 1)
    assert others.heard[-2:] == [events.SignalSent(12), asks.AskSent(asks.Ask.CHECKPOINT, "SIGUSR2")]
    machine.step(SignalPassed(28), 2)
    assert others.heard[-1] == events.SignalSent(28)
    heard = Noticed((asks.AskHeard(asks.Ask.CHECKPOINT, "b.1.1", "SIGUSR1"),))
    assert machine.step(heard, 3) == [AnnounceCheckpoint("SIGUSR1", "b.1.1")]


def test_stragglers_of_this_node_are_failures_of_their_own() -> None:
    machine, others = running(straggler_s=60)
    machine.step(WorkersExited({0: 0}), 1)
    assert machine.deadline == 61
    assert SignalWorkers(TERM) in machine.step(DeadlinePassed(), 61)
    assert others.told(events.WorkerFailed) == [events.WorkerFailed(is_straggler=True)]
    machine.step(WorkersExited({1: -TERM}), 62)
    outcome, (failure,) = report_of(machine, others, 62)
    assert (outcome, failure.rank, failure.is_collateral) == (Outcome.FAILED, 1, False)


def test_stragglers_that_the_leader_finds_are_failures_too() -> None:
    machine, others = running()
    commands = machine.step(Noticed((events.StopRound("late", None, True),)), 5)
    assert SignalWorkers(TERM) in commands
    machine.step(WorkersExited({0: 0, 1: 0}), 6)
    assert report_of(machine, others, 6)[0] is Outcome.FAILED


def test_workers_that_have_not_begun_when_stragglers_are_stopped_are_stopped_and_not_blamed() -> None:
    machine, others = waiting()
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(Noticed((events.StopRound("late", None, True),)), 0)
    assert SignalWorkers(TERM) in machine.step(WorkersSpawned(PIDS), 1)
    machine.step(WorkersExited({0: -TERM, 1: -TERM}), 2)
    assert report_of(machine, others, 2) == (Outcome.STOPPED, ())


# What the membership notices


def test_a_round_that_is_over_elsewhere_is_stopped_with_the_users_grace_and_reported_as_stopped() -> None:
    machine, others = running(max_restarts=1)
    commands = machine.step(Noticed((events.StopRound("node b was lost", None),)), 1)
    assert commands == [
        Say("node b was lost: asked 2 workers to stop, 30 s of grace"),
        AnnounceStop(TERM, 30, "loss"),
        SignalWorkers(TERM),
    ]
    assert machine.step(Noticed((events.StopRound("again", None),)), 2) == []
    machine.step(WorkersExited({0: 1, 1: -TERM}), 3)
    assert report_of(machine, others, 3) == (Outcome.STOPPED, ())
    assert machine.state is AgentState.WAITING


def test_a_shorter_time_to_stop_is_news_also_while_workers_are_being_stopped() -> None:
    machine, _ = running()
    machine.step(WorkersExited({0: 1}), 1)
    machine.step(Noticed((events.StopRound("silence", 2.25),)), 5)
    assert machine.deadline == 7.25
    other, _ = running(graces=Graces.alike(1))
    assert AnnounceStop(TERM, 1, "loss") in other.step(Noticed((events.StopRound("silence", 2.25),)), 5)


def test_a_round_that_is_over_while_its_workers_are_being_spawned_is_stopped_once_they_exist() -> None:
    machine, _ = waiting()
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(Noticed((events.StopRound("over", None),)), 0)
    assert machine.step(WorkersSpawned(PIDS), 1) == [AnnounceStop(TERM, 30, "loss"), SignalWorkers(TERM)]


def test_a_verdict_while_workers_run_stops_them_first() -> None:
    machine, _ = running()
    assert SignalWorkers(TERM) in machine.step(Noticed((events.JobDecided(SUCCESS),)), 1)
    machine.step(WorkersExited({0: -TERM, 1: -TERM}), 2)
    assert end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2)).exit_code == 0


def test_a_verdict_that_cannot_be_read_is_exit_code_75_and_says_so() -> None:
    machine, _ = waiting()
    verdict = end_of(machine, machine.step(Noticed((events.JobDecided("[]"),)), 1))
    assert verdict.exit_code == 75
    assert "the verdict in the store cannot be read" in verdict.reason


def test_a_meeting_that_fails_is_exit_code_75_with_and_without_workers() -> None:
    machine, _ = waiting()
    verdict = end_of(machine, machine.step(Noticed((events.MeetingFailed("no port"),)), 1))
    assert (verdict.exit_code, verdict.reason) == (75, "no port")
    machine, _ = running()
    assert SignalWorkers(TERM) in machine.step(Noticed((events.MeetingFailed("no store"),)), 1)
    machine.step(WorkersExited({0: 0, 1: 0}), 2)
    assert end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2)).exit_code == 75


def test_an_exit_barrier_that_is_over_is_a_success_of_this_node() -> None:
    machine, _ = waiting()
    commands = machine.step(Noticed((events.BarrierPassed(),)), 1)
    assert "--exit-barrier-timeout" in only(commands, Say).text
    assert end_of(machine, commands).exit_code == 0


def test_whoever_wakes_late_hears_from_its_membership_first() -> None:
    machine, others = running()
    others.deadline = 9.0
    others.when_due = [events.StopRound("silence", 2.0)]
    machine.step(WorkersExited({0: -KILL, 1: -KILL}), 60)
    assert report_of(machine, others, 60) == (Outcome.STOPPED, ()), (
        "the keeper killed them, and nobody is blamed"
    )


def test_the_deadline_is_the_earlier_one_and_each_machine_is_asked_only_for_its_own() -> None:
    machine, others = running()
    others.deadline = 20.0
    machine.step(StopAsked(TERM, 30), 1)
    assert machine.deadline == 20.0
    assert machine.step(DeadlinePassed(), 20) == []
    assert machine.deadline == 31


# Stop requests


def test_a_stop_signal_reaches_workers_as_it_came_and_the_others_hear_that_this_node_leaves() -> None:
    machine, others = running(max_restarts=3)
    commands = machine.step(StopAsked(INT, 10), 1)
    assert commands[1:] == [AnnounceStop(INT, 10), SignalWorkers(INT)]
    assert others.heard[-1] == events.LeaveAsked()
    assert machine.deadline == 11
    machine.step(WorkersExited({0: -INT, 1: 1}), 2)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2))
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 130)
    assert others.told(events.WorkersGone)[0].report.outcome is Outcome.STOPPED


def test_workers_that_end_well_after_a_stop_request_are_a_stopped_job() -> None:
    machine, _ = running()
    machine.step(StopAsked(TERM, 10), 1)
    machine.step(WorkersExited({0: 0, 1: 0}), 2)
    assert end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2)).exit_code == 143


def test_a_double_signal_is_one_and_a_later_one_cuts_the_grace() -> None:
    machine, _ = running()
    machine.step(StopAsked(TERM, 30), 1)
    machine.step(StopAsked(TERM, 30), 1.2)
    assert machine.deadline == 31
    machine.step(StopAsked(TERM, 30), 2)
    assert machine.deadline == 2.5


def test_a_stop_request_during_a_failure_stop_keeps_its_deadline_and_the_next_one_cuts_it() -> None:
    machine, _ = running(max_restarts=3)
    machine.step(WorkersExited({0: 1}), 1)
    told = machine.step(StopAsked(TERM, 60), 5)
    assert told == [Say("SIGTERM: the workers are being stopped already; again to end them at once")]
    machine.step(StopAsked(TERM, 60), 5.02)
    assert machine.deadline == 31, "the double of the request is no second request"
    machine.step(StopAsked(TERM, 60), 6)
    assert machine.deadline == 6.5


def test_a_failure_that_would_be_retried_does_not_name_the_exit_code_of_who_leaves() -> None:
    machine, others = running(max_restarts=3)
    machine.step(WorkersExited({0: 1}), 1)
    machine.step(StopAsked(TERM, 60), 2)
    machine.step(WorkersExited({1: -TERM}), 3)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 3), 3))
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 143)
    assert others.told(events.WorkersGone)[0].report.outcome is Outcome.FAILED, (
        "the others hear of it all the same"
    )


def test_a_final_failure_before_the_stop_request_stays_the_end_of_the_job() -> None:
    machine, _ = running(max_restarts=0)
    machine.step(WorkersExited({0: 9}), 1)
    machine.step(StopAsked(TERM, 60), 2)
    machine.step(WorkersExited({1: -TERM}), 3)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 3), 3))
    assert (verdict.ending, verdict.exit_code) == (Ending.FAILED, 9)
    assert verdict.reason == "rank 0 ended with exit code 9 before SIGTERM arrived"


def test_a_stop_request_while_the_evidence_of_a_success_is_read_changes_nothing() -> None:
    machine, _ = running()
    machine.step(WorkersExited({0: 0, 1: 0}), 1)
    commands = machine.step(TreeEmptied(), 1)
    machine.step(StopAsked(TERM, 30), 1.1)
    assert end_of(machine, collect(machine, commands, 1.2)).exit_code == 0


def test_the_first_of_two_stop_requests_names_the_exit_code() -> None:
    machine, others = running()
    machine.step(StopAsked(INT, 10), 1)
    machine.step(WorkersExited({0: -INT, 1: -INT}), 2)
    commands = machine.step(TreeEmptied(), 2)
    machine.step(StopAsked(TERM, 10), 2.1)
    assert end_of(machine, collect(machine, commands, 3)).exit_code == 130
    assert len(others.told(events.LeaveAsked)) == 1


def test_a_stop_request_between_spawning_and_spawned_is_obeyed_once_the_workers_exist() -> None:
    machine, _ = waiting()
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(StopAsked(TERM, 4), 1)
    assert machine.step(WorkersSpawned(PIDS), 2) == [AnnounceStop(TERM, 4), SignalWorkers(TERM)]


def test_a_stop_request_before_any_worker_leaves_at_once() -> None:
    machine, others = waiting()
    commands = machine.step(StopAsked(TERM, 30), 1)
    assert others.heard[-2:] == [events.LeaveAsked(), events.PartEnded()]
    assert end_of(machine, commands).exit_code == 143


def test_a_stop_request_before_the_beginning_ends_without_a_word_to_anybody() -> None:
    others = Others()
    machine = AgentMachine(2, membership=others, restarts=RestartPolicy(), graces=Graces.alike(30))
    assert only(machine.step(StopAsked(TERM, 30), 1), Finish).verdict.exit_code == 143
    assert machine.step(JobBegan(), 1) == []
    assert others.heard == []


def test_a_stop_request_to_an_agent_that_is_going_is_impatience_unless_it_is_the_double_of_the_one_before() -> (
    None
):
    machine, others = waiting()
    machine.step(StopAsked(TERM, 30), 1)
    machine.step(StopAsked(TERM, 30), 1.2)
    assert not others.told(events.HurryAsked)
    machine.step(StopAsked(TERM, 30), 2)
    assert others.told(events.HurryAsked)
    machine, others = waiting()
    machine.step(Noticed((events.JobDecided(SUCCESS),)), 1)
    machine.step(StopAsked(TERM, 30), 1.1)
    assert others.told(events.HurryAsked), "nobody had asked before"


# Every pair


EVENTS: list[object] = [
    JobBegan(),
    Noticed((events.Told("hello"),)),
    RoundSettled(a_round(2)),
    StragglersFound(),
    WorkersSpawned(PIDS),
    SpawnFailed(1, 127, "not found"),
    WorkersExited({0: 1}),
    ExceptionSeen(1, 0.5),
    WorkerTold(events.CheckpointDone(3)),
    StopAsked(TERM, 30),
    StopRepeated(),
    SignalPassed(10),
    StacksSaved(0),
    TimerExpired(1, KILL, "forward"),
    TreeEmptied(),
    MembersRemain(),
    DeadlinePassed(),
    EvidenceCollected(()),
]
_TO_RUN: list[object] = [JobBegan(), Noticed((events.RoundFormed(a_round(1)),)), WorkersSpawned(PIDS)]


def agent_in(state: AgentState) -> AgentMachine:
    """A machine that came to this state as a job would."""
    machine = AgentMachine(
        2, membership=Others(), restarts=RestartPolicy(max_restarts=1), graces=Graces.alike(30)
    )
    steps: dict[AgentState, list[object]] = {
        AgentState.NEW: [],
        AgentState.WAITING: [JobBegan()],
        AgentState.RUNNING: _TO_RUN,
        AgentState.LEAVING: [*_TO_RUN, StopAsked(TERM, 30), WorkersExited({1: 0})],
        AgentState.COLLECTING: [*_TO_RUN, WorkersExited({0: 0, 1: 0}), TreeEmptied()],
        AgentState.CLOSING: [JobBegan(), Noticed((events.MeetingFailed("no port"),))],
        AgentState.ENDED: [JobBegan(), Noticed((events.MeetingFailed("no port"),)), events.SessionClosed()],
    }
    for event in steps[state]:
        machine.step(event, 0)
    assert machine.state is state
    return machine


def group_in(state: GroupState) -> GroupMachine:
    machine = GroupMachine(2, grace_s=30)
    ways: dict[GroupState, list[object]] = {
        GroupState.IDLE: [],
        GroupState.STARTING: [RoundSettled(a_round(1))],
        GroupState.RUNNING: [RoundSettled(a_round(1)), WorkersSpawned(PIDS)],
        GroupState.STOPPING: [RoundSettled(a_round(1)), WorkersSpawned(PIDS), WorkersExited({1: 3})],
        GroupState.ENDED: [
            RoundSettled(a_round(1)),
            WorkersSpawned(PIDS),
            WorkersExited({0: 0, 1: 0}),
            TreeEmptied(),
        ],
    }
    for event in ways[state]:
        machine.step(event, 0)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", [*AgentState, *GroupState], ids=str)
def test_each_pair_is_an_arrow_a_reasoned_void_or_refused_without_a_trace(
    state: AgentState | GroupState, event: object
) -> None:
    machine: AgentMachine | GroupMachine
    name = type(event).__name__
    if isinstance(state, AgentState):
        machine = agent_in(state)
        is_impossible = (name, state.name) in AGENT_IMPOSSIBLE
        if state in (
            AgentState.RUNNING,
            AgentState.LEAVING,
        ):  # handed on to the group, which refuses for itself
            is_impossible |= (name, machine.group.state.name) in GROUP_IMPOSSIBLE
    else:
        machine = group_in(state)
        is_impossible = (name, state.name) in GROUP_IMPOSSIBLE
    kind = machine.row(event)
    row: Any = machine.table.get(kind, {})
    entry = row.get(state)
    if is_impossible or kind not in machine.table:
        with pytest.raises(UnlistedEvent):
            machine.step(event, 1)
        assert machine.state is state
        return
    assert entry is not None, "listed, or named as impossible above"
    commands = machine.step(event, 1)
    machine.check()
    if isinstance(entry, Void):
        assert len(entry.reason.split()) > 2, "a void pair tells why"
        assert (commands, machine.state) == ([], state)


def pairs(event: str, *states: str) -> set[tuple[str, str]]:
    return {(event, state) for state in states}


# What cannot happen, for the reviewer's eye: a worker's news without a worker, an answer without its question. The
# events of the group that only the agent's machine makes are not the agent's own.
AGENT_IMPOSSIBLE = {
    *pairs("JobBegan", "WAITING", "RUNNING", "LEAVING", "COLLECTING", "CLOSING"),
    *pairs("WorkersSpawned", "NEW", "WAITING", "COLLECTING", "CLOSING", "ENDED"),
    *pairs("SpawnFailed", "NEW", "WAITING", "COLLECTING", "CLOSING", "ENDED"),
    *pairs("WorkersExited", "NEW"),
    *pairs("TreeEmptied", "NEW"),
    *pairs("MembersRemain", "NEW"),
    *pairs("EvidenceCollected", "NEW", "WAITING", "RUNNING", "LEAVING", "CLOSING", "ENDED"),
}
GROUP_IMPOSSIBLE = {
    *pairs("RoundSettled", "STARTING", "RUNNING", "STOPPING", "ENDED"),
    *pairs("StragglersFound", "IDLE"),
    *pairs("WorkersSpawned", "IDLE", "RUNNING", "STOPPING", "ENDED"),
    *pairs("SpawnFailed", "IDLE", "RUNNING", "STOPPING", "ENDED"),
    *pairs("WorkersExited", "IDLE", "STARTING"),
    *pairs("StopRepeated", "IDLE", "RUNNING"),
    *pairs("TreeEmptied", "IDLE", "STARTING", "RUNNING"),
    *pairs("MembersRemain", "IDLE", "STARTING", "RUNNING"),
}


def test_an_unlisted_pair_is_refused_by_name() -> None:
    with pytest.raises(UnlistedEvent, match="WorkersExited in state NEW"):
        AgentMachine(1, membership=Others(), restarts=RestartPolicy(), graces=Graces.alike(1)).step(
            WorkersExited({0: 0}), 0
        )
    group = GroupMachine(1, grace_s=1)
    group.step(RoundSettled(a_round(1, nproc=1)), 0)
    group.step(WorkersSpawned({0: 1}), 0)
    with pytest.raises(UnlistedEvent, match="StopRepeated in state RUNNING"):
        group.step(StopRepeated(), 0)


class AnyHistory(RuleBasedStateMachine):
    """A driver that performs faithfully while workers die, people signal, the others decide, and time passes."""

    kind: type[AgentMachine] = AgentMachine

    @initialize(
        nproc=st.integers(1, 4),
        straggler_s=st.sampled_from([None, 20.0]),
        graces=st.sampled_from([Graces.alike(5), Graces(5, 1, 3, warn_s=8, warn_signal=10)]),
        stops_all_as=st.sampled_from([None, "n1"]),
        is_stuck=st.booleans(),
    )
    def begin(
        self, nproc: int, straggler_s: float | None, graces: Graces, stops_all_as: str | None, is_stuck: bool
    ) -> None:
        self.now = 0.0
        self.nproc = nproc
        self.others = Others()
        self.machine = self.kind(
            nproc,
            membership=self.others,
            restarts=RestartPolicy(max_restarts=2),
            graces=graces,
            straggler_s=straggler_s,
            stops_all_as=stops_all_as,
        )
        self.is_stuck = is_stuck  # children of workers, if they leave any, are not to be killed
        self.has_named_stuck = False
        self.alive: set[int] = set()
        self.to_report: dict[int, int] = {}
        self.starts = 0
        self.children_left = False
        self.pending: list[object] = []
        self.post(JobBegan())

    def post(self, event: object) -> None:
        inbox = [event]
        while inbox:
            taken = inbox.pop(0)
            for command in self.machine.step(taken, self.now):
                inbox += self.perform(command)

    def perform(self, command: Any) -> list[object]:
        match command:
            case SpawnWorkers():
                assert not self.alive, "a new round starts only when the old workers are gone"
                assert not self.has_named_stuck, "and not beside what the kernel did not let go"
                self.starts += 1
                self.alive = set(range(self.nproc))
                return [WorkersSpawned({one: 100 + one for one in self.alive})]
            case NameStuck():
                self.has_named_stuck = True
            case SignalTree(signal=9):
                self.children_left &= self.is_stuck
                self.to_report.update(dict.fromkeys(self.alive, -9))
                self.alive.clear()
                return [] if self.children_left else [TreeEmptied()]
            case SignalTree():
                return [] if self.children_left or self.alive else [TreeEmptied()]
            case CollectEvidence():
                assert not self.alive, "evidence is read when all are gone"
                self.pending.append(EvidenceCollected(failures_of(command)))
            case events.CloseSession():
                self.pending.append(events.SessionClosed())
            case Finish():
                assert not self.alive, "nothing is left at the end"
                assert self.machine.state is AgentState.ENDED
                assert command.verdict.exit_code or not self.has_named_stuck, "that is no success"
        return []

    @precondition(lambda self: self.machine.state is AgentState.WAITING)
    @rule()
    def a_round_forms(self) -> None:
        self.post(Noticed((events.RoundFormed(a_round(self.starts + 1, nproc=self.nproc)),)))

    @precondition(lambda self: self.machine.state is not AgentState.NEW)
    @rule(
        notice=st.sampled_from(
            [
                events.StopRound("lost", None),
                events.StopRound("silence", 1.0),
                events.StopRound("a node leaves", cause=StopCause.PLANNED),
                events.StopRound("a worker failed", cause=StopCause.FAILURE),
                events.JobDecided(STOPPED),
                events.StopRound("late", None, True),
                events.JobDecided(SUCCESS),
                events.MeetingFailed("no store"),
                events.Told("hello"),
            ]
        )
    )
    def the_membership_notices(self, notice: Any) -> None:
        self.post(Noticed((notice,)))

    @precondition(lambda self: self.pending)
    @rule()
    def the_driver_answers(self) -> None:
        self.post(self.pending.pop(0))

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 1, 7, -9]), leaves_child=st.booleans())
    def a_worker_ends(self, data: st.DataObject, code: int, leaves_child: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(rank)
        self.children_left |= leaves_child
        self.to_report[rank] = code

    @precondition(lambda self: self.to_report)
    @rule()
    def exits_are_seen(self) -> None:
        codes, self.to_report = self.to_report, {}
        self.post(WorkersExited(codes))

    @precondition(lambda self: self.children_left)
    @rule()
    def the_children_end(self) -> None:
        self.children_left = False
        if self.machine.group.state is GroupState.STOPPING and not self.alive:
            self.post(TreeEmptied())

    @rule(signal=st.sampled_from([TERM, INT]))
    def somebody_asks_to_stop(self, signal: int) -> None:
        self.post(StopAsked(signal, 5))

    @rule(local_rank=st.integers(0, 3))
    def an_exception_is_told(self, local_rank: int) -> None:
        if local_rank < self.nproc:
            self.post(ExceptionSeen(local_rank, self.now))

    @rule(seconds=st.floats(0.01, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.machine.deadline is not None and self.machine.deadline <= self.now:
            self.post(DeadlinePassed())

    def teardown(self) -> None:
        """Whatever happened: with time and a faithful driver the agent comes to its end, and nothing is alive then."""
        if not hasattr(self, "machine"):
            return
        self.post(StopAsked(TERM, 5))
        for _ in range(50):
            if self.machine.state is AgentState.ENDED:
                break
            if self.pending:
                self.the_driver_answers()
            elif self.to_report:
                self.exits_are_seen()
            else:
                self.time_passes(10)
        assert self.machine.state is AgentState.ENDED
        assert not self.alive


AnyHistory.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
