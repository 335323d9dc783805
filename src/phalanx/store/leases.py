"""The leases of a store machine: when each ends, and what a freeze forgives. Pure; part of the machine."""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

__all__ = ["Lease", "Leases"]

# How much later than its deadline a machine may be stepped before it counts as frozen. A holder renews three times in
# a ttl: a quarter of it leaves room for one renewal that was missed, and a busy loop of ours is rarely that late.
LATE_TTLS = 0.25
LATE_MIN_S = 0.5


class Lease:
    """A lease as it is now. To be read; only the machine writes."""

    __slots__ = ("expires_at", "keys", "renewals", "ttl_s")

    def __init__(self, ttl_s: float, expires_at: float, renewals: int = 0) -> None:
        self.ttl_s = ttl_s
        self.expires_at = expires_at
        self.renewals = renewals
        """Grows with each renewal: who loads snapshots sees by it that the holder lives."""
        self.keys: set[str] = set()


class Leases(dict[int, Lease]):
    """Number → lease; knows which ends first."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[tuple[float, int]] = []  # heap; an entry may be earlier than its lease's true end
        self._look_at: float | None = None

    def add(self, number: int, lease: Lease, now: float) -> None:
        """A lease that is new here."""
        self[number] = lease
        heappush(self._due, (lease.expires_at, number))
        look_at = now + lease.ttl_s * LATE_TTLS
        self._look_at = look_at if self._look_at is None else min(self._look_at, look_at)

    def next_due(self) -> tuple[float, int] | None:
        """When the first lease ends, and its number."""
        while self._due:
            at, number = self._due[0]
            lease = self.get(number)
            if lease is None:
                heappop(self._due)
            elif lease.expires_at > at:  # renewed since: one entry per lease, moved when it comes up
                heapreplace(self._due, (lease.expires_at, number))
            else:
                return self._due[0]
        return None

    def forgive(self, late_s: float, now: float) -> None:
        """Lengthen the leases whose renewals we were probably too frozen to hear."""
        for lease in self.values():
            if late_s > max(LATE_TTLS * lease.ttl_s, LATE_MIN_S):
                lease.expires_at = now + lease.ttl_s

    def next_look(self, now: float) -> float | None:
        """When the machine has to be stepped next: at the end of a lease, or earlier, to notice a freeze.

        A freeze that ends just before a lease does would otherwise leave its holder, whose renewals it swallowed, no
        time to be heard.
        """
        top = self.next_due()
        if top is None:
            self._look_at = None
            return None
        if self._look_at is None or now >= self._look_at:
            self._look_at = now + LATE_TTLS * min(lease.ttl_s for lease in self.values())
        return min(top[0], self._look_at)
