"""Failures and the verdict as text, which the store carries between agents. Pure.

Bounded: the first failure of a node is told in full, the others in one line each, and of very many only some.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from phalanx.agent.verdict import Ending, Failure, Verdict, first_failure

__all__ = ["failures_from", "failures_text", "verdict_from", "verdict_text"]

FAILURES_MAX = 64  # of one node
DETAILS_MAX = 24 * 1024
LINE_MAX = 1024


def failures_text(failures: Sequence[Failure]) -> str:
    """The failures of one node."""
    first = first_failure(failures)
    kept = sorted(failures, key=lambda one: (one is not first, one.is_collateral, one.rank))[:FAILURES_MAX]
    return json.dumps([_plain(one, is_full=one is first) for one in kept], separators=(",", ":"))


def failures_from(text: str) -> tuple[Failure, ...]:
    """What ``failures_text`` wrote; nothing if that cannot be read."""
    try:
        read = json.loads(text)
        return tuple(_failure(one) for one in read)
    except (ValueError, TypeError, AttributeError, RecursionError):
        return ()


def verdict_text(verdict: Verdict) -> str:
    """The verdict, for every agent."""
    failures = [_plain(one, is_full=one is verdict.cause) for one in verdict.failures]
    cause = next((index for index, one in enumerate(verdict.failures) if one is verdict.cause), None)
    return json.dumps(
        {
            "ending": verdict.ending.value,
            "exit_code": verdict.exit_code,
            "cause": cause,
            "failures": failures,
            "reason": verdict.reason,
        },
        separators=(",", ":"),
    )


def verdict_from(text: str) -> Verdict:
    """What ``verdict_text`` wrote. Raises ``ValueError`` when that cannot be read."""
    try:
        read = json.loads(text)
        failures = tuple(_failure(one) for one in read["failures"])
        return Verdict(
            ending=Ending(read["ending"]),
            exit_code=int(read["exit_code"]),
            cause=None if read["cause"] is None else failures[read["cause"]],
            failures=failures,
            reason=str(read["reason"]),
        )
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the verdict in the store cannot be read: {error!r}") from None


def _plain(failure: Failure, *, is_full: bool) -> dict[str, Any]:
    plain = {field: getattr(failure, field) for field in failure.__struct_fields__}
    plain["summary"] = failure.summary[:LINE_MAX]
    plain["why_not_started"] = failure.why_not_started[:LINE_MAX]
    plain["details"] = failure.details[-DETAILS_MAX:] if is_full else ""
    return plain


def _failure(plain: dict[str, Any]) -> Failure:
    return Failure(**{field: plain[field] for field in Failure.__struct_fields__ if field in plain})
