"""Between the machine for handlers of others and who calls them. Pure. Events are past tense, commands imperative."""

from __future__ import annotations

from phalanx.records import Struct
from phalanx.rendezvous.events import Heard
from phalanx.rendezvous.round import Round

__all__ = [
    "AwaitOthers",
    "CloseHandler",
    "HandlerClosed",
    "LeaveHandler",
    "LookFailed",
    "Meet",
    "Met",
    "NoMeeting",
    "NodesArrived",
    "NotMet",
    "NotNeeded",
    "OthersDone",
    "WatchNodes",
]

# Commands to who calls the handler


class Meet(Struct):
    """Call ``next_rendezvous``, then agree on ranks with the others. The numbers are this node's; the highest wins."""

    number: int
    restart_count: int
    reason: str
    port: int
    """What this node holds for rank 0."""


class WatchNodes(Struct):
    """Look whether nodes wait for a next round, until they do."""


class AwaitOthers(Struct):
    """Tell that this node has succeeded in the round, and look whether all have; go on watching for nodes."""

    round: Round


class CloseHandler(Struct):
    """The job is over for all: close the rendezvous."""


class LeaveHandler(Struct):
    """This node goes, and the others may go on: close nothing, wait for nothing."""


# Events from there


class Met(Heard):
    """This node is in a round."""

    round: Round


class NotMet(Heard):
    """The handler gave no round."""

    reason: str


class NoMeeting(Heard):
    """The handler says that the rendezvous is closed: the job is over."""

    reason: str


class NotNeeded(Heard):
    """The handler says that the job ended well without this node."""


class NodesArrived(Heard):
    """So many nodes wait for a next round."""

    count: int


class LookFailed(Heard):
    """The handler could not say whether nodes wait."""

    reason: str


class OthersDone(Heard):
    """All nodes of the round have succeeded, or one of them has closed the rendezvous."""


class HandlerClosed(Heard):
    """The handler is closed, or could not be."""

    reason: str = ""
