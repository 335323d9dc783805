"""How workers are stopped for each cause, and how a node ends that was told to stop or that cannot clean up."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.test_machine import (
    INT,
    KILL,
    SUCCESS,
    TERM,
    Noticed,
    Others,
    a_round,
    collect,
    end_of,
    only,
    running,
    waiting,
)

from phalanx.agent.events import CollectEvidence
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    AnnounceStop,
    DeadlinePassed,
    ExceptionSeen,
    GroupMachine,
    RoundSettled,
    Say,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.leaving import request_by
from phalanx.agent.machine import AgentMachine, AgentState
from phalanx.agent.verdict.stored import verdict_from, verdict_text
from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers, WarnWorkers
from phalanx.rendezvous import events
from phalanx.rendezvous.asks import Ask, AskHeard
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.stored import Outcome

USR1 = 10
GRACES = Graces(stop_s=40, restart_s=5, resize_s=9)
WARNING = Graces(40, 5, 9, warn_s=120, warn_signal=USR1)
STOPPED = verdict_text(
    Verdict(ending=Ending.STOPPED, exit_code=130, reason="n2 was told to stop by SIGINT (--stop-all)")
)
FAILED = verdict_text(Verdict(ending=Ending.FAILED, exit_code=9, reason="no restart is left"))


def stopped_round(cause: StopCause, **more: Any) -> Noticed:
    return Noticed((events.StopRound("why", cause=cause, **more),))


# The grace of each cause


@pytest.mark.parametrize(
    ("event", "grace_s"),
    [
        (StopAsked(TERM, 40), 40),
        (WorkersExited({1: 7}), 5),
        (stopped_round(StopCause.FAILURE), 5),
        (stopped_round(StopCause.PLANNED), 9),
        (stopped_round(StopCause.LOSS), 9),
        (stopped_round(StopCause.END), 40),
        (Noticed((events.JobDecided(SUCCESS),)), 40),
        (Noticed((events.MeetingFailed("no store"),)), 40),
        (stopped_round(StopCause.LOSS, grace_s=2.25), 2.25),
        (stopped_round(StopCause.LOSS, grace_s=60.0), 9),
    ],
    ids=lambda given: str(given)[:60],
)
def test_each_cause_has_its_grace(event: object, grace_s: float) -> None:
    machine, _ = running(graces=GRACES)
    commands = machine.step(event, 1)
    assert [one for one in commands if isinstance(one, SignalWorkers)] == [SignalWorkers(TERM)]
    assert only(commands, AnnounceStop).grace_s == grace_s
    assert machine.deadline == 1 + grace_s


def test_stragglers_are_stopped_with_the_grace_of_a_failure() -> None:
    machine, _ = running(graces=GRACES, straggler_s=60)
    machine.step(WorkersExited({0: 0}), 1)
    assert AnnounceStop(TERM, 5, "failure") in machine.step(DeadlinePassed(), 61)


def test_the_grace_of_who_leaves_is_not_cut_by_the_round_that_ends_because_of_it() -> None:
    machine, _ = running(graces=GRACES)
    machine.step(StopAsked(TERM, 40), 1)
    assert machine.step(stopped_round(StopCause.PLANNED), 1.1) == []
    assert machine.step(stopped_round(StopCause.LOSS), 2) == []
    assert machine.deadline == 41
    machine.step(stopped_round(StopCause.LOSS, grace_s=2.0), 3)
    assert machine.deadline == 5, "the fence cannot wait"


def test_an_end_of_the_job_while_a_failure_stops_the_workers_brings_their_end_no_later() -> None:
    machine, _ = running(graces=Graces(stop_s=2, restart_s=30, resize_s=30))
    machine.step(WorkersExited({1: 7}), 1)
    machine.step(Noticed((events.JobDecided(FAILED),)), 3)
    assert machine.deadline == 5


# What is told again


def test_workers_hear_when_less_time_is_left_and_that_there_is_no_step_to_agree_on_any_more() -> None:
    machine, _ = running(graces=Graces(stop_s=40, restart_s=5, resize_s=300))
    assert only(machine.step(stopped_round(StopCause.PLANNED), 1), AnnounceStop).grace_s == 300
    lost = stopped_round(StopCause.LOSS, grace_s=8.0, is_own=True)
    assert machine.step(lost, 11) == [AnnounceStop(TERM, 8, "loss")]
    assert machine.step(lost, 12) == [], "no news"
    assert machine.step(stopped_round(StopCause.LOSS, grace_s=2.0), 13) == [AnnounceStop(TERM, 2, "loss")]


def test_a_shorter_time_for_what_can_wait_leaves_a_failure_a_failure() -> None:
    machine, _ = running(graces=Graces(stop_s=2, restart_s=30, resize_s=30))
    machine.step(WorkersExited({1: 7}), 1)
    told = machine.step(Noticed((events.JobDecided(SUCCESS),)), 3)
    assert told == [AnnounceStop(TERM, 2, "failure")]


def test_a_warning_that_is_cut_short_is_told() -> None:
    machine, _ = running(graces=WARNING)
    assert only(machine.step(stopped_round(StopCause.PLANNED), 1), AnnounceStop).grace_s == 129
    told = machine.step(stopped_round(StopCause.LOSS, grace_s=8.0, is_own=True), 11)
    assert told == [AnnounceStop(TERM, 8, "loss"), SignalWorkers(TERM)]
    assert machine.deadline == 19


def test_a_rank_that_is_lost_ends_the_agreement_and_not_the_time_whenever_it_is_heard() -> None:
    lost = Noticed((AskHeard(Ask.NO_STEP, "n1.1.lost", ""),))
    machine, _ = running(graces=GRACES)
    machine.step(stopped_round(StopCause.PLANNED), 1)
    assert machine.step(lost, 3) == [AnnounceStop(TERM, 7, "loss")]
    assert machine.step(lost, 4) == []
    assert machine.deadline == 10

    machine, _ = running(graces=GRACES)
    assert machine.step(lost, 1) == [], "nothing is stopped yet"
    assert only(machine.step(stopped_round(StopCause.PLANNED), 2), AnnounceStop).cause == "loss"


def test_a_rank_that_is_lost_is_no_news_where_no_worker_is_left() -> None:
    machine, _ = waiting(graces=GRACES)
    assert machine.step(Noticed((AskHeard(Ask.NO_STEP, "n1.1.lost", ""),)), 1) == []


@pytest.mark.parametrize("cause", [StopCause.LOSS, StopCause.FAILURE])
def test_what_ends_a_round_whose_workers_have_succeeded_is_told_to_nobody(cause: StopCause) -> None:
    machine, _ = running(graces=GRACES)
    machine.step(WorkersExited({0: 0, 1: 0}), 1)
    assert machine.step(stopped_round(cause, grace_s=8.0, is_own=True), 1.1) == []


def test_a_stop_is_not_told_again_because_of_the_last_bit_of_a_sum() -> None:
    assert (2.2 + 0.3) + 0.3 < 2.2 + (0.3 + 0.3)
    group = GroupMachine(2, grace_s=30)
    group.step(RoundSettled(a_round(1)), 0)
    group.step(WorkersSpawned({0: 100, 1: 101}), 0)
    asked = StopAsked(TERM, 0.3, USR1, 0.3, cause="planned")
    assert group.step(asked, 2.2) == [AnnounceStop(TERM, 0.6, "planned"), WarnWorkers(USR1)]
    assert group.step(asked, 2.2) == []


# The warning


@pytest.mark.parametrize(
    ("event", "grace_s"),
    [(StopAsked(INT, 40), 40), (stopped_round(StopCause.PLANNED), 9)],
    ids=["asked", "planned"],
)
def test_what_can_wait_is_warned_of_and_workers_know_at_once_that_they_are_to_stop(
    event: object, grace_s: float
) -> None:
    machine, others = running(graces=WARNING)
    signal = event.signal if isinstance(event, StopAsked) else TERM
    commands = machine.step(event, 1)
    cause = "asked" if isinstance(event, StopAsked) else "planned"
    assert commands[1:] == [AnnounceStop(signal, 120 + grace_s, cause), WarnWorkers(USR1)]
    assert "SIGUSR1 to 2 workers, 120 s to end by themselves, then" in commands[0].text
    told = machine.step(DeadlinePassed(), 121)
    assert told == [
        Say("ranks 0, 1 still run after the warning and are asked to stop"),
        SignalWorkers(signal),
    ]
    assert machine.deadline == 121 + grace_s
    assert len(others.told(events.LeaveAsked)) == isinstance(event, StopAsked)


@pytest.mark.parametrize(
    "event",
    [WorkersExited({1: 7}), *map(stopped_round, (StopCause.FAILURE, StopCause.LOSS, StopCause.END))],
    ids=["failure here", "failure", "loss", "end"],
)
def test_what_cannot_wait_is_not_warned_of(event: object) -> None:
    machine, _ = running(graces=WARNING)
    commands = machine.step(event, 1)
    assert SignalWorkers(TERM) in commands
    assert not any(isinstance(one, WarnWorkers) for one in commands)


def test_a_node_that_leaves_tells_the_others_before_its_workers_have_ended_the_warning() -> None:
    machine, others = running(graces=WARNING)
    machine.step(StopAsked(TERM, 40), 1)
    assert others.heard[-1] == events.LeaveAsked()
    machine.step(WorkersExited({0: 0, 1: 3}), 50)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 50), 50))
    assert verdict.exit_code == 143, "who fails after the warning was asked to stop"


def test_a_second_signal_cuts_the_warning_short() -> None:
    machine, _ = running(graces=WARNING)
    machine.step(StopAsked(TERM, 40), 1)
    assert machine.step(StopAsked(TERM, 40), 1.3) == []
    assert machine.step(StopAsked(TERM, 40), 5) == [SignalWorkers(TERM)]
    assert machine.deadline == 5.5


def test_the_fence_does_not_wait_for_a_warning() -> None:
    machine, _ = running(graces=WARNING)
    machine.step(stopped_round(StopCause.PLANNED), 1)
    assert SignalWorkers(TERM) in machine.step(stopped_round(StopCause.LOSS, grace_s=2.0), 5)
    assert machine.deadline == 7


def test_a_stop_request_ahead_of_the_workers_is_kept_with_its_warning() -> None:
    machine, _ = waiting(graces=WARNING)
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(StopAsked(TERM, 4), 1)
    assert machine.step(WorkersSpawned({0: 100, 1: 101}), 2) == [AnnounceStop(TERM, 124), WarnWorkers(USR1)]


def test_who_is_told_to_leave_while_workers_start_keeps_its_own_signal_and_grace_unless_the_fence_is_near() -> (
    None
):
    machine, _ = waiting(graces=GRACES)
    machine.step(Noticed((events.RoundFormed(a_round(1)),)), 0)
    machine.step(StopAsked(INT, 40), 1)
    machine.step(stopped_round(StopCause.PLANNED), 1)
    machine.step(stopped_round(StopCause.LOSS, grace_s=2.0), 2)
    assert machine.step(WorkersSpawned({0: 100, 1: 101}), 3) == [
        AnnounceStop(INT, 40),
        SignalWorkers(INT),
        AnnounceStop(TERM, 2, "loss"),
    ]
    assert machine.deadline == 5


@pytest.mark.parametrize("way", ["told", "told to stop all", "the others were"])
def test_who_is_stopped_knows_which_of_its_workers_that_ended(way: str) -> None:
    machine, _ = running(stops_all_as="n1" if way == "told to stop all" else None)
    machine.step(WorkersExited({0: 0}), 1)
    machine.step(
        Noticed((events.JobDecided(STOPPED),)) if way == "the others were" else StopAsked(TERM, 30), 2
    )
    machine.step(WorkersExited({1: 0}), 3)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 3), 3))
    assert (verdict.ending, verdict.stopped) == (Ending.STOPPED, ((1, 1),))


def test_a_failure_before_the_request_is_named_as_the_one_that_was_first() -> None:
    machine, _ = running()
    machine.step(ExceptionSeen(1, 0.5, "ValueError: x"), 1)
    machine.step(WorkersExited({0: 3, 1: 4}), 2)
    machine.step(StopAsked(TERM, 30), 2.5)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 3), 3))
    assert verdict.cause is not None
    assert (verdict.cause.rank, verdict.exit_code) == (1, 4)
    assert verdict.reason == "rank 1 ended with exit code 4 before SIGTERM arrived"


# Ending the job everywhere


def told_end(others: Others) -> Verdict:
    (told,) = others.told(events.EndAsked)
    return verdict_from(told.text)


def test_with_stop_all_the_verdict_is_told_and_the_node_does_not_leave_the_round() -> None:
    machine, others = running(stops_all_as="n1")
    commands = machine.step(StopAsked(INT, 30), 1)
    assert SignalWorkers(INT) in commands
    assert told_end(others) == Verdict(
        ending=Ending.STOPPED, exit_code=130, reason="n1 was told to stop by SIGINT (--stop-all)"
    )
    assert not others.told(events.LeaveAsked)
    machine.step(WorkersExited({0: -INT, 1: 0}), 2)
    assert end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2)).exit_code == 130


@pytest.mark.parametrize("state", [AgentState.WAITING, AgentState.COLLECTING])
def test_with_stop_all_the_job_ends_also_when_this_node_has_no_workers(state: AgentState) -> None:
    machine, others = (
        waiting(stops_all_as="n1") if state is AgentState.WAITING else running(stops_all_as="n1")
    )
    commands: list[Any] = []
    if state is AgentState.COLLECTING:
        machine.step(WorkersExited({0: 0, 1: 0}), 1)
        commands = machine.step(TreeEmptied(), 1)
    assert machine.state is state
    ending = machine.step(StopAsked(TERM, 30), 2)
    assert told_end(others).exit_code == 143
    if state is AgentState.COLLECTING:
        ending = collect(machine, commands, 3)
    assert end_of(machine, ending).exit_code == 143


def test_with_stop_all_a_verdict_that_was_there_before_is_everybodys() -> None:
    machine, _ = running(stops_all_as="n1")
    machine.step(StopAsked(TERM, 30), 1)
    machine.step(Noticed((events.JobDecided(FAILED),)), 1.1)
    machine.step(WorkersExited({0: -TERM, 1: -TERM}), 2)
    assert end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2)).exit_code == 9


def test_with_stop_all_a_verdict_that_is_heard_when_the_workers_have_gone_is_everybodys_too() -> None:
    machine, _ = running(stops_all_as="n1")
    machine.step(StopAsked(TERM, 30), 1)
    machine.step(WorkersExited({0: -TERM, 1: -TERM}), 2)
    commands = collect(machine, machine.step(TreeEmptied(), 2), 2)
    machine.step(Noticed((events.JobDecided(FAILED),)), 3)
    assert end_of(machine, commands).exit_code == 9
    machine, _ = running(stops_all_as="n1")
    machine.step(StopAsked(TERM, 3), 1)
    machine.step(WorkersExited({0: 0, 1: 0}), 2)
    commands = collect(machine, stuck(machine, 3), 100)
    machine.step(Noticed((events.JobDecided(SUCCESS),)), 101)
    assert end_of(machine, commands).exit_code == 143, "something is left: that is no success"


def test_the_others_stop_their_workers_with_the_same_signal_and_say_who_was_told() -> None:
    machine, others = running(graces=GRACES)
    assert machine.step(Noticed((events.JobDecided(STOPPED),)), 1) == [
        Say("n2 was told to stop by SIGINT (--stop-all): asked 2 workers to stop, 40 s of grace"),
        AnnounceStop(INT, 40),
        SignalWorkers(INT),
    ]
    machine.step(WorkersExited({0: 0, 1: 1}), 2)
    verdict = end_of(machine, collect(machine, machine.step(TreeEmptied(), 2), 2))
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 130)
    assert not others.told(events.LeaveAsked)
    warned, _ = running(graces=WARNING)
    assert WarnWorkers(USR1) in warned.step(Noticed((events.JobDecided(STOPPED),)), 1)


def test_a_spare_says_who_was_told_to_stop_and_ends_with_the_same_code() -> None:
    machine, _ = waiting()
    commands = machine.step(Noticed((events.JobDecided(STOPPED),)), 1)
    assert commands[0] == Say("n2 was told to stop by SIGINT (--stop-all)")
    assert end_of(machine, commands).exit_code == 130


@pytest.mark.parametrize("code", [0, 128, 128 + 200, 7])
def test_a_verdict_with_a_signal_that_does_not_exist_stops_with_sigterm(code: int) -> None:
    assert request_by(Verdict(ending=Ending.STOPPED, exit_code=code), GRACES) == StopAsked(TERM, 40)


# What the kernel does not let go


def stuck(machine: AgentMachine, now: float) -> list[Any]:
    """The workers are being stopped, or swept; what is left of them does not die."""
    commands: list[Any] = []
    for _ in range(4):
        if NameStuck() in commands:
            break
        assert machine.deadline is not None
        commands = machine.step(DeadlinePassed(), max(now, machine.deadline))
    assert NameStuck() in commands
    return commands


def end_of_stuck(machine: AgentMachine, others: Others, now: float = 2) -> tuple[Verdict, Outcome]:
    """The node leaves and never comes to another round; with which verdict, and what the others are told."""
    commands = collect(machine, stuck(machine, now), 100)
    kinds = [type(one) for one in others.heard]
    assert kinds.index(events.LeaveAsked) < kinds.index(events.WorkersGone) < kinds.index(events.PartEnded)
    return end_of(machine, commands, 101), others.told(events.WorkersGone)[0].report.outcome


def test_a_failure_with_something_left_is_reported_and_this_node_starts_nothing_again() -> None:
    machine, others = running(max_restarts=3)
    machine.step(WorkersExited({1: 7}), 1)
    verdict, outcome = end_of_stuck(machine, others)
    assert (verdict.ending, verdict.exit_code, outcome) == (Ending.FAILED, 7, Outcome.FAILED)
    assert "gives up its place" in verdict.reason


def test_success_with_something_left_is_told_to_the_others_and_is_exit_code_75_here() -> None:
    machine, others = running()
    assert machine.step(WorkersExited({0: 0, 1: 0}), 1) == [SignalTree(TERM)]
    verdict, outcome = end_of_stuck(machine, others)
    assert (verdict.exit_code, outcome) == (75, Outcome.SUCCEEDED)


def test_a_stop_request_with_something_left_ends_with_the_signals_code() -> None:
    machine, others = running()
    machine.step(StopAsked(INT, 3), 1)
    machine.step(WorkersExited({0: 0}), 2)
    verdict, _ = end_of_stuck(machine, others)
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 130)


@pytest.mark.parametrize("cause", [StopCause.FAILURE, StopCause.PLANNED, StopCause.LOSS])
def test_a_round_that_ends_elsewhere_with_something_left_here_is_exit_code_75(cause: StopCause) -> None:
    machine, others = running()
    machine.step(stopped_round(cause), 1)
    machine.step(WorkersExited({0: -TERM}), 2)
    verdict, outcome = end_of_stuck(machine, others)
    assert (verdict.exit_code, outcome) == (75, Outcome.STOPPED)


@pytest.mark.parametrize(("text", "code"), [(FAILED, 9), (SUCCESS, 75), (STOPPED, 130)])
def test_a_verdict_that_was_spoken_names_the_code_unless_it_is_a_success(text: str, code: int) -> None:
    machine, others = running()
    machine.step(Noticed((events.JobDecided(text),)), 1)
    assert end_of_stuck(machine, others)[0].exit_code == code


def test_a_worker_that_is_stuck_itself_counts_as_killed_by_us() -> None:
    machine, _ = running()
    machine.step(WorkersExited({1: 7}), 1)
    exits = only(stuck(machine, 2), CollectEvidence).exits
    assert {one.local_rank: (one.exit_code, one.stopped_at) for one in exits} == {0: (-KILL, 1), 1: (7, None)}
