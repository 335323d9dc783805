"""The keys of a store machine, sorted, so that a prefix is found by bisection. Pure; part of the machine."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from phalanx.store.limits import ANSWER_BYTES_MAX, ANSWER_KEYS_MAX
from phalanx.store.port import Delete, Get, KeyValue, Operation, Put

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

    def find(self, operation: Get | Delete) -> tuple[KeyValue, ...]:
        """The items that an operation reads, in the order of their keys."""
        return tuple([self[key] for key in self._keys(operation)])

    def find_excess(self, operations: Iterable[Operation]) -> str:
        """Why the items that the operations read are too many for one answer, as a sentence, or nothing.

        Nothing is collected, and no more is looked at than an answer may hold. Each key once is never too much, or a
        full store could not be emptied. What a transaction writes and then reads itself counts, too.
        """
        keys_left, bytes_left = max(ANSWER_KEYS_MAX, len(self)), ANSWER_BYTES_MAX
        written: list[Put] = []
        for operation in operations:
            if isinstance(operation, Put):
                written.append(operation)
                continue
            keys = self._keys(operation)
            keys_left -= len(keys)
            if keys_left < 0:
                return "The answer is too large: the operations read the same keys too often."
            bytes_left -= sum(len(put.value) for put in written if _covers(operation, put.key))
            for key in keys:
                bytes_left -= len(key) + len(self[key].value)
                if bytes_left < 0:
                    break
            if bytes_left < 0:
                return f"The answer is too large: {ANSWER_BYTES_MAX} bytes are possible."
        return ""

    def _keys(self, operation: Get | Delete) -> Sequence[str]:
        key = operation.key
        if not operation.is_prefix:
            return (key,) if key in self else ()
        start = bisect_left(self.ordered, key)
        end = bisect_left(self.ordered, True, start, key=lambda one: not one.startswith(key))
        return self.ordered[start:end]


def _covers(operation: Get | Delete, key: str) -> bool:
    return key.startswith(operation.key) if operation.is_prefix else key == operation.key
