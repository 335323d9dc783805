"""Which rank of how many this process is: one answer for all that runs in a worker.

What the launcher has put into the environment goes first, then an initialised ``torch.distributed``, which is never
imported for this; a process with neither is alone.
"""

from __future__ import annotations

import os
import sys

from phalanx.records import Struct

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Ranks", "own_ranks"]


class Ranks(Struct):
    """A rank, and its place on its node; None: nobody has said. 0 <= rank < world_size always holds.

    >>> Ranks(3, 4, 1, 2).world_size
    4
    """

    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None


def own_ranks(environment: Mapping[str, str] | None = None) -> Ranks:
    """Who this process is, by ``environment`` (``os.environ``), by torch's process group, or alone.

    The environment counts if it has a ``RANK`` below its ``WORLD_SIZE``. ``PHALANX_LOCAL_RANK`` goes before
    ``LOCAL_RANK``, which is 0 in every worker under ``--virtual-local-rank``. Never raises.

    >>> own_ranks({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"})
    Ranks(rank=3, world_size=4, local_rank=1, local_world_size=2)
    >>> own_ranks({})
    Ranks(rank=0, world_size=1, local_rank=0, local_world_size=1)
    """
    found = os.environ if environment is None else environment
    rank, world_size = _number(found, "RANK"), _number(found, "WORLD_SIZE")
    if rank is None or world_size is None or rank >= world_size:
        group = _of_torch()
        if group is None:
            return Ranks(0, 1, 0, 1)
        rank, world_size = group
    local_rank = _number(found, "PHALANX_LOCAL_RANK", "LOCAL_RANK")
    local_world_size = _number(found, "LOCAL_WORLD_SIZE")
    if world_size == 1:
        return Ranks(rank, 1, local_rank or 0, local_world_size or 1)
    return Ranks(rank, world_size, local_rank, local_world_size)


def _of_torch() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
            return (rank, world_size) if 0 <= rank < world_size else None
    except (AttributeError, RuntimeError, ValueError):  # half imported, or a torch that has changed
        pass
    return None


def _number(environment: Mapping[str, str], *variables: str) -> int | None:
    """The first of the variables that holds a rank or a count."""
    for variable in variables:
        value = environment.get(variable, "")
        if value.isascii() and value.isdecimal():
            return int(value)
    return None
