"""A node that should not be used for a while: for how long, by its own clock. Pure."""

from __future__ import annotations

from phalanx.rendezvous.events import Told
from phalanx.rendezvous.jitter import jitter
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.waiting import span

__all__ = ["Exclusion"]

LONGEST_S = 86400.0


class Exclusion:
    """``reason`` is empty while the node may be used. Each exclusion lasts twice as long as the one before.

    Up to a tenth less, by chance: nodes that were excluded together do not come back together. Where the job has no
    other node, or none may take its place, nothing is excluded.
    """

    def __init__(self, settings: MembershipSettings) -> None:
        self._settings = settings
        self._count = 0
        self.reason = ""
        self.ends_at: float | None = None

    def begin(self, reason: str, now: float) -> list[Told]:
        """Exclude the node, or have nothing changed if it is."""
        if self.ends_at is not None:
            return []
        if self._settings.max_nodes == 1 or self._settings.is_static:
            if self._count:  # said; a script may ask in each step
                return []
            self._count = 1
            why = (
                "has one node"
                if self._settings.max_nodes == 1
                else "is static, and nobody takes a node's place"
            )
            return [
                Told(f"this node should not be used: {reason}; it is used all the same, since the job {why}")
            ]
        self._count += 1
        longest_s = min(LONGEST_S, self._settings.exclude_for_s * 2.0 ** min(self._count - 1, 32))
        chance = jitter(f"{self._settings.node_id} {self._count}")
        for_s = longest_s * (0.9 + chance / 10)
        self.reason, self.ends_at = reason, now + for_s
        used = "it is used again then, and before that when there are too few others"
        return [Told(f"this node is excluded for {span(longest_s)}: {reason}; {used}")]

    def end_if_due(self, now: float) -> list[Told]:
        """It may be over by now; said once."""
        if self.ends_at is None or now < self.ends_at:
            return []
        self.reason, self.ends_at = "", None
        return [Told("this node may be used again: it was excluded long enough")]
