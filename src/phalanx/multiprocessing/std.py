"""Which standard streams of a worker an option is about, and the ``-r``/``-t`` grammar that says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntFlag

__all__ = ["Std", "to_map"]

_ONE = re.compile(r"[0-3]", re.ASCII)
_PER_RANK = re.compile(r"\d+:[0-3](,\d+:[0-3])*", re.ASCII)


class Std(IntFlag):
    """A set of standard streams; the numbers are those of torchrun's ``--redirects`` and ``--tee``.

    >>> Std.from_str("0:3,12:1")
    {0: <Std.ALL: 3>, 12: <Std.OUT: 1>}
    """

    NONE = 0
    OUT = 1
    ERR = 2
    ALL = OUT | ERR

    @classmethod
    def from_str(cls, vm: str) -> Std | dict[int, Std]:
        """Read ``"3"`` (all workers) or ``"0:3,12:1"`` (by local rank; the last entry of a rank counts).

        Ranks that are not named get ``NONE`` later, from `to_map`. Unlike torchelastic 2.13, local ranks may
        have any number of digits. Raises ``ValueError`` for anything else.
        """
        if _ONE.fullmatch(vm):
            return cls(int(vm))
        if _PER_RANK.fullmatch(vm):
            pairs = (entry.split(":") for entry in vm.split(","))
            return {int(local_rank): cls(int(value)) for local_rank, value in pairs}
        raise ValueError(
            f"{vm!r} does not match: one of 0, 1, 2, 3 for all workers, or <local rank>:<0-3> separated by commas"
        )


def to_map(val_or_map: Std | Mapping[int, Std], local_world_size: int) -> dict[int, Std]:
    """Spread one value over all local ranks, or fill the gaps of a map with ``Std.NONE``; ranks beyond are dropped.

    >>> to_map({1: Std.ERR}, 2)
    {0: <Std.NONE: 0>, 1: <Std.ERR: 2>}
    """
    if isinstance(val_or_map, Std):
        return dict.fromkeys(range(local_world_size), val_or_map)
    return {rank: val_or_map.get(rank, Std.NONE) for rank in range(local_world_size)}
