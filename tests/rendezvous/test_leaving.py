"""Nodes that are told to go: members, leaders, spares, those that have only just come, and the host of the store."""

from __future__ import annotations

import pytest
from tests.rendezvous.fleet import Fleet

from phalanx.agent.verdict.verdict import Ending

INT = 2


def code_of(fleet: Fleet, name: str) -> int:
    verdict = fleet[name].verdict
    assert verdict is not None
    return verdict.exit_code


def test_when_a_node_leaves_the_others_are_told_at_once_and_go_on_when_its_last_process_is_gone() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet["b"].stop_s = 10.0
    fleet.leave("b")
    assert fleet["a"].is_stopping
    assert fleet["a"].said[-1] == "node b leaves: asked the worker to stop, 30 s of grace"
    fleet.run(9.9)
    assert fleet.record.number == 2, "the next round is open"
    assert fleet["a"].round is None, "and nobody starts beside workers of the old one"
    second = fleet.run_until_running("a", number=2, within_s=0.2)
    assert (second.restart_count, second.reason) == (0, "node b leaves")
    assert code_of(fleet, "b") == 143


def test_a_node_that_leaves_does_not_come_back_into_the_next_round() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.leave("c")
    fleet.run_until_running("a", "b", number=2, within_s=2.0)
    assert fleet["c"].is_over


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_job_ends_with_the_success_of_those_that_stay(name: str) -> None:
    other = "b" if name == "a" else "a"
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.leave(name)
    fleet.run_until_running(other, number=2)
    fleet.finish(other)
    fleet.run_until_over()
    assert (code_of(fleet, name), code_of(fleet, other)) == (143, 0)


def test_a_leader_that_leaves_gives_the_leadership_up_with_the_same_word() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    assert fleet.leader == "a"
    fleet["a"].stop_s = 20.0
    fleet.leave("a")
    fleet.run(0.1)
    assert fleet.leader in ("b", "c"), "while the old leader still stops its workers"
    assert fleet["b"].is_stopping


def test_a_leaver_that_wins_a_campaign_which_was_under_way_gives_the_leadership_up_again() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    held = {name: fleet[name].link.hold("campaign") for name in "ab"}
    fleet.leave("a")
    fleet["b"].stop_s = 100.0
    fleet.run(0.1)
    assert held["b"].commands
    assert fleet.leader is None
    fleet.leave("b")
    held["b"].deliver()
    held["a"].deliver()
    fleet.run(1)
    assert fleet.leader is None
    assert not fleet["b"].is_over


def test_all_leave_at_once() -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    for name in "abc":
        fleet.leave(name, INT)
    assert fleet.run_until_over(within_s=2.0) == {130}


def test_the_signal_of_a_leaver_reaches_its_workers_and_names_its_exit_code() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.leave("b", INT)
    fleet.run(1)
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 130)


def test_a_leaver_whose_worker_had_failed_before_is_a_failure_of_the_job() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=0)
    fleet.start("a", "b", slots=2)
    fleet.run_until_running("a", "b")
    fleet["b"].stop_s = 5.0
    fleet.fail("b", code=7)
    fleet.leave("b")
    assert fleet.run_until_over() == {7}


def test_a_spare_that_leaves_interrupts_nobody() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b")
    fleet.leave("c")
    fleet.run(100)
    assert code_of(fleet, "c") == 143
    assert fleet.record.number == 1


def test_a_node_that_is_told_to_go_before_the_store_was_reached_goes() -> None:
    fleet = Fleet()
    fleet.lose_store()
    fleet.start("a")
    fleet.run(3)
    fleet.leave("a")
    assert fleet.run_until_over(within_s=6.0) == {143}


def test_a_node_that_is_told_to_go_while_its_lease_is_confirmed_starts_no_workers() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a")
    link = fleet["a"].link
    link.held_confirms = []
    leave = link.hold("leave")
    fleet.start("b")
    fleet.run_until(lambda: link.held_confirms == [1], within_s=1.0)
    fleet.leave("a")
    link.confirm()
    fleet.run(1)
    assert fleet["a"].formed == []
    leave.deliver()
    fleet.run_until(lambda: fleet["a"].is_over, within_s=1.0)
    assert code_of(fleet, "a") == 143


def test_a_second_signal_does_not_wait_for_what_is_still_to_be_told_but_the_double_of_the_first_does() -> (
    None
):
    fleet = Fleet(min_nodes=2, max_nodes=3)
    fleet.start("a", "b")
    fleet.run(1)
    fleet["b"].link.hold("leave")
    fleet.leave("b")
    fleet.run(0.2)
    fleet.leave("b")
    fleet.run(2)
    assert not fleet["b"].is_over, "wrappers send two signals"
    fleet.leave("b")
    fleet.run(0.1)
    assert code_of(fleet, "b") == 143


def test_the_host_of_the_store_is_the_last_to_go_when_it_is_told_to() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0, drain_s=100.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet.leave("host")
    fleet.run_until_running("b", number=2, within_s=3.0)
    fleet.run(50)
    assert not fleet["host"].is_over
    fleet.finish("b")
    assert fleet.run_until_over(within_s=1.0) == {0, 143}


def test_the_host_of_the_store_waits_for_the_others_when_the_job_is_over() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, drain_s=100.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet.cut("b")
    fleet.run(0.5)
    fleet.heal("b")
    fleet["b"].link.is_deaf = True
    fleet.finish("host", "b")
    fleet.run(5)
    assert not fleet["host"].is_over
    fleet["b"].link.is_deaf = False
    fleet.heal("b")
    fleet.run_until_over(within_s=1.0)
    assert (code_of(fleet, "host"), code_of(fleet, "b")) == (0, 0)


def test_the_host_of_the_store_waits_only_so_long() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0, drain_s=30.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet.leave("host")
    fleet.run_until(lambda: fleet["host"].is_over, within_s=32.0)
    assert fleet.now > 1030.0


def test_a_second_signal_makes_the_host_of_the_store_go_at_once() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0, drain_s=30.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet.leave("host")
    fleet.run(5)
    fleet.leave("host")
    fleet.run(0.1)
    assert fleet["host"].is_over


def test_a_second_signal_while_its_workers_are_ended_is_remembered_by_the_host_of_the_store() -> None:
    """The first line said "again to end at once"; nobody should have to send a third one."""
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0, drain_s=30.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet["host"].obeys = False
    fleet.leave("host")
    fleet.run(2)
    fleet.leave("host")
    fleet.run(5)
    assert fleet["host"].is_over


def test_a_host_that_is_alone_does_not_wait() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=1, drain_s=30.0)
    fleet.start("host", is_host=True)
    fleet.run_until_running("host")
    fleet.finish("host")
    assert fleet.run_until_over(within_s=0.5) == {0}


def test_when_the_host_has_gone_the_others_wait_for_the_store_and_end_naming_it() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0, drain_s=5.0, store_timeout_s=60.0)
    fleet.start("host", is_host=True)
    fleet.start("b")
    fleet.run_until_running("host", "b")
    fleet.leave("host")
    fleet.run_until_over(within_s=200.0)
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert verdict.exit_code == 75
    assert "the store was not reached for 60 s (store_timeout)" in verdict.reason


def test_leaving_and_coming_back_ten_times_leaves_the_other_in_place_and_costs_nothing() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    formed = fleet.run_until_running("a", "b")
    for number in range(10):
        fleet.leave("b")
        fleet.run_until_running("a")
        fleet.start("b", node_id=f"b{number}")
        formed = fleet.run_until_running("a", "b")
        assert (formed.group_rank, formed.restart_count) == (0, 0)
    assert formed.number == 21
