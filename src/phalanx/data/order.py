"""The order in which an epoch goes through a dataset: a permutation made of (seed, epoch, length) and nothing else.

Any place of it can be asked for alone, in constant memory: a job that goes on in the middle of an epoch does not make
the part before it. It is the same on every machine, in every version of Python and of Phalanx, because a saved
position means something only in the order in which it was counted; a better order would be a second one beside this.

A short dataset is shuffled as usual (Fisher and Yates). A long one goes through a Feistel network over a grid of about
√length rows and columns; places beyond the end walk on until they are inside, which fewer than one in √length does
(Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). It is no secret, only well mixed.
"""

from __future__ import annotations

from math import isqrt

__all__ = ["Order"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: Weyl's step, as in SplitMix64
# The multipliers of MurmurHash3's 64-bit finalizer.
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53

_SHORT = (
    4096  # up to here all orders are equally likely; on a grid that small a few rounds of Feistel prefer some
)
_ROUNDS = 6  # four are the theory's least for a strong permutation; two more cost 1 µs


class Order:
    """A permutation of ``range(length)``.

    ``seed`` and ``epoch`` are whole numbers from 0 to 2^64 - 1, ``length`` one from 0 to 2^48.

    >>> order = Order(seed=0, epoch=3, length=10)
    >>> [order.at(place) for place in range(10)]
    [4, 5, 3, 0, 9, 2, 1, 7, 8, 6]
    """

    def __init__(self, seed: int, epoch: int, length: int) -> None:
        self.length = length
        state = 0
        for word in (seed, epoch, length):
            state = _mix(((state ^ word) + _GOLDEN) & _MASK)
        self._short = _shuffled(length, state) if length <= _SHORT else None
        self._columns = max(1, isqrt(length))
        self._rows = -(-length // self._columns)
        keys = [_mix((state + step * _GOLDEN) & _MASK) for step in range(1, _ROUNDS + 1)]
        self._keys = tuple(zip(keys[::2], keys[1::2], strict=True))

    def at(self, place: int) -> int:
        """What comes at ``place``, which is in ``range(length)``; takes about 3 µs."""
        if self._short is not None:
            return self._short[place]
        rows, columns, found = self._rows, self._columns, place
        while True:
            row, column = divmod(found, columns)
            for first, second in self._keys:
                # _mix, written out and with one step less: a call costs as much as all of it.
                mixed = (column ^ first) * _FIRST & _MASK
                mixed = (mixed ^ mixed >> 32) * _SECOND & _MASK
                row = (row + (mixed >> 24)) % rows
                mixed = (row ^ second) * _FIRST & _MASK
                mixed = (mixed ^ mixed >> 32) * _SECOND & _MASK
                column = (column + (mixed >> 24)) % columns
            found = row * columns + column
            if found < self.length:
                return found


def _mix(word: int) -> int:
    word = (word ^ word >> 33) * _FIRST & _MASK
    word = (word ^ word >> 33) * _SECOND & _MASK
    return word ^ word >> 33


def _shuffled(length: int, state: int) -> list[int]:
    items = list(range(length))
    for last in range(length - 1, 0, -1):
        state = (state + _GOLDEN) & _MASK
        other = _mix(state) * (last + 1) >> 64
        items[last], items[other] = items[other], items[last]
    return items
