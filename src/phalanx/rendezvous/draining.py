"""The host of the store, when its own part is over: whether the others need it still, and for how long. Pure."""

from __future__ import annotations

from phalanx.rendezvous.events import SessionOpened
from phalanx.rendezvous.settings import MembershipSettings

__all__ = ["Draining"]


class Draining:
    """``ends_at`` is when the others have been waited for long enough."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._is_host = False
        self.is_local = False
        """The store is in this process."""
        self.is_hurried = False
        """Somebody is impatient."""
        self.ends_at = 0.0

    def opened(self, event: SessionOpened) -> None:
        """A session, which says who hosts the store."""
        self._is_host, self.is_local = event.is_host, event.is_local

    def is_needed(self, *, is_used: bool) -> bool:
        """Whether the others lose a store that they use when this process ends."""
        return self._is_host and is_used and not self.is_hurried

    def begin(self, now: float) -> None:
        """From now on only the others are waited for.

        Where several serve the store together the others may be gone before we hear of it, and the store with them.
        """
        settings = self._settings
        limit_s = settings.drain_s if self.is_local else min(settings.drain_s, settings.ttl_s)
        self.ends_at = now + limit_s
