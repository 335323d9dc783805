"""Nodes that hear nothing, leaders that are gone, answers that never come, and stores that lose their data."""

from __future__ import annotations

import pytest
from tests.rendezvous.fleet import TTL_S, Fleet

from phalanx.rendezvous.settings import Growth
from phalanx.rendezvous.state import MemberState

PURPOSES = [
    "register",
    "campaign",
    "lead",
    "join",
    "report first_sign",
    "report failing",
    "report outcome",
    "leave",
]


def pair(**settings: object) -> Fleet:
    """Two nodes that run; either may go on alone."""
    fleet = Fleet(**{"min_nodes": 1, "max_nodes": 2, "last_call_s": 5.0, **settings})
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    return fleet


# Silence


def test_workers_are_stopped_after_silence_of_six_tenths_of_a_lease_with_a_short_grace() -> None:
    fleet = pair()
    fleet.run(1)
    fleet.cut("b")
    fleet.run_until(lambda: fleet["b"].is_stopping, within_s=8.1)
    assert fleet.now == pytest.approx(1000 + 0.6 * TTL_S)
    assert fleet["b"].stop_grace_s == pytest.approx(0.15 * TTL_S)
    assert "the store has not answered for 9.0 s" in fleet["b"].said[-2]


def test_workers_that_do_not_obey_are_killed_by_the_fence_before_the_lease_is_over() -> None:
    fleet = pair()
    fleet["b"].obeys = False
    fleet.cut("b")
    fleet.run_until(lambda: not fleet["b"].alive, within_s=0.8 * TTL_S + 0.1)
    assert "b" in "".join(fleet.under(fleet.keys.all_here))


def test_a_users_grace_that_is_shorter_stays() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=1)
    fleet.start("a", grace_s=1.0)
    fleet.run_until_running("a")
    fleet.cut("a")
    fleet.run(9.1)
    assert fleet["a"].stop_grace_s == 1.0


def test_the_fence_moves_with_each_renewal_and_goes_with_the_workers() -> None:
    fleet = pair()
    agent = fleet["a"]
    before = len(agent.fences)
    fleet.run(15.1)
    assert agent.fences[before:] == pytest.approx([1000 + one + 0.8 * TTL_S for one in (5, 10, 15)])
    fleet.finish("a")
    assert agent.fence_at is None
    fleet.run(10)
    assert agent.fences[-1] is None, "no workers, no fence"


def test_a_short_silence_costs_one_uncharged_round_and_no_member() -> None:
    fleet = pair()
    fleet.cut("b")
    fleet.run(10)
    fleet.heal("b")
    second = fleet.run_until_running("a", "b", number=2, within_s=5.0)
    assert (second.restart_count, second.reason) == (0, "node b stopped its workers")
    assert "the store answers again" in fleet["b"].said


def test_a_long_silence_is_a_lost_node_that_joins_again_when_it_is_over() -> None:
    fleet = pair()
    fleet.cut("b")
    fleet.run_until_running("a", number=2, within_s=TTL_S + 1)
    assert not fleet["b"].alive
    fleet.run(20)
    fleet.heal("b")
    third = fleet.run_until_running("a", "b", number=3, within_s=10.0)
    assert third.restart_count == 0
    assert [one.group_rank for one in (fleet["a"].formed[-1], fleet["b"].formed[-1])] == [0, 1]


def test_a_frozen_agents_old_workers_never_run_beside_a_new_round_and_it_joins_when_it_is_thawed() -> None:
    fleet = pair()
    fleet.freeze("b")
    fleet.run_until_running("a", number=2, within_s=TTL_S + 1)
    assert fleet["b"].times_fenced == 1
    fleet.run(60)
    fleet.thaw("b")
    third = fleet.run_until_running("a", "b", number=3, within_s=10.0)
    assert third.restart_count == 0, "who finds its workers killed by the keeper blames nobody"


