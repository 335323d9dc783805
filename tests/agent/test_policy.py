"""Whether a failed round is tried again, as a table."""

from __future__ import annotations

import pytest

from phalanx.agent.policy import PORT_RETRIES_MAX, Budget, GiveUp, Restart, decide, leader_policy
from phalanx.agent.testimony import failures_text, verdict_from
from phalanx.agent.verdict import Ending, Failure
from phalanx.rendezvous.policy import EndJob, MemberReport, NextRound, RoundReports
from phalanx.rendezvous.stored import Member, Outcome, Phase, Report, RoundRecord

CRASH = Failure(rank=1, local_rank=1, pid=7, exit_code=1, exited_at=1.0, summary="ValueError: x at t.py:2")
PORT = Failure(rank=0, local_rank=0, pid=7, exit_code=1, exited_at=1.0, master_port_taken=True)
ABSENT = Failure(rank=0, local_rank=0, pid=0, exit_code=127, exited_at=1.0, why_not_started="'x' not found")


@pytest.mark.parametrize(
    ("failure", "budget", "expected"),
    [
        (CRASH, Budget(max_restarts=0), None),
        (CRASH, Budget(max_restarts=3, charged=3), None),
        (CRASH, Budget(max_restarts=3), Budget(max_restarts=3, charged=1)),
        (CRASH, Budget(max_restarts=3, charged=2, port_retries=2), Budget(max_restarts=3, charged=3)),
        (PORT, Budget(max_restarts=0), Budget(max_restarts=0, port_retries=1)),
        (PORT, Budget(max_restarts=2, charged=1), Budget(max_restarts=2, charged=1, port_retries=1)),
        (PORT, Budget(max_restarts=0, port_retries=PORT_RETRIES_MAX), None),
        (
            PORT,
            Budget(max_restarts=1, port_retries=PORT_RETRIES_MAX),
            Budget(max_restarts=1, charged=1),
        ),
        (ABSENT, Budget(max_restarts=1), Budget(max_restarts=1, charged=1)),
    ],
)
def test_decisions(failure: Failure, budget: Budget, expected: Budget | None) -> None:
    decision = decide([failure], budget)
    if expected is None:
        assert isinstance(decision, GiveUp)
    else:
        assert isinstance(decision, Restart)
        assert decision.budget == expected


def test_the_reason_names_the_rank_the_error_and_the_count() -> None:
    decision = decide([CRASH], Budget(max_restarts=3))
    assert decision.reason == "rank 1 failed: ValueError: x at t.py:2 (restart 1 of 3)"


def test_a_used_up_budget_says_so() -> None:
    assert decide([CRASH], Budget(max_restarts=3, charged=3)).reason == "all 3 restarts are used"


def test_a_port_that_was_taken_elsewhere_than_on_rank_0_is_an_ordinary_failure() -> None:
    first = Failure(rank=1, local_rank=1, pid=7, exit_code=1, exited_at=0.5)
    assert isinstance(decide([PORT, first], Budget(max_restarts=0)), GiveUp)


# What the leader asks


def member(
    place: int,
    *failures: Failure,
    signed_at: int | None = None,
    is_lost: bool = False,
    outcome: Outcome | None = None,
) -> MemberReport:
    name = f"node{place}"
    found = outcome or (Outcome.FAILED if failures else Outcome.STOPPED)
    return MemberReport(
        member=Member(node_id=name, registration=place + 1, host=name, slots=2),
        group_rank=place,
        first_rank=2 * place,
        report=None
        if is_lost
        else Report(outcome=found, evidence=failures_text(failures) if failures else ""),
        signed_at=signed_at,
        is_lost=is_lost,
        is_leaving=False,
    )


def ask(
    *members: MemberReport,
    max_restarts: int = 3,
    restart_count: int = 0,
    policy_state: str = "",
    reason: str = "",
) -> NextRound | EndJob:
    record = RoundRecord(
        number=4,
        phase=Phase.COLLECTING,
        restart_count=restart_count,
        policy_state=policy_state,
        reason=reason or "a worker failed on node0",
        is_failure=not reason,
    )
    reports = RoundReports(round=record, world_size=2 * len(members), members=members)
    return leader_policy(max_restarts).decide(reports)


def primary(rank: int, summary: str = "ValueError: x", **facts: object) -> Failure:
    values: dict[str, object] = {"local_rank": 0, "pid": 7, "exit_code": 1, "exited_at": 1.0, **facts}
    return Failure(rank=rank, summary=summary, **values)  # type: ignore[arg-type]


RESET = "RuntimeError: Connection reset by peer"


