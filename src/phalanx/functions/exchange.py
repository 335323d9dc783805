"""Return values between nodes: each rank publishes its own as plain data, one worker of each node gathers the others'.

Over the values that the workers of the round share, which end with it: a rank that fails takes the round down, and
whoever waits here is stopped with it. A rank that ends well without publishing is told of by its agent: a wait lasts no
longer than the other ranks run. A worker that gathers has returned already, so it must not look like a straggler:
it leaves a little before those are counted, and says of the missing ones that they are.
"""

from __future__ import annotations

import contextlib
import json
import time

from .plain import NotPlain, from_plain, to_plain

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["announce", "exchange", "read_others"]

_KEY = "phalanx.returned"
VALUE_MAX = 1024 * 1024  # bytes of JSON of one rank
ALL_MAX = (
    8 * 1024 * 1024
)  # of all ranks: half of what the values of a round may be, the rest is the function's
_CHUNK = 256 * 1024  # half of what one value may be
_PIECES_MAX = 2 * VALUE_MAX // _CHUNK + 1  # escaped once more, a value may be twice as long
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
        is_published = _publish(values, rank, value, world_size)
    except Exception as reason:  # noqa: BLE001 # whatever it is, nobody may wait for us
        return _gathered({}, others, _unasked(reason)) if gathers else b""
    if not gathers:
        return b""
    # Others hear of a rank that could not publish when it has ended: it must not wait for one of the same fate.
    leave_at = (
        _leave_at(started_at, since_first_s, straggler_s, exit_barrier_s) if is_published else started_at
    )
    found: dict[int, Any] = {}
    why_not = "it had not returned when this node's workers could wait no longer"
    try:
        for one in others:
            entry = _awaited(values, f"{_KEY}/{one}", leave_at)
            if entry is not None:
                found[one] = entry
    except Exception as reason:  # noqa: BLE001 # as above
        why_not = _unasked(reason)
    return _gathered(found, others, why_not)


def announce(channel: Any, rank: int) -> None:
    """Before anything else: have the agent tell for this rank, if it ends well and has published nothing."""
    entry = {"unsent": "it ended its process itself, or could not publish its value"}
    # Without an agent, or values, nothing can be published either, and nobody waits.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        channel.values().leave_at_end(f"{_KEY}/{rank}", json.dumps(entry))


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
    except NotPlain as reason:
        return _unsent(f"{reason}, and between nodes only plain data is sent")
    except Exception as reason:  # noqa: BLE001 # no memory, changed by another thread meanwhile, …
        return _unsent(f"it cannot be written as plain data ({type(reason).__name__}: {reason})")
    if len(data) > limit:
        return _unsent(f"it has {len(data)} bytes as JSON, and between nodes {limit} are sent")
    return json.dumps({"plain": data.decode("ascii")}).encode("ascii")


def _publish(values: Any, rank: int, value: object, world_size: int) -> bool:
    """Publish the value, or else why it is not sent; False: not even that could be."""
    key = f"{_KEY}/{rank}"
    try:
        _store(values, key, _published(value, world_size))
    except Exception as reason:  # noqa: BLE001 # no room, no connection, no memory
        try:
            values.set(key, _unsent(_unasked(reason)[:200]))
        except Exception:  # noqa: BLE001 # the agent tells it then, when we have ended
            return False
    return True


def _store(values: Any, key: str, data: bytes) -> None:
    """An entry that is larger than one value may be goes in pieces; then how many there are, under the key itself."""
    if len(data) > _CHUNK:
        pieces = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
        for number, piece in enumerate(pieces):
            values.set(f"{key}/{number}", piece)
        data = str(len(pieces)).encode("ascii")
    values.set(key, data)


def _awaited(values: Any, key: str, leave_at: float | None) -> Any:
    """The entry of a rank, once it is there; None: time was over."""
    while True:
        rest_s = _LOOK_S if leave_at is None else min(_LOOK_S, leave_at - time.monotonic())
        data = values.get(key, wait_s=max(rest_s, 0.0))
        if data is not None:
            break
        if rest_s <= 0:
            return None
    try:
        if data.isdigit() and 0 < int(data) <= _PIECES_MAX:
            pieces = [values.get(f"{key}/{number}", wait_s=0.0) for number in range(int(data))]
            data = b"".join(piece or b"" for piece in pieces)  # of one that is not there, nothing is readable
        entry = json.loads(data)
    except (ValueError, RecursionError) as reason:
        return {"unsent": f"what came of it cannot be read: {reason}"}
    return entry if isinstance(entry, dict) else {"unsent": "what came of it cannot be read"}


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


def _unsent(reason: str) -> bytes:
    return json.dumps({"unsent": reason}).encode("ascii")


def _unasked(reason: Exception) -> str:
    return f"the job's store could not be asked: {reason}"


def _gathered(found: dict[int, Any], others: Iterable[int], why_not: str) -> bytes:
    return json.dumps({str(one): found.get(one, {"unsent": why_not}) for one in others}).encode("ascii")