@pytest.mark.parametrize("number", [1, 2])
def test_a_spare_and_a_node_that_has_succeeded_may_lose_their_leases_without_any_harm(number: int) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a", "b")
    fleet.run(1)
    fleet.start("spare")
    fleet.run_until_running("a", "b")
    if number == 2:
        fleet.fail("a")
        fleet.run_until_running("a", "b", number=2)
    fleet.finish("b")
    fleet.cut("b", "spare")
    fleet.run(2 * TTL_S)
    fleet.heal()
    fleet.run(2 * TTL_S)
    assert fleet.record.number == number
    assert fleet["a"].formed[-1] == fleet["a"].round
    fleet.finish("a")
    assert fleet.run_until_over(within_s=1.0) == {0}


def test_an_agent_that_slept_for_less_than_a_lease_goes_on_without_a_word() -> None:
    fleet = pair()
    fleet.freeze("b")
    fleet.run(6)
    fleet.thaw("b")
    fleet.run(60)
    assert fleet.record.number == 1


def test_an_agent_that_slept_long_stops_its_workers_before_it_believes_anything_it_reads() -> None:
    fleet = pair()
    fleet.run(1)
    fleet.freeze("b")
    fleet.run(10.9)
    fleet.fail("a")
    fleet["b"].is_frozen = False
    fleet["b"].take()
    assert fleet["b"].member.state is MemberState.SILENT
    assert fleet["b"].is_stopping


# Leaders


@pytest.mark.parametrize("end", ["kill", "cut", "freeze"])
def test_when_the_leader_is_gone_another_one_leads_and_the_job_goes_on(end: str) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    assert fleet.leader == "a"
    getattr(fleet, end)("a")
    second = fleet.run_until_running("b", "c", number=2, within_s=TTL_S + 1)
    assert (second.restart_count, second.reason) == (0, "node a was lost")
    assert fleet.leader in ("b", "c")


def test_a_new_leader_starts_the_timers_anew() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=4, last_call_s=60.0)
    fleet.start("a", "b", "c")
    fleet.run(40)
    fleet.kill("a")
    fleet.run(TTL_S + 59)
    assert fleet["b"].round is None
    fleet.run_until_running("b", "c", number=1, within_s=2.0)


def test_the_late_transaction_of_an_old_leader_is_refused() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, max_restarts=1)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    held = fleet["a"].link.hold("lead")
    fleet.fail("b")
    fleet.run(0.1)
    assert len(held.commands) == 1
    fleet.cut("a")
    fleet.run_until_running("b", "c", within_s=2 * TTL_S)
    before = fleet.record
    assert held.deliver() == [False]
    assert fleet.record == before
    assert fleet.leader != "a"


def test_an_old_leader_that_comes_back_is_a_member_like_others() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.freeze("a")
    fleet.run_until_running("b", "c", number=2)
    leader = fleet.leader
    fleet.thaw("a")
    fleet.run_until_running("a", "b", "c")
    assert fleet.leader == leader
    assert not fleet["a"].member.is_leading


def test_a_leader_and_another_node_are_lost_at_once() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.kill("a", "b")
    assert fleet.run_until_running("c").restart_count == 0


def test_a_leader_that_goes_while_a_failure_is_collected_leaves_the_decision_to_the_next() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, max_restarts=1)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet["c"].stop_s = 10.0
    fleet.fail("b")
    fleet.run(1)
    fleet.kill("a")
    second = fleet.run_until_running("b", "c", within_s=40.0)
    assert second.restart_count == 1


# Answers that never come


@pytest.mark.parametrize("is_applied", [True, False])
@pytest.mark.parametrize("purpose", PURPOSES)
def test_an_answer_that_never_comes_changes_nothing_whether_or_not_the_write_was_applied(
    purpose: str, is_applied: bool
) -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, max_restarts=1, last_call_s=5.0)
    fleet.start("a", "b")
    for name in "ab":
        fleet[name].link.lose_answer(purpose, is_applied=is_applied, times=2)
    fleet.run_until_running("a", "b", number=1, within_s=60.0)
    fleet.fail("b")
    second = fleet.run_until_running("a", "b", number=2, within_s=60.0)
    assert second.restart_count == 1
    fleet.leave("b")
    fleet.run_until_running("a", number=3, within_s=60.0)
    fleet.finish("a")
    assert fleet.run_until_over(within_s=60.0) == {0, 143}
    assert {one.link.losses[purpose, is_applied] for one in fleet.agents.values()} != {2}, "some were lost"


