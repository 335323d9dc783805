"""The last revisions of a store machine, and the watches that follow them. Pure; part of the machine."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from itertools import islice

from phalanx.store.port import Batch, Change

__all__ = ["HISTORY_MAX", "History", "Notice"]

HISTORY_MAX = 8192  # revisions; a job of a thousand nodes makes some three thousand in a round
HISTORY_BYTES_MAX = 8 * 1024 * 1024  # an agent that hosts the store is to stay below 40 MiB

Notice = tuple[tuple[Hashable, ...], Batch]
"""Watches, and the batch that each of them is to get."""


class History:
    """Batches of consecutive revisions up to the current one, and who watches which prefix."""

    def __init__(self, history_max: int) -> None:
        self.revision = 1
        self._history_max = history_max
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._watches: dict[str, dict[Hashable, int]] = {}  # prefix → watch → first revision
        self._prefixes: dict[Hashable, str] = {}
        self._lengths: Counter[int] = (
            Counter()
        )  # of the watched prefixes: a key has one prefix of each length
        self._watched_from = 0  # no watch begins later

    @property
    def first_revision(self) -> int:
        """The first revision that a watch may begin with."""
        first = self.revision + 1 - len(self._batches)
        return 1 if first == 2 else first  # the first change makes revision 2: nothing is missing before it

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All that is remembered."""
        return tuple(self._batches)

    @property
    def watches(self) -> tuple[Hashable, ...]:
        """All that watch."""
        return tuple(self._prefixes)

    def append(self, changes: list[Change]) -> list[Notice]:
        """Make the changes the next revision."""
        self.revision += 1
        batch = Batch(self.revision, tuple(changes))
        self._remember(batch)
        return self._notices(batch)

    def replace(self, revision: int, batches: Iterable[Batch]) -> None:
        """Another history, which ends with ``revision``."""
        self.revision = revision
        self._batches.clear()
        self._bytes = 0
        for batch in batches:
            self._remember(batch)

    def notices_since(self, revision: int) -> list[Notice]:
        """What watches are to get of a revision and those after it."""
        return [notice for batch in self._since(revision) for notice in self._notices(batch)]

    def watch(self, watch: Hashable, prefix: str, from_revision: int) -> list[Notice]:
        """Let a watch follow, from a revision that is not forgotten; returns what is there for it already."""
        self._watches.setdefault(prefix, {})[watch] = from_revision
        self._prefixes[watch] = prefix
        self._lengths[len(prefix)] += 1
        self._watched_from = max(self._watched_from, from_revision)
        notices: list[Notice] = []
        for batch in self._since(from_revision):
            changes = tuple(change for change in batch.changes if change.kv.key.startswith(prefix))
            if changes:
                notices.append(((watch,), Batch(batch.revision, changes)))
        return notices

    def unwatch(self, watch: Hashable) -> None:
        """Let a watch follow no more, if it does."""
        prefix = self._prefixes.pop(watch, None)
        if prefix is None:
            return
        del self._watches[prefix][watch]
        if not self._watches[prefix]:
            del self._watches[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]

    def _since(self, revision: int) -> Iterable[Batch]:
        before = len(self._batches) - (self.revision + 1 - revision)
        return islice(self._batches, max(0, before), None)

    def _remember(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._bytes += _size(batch)
        while len(self._batches) > self._history_max or self._bytes > HISTORY_BYTES_MAX:
            self._bytes -= _size(self._batches.popleft())

    def _notices(self, batch: Batch) -> list[Notice]:
        found: dict[str, list[Change]] = {}
        for change in batch.changes:
            key = change.kv.key
            for length in self._lengths:
                if length <= len(key) and (prefix := key[:length]) in self._watches:
                    found.setdefault(prefix, []).append(change)
        notices: list[Notice] = []
        for prefix, changes in found.items():
            watches = self._watches[prefix]
            ready = tuple(watches)
            if self._watched_from > batch.revision:
                ready = tuple(watch for watch in watches if watches[watch] <= batch.revision)
            if ready:
                is_whole = len(changes) == len(batch.changes)
                notices.append((ready, batch if is_whole else Batch(batch.revision, tuple(changes))))
        return notices


def _size(batch: Batch) -> int:
    return sum(len(change.kv.key) + len(change.kv.value) for change in batch.changes)
