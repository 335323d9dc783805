"""Virtual time: what happens next, and a clock for each node that reads it wrongly.

The timeline is the truth that no agent can see. It jumps from one entry to the next, so that ten minutes of sixteen
nodes take a fraction of a second. Entries of one moment run in the order in which they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

__all__ = ["Entry", "NodeClock", "Timeline"]

ENTRIES_MAX = (
    20_000_000  # hours of a large world; more is an agent that spins, and a test that would never end
)


class Entry:
    """Something that is to happen; ``cancel()`` makes it not happen."""

    __slots__ = ("args", "callback", "when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback: Callable[..., object] | None = callback
        self.args = args

    def cancel(self) -> None:
        """Idempotent; nothing happens when it has happened already."""
        self.callback = None
        self.args = ()


class Timeline:
    """True time in seconds from 0, and the entries to come."""

    def __init__(self) -> None:
        self.now = 0.0
        self._entries: list[tuple[float, int, Entry]] = []
        self._numbers = count()
        self._is_stopped = False

    def at(self, when: float, callback: Callable[..., object], *args: Any) -> Entry:
        """Call back at a moment; one that is past already is now."""
        entry = Entry(max(when, self.now), callback, args)
        heappush(self._entries, (entry.when, next(self._numbers), entry))
        return entry

    def after(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Entry:
        """Call back after a while."""
        return self.at(self.now + delay_s, callback, *args)

    def stop(self) -> None:
        """Let ``run`` return after the entry that happens now."""
        self._is_stopped = True

    def run(self, until: float) -> bool:
        """Let happen what is due until a moment, or until ``stop()``; return whether it was that.

        Raises ``RuntimeError`` when something spins.
        """
        self._is_stopped = False
        entries = self._entries
        for _ in range(ENTRIES_MAX):
            if not entries or entries[0][0] > until:
                self.now = max(self.now, until)
                return False
            self.now, _, entry = heappop(entries)
            if entry.callback is None:
                continue
            callback, args = entry.callback, entry.args
            entry.cancel()
            callback(*args)
            if self._is_stopped:
                return True
        raise RuntimeError(
            f"virtual time does not pass: {ENTRIES_MAX} things happened until {self.now:.3f} s"
        )


class NodeClock:
    """The clocks of one node: a monotonic one that stands still while the node is suspended, and a boot-time one.

    ``rate`` is seconds of this clock per true second; ``offset`` is what it shows at true time 0.
    """

    def __init__(self, timeline: Timeline, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self._timeline = timeline
        self.rate = rate
        self.offset = offset
        self._suspended_s = 0.0
        self._suspended_at: float | None = None

    def monotonic(self) -> float:
        """As ``CLOCK_MONOTONIC`` of Linux."""
        now = self._timeline.now if self._suspended_at is None else self._suspended_at
        return self.offset + self.rate * (now - self._suspended_s)

    def boottime(self) -> float:
        """As ``CLOCK_BOOTTIME``: suspension counts."""
        return self.offset + self.rate * self._timeline.now

    def true_at_monotonic(self, local: float) -> float:
        """The true time at which the monotonic clock shows ``local`` if the node is not suspended until then."""
        return (local - self.offset) / self.rate + self._suspended_s

    def true_at_boottime(self, local: float) -> float:
        """The true time at which the boot-time clock shows ``local``."""
        return (local - self.offset) / self.rate

    def suspend(self) -> None:
        """The whole machine stops."""
        if self._suspended_at is None:
            self._suspended_at = self._timeline.now

    def resume(self) -> None:
        """It goes on."""
        if self._suspended_at is not None:
            self._suspended_s += self._timeline.now - self._suspended_at
            self._suspended_at = None
