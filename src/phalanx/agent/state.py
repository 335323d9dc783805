"""Where the job is, seen from one node, and why events can be void there. Pure."""

from __future__ import annotations

from enum import Enum, auto

from phalanx.machine import Void

__all__ = ["EARLY", "LATE", "OVER", "WITH_WORKERS", "AgentState"]


class AgentState(Enum):
    """See ``agent.machine``, where the arrows between them are."""

    NEW = auto()
    WAITING = auto()
    RUNNING = auto()
    LEAVING = auto()
    COLLECTING = auto()
    CLOSING = auto()
    ENDED = auto()


WITH_WORKERS = (AgentState.RUNNING, AgentState.LEAVING)

EARLY = Void("no round has settled, so no worker exists")
LATE = Void("this round's workers are gone; only evidence of them is still read")
OVER = Void("the end is known, and nothing of the job is left here")
