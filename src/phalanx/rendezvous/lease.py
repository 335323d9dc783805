"""The times of a lease, counted from when its last acknowledged renewal was sent. Pure.

The store counts from when it received that renewal, which was later: each limit here is reached before the store's.
"""

from __future__ import annotations

__all__ = ["LeaseTimes"]

SILENT_AT = 0.6  # of the ttl: the agent stops its workers
FENCED_AT = 0.8  # of the ttl: the keeper kills them, whatever the agent does
SLEEPS_KEPT = 15
STOP_GRACE = 0.15  # of the ttl: what is left for an orderly stop between the two


class LeaseTimes:
    """``renewed_at`` is the moment of sending; before the first renewal nothing is due."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self.renewed_at: float | None = None
        self._slept: list[tuple[float, float]] = []  # (when it was found, seconds), the latest few

    def renew(self, sent_at: float) -> None:
        """An answer came to a renewal that was sent then. Answers may overtake each other, and a sleep lies between."""
        sent_at -= sum(seconds for found_at, seconds in self._slept if found_at > sent_at)
        self.renewed_at = sent_at if self.renewed_at is None else max(self.renewed_at, sent_at)

    def age(self, seconds: float, now: float) -> None:
        """Time went by that our clock did not count, and that is found out now."""
        self._slept = [*self._slept[-SLEEPS_KEPT:], (now, seconds)]
        if self.renewed_at is not None:
            self.renewed_at -= seconds

    def forget(self) -> None:
        """The lease is over."""
        self.renewed_at = None

    @property
    def silent_at(self) -> float | None:
        """When silence means that the workers must stop; None: never."""
        return self._at(SILENT_AT)

    @property
    def fenced_at(self) -> float | None:
        """When no worker may be alive any more; None: no limit."""
        return self._at(FENCED_AT)

    def silence(self, now: float) -> str:
        """For how long nothing was heard, in words."""
        assert self.renewed_at is not None, "only a lease that was renewed can be silent"
        return f"the store has not answered for {now - self.renewed_at:.1f} s"

    @property
    def ended_at(self) -> float | None:
        """When the lease may have ended, whatever the store heard of us."""
        return self._at(1.0)

    @property
    def stop_grace_s(self) -> float:
        """The longest grace for a stop that begins at ``silent_at``."""
        return self._ttl_s * STOP_GRACE

    def is_silent(self, now: float) -> bool:
        """Whether the store may soon count us as lost."""
        return self.silent_at is not None and now >= self.silent_at

    def _at(self, part: float) -> float | None:
        if self.renewed_at is None or self._ttl_s == float("inf"):
            return None
        return self.renewed_at + self._ttl_s * part
