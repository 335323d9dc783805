"""The keys of a store machine, sorted, so that a prefix is found by bisection. Pure; part of the machine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from phalanx.store.port import KeyValue

__all__ = ["Items"]


class Items(dict[str, KeyValue]):
    """Key → item. Changed by ``write`` and ``remove`` only, which keep the order of keys and count their bytes."""

    def __init__(self, items: Iterable[KeyValue] = ()) -> None:
        super().__init__((item.key, item) for item in items)
        # Python orders text by code points, which is the order of the UTF-8 bytes.
        self.ordered = sorted(self)
        self.size = sum(len(item.key) + len(item.value) for item in self.values())

    def write(self, item: KeyValue) -> None:
        """Add an item, or put it in the place of the one with its key."""
        old = self.get(item.key)
        if old is None:
            insort(self.ordered, item.key)
            self.size += len(item.key) + len(item.value)
        else:
            self.size += len(item.value) - len(old.value)
        self[item.key] = item

    def remove(self, item: KeyValue) -> None:
        """Remove an item that is there."""
        del self[item.key]
        del self.ordered[bisect_left(self.ordered, item.key)]
        self.size -= len(item.key) + len(item.value)

    def under(self, prefix: str) -> tuple[KeyValue, ...]:
        """The items whose keys begin with a prefix, in order."""
        ordered, found = self.ordered, []
        for place in range(bisect_left(ordered, prefix), len(ordered)):
            if not ordered[place].startswith(prefix):
                break
            found.append(self[ordered[place]])
        return tuple(found)
