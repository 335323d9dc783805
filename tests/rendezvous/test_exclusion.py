"""A node that should not be used for a while: who takes its place, what it costs, and when it is used again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rendezvous.fleet import TTL_S, Fleet

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.rendezvous.events import StartWatch, StoreFailed, Told, TransactionUnclear
from phalanx.rendezvous.exclusion import LONGEST_S, Exclusion
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.stored import NodeRecord, Phase, decode

EXCLUDE_S = 600.0
BROKEN = 42  # the exit code for which a node is excluded


def job(*, max_restarts: int = 0, **settings: Any) -> Fleet:
    restarts = RestartPolicy(max_restarts=max_restarts, exclude_on=(BROKEN,))
    return Fleet(
        **{"max_restarts": max_restarts, "restarts": restarts, "exclude_for_s": EXCLUDE_S, **settings}
    )


def with_spare(**settings: Any) -> Fleet:
    """A job of two nodes, a and b, with a spare c."""
    fleet = job(**settings)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.start("c")
    fleet.run(1)
    return fleet


def is_told_excluded(fleet: Fleet, name: str) -> bool:
    """As the others can read it."""
    found = fleet.read(fleet.keys.here(name))
    assert found is not None
    return bool(decode(NodeRecord, found.value).excluded)


# The clock of one node


def exclusion(node_id: str = "a", for_s: float = 100.0) -> Exclusion:
    return Exclusion(
        MembershipSettings(
            run_id="job", node_id=node_id, host="h", slots=1, min_nodes=1, max_nodes=2, exclude_for_s=for_s
        )
    )


def test_an_exclusion_ends_by_its_own_clock_and_says_so_once() -> None:
    one = exclusion()
    (told,) = one.begin("GPU 3", 50.0)
    assert one.ends_at is not None
    assert told.text.startswith("this node is excluded for 100 s: GPU 3; ")
    assert (one.reason, one.end_if_due(one.ends_at - 0.01)) == ("GPU 3", [])
    assert one.end_if_due(one.ends_at) == [Told("this node may be used again: it was excluded long enough")]
    assert not one.reason
    assert one.end_if_due(1e9) == []


def test_who_is_excluded_already_is_not_excluded_for_longer() -> None:
    one = exclusion()
    one.begin("GPU 3", 50.0)
    ends_at = one.ends_at
    assert one.begin("GPU 4", 60.0) == []
    assert (one.reason, one.ends_at) == ("GPU 3", ends_at)


@given(st.text(min_size=1), st.floats(0.1, 1e6))
def test_each_exclusion_is_twice_as_long_as_the_one_before_and_none_is_longer_than_a_day(
    node_id: str, first_s: float
) -> None:
    one = exclusion(node_id, first_s)
    for number in range(40):
        one.begin("again", 0.0)
        longest_s = min(LONGEST_S, first_s * 2.0**number)
        assert one.ends_at is not None
        assert longest_s * 0.9 <= one.ends_at <= longest_s
        assert one.end_if_due(one.ends_at)


def test_nodes_that_are_excluded_together_do_not_come_back_together() -> None:
    everyone = [exclusion(f"n{number}") for number in range(20)]
    for one in everyone:
        one.begin("GPU 3", 0.0)
    assert len({one.ends_at for one in everyone}) == 20


# A spare takes over


@pytest.mark.parametrize("name", ["a", "b"], ids=["the leader", "another"])
def test_a_node_whose_worker_ends_with_such_a_code_is_replaced_by_a_spare_without_charge(name: str) -> None:
    fleet = with_spare()
    others = sorted({"a", "b", "c"} - {name})
    fleet.fail(name, code=BROKEN)
    second = fleet.run_until_running(*others, number=2, within_s=5.0)
    assert second.restart_count == 0
    assert second.reason.endswith("; its node is excluded (not charged)")
    assert any("excluded for" in line and "exit code 42 (--exclude-on)" in line for line in fleet[name].said)
    fleet.finish(*others)
    assert fleet.run_until_over(within_s=5.0) == {0}


@pytest.mark.parametrize("name", ["a", "b"], ids=["the leader", "another"])
def test_a_node_whose_worker_asks_for_it_is_replaced_although_nothing_has_failed(name: str) -> None:
    fleet = with_spare()
    others = sorted({"a", "b", "c"} - {name})
    fleet.ask_exclusion(name)
    second = fleet.run_until_running(*others, number=2, within_s=5.0)
    assert (second.restart_count, second.reason) == (0, f"node {name} is excluded: GPU 3")
    assert fleet.leader == "a", "it leads on, if it led"


def test_a_failure_of_another_node_in_the_same_round_is_charged() -> None:
    fleet = with_spare(max_restarts=1)
    fleet["a"].link.is_deaf = True
    fleet.fail("a", summary="ValueError: own")
    fleet.ask_exclusion("b")
    fleet["a"].link.is_deaf = False
    fleet.heal()
    second = fleet.run_until_running("a", "c", number=2, within_s=5.0)
    assert (second.restart_count, second.reason) == (
        1,
        f"rank {fleet['a'].formed[0].group_rank} failed: ValueError: own (restart 1 of 1)",
    )


def test_two_spares_replace_two_nodes_that_are_excluded_at_once() -> None:
    fleet = with_spare()
    fleet.start("d")
    fleet.run(1)
    fleet.ask_exclusion("a")
    fleet.ask_exclusion("b")
    fleet.run_until_running("c", "d", within_s=10.0)
    assert fleet.record.restart_count == 0


def test_one_spare_for_two_nodes_that_are_excluded_at_once_takes_the_place_of_one() -> None:
    fleet = with_spare()
    fleet.ask_exclusion("a")
    fleet.ask_exclusion("b")
    fleet.run_until_running("a", "c", within_s=10.0)
    fleet.start("d")
    fleet.run_until_running("c", "d", within_s=10.0)


def test_a_node_that_was_needed_all_the_same_is_replaced_as_a_job_grows() -> None:
    """It was excluded in an earlier round: nothing is on fire, and the user says when rounds may change."""
    fleet = job(max_restarts=1, growth=Growth.NEVER)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "b", number=2, within_s=10.0)
    fleet.start("c")
    fleet.run(60.0)
    fleet.run_until_running("a", "b", number=2)


def test_an_elastic_job_goes_on_without_the_node() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    second = fleet.run_until_running("a", number=2, within_s=5.0)
    assert (second.restart_count, second.world_size) == (0, 1)


# Nobody takes over


def test_without_a_spare_it_stays_until_another_node_comes() -> None:
    fleet = job(max_restarts=1)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b", number=1)
    fleet.ask_exclusion("b")
    fleet.run(EXCLUDE_S / 2)
    fleet.run_until_running("a", "b", number=1)
    fleet.start("c")
    second = fleet.run_until_running("a", "c", number=2, within_s=5.0)
    assert (second.restart_count, second.reason) == (0, "node b is excluded: GPU 3")


def test_without_a_spare_its_failure_is_charged_and_it_is_used_again() -> None:
    fleet = job(max_restarts=1)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b", number=1)
    fleet.fail("b", code=BROKEN)
    assert fleet.run_until_running("a", "b", number=2).restart_count == 1
    fleet.fail("b", code=BROKEN)
    assert fleet.run_until_over(within_s=5.0) == {BROKEN}


def test_a_lone_node_goes_on_and_says_so() -> None:
    fleet = job(min_nodes=1, max_nodes=1)
    fleet.start("a")
    fleet.run_until_running("a")
    fleet.ask_exclusion("a")
    fleet.ask_exclusion("a", "GPU 4")
    fleet.run(EXCLUDE_S)
    fleet.run_until_running("a", number=1)
    told = [line for line in fleet["a"].said if "should not be used" in line]
    assert told == [
        "this node should not be used: GPU 3; it is used all the same, since the job has one node"
    ], "once: a script may ask in each step"


def test_a_spare_that_is_lost_brings_the_excluded_node_back() -> None:
    fleet = with_spare()
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    fleet.kill("c")
    third = fleet.run_until_running("a", "b", number=3, within_s=TTL_S + 5.0)
    assert third.restart_count == 0


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_static_job_excludes_nobody(name: str) -> None:
    fleet = job(is_static=True, max_restarts=1)
    fleet.start("a", order_hint=0)
    fleet.start("b", order_hint=1)
    fleet.run_until_running("a", "b")
    fleet.ask_exclusion(name)
    fleet.run(60.0)
    fleet.run_until_running("a", "b", number=1)
    fleet.fail(name, code=BROKEN)
    assert fleet.run_until_running("a", "b", number=2).restart_count == 1


def test_nodes_that_fail_by_turns_end_the_job_some_day() -> None:
    """Each exclusion is free while others can go on; the last nodes are charged as ever."""
    fleet = job(max_restarts=2, min_nodes=1, max_nodes=3, last_call_s=1.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    for _ in range(20):
        running = [one.name for one in fleet.agents.values() if one.alive and not one.is_stopping]
        if not running:
            break
        fleet.fail(running[0], code=BROKEN)
        fleet.run(5.0)
    assert fleet.run_until_over(within_s=30.0) == {BROKEN}


# Being used again


def test_when_its_time_is_over_it_joins_again_as_any_newcomer_would() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", number=2)
    fleet.run(EXCLUDE_S * 0.85)
    assert fleet.record.number == 2
    third = fleet.run_until_running("a", "b", number=3, within_s=EXCLUDE_S * 0.2)
    assert (third.restart_count, third.reason) == (0, "a node joined: b")


def test_when_its_time_is_over_and_there_is_no_room_it_is_a_spare() -> None:
    fleet = with_spare()
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    fleet.run(EXCLUDE_S)
    assert not is_told_excluded(fleet, "b")
    fleet.run_until_running("a", "c", number=2)
    fleet.kill("c")
    fleet.run_until_running("a", "b", number=3, within_s=TTL_S + 5.0)


def test_growth_that_was_not_asked_for_leaves_it_out() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0, growth=Growth.NEVER)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", number=2)
    fleet.run(EXCLUDE_S * 2)
    fleet.run_until_running("a", number=2)


def test_the_second_time_it_is_left_out_for_twice_as_long() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    for number, longest_s in ((1, EXCLUDE_S), (3, 2 * EXCLUDE_S)):
        fleet.run_until_running("a", "b", number=number, within_s=2 * EXCLUDE_S)
        fleet.fail("b", code=BROKEN)
        fleet.run_until_running("a", number=number + 1)
        fleet.run(longest_s * 0.85)
        assert fleet.record.number == number + 1
    fleet.run_until_running("a", "b", number=5, within_s=2 * EXCLUDE_S)


# At any moment of a round


def test_a_node_whose_exclusion_is_heard_while_others_still_join_is_left_out() -> None:
    """It had no time to tell before the round was over for another reason."""
    fleet = with_spare()
    fleet["a"].stop_s = 20.0
    fleet.start("d")
    fleet.leave("a")
    fleet.ask_exclusion("b")
    fleet.run(10.0)
    assert (fleet.record.number, fleet.record.phase) == (2, Phase.JOINING)
    fleet.run_until_running("c", "d", number=2, within_s=30.0)


def test_a_request_that_comes_while_the_round_is_collected_counts_for_the_next_round() -> None:
    fleet = with_spare(max_restarts=1)
    fleet["b"].stop_s = 5.0
    fleet.fail("a", summary="ValueError: own")
    fleet.run(1.0)
    fleet.ask_exclusion("b")
    second = fleet.run_until_running("a", "c", number=2, within_s=10.0)
    assert second.restart_count == 1


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_request_whose_answer_was_lost_is_made_again(is_applied: bool) -> None:
    fleet = with_spare()
    fleet["b"].link.lose_answer("exclude", is_applied=is_applied, times=2)
    fleet.fail("b", code=BROKEN)
    second = fleet.run_until_running("a", "c", number=2, within_s=30.0)
    assert second.restart_count == 0


@pytest.mark.parametrize("is_applied", [True, False])
def test_an_exclusion_that_ends_before_it_is_clear_whether_it_was_told_is_over_for_all(
    is_applied: bool,
) -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0, exclude_for_s=1.0, max_restarts=1)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet["b"].link.lose_answer("exclude", is_applied=is_applied)
    fleet.fail("b", code=BROKEN)
    fleet.run(10.0)
    assert not is_told_excluded(fleet, "b")
    fleet.run_until_running("a", "b", within_s=30.0)


def test_how_the_round_ended_is_told_after_the_exclusion() -> None:
    """Else the leader would choose this node again, and charge for it."""
    fleet = with_spare()
    held = fleet["b"].link.hold("exclude")
    fleet.fail("b", code=BROKEN)
    fleet.run(5.0)
    assert fleet["b"].link.sent["report outcome"] == 0
    assert held.deliver() == [True]
    fleet.run_until_running("a", "c", number=2, within_s=5.0)


def test_a_copy_of_the_request_that_arrives_when_all_is_over_excludes_nobody() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    held = fleet["b"].link.hold("exclude")
    fleet.fail("b", code=BROKEN)
    fleet["b"].link.holds.clear()
    fleet["b"].post(TransactionUnclear("exclude", "no answer"))
    fleet.work()
    fleet.run_until_running("a", number=2)
    fleet.run_until_running("a", "b", number=3, within_s=EXCLUDE_S)
    assert held.deliver() == [False]
    assert not is_told_excluded(fleet, "b")
    fleet.run_until_running("a", "b", number=3)


@pytest.mark.parametrize("name", ["a", "b"], ids=["the leader", "another"])
def test_a_new_life_of_the_node_registers_as_excluded(name: str) -> None:
    fleet = with_spare()
    (other,) = {"a", "b"} - {name}
    fleet.fail(name, code=BROKEN)
    fleet.run_until_running(other, "c", number=2)
    fleet.cut(name)
    fleet.run(2 * TTL_S)
    fleet.heal(name)
    fleet.run(10.0)
    assert is_told_excluded(fleet, name)
    fleet.run_until_running(other, "c", number=2)


@pytest.mark.parametrize("name", ["a", "b"], ids=["the leader", "another"])
def test_a_node_that_lost_its_lease_before_it_could_tell_is_excluded_all_the_same(name: str) -> None:
    fleet = with_spare()
    (other,) = {"a", "b"} - {name}
    fleet.cut(name)
    fleet.fail(name, code=BROKEN)
    fleet.run_until_running(other, "c", within_s=3 * TTL_S)
    fleet.heal(name)
    fleet.run(10.0)
    assert is_told_excluded(fleet, name)
    assert fleet.record.restart_count == 0


def test_an_exclusion_that_ends_while_the_node_is_cut_off_is_over_when_it_is_back() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0, exclude_for_s=40.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", number=2)
    fleet.cut("b")
    fleet.run(45.0)
    fleet.heal("b")
    fleet.run_until_running("a", "b", number=3, within_s=60.0)


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_an_excluded_node_that_goes_away_changes_nothing(end: str) -> None:
    fleet = with_spare()
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    getattr(fleet, end)("b")
    fleet.run(2 * TTL_S)
    fleet.run_until_running("a", "c", number=2)
    fleet.finish("a", "c")
    fleet.run_until_over(within_s=5.0)


@pytest.mark.parametrize("end", ["leave", "kill"])
def test_a_node_that_asks_and_then_goes_away_is_replaced(end: str) -> None:
    fleet = with_spare()
    fleet["b"].stop_s = 5.0
    fleet.ask_exclusion("b")
    getattr(fleet, end)("b")
    second = fleet.run_until_running("a", "c", number=2, within_s=2 * TTL_S)
    assert second.restart_count == 0


def test_an_excluded_node_ends_with_the_job() -> None:
    fleet = with_spare()
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    fleet.fail("c", code=7)
    assert fleet.run_until_over(within_s=5.0) == {7}


def test_a_leader_that_takes_over_leaves_it_out_too() -> None:
    fleet = job(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.start("c", "d")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    fleet.kill("a")
    fleet.run_until_running("c", "d", within_s=3 * TTL_S)
    assert is_told_excluded(fleet, "b")


def test_a_store_that_lost_its_data_learns_of_it() -> None:
    fleet = with_spare()
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", "c", number=2)
    fleet.lose_store()
    fleet.run(1.0)
    fleet.serve_store()
    fleet.run_until_running("a", "c", within_s=3 * TTL_S)
    assert is_told_excluded(fleet, "b")


def test_a_copy_of_the_request_that_arrives_after_the_node_has_left_does_not_bring_it_back() -> None:
    fleet = with_spare()
    held = fleet["b"].link.hold("exclude")
    fleet.ask_exclusion("b")
    fleet["b"].link.holds.clear()
    fleet["b"].post(TransactionUnclear("exclude", "no answer"))
    fleet["b"].stop_s = 20.0
    fleet.leave("b")
    assert held.deliver() == [False]
    found = fleet.read(fleet.keys.here("b"))
    assert found is not None
    assert decode(NodeRecord, found.value).is_leaving


def test_an_exclusion_that_ends_while_the_last_workers_are_stopped_keeps_nobody_busy() -> None:
    fleet = job(exclude_for_s=20.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.ask_exclusion("b")
    fleet["b"].obeys = False
    fleet["b"].post(StoreFailed("the store speaks another language"))
    fleet.run(25.0)
    assert fleet["b"].alive
    assert fleet.run_until_over() == {75}


def test_an_exclusion_that_ends_before_the_node_has_heard_of_the_job_keeps_nobody_busy() -> None:
    fleet = job(min_nodes=1, max_nodes=2, last_call_s=5.0, exclude_for_s=40.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", code=BROKEN)
    fleet.run_until_running("a", number=2)
    fleet.cut("b")
    fleet.run(25.0)
    link = fleet["b"].link
    start_watch, late = link.perform[StartWatch], list[StartWatch]()
    link.perform[StartWatch] = late.append
    fleet.heal("b")
    fleet.run(25.0)
    assert is_told_excluded(fleet, "b")
    link.perform[StartWatch] = start_watch
    for one in late:
        start_watch(one)
    fleet.work()
    fleet.run_until_running("a", "b", number=3, within_s=60.0)
