"""The face that the agent's machine sees of whoever agrees with the other nodes. Pure."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Membership"]


class Membership(Protocol):
    """What this machine needs of the one that agrees with other nodes: ``rendezvous.machine.MemberMachine``, or the
    one for handlers that others have written.
    """

    deadline: float | None

    def step(self, event: object, now: float) -> list[Any]:
        """Take an event of ``rendezvous.events``."""

    @property
    def has_untold(self) -> bool:
        """Whether nobody has heard how the last round ended on this node, and nobody will."""

    @property
    def is_closed(self) -> bool:
        """Whether it has left the store."""
