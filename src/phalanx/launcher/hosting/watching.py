"""How a job stands, at each change: iterators over ``JobStatus``, for a plain loop and for an asyncio loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from phalanx.events.status import JobStatus
from phalanx.launcher.hosting.descriptors import close_all, readable
from phalanx.launcher.hosting.event_pipe import Subscriber
from phalanx.multiprocessing.pidfd import ready_of

__all__ = ["AsyncWatch", "Watch"]

Awaited = tuple[list[int], float | None]


class _Watching:
    """What both kinds share: what comes next, and until when somebody waits for it."""

    def __init__(
        self,
        told: Subscriber,
        look: Callable[[Subscriber], Awaited | None],
        name: str,
        timeout_s: float | None,
        *,
        keeps: object = None,
    ) -> None:
        """``look`` takes in what has happened, and returns what to wait for; ``keeps`` lives as long as this."""
        self._told = told
        self._look = look
        self._name = name
        self._timeout_s = timeout_s
        self._give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        self._is_over = False
        self.keeps = keeps

    def _next(self) -> JobStatus | Awaited | None:
        """The next status; what to wait for, which is the caller's to close; or None: there is no more."""
        statuses = self._told.statuses
        if self._is_over:
            return None
        if not statuses:
            awaited = self._look(self._told)
            if not statuses:
                return awaited
            if awaited is not None:
                close_all(awaited[0])
        status = statuses.popleft()
        self._is_over = status.phase == "ended"
        return status

    def _limit_s(self, limit_s: float | None) -> float | None:
        """For how long to wait at most; None: for ever. Raises ``TimeoutError`` when time is over."""
        if self._give_up_at is None:
            return limit_s
        left_s = self._give_up_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"{self._name} still runs after {self._timeout_s:g} s")
        return left_s if limit_s is None else min(left_s, limit_s)


class Watch(_Watching, Iterator[JobStatus]):
    """How a job stands when somebody begins to look, and then at each change; the last is ``ended``.

    Each watch sees every change, however many there are and whoever else waits for the job; one that comes after the
    end sees the end. Nothing is polled, and no thread is needed. Leaving the loop early changes nothing in the job.

    Raises ``TimeoutError`` when ``timeout_s`` seconds, counted from the call, were not enough, and the job goes on.

    >>> import phalanx
    >>> with phalanx.start(max, 3, 5) as job:
    ...     *_, last = job.watch()
    >>> last.phase
    'ended'
    """

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> JobStatus:
        while True:
            found = self._next()
            if found is None:
                raise StopIteration
            if isinstance(found, JobStatus):
                return found
            fds, limit_s = found
            try:
                limit_s = self._limit_s(limit_s)
                ready_of([*fds, self._told.fd], -1.0 if limit_s is None else limit_s)
            finally:
                close_all(fds)


class AsyncWatch(_Watching, AsyncIterator[JobStatus]):
    """``Watch`` for ``async for``. A step that is cancelled loses nothing.

    >>> import asyncio, phalanx
    >>> async def phases():
    ...     async with phalanx.start(max, 3, 5) as job:
    ...         return [status.phase async for status in job.watch_async()]
    >>> asyncio.run(phases())[-1]
    'ended'
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> JobStatus:
        while True:
            found = self._next()
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, JobStatus):
                return found
            fds, limit_s = found
            try:
                await readable([*fds, self._told.fd], self._limit_s(limit_s))
            finally:
                close_all(fds)
