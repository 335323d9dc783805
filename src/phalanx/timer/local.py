"""Timers between a program and the workers that it has started itself: requests travel in a multiprocessing queue."""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from typing import Any

from phalanx.timer.client import TimerClient
from phalanx.timer.countdowns import TimerBook
from phalanx.timer.requests import TimerRequest
from phalanx.timer.server import RequestQueue, TimerServer

__all__ = ["LocalTimerClient", "LocalTimerServer", "MultiprocessingRequestQueue"]

logger = logging.getLogger(__name__)

_NOTHING = TimerRequest(0, "", -1.0)  # ends a countdown that nobody has: it only wakes the server


class LocalTimerClient(TimerClient):
    """Asks a ``LocalTimerServer`` on the same machine, by a ``multiprocessing.Queue``. The worker is known by its pid.

    >>> import multiprocessing
    >>> client = LocalTimerClient(multiprocessing.get_context("spawn").Queue())
    """

    def __init__(self, mp_queue: Any) -> None:
        super().__init__()
        self._queue = mp_queue

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Begin a countdown for this process."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, expiration_time))

    def release(self, scope_id: str) -> None:
        """End it."""
        self._queue.put(TimerRequest(os.getpid(), scope_id, -1.0))


class MultiprocessingRequestQueue(RequestQueue):
    """A ``multiprocessing.Queue`` as the server reads it.

    >>> import multiprocessing
    >>> MultiprocessingRequestQueue(multiprocessing.get_context("spawn").Queue()).size()
    0
    """

    def __init__(self, mp_queue: Any) -> None:
        super().__init__()
        self._queue = mp_queue

    def size(self) -> int:
        """Return how many requests there are, roughly."""
        return int(self._queue.qsize())

    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Return up to ``size`` requests; wait no longer than ``timeout`` seconds for all of them together."""
        found: list[TimerRequest] = []
        give_up_at = time.monotonic() + timeout
        while len(found) < size:
            try:
                one = self._queue.get(timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Empty:
                break
            if isinstance(one, TimerRequest):
                found.append(one)
            else:
                logger.warning("a timer request of type %s is ignored", type(one).__name__)
        return found


class LocalTimerServer(TimerServer):
    """Ends workers, by SIGKILL, whose countdowns are over. They are children of the program that runs the server.

    It wakes when a request comes or a countdown ends, and after ``max_interval`` seconds.

    >>> import multiprocessing
    >>> server = LocalTimerServer(multiprocessing.get_context("spawn").Queue(), max_interval=1)
    >>> server.start()
    >>> server.stop()
    """

    def __init__(self, mp_queue: Any, max_interval: float = 60, daemon: bool = True) -> None:
        super().__init__(MultiprocessingRequestQueue(mp_queue), max_interval, daemon)
        self._queue = mp_queue
        self._book: TimerBook[TimerRequest] = TimerBook()

    def register_timers(self, timer_requests: list[TimerRequest]) -> None:
        """Begin and end countdowns."""
        self._book.enter(timer_requests)

    def clear_timers(self, worker_ids: set[int]) -> None:
        """Drop all countdowns of these workers."""
        self._book.forget(worker_ids)

    def get_expired_timers(self, deadline: float) -> dict[Any, list[TimerRequest]]:
        """Return the countdowns that end at ``deadline`` (seconds since the epoch) or before, by pid."""
        return self._book.expired(deadline)

    def _patience_s(self) -> float:
        next_at = self._book.next_expiration
        if next_at is None:
            return self._max_interval
        return min(self._max_interval, max(0.0, next_at - time.time()))

    def stop(self) -> None:
        """Stop the thread, and wait for it."""
        self._is_stopping.set()
        self._queue.put(_NOTHING)
        super().stop()

    def _reap_worker(self, worker_id: int) -> bool:
        if worker_id in (0, 1, os.getpid()):
            logger.error("a timer of process %s is dropped: it is no worker", worker_id)
            return True
        try:
            os.kill(worker_id, signal.SIGKILL)
        except ProcessLookupError:
            logger.info("process %s has ended before its timer did", worker_id)
        return True
