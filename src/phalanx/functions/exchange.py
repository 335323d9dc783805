"""Return values between nodes: each rank publishes its own as plain data, one worker of each node gathers the others'.

Over the values that the workers of the round share, which end with it: a rank that fails takes the round down, and
whoever waits here is stopped with it. A worker that gathers has returned already, so it must not look like a straggler:
it leaves a little before those are counted, and says of the missing ones that they are.
"""

from __future__ import annotations

import json
import time

from .plain import NotPlain, from_plain, to_plain

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["exchange", "read_others"]

_KEY = "phalanx.returned"
VALUE_MAX = 1024 * 1024  # bytes of JSON of one rank
ALL_MAX = (
    8 * 1024 * 1024
)  # of all ranks: half of what the values of a round may be, the rest is the function's
_CHUNK = 256 * 1024  # half of what one value may be
_LOOK_S = 30.0  # one wait, after which there may be another
_MARGIN_S = 5.0  # before stragglers are counted; less when that is soon


def exchange(
    value: object,
    channel: Any,
    *,
    rank: int,
    world_size: int,
    own: range,
    gathers: bool,
    straggler_s: float | None,
    exit_barrier_s: float | None,
) -> bytes:
    """Publish ``value``; if this worker ``gathers``, wait for those of ranks not in ``own``, and return them as JSON.

    ``channel`` is ``phalanx.errors.channel``. Never raises an ``Exception``: what cannot be had is told as not sent.
    """
    started_at = time.monotonic()
    values = channel.values()
    others = [one for one in range(world_size) if one not in own]
    try:
        since_first_s = _since_first(values)
        _publish(values, f"{_KEY}/{rank}", _published(value, world_size))
    except (OSError, ValueError, RuntimeError) as reason:
        return _gathered({}, others, f"the job's store could not be asked: {reason}") if gathers else b""
    if not gathers:
        return b""
    leave_at = _leave_at(started_at, since_first_s, straggler_s, exit_barrier_s)
    found: dict[int, Any] = {}
    try:
        for one in others:
            data = _awaited(values, f"{_KEY}/{one}", leave_at)
            if data is None:
                break
            found[one] = json.loads(data)
    except (OSError, ValueError, RuntimeError) as reason:
        return _gathered(found, others, f"the job's store could not be asked: {reason}")
    return _gathered(found, others, "it had not returned when this node's workers could wait no longer")


def read_others(data: bytes) -> tuple[dict[int, Any], dict[int, str]]:
    """Values by rank, and of the ranks without one why it was not sent. The launching program's side."""
    values: dict[int, Any] = {}
    unsent: dict[int, str] = {}
    try:
        entries = json.loads(data) if data else {}
    except ValueError:
        entries = {}
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            if "plain" in entry:
                values[int(name)] = from_plain(entry["plain"].encode("ascii"))
            else:
                unsent[int(name)] = str(entry["unsent"])
        except (ValueError, TypeError, KeyError, AttributeError) as reason:
            unsent[int(name)] = f"what came of it cannot be read: {reason}"
    return values, unsent


def _published(value: object, world_size: int) -> bytes:
    limit = min(VALUE_MAX, ALL_MAX // world_size)
    try:
        data = to_plain(value)
    except (NotPlain, RecursionError, RuntimeError) as reason:
        entry = {"unsent": f"{reason}, and between nodes only plain data is sent"}
    else:
        entry = {"plain": data.decode("ascii")}
        if len(data) > limit:
            entry = {"unsent": f"it has {len(data)} bytes as JSON, and between nodes {limit} are sent"}
    return json.dumps(entry).encode("ascii")


def _publish(values: Any, key: str, data: bytes) -> None:
    """The pieces first, and then, under the key itself, how many there are."""
    pieces = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    for number, piece in enumerate(pieces):
        values.set(f"{key}/{number}", piece)
    values.set(key, str(len(pieces)))


def _awaited(values: Any, key: str, leave_at: float | None) -> bytes | None:
    while True:
        rest_s = _LOOK_S if leave_at is None else min(_LOOK_S, leave_at - time.monotonic())
        count = values.get(key, wait_s=max(rest_s, 0.0))
        if count is not None:
            break
        if rest_s <= 0:
            return None
    return b"".join(values.get(f"{key}/{number}", wait_s=_LOOK_S) or b"" for number in range(int(count)))


def _since_first(values: Any) -> float:
    """How long ago the first rank returned, as far as the clocks of two machines agree."""
    now = time.time()
    first = values.compare_set(f"{_KEY}/first", None, repr(now))
    return max(now - float(first), 0.0)


def _leave_at(
    started_at: float, since_first_s: float, straggler_s: float | None, exit_barrier_s: float | None
) -> float | None:
    """When a worker that has returned must be gone; None: it may wait as long as the others run."""
    limits = []
    if straggler_s is not None:
        limits.append(started_at - since_first_s + straggler_s - min(_MARGIN_S, straggler_s / 4))
    if exit_barrier_s is not None:
        limits.append(started_at + exit_barrier_s)
    return min(limits, default=None)


def _gathered(found: dict[int, Any], others: Iterable[int], why_not: str) -> bytes:
    return json.dumps({str(one): found.get(one, {"unsent": why_not}) for one in others}).encode("ascii")
