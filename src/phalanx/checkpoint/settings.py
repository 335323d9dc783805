"""What a checkpointer was asked for, checked and completed from the environment; it does not change after that."""

from __future__ import annotations

import os
from typing import Any

from phalanx.checkpoint import checksums
from phalanx.checkpoint.directory import StepDirectory
from phalanx.errors.ranks import Ranks, own_ranks
from phalanx.records import Struct

__all__ = ["Settings", "settings_of"]


class Settings(Struct, kw_only=True):
    """``layout``: as in the manifest. ``background``: how many saves may wait; 0: none is in the background."""

    directory: StepDirectory
    keep: int
    layout: str
    background: int
    checksum: str | None
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    store: Any
    timeout_s: float
    run_id: str
    round: int

    @property
    def writes(self) -> bool:
        """Whether this rank writes anything."""
        return self.layout == "sharded" or self.keeps

    @property
    def keeps(self) -> bool:
        """Whether this rank is the one that tidies its folder, of all that see the same."""
        return (self.local_rank if self.layout == "per-node" else self.rank) == 0

    @property
    def part(self) -> int | None:
        """The part of a step that this rank writes; None: a step has no parts."""
        return self.rank if self.layout == "sharded" else None

    @property
    def place(self) -> int:
        """One number for all ranks that see the same folder."""
        return self.rank - (self.local_rank or 0) if self.layout == "per-node" else 0

    @property
    def share(self) -> tuple[int, int] | None:
        """What of a step this rank reads to check it: the ranks of a node together read all that the node will load.

        Of a sharded step a node loads a part, and which is not known here: all ranks together read all of it.
        """
        if self.world_size == 1:
            return None
        if self.layout == "sharded":
            return self.rank, self.world_size
        local_rank, count = self.local_rank, self.local_world_size
        return None if local_rank is None or count is None or local_rank >= count else (local_rank, count)


def settings_of(
    folder: str | os.PathLike[str],
    *,
    keep: int,
    sharded: bool,
    per_node: bool,
    background: bool | int,
    checksum: str | None,
    rank: int | None,
    local_rank: int | None,
    world_size: int | None,
    store: Any,
    timeout_s: float,
) -> Settings:
    """The arguments of ``Checkpointer``. Raises ``ValueError`` or ``TypeError`` that say what is possible."""
    if sharded and per_node:
        raise ValueError(
            "sharded=True writes one copy together, per_node=True one on each node: choose one of them"
        )
    if not _is_int(keep) or keep < 1:
        raise ValueError(f"keep is the number of steps to keep, at least 1, not {keep!r}")
    if not (_is_int(background) or background is True or background is False) or background < 0:
        raise ValueError(f"background is True, or the number of saves that may wait, not {background!r}")
    if not (_is_int(timeout_s) or type(timeout_s) is float) or not timeout_s > 0:
        raise ValueError(f"timeout_s is a number of seconds above 0, not {timeout_s!r}")
    checksums.algorithm(checksum)  # refused now, if it is not possible
    ranks = _ranks(rank, local_rank, world_size)
    if per_node and ranks.local_rank is None:
        raise ValueError(
            "per_node=True needs to know which rank of its node this is, and LOCAL_RANK is not set: give local_rank="
        )
    return Settings(
        directory=StepDirectory(folder),
        keep=keep,
        layout="sharded" if sharded else "per-node" if per_node else "whole",
        background=int(background),
        checksum=checksum,
        rank=ranks.rank,
        world_size=ranks.world_size,
        local_rank=ranks.local_rank,
        local_world_size=ranks.local_world_size,
        store=store,
        timeout_s=timeout_s,
        run_id=os.environ.get("TORCHELASTIC_RUN_ID", ""),
        round=_round(),
    )


def _ranks(rank: int | None, local_rank: int | None, world_size: int | None) -> Ranks:
    """Who this process is, as far as it was given, and else as ``own_ranks`` says."""
    found = own_ranks()
    if world_size == 1 and rank is None:  # alone within a job, by its own wish
        return Ranks(0, 1, 0, 1)
    count = found.world_size if world_size is None else world_size
    number = found.rank if rank is None else rank
    for name, value in (("rank", number), ("world_size", count), ("local_rank", local_rank)):
        if value is not None and not _is_int(value):
            raise TypeError(f"{name} is an int, not {value!r}")
    if not 0 <= number < count:
        raise ValueError(
            f"rank {number} is none of {count}: ranks are from 0 to world_size - 1; give rank= and world_size= together"
        )
    if local_rank is None:
        local_rank = 0 if count == 1 else found.local_rank if number == found.rank else None
    elif not 0 <= local_rank <= number:
        raise ValueError(f"local_rank is from 0 to rank, {number}, not {local_rank}")
    # How many ranks a node has is known of the launcher's own ranks alone: of a group of them each may have any number.
    is_own = (number, count, local_rank) == (found.rank, found.world_size, found.local_rank)
    return Ranks(number, count, local_rank, found.local_world_size if is_own else None)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _round() -> int:
    try:
        return max(int(os.environ["PHALANX_ROUND"]), 0)
    except (KeyError, ValueError):
        return 0
