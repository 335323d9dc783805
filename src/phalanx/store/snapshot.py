"""The state of a store machine as data that JSON can hold, and back. Pure.

Values travel as base64 text. What is read back is checked: a snapshot may come from a file or from another process,
and a bad one is refused as a whole (``ValueError``).
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping
from typing import Any

from phalanx.records import Struct
from phalanx.store.port import Batch, Change, KeyValue

__all__ = ["Contents", "dump", "load"]

VERSION = 1


class Contents(Struct):
    """All that a machine needs to go on where another was."""

    revision: int
    last_lease: int
    items: tuple[KeyValue, ...]
    leases: dict[int, tuple[float, int]]
    """Number → ttl in seconds, and how often it was renewed."""
    history: tuple[Batch, ...]
    """Consecutive revisions that end with ``revision``, or nothing."""


def dump(contents: Contents) -> dict[str, Any]:
    """The contents as dicts, lists, numbers and text."""
    return {
        "version": VERSION,
        "revision": contents.revision,
        "last_lease": contents.last_lease,
        "items": [_dump_item(item) for item in contents.items],
        "leases": [[number, *lease] for number, lease in contents.leases.items()],
        "history": [
            [batch.revision, [[change.is_delete, _dump_item(change.kv)] for change in batch.changes]]
            for batch in contents.history
        ],
    }


def load(data: Mapping[str, Any]) -> Contents:
    """The contents that ``dump`` was given. Raises ``ValueError`` for anything that it cannot have returned."""
    try:
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']!r}, and {VERSION} is known")
        contents = Contents(
            _whole(data["revision"]),
            _whole(data["last_lease"]),
            tuple(_load_item(item) for item in data["items"]),
            {_whole(number): (float(ttl_s), _whole(renewals)) for number, ttl_s, renewals in data["leases"]},
            tuple(
                Batch(_whole(revision), tuple(Change(_load_item(item), bool(gone)) for gone, item in changes))
                for revision, changes in data["history"]
            ),
        )
        _check(contents)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"This is no snapshot of a store: {error}.") from None
    return contents


def _check(contents: Contents) -> None:
    for item in contents.items:
        if item.lease and item.lease not in contents.leases:
            raise ValueError(f"the lease of {item.key!r} is missing")
        if not 0 < item.create_revision <= item.mod_revision <= contents.revision:
            raise ValueError(f"the revisions of {item.key!r} are impossible")
    if not all(ttl_s > 0 for ttl_s, _ in contents.leases.values()):
        raise ValueError("a lease lasts no time")
    first = contents.revision + 1 - len(contents.history)
    if [batch.revision for batch in contents.history] != list(range(first, contents.revision + 1)):
        raise ValueError("history has a gap")


def _dump_item(item: KeyValue) -> list[Any]:
    value = b2a_base64(item.value, newline=False).decode()
    return [item.key, value, item.create_revision, item.mod_revision, item.version, item.lease]


def _load_item(data: Any) -> KeyValue:
    key, value, *numbers = data
    if not isinstance(key, str):
        raise TypeError("a key is no text")
    create_revision, mod_revision, version, lease = map(_whole, numbers)
    return KeyValue(key, a2b_base64(value, strict_mode=True), create_revision, mod_revision, version, lease)


def _whole(number: Any) -> int:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no whole number")
    return number
