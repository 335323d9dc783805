"""Reaching the store: since when it has been tried, until when it will be, and what is told meanwhile. Pure."""

from __future__ import annotations

from phalanx.rendezvous.settings import MembershipSettings

__all__ = ["Opening"]

SAY_AFTER_S = 5.0


class Opening:
    """``begin`` each time the store is looked for; the first time may take longer than a return."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._was_open = False
        self._since = 0.0  # since the store was heard last, if it ever was
        self._asked_at = 0.0
        self._why = "it does not answer"
        self._has_said = False

    def begin(self, now: float, heard_at: float | None) -> None:
        """The store is looked for from now on; it was heard last at ``heard_at``."""
        self._asked_at = now
        # Of a longer silence this node was asleep for some: it has not looked for the store all the time.
        self._since = now if heard_at is None else max(heard_at, now - self._settings.ttl_s)
        self._has_said = False

    def succeeded(self) -> None:
        """It was reached."""
        self._was_open = True

    @property
    def was_open(self) -> bool:
        """The store was reached at least once."""
        return self._was_open

    def failed(self, reason: str) -> None:
        """An attempt failed for this reason."""
        self._why = reason

    @property
    def deadline(self) -> float:
        """When there is something to say or to give up."""
        return self._gives_up_at if self._has_said else min(self._gives_up_at, self._asked_at + SAY_AFTER_S)

    def given_up(self, now: float) -> str | None:
        """Why it is of no use to go on, if it is of none."""
        if now < self._gives_up_at:
            return None
        name = "store_timeout" if self._was_open else "join_timeout"
        return f"the store was not reached for {self._limit_s:g} s ({name}): {self._why}"

    def line(self, now: float) -> str | None:
        """What people should know by now; told once."""
        if self._has_said or now < self._asked_at + SAY_AFTER_S:
            return None
        self._has_said = True
        return f"waiting for the store: {self._why}; gives up after {self._limit_s:g} s"

    @property
    def _limit_s(self) -> float:
        return self._settings.store_timeout_s if self._was_open else self._settings.join_timeout_s

    @property
    def _gives_up_at(self) -> float:
        return self._since + self._limit_s
