"""What the leader asks when a round is over: reports of all members in, the next round or the verdict out."""

from __future__ import annotations

from typing import Any

from phalanx.agent.outcomes import report_of
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import PORT_RETRIES_MAX, RestartPolicy, Standing
from phalanx.agent.verdict.stored import failures_text, verdict_from
from phalanx.agent.verdict.verdict import Ending, Failure, others_told
from phalanx.records import changed
from phalanx.rendezvous.policy import EndJob, MemberReport, NextRound, RoundReports
from phalanx.rendezvous.stored import Member, Outcome, Phase, Report, RoundRecord


def member(
    place: int,
    *failures: Failure,
    signed_at: int | None = None,
    is_lost: bool = False,
    outcome: Outcome | None = None,
    is_excluded: bool = False,
    **told: Any,
) -> MemberReport:
    name = f"node{place}"
    found = outcome or (Outcome.FAILED if failures else Outcome.STOPPED)
    return MemberReport(
        member=Member(node_id=name, registration=place + 1, host=name, slots=2),
        group_rank=place,
        first_rank=2 * place,
        report=None
        if is_lost
        else Report(outcome=found, evidence=failures_text(failures) if failures else "", **told),
        signed_at=signed_at,
        is_lost=is_lost,
        is_leaving=False,
        is_excluded=is_excluded,
    )


def ask(
    *members: MemberReport,
    restart_count: int = 0,
    policy_state: str = "",
    reason: str = "",
    **policy: Any,
) -> NextRound | EndJob:
    record = RoundRecord(
        number=4,
        phase=Phase.COLLECTING,
        restart_count=restart_count,
        policy_state=policy_state,
        reason=reason or "a worker failed on node0",
        is_failure=not reason,
    )
    reports = RoundReports(
        round=record, world_size=2 * len(members), members=members, open_s=31.0, ran_s=30.0, jitter=1.0
    )
    return leader_policy(RestartPolicy(**{"max_restarts": 3, **policy})).decide(reports)


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
    assert isinstance(decision, NextRound)
    assert (decision.restart_count, decision.reason) == (2, "rank 2 failed: early (restart 2 of 3)")


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
    state = Standing(used=2, hopeless=1).text()
    decision = ask(member(0, primary(0, RESET)), member(1, is_lost=True), restart_count=2, policy_state=state)
    assert decision == NextRound(
        restart_count=2,
        policy_state=Standing(used=2, hopeless=1, healthy_s=30).text(),
        reason="node node1 was lost (not charged)",
    )


def test_a_symptom_without_a_lost_node_is_charged() -> None:
    assert ask(member(0, primary(0, RESET)), member(1)).restart_count == 1  # type: ignore[union-attr]


