"""How workers ended, as the group that they were of knows it. Pure record."""

from __future__ import annotations

from phalanx.records import Struct

__all__ = ["Exit"]


class Exit(Struct):
    """What the group knows of one worker's end."""

    local_rank: int
    exit_code: int
    at: float
    stopped_at: float | None
    signed_at: float | None
    why_not_started: str = ""
    is_straggler: bool = False
    """It was stopped because it still ran long after others had ended; that is its failure."""
    is_void: bool = False
    """It waited for its single restart when the group was stopped: that failure has its answer, or needs none."""
