"""Why workers are stopped that nobody on their node asked to stop. Pure."""

from __future__ import annotations

from enum import Enum, auto

from phalanx.rendezvous.stored import RoundRecord

__all__ = ["StopCause", "cause_of"]


class StopCause(Enum):
    """Each has a grace of its own."""

    FAILURE = auto()
    """A worker failed, here or elsewhere."""
    PLANNED = auto()
    """Nodes join, or leave in peace: it can wait for a warning."""
    LOSS = auto()
    """A node was lost, or this one may be."""
    END = auto()
    """The job is over, or this node's part in it."""


def cause_of(record: RoundRecord) -> StopCause:
    """Why the workers of a running round are to stop, as the record says of which they hear."""
    if record.is_failure:
        return StopCause.FAILURE
    return StopCause.PLANNED if record.is_planned else StopCause.LOSS