@pytest.mark.parametrize("is_applied", [True, False])
def test_the_last_node_of_a_full_round_starts_although_its_joining_was_not_answered(is_applied: bool) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a")
    fleet.run(1)
    fleet.start("b")
    fleet["b"].link.lose_answer("join", is_applied=is_applied)
    fleet.run_until_running("a", "b", number=1, within_s=10.0)


def test_an_answer_about_one_round_is_not_taken_for_one_about_the_next() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a")
    held = fleet["a"].link.hold_answers("join")
    fleet.run(1)
    fleet["a"].link.held_confirms = []
    fleet.start("b")
    fleet.run(1)
    assert held.commands
    fleet.fail("b")
    fleet.run(1)
    assert fleet.record.number == 2
    fleet["a"].link.confirm()
    held.deliver()
    fleet.run_until_running("a", "b", number=2, within_s=5.0)


@pytest.mark.parametrize("kind", ["first_sign", "failing", "outcome"])
def test_an_answer_to_a_report_of_one_round_is_not_taken_for_one_of_the_next(kind: str) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a", "b", slots=2)
    fleet.run_until_running("a", "b")
    held = fleet["b"].link.hold_answers(f"report {kind}")
    fleet.fail("b")
    fleet.run_until_running("a", "b", number=2, within_s=5.0)
    held.deliver()
    fleet["b"].obeys = False
    fleet.fail("b")
    assert f"{fleet.keys.report(2, 'b', kind)}" in fleet.under(fleet.keys.reports(2)) or kind == "outcome"
    fleet["b"].obeys = True
    assert fleet.run_until_over(within_s=40.0) == {1}


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_checkpoint_that_was_not_answered_is_told_all_the_same(is_applied: bool) -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3, last_call_s=1.0, growth=Growth.AT_CHECKPOINT)
    fleet.start("a")
    fleet.run_until_running("a")
    fleet.start("b")
    fleet.run(10)
    fleet["a"].link.lose_answer("checkpoint", is_applied=is_applied)
    fleet.checkpoint("a")
    fleet.run_until_running("a", "b", number=2, within_s=10.0)


def test_what_a_leader_heard_late_does_not_make_it_decide_twice() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, max_restarts=5)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet["a"].link.is_deaf = True
    fleet.fail("b")
    fleet.run(4)
    fleet["a"].link.is_deaf = False
    fleet.heal("a")
    assert fleet.run_until_running("a", "b", "c", number=2).restart_count == 1


def test_a_member_that_had_not_started_when_collecting_began_reports_that_it_was_stopped() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a")
    fleet["a"].link.held_confirms = []
    fleet.start("b")
    fleet.run(0.1)
    assert fleet["a"].round is None
    fleet.fail("b")
    assert f"{fleet.keys.report(1, 'a', 'outcome')}" in fleet.under(fleet.keys.reports(1))
    fleet["a"].link.confirm()
    second = fleet.run_until_running("a", "b", number=2, within_s=2.0)
    assert second.restart_count == 1
    assert [one.number for one in fleet["a"].formed] == [2]


# Stores that go


def test_a_store_that_is_silent_for_less_than_a_lease_costs_one_round() -> None:
    fleet = pair()
    fleet.lose_store()
    fleet.run(10)
    fleet.serve_store(is_empty=False)
    assert fleet.run_until_running("a", "b", number=2, within_s=10.0).restart_count == 0


def test_survivors_of_a_store_that_lost_its_data_carry_the_number_and_the_restart_count() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, max_restarts=3, last_call_s=300.0)
    fleet.start("a", "b", "c")
    for number, name in enumerate("abc", start=1):
        fleet.run_until_running("a", "b", "c", number=number)
        if number < 3:
            fleet.fail(name)
    fleet.lose_store()
    fleet.run(3)
    fleet.serve_store()
    again = fleet.run_until_running("a", "b", "c", number=4, within_s=5.0)
    assert again.restart_count == 2
    assert [fleet[name].formed[-1].group_rank for name in "abc"] == [0, 1, 2], "and their ranks"