def test_a_failure_anywhere_is_charged_once_however_many_nodes_report_one() -> None:
    decision = ask(
        member(0, primary(0, "late"), signed_at=9),
        member(1, primary(2, "early"), signed_at=8),
        restart_count=1,
    )
    assert decision == NextRound(
        restart_count=2, policy_state="0", reason="rank 2 failed: early (restart 2 of 3)"
    )


def test_clocks_of_two_nodes_are_not_compared() -> None:
    decision = ask(
        member(0, primary(0, exited_at=1e9), signed_at=5), member(1, primary(2, exited_at=0.0), signed_at=6)
    )
    assert isinstance(decision, NextRound)
    assert decision.reason.startswith("rank 0 failed")


def test_a_failure_without_a_sign_in_the_store_comes_after_those_with_one() -> None:
    decision = ask(member(0, primary(0)), member(1, primary(2), signed_at=6))
    assert decision.reason.startswith("rank 2 failed")  # type: ignore[union-attr]


def test_a_used_up_budget_ends_the_job_with_the_failures_of_all_nodes() -> None:
    decision = ask(
        member(0, primary(0, exit_code=3), signed_at=5), member(1, primary(2), signed_at=6), restart_count=3
    )
    assert isinstance(decision, EndJob)
    verdict = verdict_from(decision.text)
    assert (verdict.ending, verdict.exit_code, verdict.reason) == (
        Ending.FAILED,
        3,
        "all 3 restarts are used",
    )
    assert {one.rank for one in verdict.failures} == {0, 2}


def test_a_symptom_of_a_lost_node_costs_nothing_and_keeps_what_the_policy_remembers() -> None:
    decision = ask(member(0, primary(0, RESET)), member(1, is_lost=True), restart_count=2, policy_state="1")
    assert decision == NextRound(
        restart_count=2, policy_state="1", reason="node node1 was lost (not charged)"
    )


def test_a_symptom_without_a_lost_node_is_charged() -> None:
    assert ask(member(0, primary(0, RESET)), member(1)).restart_count == 1  # type: ignore[union-attr]


def test_a_symptom_of_a_round_that_ended_for_another_reason_costs_nothing() -> None:
    decision = ask(member(0, primary(0, RESET)), member(1), reason="a node joined: node2")
    assert decision == NextRound(
        restart_count=0, policy_state="", reason="a node joined: node2 (not charged)"
    )
    own = ask(member(0, primary(0)), member(1), reason="a node joined: node2")
    assert own.restart_count == 1  # type: ignore[union-attr]


def test_a_failure_of_its_own_beside_a_lost_node_is_charged() -> None:
    assert ask(member(0, primary(0)), member(1, is_lost=True)).restart_count == 1  # type: ignore[union-attr]
    mixed = ask(
        member(0, primary(0, RESET), signed_at=1), member(1, primary(2), signed_at=9), member(2, is_lost=True)
    )
    assert mixed.restart_count == 1  # type: ignore[union-attr]
    assert "rank 2" in mixed.reason  # type: ignore[union-attr]


def test_retries_because_of_the_port_are_counted_in_what_the_policy_remembers() -> None:
    def taken(state: str) -> NextRound | EndJob:
        return ask(member(0, primary(0, master_port_taken=True)), max_restarts=0, policy_state=state)

    assert taken("") == NextRound(
        restart_count=0,
        policy_state="1",
        reason="rank 0 failed: ValueError: x: its MASTER_PORT was taken (not charged)",
    )
    assert taken("2").policy_state == "3"  # type: ignore[union-attr]
    assert isinstance(taken(str(PORT_RETRIES_MAX)), EndJob)
    assert taken("nonsense").policy_state == "1"  # type: ignore[union-attr]


def test_who_is_blamed_for_a_report_that_cannot_be_read_has_failed() -> None:
    broken = Report(outcome=Outcome.FAILED, evidence="?")
    one = member(1)
    unread = MemberReport(
        **{**{field: getattr(one, field) for field in one.__struct_fields__}, "report": broken}
    )
    decision = ask(member(0, outcome=Outcome.SUCCEEDED), unread)
    assert isinstance(decision, NextRound)
    assert (
        decision.reason == "rank 2 failed: its node's report of the failure cannot be read (restart 1 of 3)"
    )


def test_the_verdicts_of_success_and_of_no_round() -> None:
    policy = leader_policy(0)
    assert verdict_from(policy.succeeded()).exit_code == 0
    nobody = verdict_from(policy.not_formed("1 of 2"))
    assert (nobody.ending, nobody.exit_code, nobody.reason) == (Ending.FAILED, 75, "1 of 2")
