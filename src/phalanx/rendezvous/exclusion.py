"""A node that should not be used for a while: for how long, by its own clock. Pure."""

from __future__ import annotations

from zlib import crc32

from phalanx.rendezvous.settings import MembershipSettings

__all__ = ["Exclusion"]

LONGEST_S = 86400.0


class Exclusion:
    """``reason`` is empty while the node may be used. Each exclusion lasts twice as long as the one before.

    A little less, by chance: nodes that were excluded together do not come back together.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._count = 0
        self.reason = ""
        self.ends_at: float | None = None

    def begin(self, reason: str, now: float) -> float:
        """Exclude the node, or have nothing changed if it is; returns for how many seconds from now."""
        if self.ends_at is None:
            self._count += 1
            longest_s = min(LONGEST_S, self._settings.exclude_for_s * 2.0 ** min(self._count - 1, 32))
            chance = crc32(f"{self._settings.node_id} {self._count}".encode()) / 0xFFFFFFFF
            self.reason = reason
            self.ends_at = now + longest_s * (0.9 + chance / 10)
        return self.ends_at - now

    def has_ended(self, now: float) -> bool:
        """Whether it is over by now; said once."""
        if self.ends_at is None or now < self.ends_at:
            return False
        self.reason = ""
        self.ends_at = None
        return True
