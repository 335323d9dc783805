"""What follows when workers fail or nodes are lost, how a job ends, and what is charged for."""

from __future__ import annotations

import pytest
from tests.rendezvous.fleet import Fleet

from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.store.port import Delete, Put


def verdict_of(fleet: Fleet, name: str) -> Verdict:
    verdict = fleet[name].verdict
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_worker_failure_anywhere_is_one_new_round_for_all_with_one_count_and_one_reason(name: str) -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3, max_restarts=2)
    fleet.start("a", "b", "c")
    first = fleet.run_until_running("a", "b", "c", number=1)
    fleet.fail(name)
    fleet.run_until_running("a", "b", "c", number=2, within_s=2.0)
    rank = fleet[name].formed[0].group_rank
    for agent in fleet.agents.values():
        assert agent.round is not None
        assert agent.round.restart_count == 1
        assert agent.round.reason == f"rank {rank} failed: ValueError: x (restart 1 of 2)"
    assert fleet.rounds[1, 2].master_port != first.master_port


def test_the_budget_is_one_for_the_whole_job() -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3, max_restarts=2)
    fleet.start("a", "b", "c")
    for number, name in enumerate(("a", "b", "c"), start=1):
        fleet.run_until_running("a", "b", "c", number=number)
        fleet.fail(name, code=number)
    assert fleet.run_until_over(within_s=5.0) == {3}
    assert verdict_of(fleet, "a").reason == "all 2 restarts are used"


def test_every_node_gives_the_same_verdict_and_names_the_first_failure() -> None:
    fleet = Fleet(min_nodes=3, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.fail("b", code=9, summary="KeyError: 'lr'")
    assert fleet.run_until_over(within_s=5.0) == {9}
    verdicts = [verdict_of(fleet, name) for name in "abc"]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    cause = verdicts[0].cause
    assert cause is not None
    assert (cause.host, cause.summary) == ("b", "KeyError: 'lr'")


def test_the_first_sign_in_the_store_decides_although_another_node_ends_sooner() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("slow", "quick", slots=2)
    fleet.run_until_running("slow", "quick")
    fleet["slow"].stop_s = fleet["quick"].stop_s = 5.0
    fleet.fail("slow", code=3, summary="ValueError: first")
    fleet.run(1)
    fleet.fail("quick", code=4, summary="ValueError: second")
    assert fleet.run_until_over(within_s=20.0) == {3}


def test_a_failure_is_told_to_the_others_before_the_rest_of_that_node_has_ended() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b", slots=2)
    fleet.run_until_running("a", "b")
    fleet["a"].obeys = False
    fleet.fail("a")
    assert fleet["b"].is_stopping
    assert fleet["b"].said[-1] == "a worker failed on a: asked 2 workers to stop, 30 s of grace"


def test_a_lost_node_is_a_new_round_that_costs_nothing() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.kill("b")
    second = fleet.run_until_running("a", "c", number=2, within_s=17.0)
    assert (second.restart_count, second.reason) == (0, "node b was lost")


@pytest.mark.parametrize("is_before", [True, False])
def test_a_broken_connection_beside_a_lost_node_costs_nothing(is_before: bool) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.kill("b")
    fleet.run(1 if is_before else 14.9)
    fleet.fail("c", summary="RuntimeError: [Rank 2] Connection reset by peer")
    second = fleet.run_until_running("a", "c", number=2, within_s=20.0)
    assert (second.restart_count, second.reason) == (0, "node b was lost (not charged)")


@pytest.mark.parametrize("end", ["kill", "leave"])
def test_a_static_job_ends_when_a_node_is_lost_or_leaves(end: str) -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, is_static=True, max_restarts=3)
    fleet.start("a", order_hint=0)
    fleet.start("b", order_hint=1)
    fleet.run_until_running("a", "b")
    getattr(fleet, end)("b")
    fleet.run_until_over(within_s=30.0)
    assert verdict_of(fleet, "a").exit_code == 75
    assert "in a static job nobody takes a node's place" in verdict_of(fleet, "a").reason


def test_a_failure_of_its_own_beside_a_lost_node_is_charged() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, max_restarts=1)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    fleet.kill("b")
    fleet.fail("c", summary="ValueError: bad batch 17")
    second = fleet.run_until_running("a", "c", number=2, within_s=20.0)
    assert second.restart_count == 1
    assert "bad batch 17" in second.reason


def test_a_broken_connection_without_a_lost_node_is_charged() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("b", summary="RuntimeError: Connection reset by peer")
    assert fleet.run_until_running("a", "b", number=2).restart_count == 1


