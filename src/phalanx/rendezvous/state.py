"""What an agent can be to its job, and rows of the member machine's table that many events share. Pure."""

from __future__ import annotations

from enum import Enum, auto

from phalanx.machine import Arrow, Void
from phalanx.rendezvous import asks, events

__all__ = ["GOING", "NOTED", "MemberState", "connected", "everywhere"]


# What happens on this node, and only shows in the next comparison with the store.
NOTED = (
    events.PortHeld,
    events.FirstSignSeen,
    events.WorkerFailed,
    events.SingleFailed,
    events.CheckpointDone,
    events.SignalSent,
    asks.AskSent,
    asks.AskDone,
    events.LeaveAsked,
    events.EndAsked,
)


class MemberState(Enum):
    """What this agent is to the job."""

    IDLE = auto()
    OPENING = auto()
    REGISTERING = auto()
    PRESENT = auto()
    SILENT = auto()
    DRAINING = auto()
    CLOSING = auto()
    CLOSED = auto()


GOING: dict[MemberState, Arrow | Void] = dict.fromkeys(
    (MemberState.DRAINING, MemberState.CLOSING, MemberState.CLOSED), Void("this node's part is over")
)


def connected(arrow: Arrow, **others: Arrow | Void) -> dict[MemberState, Arrow | Void]:
    """The same arrow wherever there is a connection; before and after, the event is of an earlier one."""
    return {
        MemberState.OPENING: Void("of the connection that was lost"),
        MemberState.REGISTERING: arrow,
        MemberState.PRESENT: arrow,
        MemberState.SILENT: arrow,
        **GOING,
        **{MemberState[name]: other for name, other in others.items()},
    }


def everywhere(arrow: Arrow, **others: Arrow | Void) -> dict[MemberState, Arrow | Void]:
    """What happens on this node happens with or without a store."""
    return connected(arrow, OPENING=arrow, **others)
