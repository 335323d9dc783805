"""Several epochs as one iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Generic, TypeVar

__all__ = ["CyclingIterator"]

T = TypeVar("T")

_VERSION = 1  # of the state


class CyclingIterator(Iterator[T], Generic[T]):
    """Goes through ``generator_fn(epoch)`` for the epochs from ``start_epoch`` to ``n`` - 1, one after the other.

    An epoch is asked for when the one before it has ended. Semantics of torchelastic 2.13; the state is beyond it.

    >>> cycling = CyclingIterator(3, lambda epoch: iter([epoch, epoch * 10]), start_epoch=1)
    >>> next(cycling)
    1
    >>> state = cycling.state_dict()
    >>> list(cycling)
    [10, 2, 20]
    >>> again = CyclingIterator(3, lambda epoch: iter([epoch, epoch * 10]))
    >>> again.load_state_dict(state)
    >>> list(again)
    [10, 2, 20]
    """

    def __init__(self, n: int, generator_fn: Callable[[int], Iterator[T]], start_epoch: int = 0) -> None:
        self._n = n
        self._generator_fn = generator_fn
        self._epoch = start_epoch
        self._taken = 0
        self._current: Iterator[T] | None = None
        self._open_at: Callable[[int, int], Iterator[T]] = self._skipped

    def __iter__(self) -> CyclingIterator[T]:
        return self

    def __next__(self) -> T:
        while self._epoch < self._n:
            if self._current is None:
                self._current = self._open()
            try:
                item = next(self._current)
            except StopIteration:
                self._epoch, self._taken, self._current = self._epoch + 1, 0, None
            else:
                self._taken += 1
                return item
        raise StopIteration

    def state_dict(self) -> dict[str, int]:
        """The epoch, and how many of its items were taken: numbers only, for JSON."""
        return {"version": _VERSION, "epoch": self._epoch, "taken": self._taken}

    def load_state_dict(
        self, state: Mapping[str, Any], *, open_at: Callable[[int, int], Iterator[T]] | None = None
    ) -> None:
        """Go on from what ``state_dict`` returned.

        The epoch in which that was is opened when the next item is asked for. ``open_at(epoch, taken)`` returns what is
        left of it, for instance from a loader whose sampler has been told its position. Without it the items that were
        taken are made again and dropped. Raises ``ValueError`` for what is no such state; ``next`` does if the epoch
        ends before the items that were taken from it.
        """
        version, epoch, taken = (state.get(name) for name in ("version", "epoch", "taken"))
        if (
            version != _VERSION
            or not isinstance(epoch, int)
            or not isinstance(taken, int)
            or bool in (type(epoch), type(taken))
            or min(epoch, taken) < 0
        ):
            raise ValueError(
                f"{dict(state)!r} is no state of a CyclingIterator that is known here; version is {_VERSION}"
            )
        self._epoch, self._taken, self._current = epoch, taken, None
        self._open_at = open_at or self._skipped

    def _open(self) -> Iterator[T]:
        return iter(
            self._open_at(self._epoch, self._taken) if self._taken else self._generator_fn(self._epoch)
        )

    def _skipped(self, epoch: int, taken: int) -> Iterator[T]:
        items = iter(self._generator_fn(epoch))
        dropped = sum(1 for _ in islice(items, taken))
        if dropped < taken:
            raise ValueError(
                f"epoch {epoch} has {dropped} items here, and the state has taken {taken} of it: the data has changed"
            )
        return items