def test_nothing_starts_within_a_lease_unless_all_survivors_are_back() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=1.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet["c"].obeys = False
    fleet.freeze("c")
    fleet.lose_store()
    fleet.serve_store()
    fleet.run(TTL_S - 1)
    assert fleet["a"].round is None
    fleet.run_until_running("a", "b", number=2, within_s=5.0)


def test_newcomers_at_an_empty_store_wait_for_the_survivors_that_have_come() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=1.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.cut("b", "c")
    fleet.lose_store()
    fleet.start("d")
    fleet.serve_store()
    fleet.run(TTL_S - 1)
    assert fleet["a"].round is None
    again = fleet.run_until_running("a", "d", within_s=5.0)
    assert again.number == 2
    assert again.group_rank == 0


def test_a_busy_node_that_does_not_join_keeps_the_others_from_starting() -> None:
    fleet = pair()
    fleet["b"].obeys = False
    fleet["b"].fence_at = None
    fleet.lose_store()
    fleet.serve_store()
    fleet["b"].fences.clear()
    fleet.run(2)
    assert fleet["a"].round is None
    assert fleet["b"].alive
    fleet.run_until_running("a", "b", number=2, within_s=40.0)


def test_renewals_of_a_new_life_do_not_move_the_fence_of_workers_of_an_earlier_one() -> None:
    fleet = pair()
    agent = fleet["b"]
    agent.obeys = False
    fence_at = agent.fence_at
    fleet.run(1)
    fleet.lose_store()
    fleet.serve_store()
    fleet.run(2)
    assert agent.member.state is MemberState.PRESENT
    assert agent.alive
    assert agent.fence_at == fence_at


def test_a_store_that_does_not_come_back_ends_the_survivors_naming_it() -> None:
    fleet = pair(store_timeout_s=60.0)
    fleet.lose_store()
    assert fleet.run_until_over(within_s=70.0) == {75}
    assert fleet.now <= 1000 + 60 + 10
    verdict = fleet["a"].verdict
    assert verdict is not None
    assert verdict.reason == "the store was not reached for 60 s (store_timeout): nobody answers"


def test_a_failure_that_nobody_has_heard_is_not_hidden_by_the_loss_of_the_store() -> None:
    fleet = pair(store_timeout_s=60.0, max_restarts=3)
    fleet.lose_store()
    fleet.run(0.5)
    fleet.fail("b", code=9, summary="ValueError: own")
    codes = fleet.run_until_over(within_s=70.0)
    assert codes == {75, 9}
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert verdict.cause is not None
    assert (verdict.exit_code, verdict.cause.summary) == (9, "ValueError: own")
    assert verdict.reason.endswith("(store_timeout): nobody answers; the other nodes could not be told")


def test_a_failure_that_was_told_and_tried_again_is_over_when_the_store_is_lost_later() -> None:
    fleet = pair(store_timeout_s=60.0, max_restarts=3)
    fleet.fail("b", code=9, summary="ValueError: own")
    fleet.run_until_running("a", "b", number=2)
    fleet.lose_store()
    assert fleet.run_until_over(within_s=70.0) == {75}


def test_a_store_that_was_never_there_is_waited_for_as_long_as_for_nodes() -> None:
    fleet = Fleet(join_timeout_s=120.0)
    fleet.lose_store()
    fleet.start("a")
    fleet.run(6)
    assert fleet["a"].said == ["waiting for the store: nobody answers; gives up after 120 s"]
    assert fleet.run_until_over(within_s=120.0) == {75}


def test_a_leader_alone_sleeps_while_it_waits() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, join_timeout_s=600.0)
    fleet.start("a")
    fleet.run(30)
    steps = len(fleet.transcript)
    fleet.run(300)
    assert len(fleet.transcript) - steps < 300 / 5 * 3 + 100


def test_two_answers_that_are_lost_hours_apart_are_no_store_that_takes_no_write() -> None:
    """What the first one was about was seen to be done, so nobody asked again."""
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a")
    fleet.run(1)
    fleet.start("b")
    fleet["b"].link.lose_answer("join", is_applied=True)
    fleet.run_until_running("a", "b")
    fleet.run(3600)
    fleet["b"].link.lose_answer("report outcome", is_applied=False)
    fleet.finish("a", "b")
    assert fleet.run_until_over(within_s=30.0) == {0}
