"""What the leader of a job asks when a round is over, answered by the restart policy and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.agent.restarts.policy import (
    GiveUp,
    HowItWent,
    Restart,
    RestartPolicy,
    Standing,
    decide,
    not_charged,
)
from phalanx.agent.verdict.stored import NodeEvidence, evidence_from, verdict_text
from phalanx.agent.verdict.verdict import (
    EX_UNAVAILABLE,
    Ending,
    Failure,
    Verdict,
    first_of_nodes,
    is_tied,
    judge,
)
from phalanx.records import changed
from phalanx.rendezvous.policy import EndJob, MemberReport, NextRound, Policy, RoundReports
from phalanx.rendezvous.stored import Outcome, Phase, RoundRecord
from phalanx.rendezvous.waiting import said_of

__all__ = ["leader_policy"]


def leader_policy(restarts: RestartPolicy) -> Policy:
    """What the leader of a job asks when a round is over, and what the verdicts say."""
    return Policy(
        decide=lambda reports: _decide(restarts, reports),
        passed=lambda reports: not_charged(restarts, _standing(reports.round), _how_it_went(reports)).text(),
        succeeded=lambda record: verdict_text(_ended(Ending.SUCCEEDED, 0, record)),
        not_formed=lambda reason, record: verdict_text(
            _ended(Ending.FAILED, EX_UNAVAILABLE, record, reason=reason)
        ),
    )


def _decide(restarts: RestartPolicy, reports: RoundReports) -> NextRound | EndJob:
    nodes = [
        (evidence_from(one.report.evidence), one.report.outcome, one.signed_at)
        for one in reports.members
        if one.report is not None
    ]
    everyone: Sequence[Failure] = tuple(failure for node, *_ in nodes for failure in node.failures)
    # What a node tells that was stopped, and has not failed, may be shown, and is never blamed.
    cause = first_of_nodes(
        (node.failures, signed_at) for node, outcome, signed_at in nodes if outcome is Outcome.FAILED
    )
    if cause is None:  # a report that nobody can read is a failure all the same
        cause = _unreadable(reports)
        everyone = (cause, *everyone)
    standing = _standing(reports.round)
    went = _how_it_went(reports, cause)
    if (cause.is_secondary or cause.is_collateral) and (reason := _other_reason(reports)):
        return NextRound(
            restart_count=reports.round.restart_count,
            policy_state=not_charged(restarts, standing, went).text(),
            reason=f"{reason} (not charged)",
        )
    decision = decide(cause, restarts, standing, reports.round.restart_count, went)
    if isinstance(decision, GiveUp):
        running = [rank for one in reports.members if one.is_running for rank in _ranks_of(one)]
        verdict = _judged(everyone, [node for node, *_ in nodes], cause, decision.reason, running)
        return EndJob(verdict_text(_told(verdict, reports.round)))
    return _next_round(decision)


def _judged(
    everyone: Sequence[Failure],
    nodes: Sequence[NodeEvidence],
    cause: Failure,
    reason: str,
    running: Sequence[int],
) -> Verdict:
    tied = [one.tied for one in nodes if one.failures and is_tied(one.failures[0], cause)]
    return judge(
        everyone,
        reason=reason,
        cause=cause,
        failed=_ranks(one.failed for one in nodes),
        tied=_ranks(tied),
        stopped=[*_ranks(one.stopped for one in nodes), *running],
    )


def _ranks(of_nodes: Iterable[tuple[tuple[int, int], ...]]) -> Iterator[int]:
    return (rank for ranges in of_nodes for first, last in ranges for rank in range(first, last + 1))


def _next_round(decision: Restart) -> NextRound:
    return NextRound(
        restart_count=decision.charged,
        policy_state=decision.standing.text(),
        reason=decision.reason,
        delay_s=decision.delay_s,
    )


def _standing(record: RoundRecord) -> Standing:
    return Standing.read(record.policy_state, charged=record.restart_count)


def _how_it_went(reports: RoundReports, cause: Failure | None = None) -> HowItWent:
    steps = [
        step
        for one in reports.members
        if one.report is not None
        for step in (one.report.step, one.report.checkpoint)
        if step is not None
    ]
    return HowItWent(
        number=reports.round.number,
        open_s=reports.open_s,
        ran_s=reports.ran_s,
        life_s=next((one.report.life_s for one in reports.members if one.report is not None), None),
        step=max(steps, default=None),
        is_node_excluded=cause is not None
        and any(_is_of(cause, one) for one in reports.members if one.is_excluded),
        jitter=reports.jitter,
    )


def _is_of(failure: Failure, member: MemberReport) -> bool:
    return failure.rank in _ranks_of(member)


def _ranks_of(member: MemberReport) -> range:
    return range(member.first_rank, member.first_rank + member.member.slots)


def _ended(ending: Ending, exit_code: int, record: RoundRecord | None, *, reason: str = "") -> Verdict:
    return _told(Verdict(ending=ending, exit_code=exit_code, reason=reason), record)


def _told(verdict: Verdict, record: RoundRecord | None) -> Verdict:
    """The verdict with what was before it."""
    if record is None:
        return verdict
    return changed(
        verdict,
        has_run=bool(record.previous) or record.phase is not Phase.JOINING,
        restart_count=record.restart_count,
        restarts=_standing(record).past,
    )


def _other_reason(reports: RoundReports) -> str:
    """What besides a worker's failure explains that connections broke: membership changed, or was about to."""
    everyone = reports.members
    deaf = [one for one in everyone if one.report is not None and one.report.has_own_reason]
    for told, *what in (
        ([one for one in everyone if one.is_lost], "node {} was lost", "nodes {} were lost"),
        ([one for one in everyone if one.is_leaving], "node {} left", "nodes {} left"),
        (deaf, "node {} could not hear the store", "nodes {} could not hear the store"),
    ):
        if told:
            return said_of([one.member for one in told], [one.member for one in everyone], *what)
    return "" if reports.round.is_failure else reports.round.reason


def _unreadable(reports: RoundReports) -> Failure:
    one = next(
        one for one in reports.members if one.report is not None and one.report.outcome is Outcome.FAILED
    )
    return Failure(
        rank=one.first_rank,
        local_rank=0,
        pid=0,
        exit_code=1,
        exited_at=0.0,
        host=one.member.host,
        summary="its node's report of the failure cannot be read",
    )
