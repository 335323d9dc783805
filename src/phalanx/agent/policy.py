"""Whether a failed job is tried again. Pure: it sees the failures of a round and the budget, and answers.

The leader asks once per failed round, with the reports of all its members (``leader_policy``).

The budget is a plain count (``--max-restarts``). A port of rank 0 that somebody else took between our choice and
the worker's bind is our bad luck and not the job's: it is tried again without charge, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.agent.testimony import failures_from, verdict_text
from phalanx.agent.verdict import (
    EX_UNAVAILABLE,
    Ending,
    Failure,
    Verdict,
    exit_status,
    first_failure,
    first_of_nodes,
    judge,
)
from phalanx.records import Struct
from phalanx.rendezvous.policy import EndJob, NextRound, Policy, RoundReports
from phalanx.rendezvous.stored import Outcome

__all__ = ["Budget", "GiveUp", "Restart", "decide", "leader_policy"]

PORT_RETRIES_MAX = 3  # a fourth failure in a row is no coincidence: the user's own port is in use


class Budget(Struct, kw_only=True):
    """What has been spent so far."""

    max_restarts: int
    charged: int = 0
    port_retries: int = 0
    """Uncharged restarts in a row because MASTER_PORT was taken."""


class Restart(Struct):
    """Try again with this budget."""

    reason: str
    budget: Budget


class GiveUp(Struct):
    """The job has failed for good."""

    reason: str


def leader_policy(max_restarts: int) -> Policy:
    """What the leader of a job asks when a round has failed, and what the verdicts say."""

    def decide_for_all(reports: RoundReports) -> NextRound | EndJob:
        nodes = [
            (failures_from(one.report.evidence), one.signed_at)
            for one in reports.members
            if one.report is not None
        ]
        everyone = tuple(failure for failures, _ in nodes for failure in failures)
        cause = first_of_nodes(nodes)
        if cause is None:  # a report that nobody can read is a failure all the same
            cause = _unreadable(reports)
            everyone = (cause,)
        if (cause.is_secondary or cause.is_collateral) and (reason := _other_reason(reports)):
            return NextRound(
                restart_count=reports.round.restart_count,
                policy_state=reports.round.policy_state,
                reason=f"{reason} (not charged)",
            )
        state = reports.round.policy_state
        budget = Budget(
            max_restarts=max_restarts,
            charged=reports.round.restart_count,
            port_retries=int(state) if state.isdecimal() and len(state) < 4 else 0,
        )
        decision = decide(everyone, budget, cause=cause)
        if isinstance(decision, GiveUp):
            return EndJob(verdict_text(judge(everyone, reason=decision.reason, cause=cause)))
        return NextRound(
            restart_count=decision.budget.charged,
            policy_state=str(decision.budget.port_retries),
            reason=decision.reason,
        )

    return Policy(
        decide=decide_for_all,
        succeeded=lambda: verdict_text(Verdict(ending=Ending.SUCCEEDED, exit_code=0)),
        not_formed=lambda reason: verdict_text(
            Verdict(ending=Ending.FAILED, exit_code=EX_UNAVAILABLE, reason=reason)
        ),
    )


def _other_reason(reports: RoundReports) -> str:
    """What besides a worker's failure explains that connections broke: membership changed, or was about to."""
    for hosts, what in (
        ([one.member.host for one in reports.members if one.is_lost], "node {} was lost"),
        ([one.member.host for one in reports.members if one.is_leaving], "node {} left"),
        (
            [
                one.member.host
                for one in reports.members
                if one.report is not None and one.report.has_own_reason
            ],
            "node {} could not hear the store",
        ),
    ):
        if hosts:
            return what.format(", ".join(sorted(hosts)))
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


def decide(failures: Sequence[Failure], budget: Budget, *, cause: Failure | None = None) -> Restart | GiveUp:
    """Decide once per failed round, with all failures at hand; ``cause`` is the first of them if that is known."""
    cause = cause or first_failure(failures)
    if cause is None:
        raise AssertionError("the policy is asked about failures only")
    what = describe(cause)
    if cause.master_port_taken and budget.port_retries < PORT_RETRIES_MAX:
        spent = Budget(
            max_restarts=budget.max_restarts, charged=budget.charged, port_retries=budget.port_retries + 1
        )
        return Restart(f"{what}: its MASTER_PORT was taken (not charged)", spent)
    if budget.charged >= budget.max_restarts:
        if budget.max_restarts == 0:
            return GiveUp("")  # nobody expects one
        return GiveUp(f"all {budget.max_restarts} restarts are used")
    spent = Budget(max_restarts=budget.max_restarts, charged=budget.charged + 1)
    return Restart(f"{what} (restart {spent.charged} of {budget.max_restarts})", spent)


def describe(failure: Failure) -> str:
    """A failure in half a sentence."""
    if failure.why_not_started:
        return f"rank {failure.rank} could not be started: {failure.why_not_started}"
    if failure.summary:
        return f"rank {failure.rank} failed: {failure.summary}"
    return f"rank {failure.rank} ended with exit code {exit_status(failure.exit_code)}"
