"""A round that waits before it starts, and what the restart policy remembers: whoever leads, and whatever is lost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendezvous.fleet import TTL_S, Fleet

from phalanx.agent.restarts.policy import RestartPolicy, Standing
from phalanx.rendezvous.stored import Phase

WAIT_S = 40.0  # at the least half of it


def job(*, max_restarts: int = 9, policy: dict[str, Any] | None = None, **settings: Any) -> Fleet:
    values = {"backoff_s": WAIT_S, "backoff_max_s": 10 * WAIT_S, **(policy or {})}
    restarts = RestartPolicy(max_restarts=max_restarts, **values)
    return Fleet(**{"max_restarts": max_restarts, "restarts": restarts, **settings})


def waiting(*names: str, **settings: Any) -> Fleet:
    """A job whose second round has failed soon after the first: the third has been opened, and waits."""
    fleet = job(**settings)
    fleet.start(*names)
    for number in (1, 2):
        fleet.run_until_running(*names, number=number, within_s=5.0)
        fleet.fail(names[-1])
    fleet.run_until(lambda: (fleet.record.number, fleet.record.phase) == (3, Phase.JOINING))
    assert WAIT_S / 2 <= fleet.record.delay_s <= WAIT_S
    return fleet


def starts_in(fleet: Fleet, *names: str, within_s: float = 600.0) -> float:
    """How long it takes until these run."""
    began = fleet.now
    fleet.run_until_running(*names, number=3, within_s=within_s)
    return fleet.now - began


def test_the_first_restart_does_not_wait_and_the_second_does() -> None:
    fleet = waiting("a", "b")
    delay_s = fleet.record.delay_s
    assert starts_in(fleet, "a", "b") == pytest.approx(delay_s)


def test_the_waits_double_and_end_with_a_round_that_runs_long_enough() -> None:
    fleet = job()
    fleet.start("a", "b")
    for number in (1, 2, 3, 4):
        fleet.run_until_running("a", "b", number=number)
        fleet.fail("a")
    fleet.run_until(lambda: fleet.record.number == 5)
    assert 2 * WAIT_S <= fleet.record.delay_s <= 4 * WAIT_S
    fleet.run_until_running("a", "b", number=5)
    fleet.run(100.0)
    fleet.fail("a")
    fleet.run_until_running("a", "b", number=6, within_s=5.0)


def test_every_node_says_once_how_long_it_waits_and_why() -> None:
    fleet = waiting("a", "b")
    fleet.run_until_running("a", "b", number=3)
    for agent in fleet.agents.values():
        (line,) = [line for line in agent.said if "restart 2 of 9" in line]
        assert line == (
            "rank 1 failed: ValueError: x (restart 2 of 9); 2 rounds in a row failed within 1 min; "
            f"round 3 waits {fleet.record.delay_s:.1f} s before it starts"
        )


def test_the_waiting_line_says_when_it_starts() -> None:
    fleet = waiting("a", "b")
    fleet.run(6.0)
    left_s = fleet.record.delay_s - 5.0
    for agent in fleet.agents.values():
        assert agent.said[-1] == f"waiting: 2 of 2 nodes are ready (a, b); starts in {left_s:.0f} s"


@pytest.mark.parametrize("is_early", [True, False])
def test_a_leader_that_takes_over_during_the_wait_waits_as_long(is_early: bool) -> None:
    """It has seen the round open, too: it neither starts at once nor waits anew."""
    fleet = waiting("a", "b", "c", min_nodes=2, max_nodes=3, last_call_s=1.0)
    delay_s = fleet.record.delay_s
    fleet.run(0.5 if is_early else 4.0)
    elapsed_s = 0.5 if is_early else 4.0
    assert fleet.leader == "a"
    fleet.kill("a")
    left_s = max(delay_s - elapsed_s, 0.0)
    took_s = starts_in(fleet, "b", "c")
    assert left_s - 0.01 <= took_s <= left_s + 2.0
    assert fleet["b"].formed[-1].restart_count == 2


def test_a_leader_that_leaves_during_the_wait_hands_the_wait_over() -> None:
    fleet = waiting("a", "b", "c", min_nodes=2, max_nodes=3, last_call_s=1.0)
    delay_s = fleet.record.delay_s
    fleet.run(5.0)
    fleet.leave("a")
    assert starts_in(fleet, "b", "c") == pytest.approx(delay_s - 5.0, abs=1.5)
    assert fleet["a"].verdict is not None
    assert fleet["a"].verdict.exit_code == 143


def test_a_newcomer_that_leads_after_all_others_never_waits_for_less() -> None:
    fleet = waiting("a", "b", min_nodes=1, max_nodes=3, last_call_s=1.0)
    delay_s = fleet.record.delay_s
    fleet.run(5.0)
    fleet.start("c")
    fleet.run(1.0)
    fleet.kill("a", "b")
    began = fleet.now
    fleet.run_until_running("c", within_s=200.0)
    assert fleet.now - began >= delay_s - 6.0


def test_a_node_that_joins_during_the_wait_is_in_the_round_and_changes_no_time() -> None:
    fleet = waiting("a", "b", min_nodes=2, max_nodes=3, last_call_s=1.0)
    delay_s = fleet.record.delay_s
    fleet.run(5.0)
    fleet.start("c")
    assert starts_in(fleet, "a", "b", "c") == pytest.approx(delay_s - 5.0)


def test_a_node_that_leaves_during_the_wait_changes_no_time() -> None:
    fleet = waiting("a", "b", "c", min_nodes=2, max_nodes=3, last_call_s=1.0)
    delay_s = fleet.record.delay_s
    fleet.run(5.0)
    fleet.leave("c")
    assert starts_in(fleet, "a", "b") == pytest.approx(delay_s - 5.0)


def test_a_node_that_is_lost_during_the_wait_is_waited_for_when_it_is_needed() -> None:
    fleet = waiting("a", "b")
    fleet.kill("b")
    fleet.run(4 * WAIT_S)
    assert (fleet.record.number, fleet.record.phase) == (3, Phase.JOINING)
    fleet.start("c")
    assert starts_in(fleet, "a", "c") <= 2.0, "the wait is over for long"


def test_a_stop_signal_during_the_wait_ends_the_node_at_once() -> None:
    fleet = waiting("a", "b")
    fleet.leave("b")
    fleet.run_until(lambda: fleet["b"].is_over, within_s=1.0)
    assert fleet["b"].verdict is not None
    assert fleet["b"].verdict.exit_code == 143


# What the policy remembers


def test_what_is_spent_survives_the_loss_of_the_stores_data() -> None:
    fleet = job(max_restarts=3, policy={"refill_on_progress": True, "backoff_s": 0.0})
    fleet.start("a", "b")
    for number in (1, 2):
        fleet.run_until_running("a", "b", number=number)
        fleet.progress("a", 10)
        fleet.fail("b")
    fleet.run_until_running("a", "b", number=3)
    before = Standing.read(fleet.record.policy_state, charged=9)
    assert (before.used, before.step) == (2, 10), "the second round came no further"
    fleet.lose_store()
    fleet.run(1.0)
    fleet.serve_store()
    again = fleet.run_until_running("a", "b", number=4, within_s=2 * TTL_S)
    assert again.restart_count == 2
    after = Standing.read(fleet.record.policy_state, charged=9)
    assert (after.used, after.step, after.past) == (before.used, before.step, before.past)


def test_a_restart_that_was_charged_and_waits_survives_the_loss_of_the_stores_data() -> None:
    fleet = job(max_restarts=3, policy={"backoff_s": 10.0, "backoff_max_s": 10.0})
    fleet.start("a", "b")
    for number in (1, 2):
        fleet.run_until_running("a", "b", number=number)
        fleet.fail("b")
    fleet.run(2.0)
    assert (fleet.record.number, fleet.record.restart_count, fleet.record.phase) == (3, 2, Phase.JOINING)
    fleet.lose_store()
    fleet.run(1.0)
    fleet.serve_store()
    assert fleet.run_until_running("a", "b", within_s=2 * TTL_S).restart_count == 2


def test_what_is_spent_survives_rounds_that_cost_nothing_and_another_leader() -> None:
    fleet = job(max_restarts=2, min_nodes=1, max_nodes=3, last_call_s=1.0, policy={"backoff_s": 0.0})
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c", number=1)
    fleet.fail("b")
    fleet.run_until_running("a", "b", "c", number=2)
    fleet.kill("a")
    third = fleet.run_until_running("b", "c", number=3)
    assert third.restart_count == 1
    fleet.start("d")
    fourth = fleet.run_until_running("b", "c", "d", number=4)
    assert fourth.restart_count == 1
    fleet.fail("c")
    fleet.run_until_running("b", "c", "d", number=5)
    fleet.fail("d", code=9)
    assert fleet.run_until_over() == {9}
    verdict = fleet["b"].verdict
    assert verdict is not None
    assert (verdict.reason, verdict.restart_count) == ("all 2 restarts are used", 2)
    assert [line.partition(":")[0] for line in verdict.restarts] == ["round 1", "round 4"]


def test_progress_on_one_node_makes_the_budget_whole_for_a_failure_on_another() -> None:
    fleet = job(max_restarts=1, policy={"refill_on_progress": True, "backoff_s": 0.0})
    fleet.settings["max_restarts"] = 9
    fleet.start("a", "b")
    for number in range(1, 6):
        fleet.run_until_running("a", "b", number=number)
        fleet.progress("b", 10 * number)
        fleet.fail("a")
    fleet.run_until_running("a", "b", number=6)
    fleet.progress("b", 10)
    fleet.fail("a", code=9)
    assert fleet.run_until_over() == {9}


def test_progress_that_a_lost_node_could_not_tell_of_is_lost_with_it() -> None:
    fleet = job(
        max_restarts=1, min_nodes=1, max_nodes=2, last_call_s=1.0, policy={"refill_on_progress": True}
    )
    fleet.start("a", "b")
    fleet.run_until_running("a", "b", number=1)
    fleet.fail("a")
    fleet.run_until_running("a", "b", number=2)
    fleet.progress("b", 10)
    fleet.kill("b")
    fleet.run_until_running("a", number=3)
    fleet.fail("a", code=9)
    assert fleet.run_until_over() == {9}


def test_healthy_time_is_the_jobs_whoever_leads() -> None:
    fleet = job(
        max_restarts=1,
        min_nodes=1,
        max_nodes=3,
        last_call_s=1.0,
        policy={"refill_after_s": 100.0, "backoff_s": 0.0},
    )
    fleet.settings["max_restarts"] = 9
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c", number=1)
    fleet.fail("b")
    fleet.run_until_running("a", "b", "c", number=2)
    fleet.run(60.0)
    fleet.kill("a")
    fleet.run_until_running("b", "c", number=3)
    fleet.run(60.0)
    fleet.fail("b")
    assert fleet.run_until_running("b", "c", number=4).restart_count == 2
    fleet.run(10.0)
    fleet.fail("b", code=9)
    assert fleet.run_until_over() == {9}
