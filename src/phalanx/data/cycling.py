"""Several epochs as one iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["CyclingIterator"]

T = TypeVar("T")


class CyclingIterator(Iterator[T], Generic[T]):
    """Goes through ``generator_fn(epoch)`` for the epochs from ``start_epoch`` to ``n`` - 1, one after the other.

    An epoch is asked for when the one before it has ended. Semantics of torchelastic 2.13.

    >>> list(CyclingIterator(3, lambda epoch: iter([epoch, epoch * 10]), start_epoch=1))
    [1, 10, 2, 20]
    """

    def __init__(self, n: int, generator_fn: Callable[[int], Iterator[T]], start_epoch: int = 0) -> None:
        self._generator_fn = generator_fn
        self._epochs = iter(range(start_epoch, n))
        self._current: Iterator[T] = iter(())

    def __iter__(self) -> CyclingIterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            try:
                return next(self._current)
            except StopIteration:
                # The end of the epochs is the end of this iterator, too.
                self._current = iter(self._generator_fn(next(self._epochs)))
