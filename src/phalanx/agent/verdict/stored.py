"""Failures and the verdict as text, which the store carries between agents. Pure.

Bounded: the first failure of a node is told in full, the others in one line each, and of very many only some. What is
cut is cut where a reader of it expects that: the middle of a traceback, the beginning of standard error. A path is
told whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, first_failure, is_tied, ranges_of
from phalanx.records import Struct, fits

__all__ = [
    "EXTRA_MAX",
    "STDERR_MAX",
    "NodeEvidence",
    "evidence_from",
    "failures_text",
    "verdict_from",
    "verdict_text",
]

FAILURES_MAX = 64  # of one node
# Of all nodes together, but for the first failure of each: the leader reads all of it between two of its renewals.
EVIDENCE_BYTES_MAX = 8 << 20
ALL_FAILURES_MAX = 128  # of the job, if they are not long
OTHERS_BYTES_MAX = (
    256 * 1024
)  # of one text, beside the first one, and inside of the 1.5 MB that a store takes
STDERR_MAX = 16 * 1024  # characters: enough for a long traceback, little enough for a terminal's scrollback
TRACEBACK_MAX = 16 * 1024
CRASH_MAX = 8 * 1024
MESSAGE_MAX = 4 * 1024
EXTRA_MAX = 8 * 1024
PATH_MAX = 4096  # the kernel's
LINE_MAX = 1024
OTHER_LINE_MAX = 256
RANGES_MAX = 4096  # some 60 KiB: every second rank of a thousand nodes with eight workers each
RANKS_MAX = 1 << 20  # what a range may name: it is written out, and no job has more

# Of each text of a failure that is not told as one line, how much of it is told: of the first one, and of others.
_ROOM = {
    "message": (MESSAGE_MAX, OTHER_LINE_MAX),
    "traceback": (TRACEBACK_MAX, 0),
    "crash": (CRASH_MAX, 0),
    "stderr": (STDERR_MAX, 0),
    "explanation": (LINE_MAX * 4, OTHER_LINE_MAX),
    "extra": (EXTRA_MAX, 0),
    "error_file": (PATH_MAX, OTHER_LINE_MAX),
    "log_dir": (PATH_MAX, 0),
}
_WHOLE_OR_NOT = frozenset({"extra", "error_file", "log_dir"})


class NodeEvidence(Struct, kw_only=True):
    """What one node tells of a round that failed. Ranks are ranges (first, last)."""

    failures: tuple[Failure, ...] = ()
    """The first one first; of the others as many as there was room for."""
    failed: tuple[tuple[int, int], ...] = ()
    """All ranks that failed by themselves there."""
    tied: tuple[tuple[int, int], ...] = ()
    """Those that failed at the same moment as the first one, itself among them."""
    stopped: tuple[tuple[int, int], ...] = ()
    """Those that were asked to stop."""


def failures_text(failures: Sequence[Failure], *, stopped: Iterable[int] = ()) -> str:
    """The failures of one node, and the ranks that were asked to stop there.

    The larger the round, the fewer are told beside the first one; the ranks of all of them always are.
    """
    first = first_failure(failures)
    share = EVIDENCE_BYTES_MAX // (1 if first is None else max(1, first.group_world_size))
    tied = [] if first is None else [one.rank for one in failures if is_tied(one, first)]
    return _text(
        {
            "failures": _kept(failures, first, FAILURES_MAX, share),
            "failed": ranges_of(one.rank for one in failures if not one.is_collateral)[:RANGES_MAX],
            "tied": ranges_of(tied)[:RANGES_MAX],
            "stopped": ranges_of(stopped)[:RANGES_MAX],
        }
    )


def evidence_from(text: str) -> NodeEvidence:
    """What ``failures_text`` wrote; nothing if that cannot be read."""
    try:
        read = json.loads(text)
        return NodeEvidence(
            failures=tuple(_failure(one) for one in read["failures"]),
            **{name: _ranges(read.get(name, ())) for name in ("failed", "tied", "stopped")},
        )
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return NodeEvidence()


def verdict_text(verdict: Verdict) -> str:
    """The verdict, for every agent."""
    cause = verdict.cause
    failures = _kept(verdict.failures, cause, ALL_FAILURES_MAX)
    is_cause_kept = any(one is cause for one in verdict.failures)
    return _text(
        {
            "ending": verdict.ending.value,
            "exit_code": verdict.exit_code,
            "cause": 0 if is_cause_kept else None,
            "failures": failures,
            "reason": _clipped(verdict.reason, LINE_MAX),
            "has_run": verdict.has_run,
            "restart_count": verdict.restart_count,
            "restarts": [_clipped(one, LINE_MAX) for one in verdict.restarts],
            **{name: getattr(verdict, name)[:RANGES_MAX] for name in ("failed", "tied", "stopped")},
        }
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
            has_run=bool(read.get("has_run", False)),
            restart_count=int(read.get("restart_count", 0)),
            restarts=tuple(str(one) for one in read.get("restarts", ())),
            **{name: _ranges(read.get(name, ())) for name in ("failed", "tied", "stopped")},
        )
    except (KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"the verdict in the store cannot be read: {error!r}") from None


def _kept(
    failures: Sequence[Failure], first: Failure | None, most: int, share: int | None = None
) -> list[dict[str, Any]]:
    """The first one in full, and of the others as many as there is room for: in ``share`` bytes with the first one."""
    ordered = sorted(failures, key=lambda one: (one is not first, one.is_collateral, one.rank))
    kept: list[dict[str, Any]] = []
    room = OTHERS_BYTES_MAX
    for one in ordered[:most]:
        plain = _plain(one, is_full=one is first)
        length = len(_text(plain))
        if one is not first:
            room -= length
        elif share is not None:
            room = min(room, share - length)
        if room < 0 and one is not first:
            break
        kept.append(plain)
    return kept


def _text(plain: object) -> str:
    return json.dumps(plain, separators=(",", ":"))


def _plain(failure: Failure, *, is_full: bool) -> dict[str, Any]:
    plain = {}
    for field in failure.__struct_fields__:
        value = getattr(failure, field)
        if isinstance(value, str):
            room = _ROOM.get(field, (LINE_MAX, OTHER_LINE_MAX))[not is_full]
            if field in _WHOLE_OR_NOT:
                value = value if len(value) <= room else ""
            elif field == "stderr":
                value = value[-room:] if room else ""
            else:
                value = _clipped(value, room)
        plain[field] = value
    plain["is_known_symptom"] = failure.is_secondary  # what says so may have been cut
    return plain


def _clipped(text: str, room: int) -> str:
    """The text, or of one that is longer its beginning and its end: a traceback says what it is about in both."""
    if len(text) <= room:
        return text
    cut = "\n…\n" if "\n" in text else "…"
    half = (room - len(cut)) // 2
    return f"{text[:half]}{cut}{text[-half:]}" if half > 0 else ""


def _failure(plain: dict[str, Any]) -> Failure:
    """Raises ``TypeError`` if a field is not of its kind: failures are compared, and printed, far from here."""
    found = {field: plain[field] for field in Failure.__struct_fields__ if field in plain}
    for field, value in found.items():
        kind = Failure.__annotations__[field]
        if not fits(kind, value):
            raise TypeError(f"{field} is {str(value)[:60]!r}, not {kind}")
    return Failure(**found)


def _ranges(plain: Any) -> tuple[tuple[int, int], ...]:
    """Raises ``TypeError`` if these are no ranges of ranks in order; ``ValueError`` if one is no pair."""
    ranges = tuple((first, last) for first, last in plain)
    numbers = [number for pair in ranges for number in pair]
    if not all(type(number) is int and 0 <= number < RANKS_MAX for number in numbers) or numbers != sorted(
        numbers
    ):
        raise TypeError(f"ranks are {str(plain)[:60]!r}")
    return ranges