def test_a_broken_connection_yields_to_the_failure_that_broke_it_although_it_was_seen_first() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b", slots=2)
    fleet.run_until_running("a", "b")
    fleet["b"].link.is_deaf = True  # it fails before it hears of the other failure
    fleet.fail("a", code=1, summary="RuntimeError: Connection reset by peer")
    fleet.run(0.1)
    fleet.fail("b", code=5, summary="MemoryError")
    fleet["b"].link.is_deaf = False
    fleet.heal()
    assert fleet.run_until_over() == {5}


def test_workers_that_a_lost_node_took_along_are_no_failure_of_theirs() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet["a"].stop_code = 1  # torch turns SIGTERM into an exception
    fleet.kill("b")
    second = fleet.run_until_running("a", number=2)
    assert second.restart_count == 0


def test_a_lost_node_that_had_failed_before_has_left_no_evidence_and_costs_nothing() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b", slots=2)
    fleet.run_until_running("a", "b")
    fleet["b"].obeys = False
    fleet.fail("b")
    fleet.kill("b")
    assert fleet.run_until_running("a", number=2).restart_count == 0


def test_a_job_ends_with_success_when_all_have_and_who_is_early_waits() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("a")
    fleet.run(3600)
    assert not fleet["a"].is_over
    fleet.finish("b")
    assert fleet.run_until_over(within_s=1.0) == {0}


def test_a_success_outlives_its_node() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("b")
    fleet.kill("b")
    fleet.run(100)
    assert fleet["a"].formed == [fleet["a"].round]
    fleet.finish("a")
    assert fleet.run_until_over(within_s=1.0) == {0}


def test_newcomers_park_after_the_first_success() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=4, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("b")
    fleet.start("c")
    fleet.run(500)
    assert fleet.record.number == 1
    fleet.finish("a")
    assert fleet.run_until_over(within_s=1.0) == {0}


def test_a_failure_after_a_success_runs_all_that_live_again() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, max_restarts=1)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("a")
    fleet.fail("b")
    second = fleet.run_until_running("a", "b", number=2)
    assert second.restart_count == 1
    fleet.finish("a", "b")
    assert fleet.run_until_over() == {0}


def test_a_loss_after_a_success_runs_all_that_live_again_without_charge() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=2, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("a")
    fleet.kill("b")
    assert fleet.run_until_running("a", number=2).restart_count == 0


def test_an_exit_barrier_lets_a_node_go_that_has_waited_so_long() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, exit_barrier_s=60.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("a")
    fleet.run_until(lambda: fleet["a"].is_over, within_s=60.1)
    assert fleet.now >= 1060.0
    assert verdict_of(fleet, "a").ending is Ending.SUCCEEDED
    fleet.run(600)
    assert fleet["b"].round is not None, "who has succeeded is not lost"
    fleet.finish("b")
    assert fleet.run_until_over(within_s=1.0) == {0}


def test_workers_that_run_on_long_after_others_have_ended_are_a_failure_if_that_was_asked_for() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2, straggler_s=60.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.finish("a")
    fleet.run(59)
    assert not fleet["b"].is_stopping
    fleet.run_until_over(within_s=5.0)
    assert verdict_of(fleet, "a").ending is Ending.FAILED
    cause = verdict_of(fleet, "a").cause
    assert cause is not None
    assert cause.host == "b"


def test_a_report_that_nobody_can_read_is_a_failure_all_the_same() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    held = fleet["b"].link.hold("report outcome")
    fleet.fail("b")
    fleet.write(
        Put(fleet.keys.report(1, "b", "outcome"), b'{"outcome":"failed","evidence":"[{\\"rank\\":[]}]"}')
    )
    fleet.run(1)
    held.deliver()
    assert fleet.run_until_over() == {1}
    cause = verdict_of(fleet, "a").cause
    assert cause is not None
    assert (cause.host, cause.summary) == ("b", "its node's report of the failure cannot be read")


def test_a_verdict_that_nobody_can_read_is_no_success() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.write(Put(fleet.keys.verdict, b'{"text":"{}"}'))
    assert fleet.run_until_over() == {75}


def test_a_settled_round_whose_members_are_gone_is_no_success() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.write(Delete(fleet.keys.members(1)))
    leader = fleet.leader
    assert leader is not None
    fleet.kill(leader)
    assert fleet.run_until_over() == {75}
    assert "does not say who is in round 1" in verdict_of(fleet, "b" if leader == "a" else "a").reason


def test_nonsense_in_the_store_is_passed_over_and_told() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.write(
        Put(fleet.keys.here("ghost"), b"\xff\xfe"),
        Put(fleet.keys.joined(1, "ghost"), b"[1]"),
        Put(f"{fleet.keys.nodes}what/is/this", b""),
        Put(fleet.keys.waiting, b"{}"),
    )
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    leader = fleet.leader
    assert leader is not None
    said = "\n".join(fleet[leader].said)
    assert "has no lease: whoever it is would be here for ever" in said
    assert "passed over: a Joined in the store is no object" in said
    assert "passed over: a record in the store is not whole" in said
