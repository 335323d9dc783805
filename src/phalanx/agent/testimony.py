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
ALL_FAILURES_MAX = (
    128  # of the job; with all of them a verdict on a thousand nodes is too large for any store
)
DETAILS_MAX = 24 * 1024
LINE_MAX = 1024
OTHER_LINE_MAX = 256


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
    cause = verdict.cause
    kept = sorted(verdict.failures, key=lambda one: (one is not cause, one.is_collateral, one.rank))
    failures = [_plain(one, is_full=one is cause) for one in kept[:ALL_FAILURES_MAX]]
    return json.dumps(
        {
            "ending": verdict.ending.value,
            "exit_code": verdict.exit_code,
            "cause": 0 if cause is not None and kept and kept[0] is cause else None,
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
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the verdict in the store cannot be read: {error!r}") from None


def _plain(failure: Failure, *, is_full: bool) -> dict[str, Any]:
    plain = {field: getattr(failure, field) for field in failure.__struct_fields__}
    width = LINE_MAX if is_full else OTHER_LINE_MAX
    for field in ("summary", "why_not_started", "host"):
        plain[field] = plain[field][:width]
    plain["explanation"] = failure.explanation[:LINE_MAX] if is_full else ""
    plain["details"] = failure.details[-DETAILS_MAX:] if is_full else ""
    return plain


_KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "str": (str,),
    "bool": (bool,),
}


def _failure(plain: dict[str, Any]) -> Failure:
    """Raises ``TypeError`` if a field is not of its kind: failures are compared, and printed, far from here."""
    found = {field: plain[field] for field in Failure.__struct_fields__ if field in plain}
    for field, value in found.items():
        kind = Failure.__annotations__[field]
        if not isinstance(value, _KINDS[kind]) or isinstance(value, bool) != (kind == "bool"):
            raise TypeError(f"{field} is {str(value)[:60]!r}, not {kind}")
    return Failure(**found)
