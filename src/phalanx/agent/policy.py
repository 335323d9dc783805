"""Whether a failed job is tried again. Pure: it sees the failures of a round and the budget, and answers.

The budget is a plain count (``--max-restarts``). A port of rank 0 that somebody else took between our choice and
the worker's bind is our bad luck and not the job's: it is tried again without charge, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.agent.verdict import Failure, exit_status, first_failure
from phalanx.records import Struct

__all__ = ["Budget", "GiveUp", "Restart", "decide"]

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


def decide(failures: Sequence[Failure], budget: Budget) -> Restart | GiveUp:
    """Decide once per failed round, with all failures at hand."""
    cause = first_failure(failures)
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
