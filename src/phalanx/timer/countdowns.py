"""The countdowns that run, by worker and scope. Pure: time is told, and what has expired is asked for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Generic, TypeVar

from phalanx.timer.requests import TimerRequest

__all__ = ["HELD_UP_S", "STEP_S", "ClockSteps", "TimerBook"]

# A clock that is corrected slowly gains 5 ms in the ten seconds between two looks; a step is seldom below a second.
STEP_S = 0.5
# Two readings of a clock in a row are a microsecond apart, some milliseconds where other threads run in between. What
# they are apart is how wrong a look can be, so it must stay well below a step.
HELD_UP_S = 0.1

RequestT = TypeVar("RequestT", bound=TimerRequest)


class TimerBook(Generic[RequestT]):
    """Who has which countdown. A second one of the same worker and scope takes the place of the first.

    >>> book = TimerBook()
    >>> book.enter([TimerRequest(7, "forward", 20.0), TimerRequest(7, "step", 10.0)])
    >>> book.next_expiration, book.expired(15.0)
    (10.0, {7: [TimerRequest(7, 'step', 10.0)]})
    """

    def __init__(self) -> None:
        self._running: dict[tuple[Any, str], RequestT] = {}

    def __len__(self) -> int:
        return len(self._running)

    @property
    def workers(self) -> set[Any]:
        """Those that have a countdown."""
        return {worker for worker, _ in self._running}

    @property
    def next_expiration(self) -> float | None:
        """When the first of them expires; None when none runs."""
        return min((one.expiration_time for one in self._running.values()), default=None)

    def enter(self, requests: Iterable[RequestT]) -> None:
        """Take requests in their order: begin countdowns, and end those with a negative time."""
        for one in requests:
            key = (one.worker_id, one.scope_id)
            if one.expiration_time < 0:
                self._running.pop(key, None)
            else:
                self._running[key] = one

    def forget(self, workers: Collection[Any]) -> None:
        """Drop all countdowns of these workers."""
        for key in [key for key in self._running if key[0] in workers]:
            del self._running[key]

    def shift(self, seconds: float) -> None:
        """The clock was set: all countdowns end so much later by it, as much later as they would have without that."""
        for one in self._running.values():
            one.expiration_time += seconds

    def expired(self, now: float) -> dict[Any, list[RequestT]]:
        """By worker, the countdowns that are over at ``now``, the first to expire first. They stay in the book."""
        found: dict[Any, list[RequestT]] = {}
        for one in sorted(self._running.values(), key=lambda one: one.expiration_time):
            if one.expiration_time <= now:
                found.setdefault(one.worker_id, []).append(one)
        return found


class ClockSteps:
    """Tells a clock that was set from one that goes, by a second clock that nobody sets and that stops in a sleep.

    >>> steps = ClockSteps()
    >>> steps.seen(before=5.0, wall=1000.0, after=5.0), steps.seen(before=6.0, wall=1001.0, after=6.0)
    (0.0, 0.0)
    >>> steps.seen(before=7.0, wall=4602.0, after=7.0)
    3600.0
    """

    def __init__(self) -> None:
        self._offset: float | None = None

    def seen(self, *, before: float, wall: float, after: float) -> float | None:
        """By how many seconds the wall clock was set since the last time; 0: it was not. None: look again, at once.

        ``before`` and ``after`` are of the second clock, read before and after ``wall``. Who was held up between them
        cannot tell that from a step: it would be taken back the next time, from countdowns that began in between.
        """
        if after - before >= HELD_UP_S:
            return None
        last, self._offset = self._offset, wall - before
        step = 0.0 if last is None else self._offset - last
        return step if abs(step) >= STEP_S else 0.0