def test_a_symptom_of_a_round_that_ended_for_another_reason_costs_nothing() -> None:
    decision = ask(member(0, primary(0, RESET)), member(1), reason="a node joined: node2")
    assert decision == NextRound(
        restart_count=0,
        policy_state=Standing(healthy_s=30).text(),
        reason="a node joined: node2 (not charged)",
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


def test_an_exception_from_after_the_stop_on_another_node_is_shown_and_never_blamed() -> None:
    late = primary(
        2, exception="ValueError", signed_at=9.5, stopped_at=9.0, exited_at=9.9, traceback="T" * 999
    )
    report = report_of(
        [late, primary(3, exit_code=-15, stopped_at=9.0, exited_at=9.1)],
        was_stopped=True,
        has_own_reason=False,
    )
    assert report.outcome is Outcome.STOPPED
    other = changed(member(1, outcome=Outcome.STOPPED, signed_at=1), report=report)

    decision = ask(member(0, primary(0, RESET), signed_at=5), other, restart_count=3)
    assert isinstance(decision, EndJob)
    verdict = verdict_from(decision.text)
    assert verdict.cause is not None
    assert verdict.cause.summary == RESET
    (found,) = others_told(verdict)
    assert (found.rank, found.summary, found.traceback) == (2, "ValueError: x", "")
    assert verdict.failed == ((0, 0),)

    unreadable = changed(
        member(0, outcome=Outcome.FAILED), report=Report(outcome=Outcome.FAILED, evidence="?")
    )
    decision = ask(unreadable, other, restart_count=3)
    assert isinstance(decision, EndJob)
    verdict = verdict_from(decision.text)
    assert verdict.cause is not None
    assert verdict.cause.rank == 0


def test_retries_because_of_the_port_are_counted_in_what_the_policy_remembers() -> None:
    def taken(retries: int) -> NextRound | EndJob:
        state = Standing(port_retries=retries).text()
        return ask(member(0, primary(0, master_port_taken=True)), max_restarts=0, policy_state=state)

    first = taken(0)
    assert isinstance(first, NextRound)
    assert first.reason == "rank 0 failed: ValueError: x: its MASTER_PORT was taken (not charged)"
    assert Standing.read(first.policy_state, charged=0).port_retries == 1
    assert isinstance(taken(PORT_RETRIES_MAX), EndJob)


def test_a_failure_of_an_excluded_node_is_not_charged_and_that_of_another_node_is() -> None:
    excluded = ask(member(0), member(1, primary(2), is_excluded=True))
    assert excluded.restart_count == 0  # type: ignore[union-attr]
    other = ask(member(0, primary(0)), member(1, is_excluded=True))
    assert other.restart_count == 1  # type: ignore[union-attr]


def test_the_furthest_that_any_member_told_of_is_the_progress_of_the_round() -> None:
    decision = ask(
        member(0, primary(0), step=3),
        member(1, step=8, checkpoint=5),
        member(2, is_lost=True),
        refill_on_progress=True,
        max_restarts=1,
        restart_count=1,
        policy_state=Standing(used=1, step=7).text(),
    )
    assert isinstance(decision, NextRound)
    assert Standing.read(decision.policy_state, charged=2).step == 8


def test_the_wait_before_the_next_round_is_told_with_it() -> None:
    state = Standing(used=1, short=1).text()
    decision = ask(member(0, primary(0)), restart_count=1, policy_state=state, backoff_s=4.0)
    assert isinstance(decision, NextRound)
    assert decision.delay_s == 4.0


def test_a_verdict_tells_what_was_restarted_before() -> None:
    state = Standing(used=3, past=("round 2: rank 1 failed", "round 3: rank 0 failed")).text()
    decision = ask(member(0, primary(0)), restart_count=3, policy_state=state)
    assert isinstance(decision, EndJob)
    verdict = verdict_from(decision.text)
    assert verdict.restart_count == 3
    assert verdict.restarts == ("round 2: rank 1 failed", "round 3: rank 0 failed")


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
    policy = leader_policy(RestartPolicy())
    record = RoundRecord(number=4, phase=Phase.SETTLED, restart_count=2)
    success = verdict_from(policy.succeeded(record))
    assert (success.exit_code, success.restart_count) == (0, 2)
    nobody = verdict_from(policy.not_formed("1 of 2", None))
    assert (nobody.ending, nobody.exit_code, nobody.reason) == (Ending.FAILED, 75, "1 of 2")


def test_of_very_many_failures_on_a_node_all_ranks_are_in_the_verdict() -> None:
    many = [primary(rank, exited_at=5.0) for rank in range(100)]
    decision = ask(member(0, *many, primary(100, exited_at=7.0, stopped_at=6.0)), max_restarts=0)
    assert isinstance(decision, EndJob)
    verdict = verdict_from(decision.text)
    assert len(verdict.failures) < 100
    assert (verdict.failed, verdict.tied) == (((0, 99),), ((0, 99),))


def test_ties_are_those_of_the_node_that_failed_first() -> None:
    decision = ask(
        member(0, primary(0), primary(1), signed_at=7),
        member(1, *(primary(rank, group_rank=1) for rank in (2, 3)), signed_at=5),
        max_restarts=0,
    )
    assert isinstance(decision, EndJob)
    assert verdict_from(decision.text).tied == ((2, 3),)
