"""The frame of a timer server: a thread that takes requests, and ends workers whose countdowns are over."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from phalanx.timer.requests import TimerRequest

__all__ = ["RequestQueue", "TimerServer"]

logger = logging.getLogger(__name__)


class RequestQueue(ABC):
    """Where a server finds requests. It shrinks by ``get`` alone.

    >>> class Listed(RequestQueue):
    ...     def __init__(self, requests):
    ...         self.requests = requests
    ...
    ...     def size(self):
    ...         return len(self.requests)
    ...
    ...     def get(self, size, timeout):
    ...         taken, self.requests = self.requests[:size], self.requests[size:]
    ...         return taken
    >>> Listed([TimerRequest(7, "forward", 20.0)]).size()
    1
    """

    @abstractmethod
    def size(self) -> int:
        """Return how many requests there are now; more may come before ``get`` is called."""

    @abstractmethod
    def get(self, size: int, timeout: float) -> list[TimerRequest]:
        """Wait ``timeout`` seconds at most, until ``size`` requests are there, and return what there is of them."""


class TimerServer(ABC):
    """Watches countdowns and ends the workers of those that are over. For subclasses, as torchelastic has it.

    ``max_interval``: how many seconds the server waits for requests before it looks at its countdowns again.
    ``daemon``: whether a program may end while the server's thread runs.

    >>> issubclass(TimerServer, ABC)
    True
    """

    def __init__(self, request_queue: RequestQueue, max_interval: float, daemon: bool = True) -> None:
        self._request_queue = request_queue
        self._max_interval = max_interval
        self._daemon = daemon
        self._thread: threading.Thread | None = None
        self._is_stopping = threading.Event()

    @abstractmethod
    def register_timers(self, timer_requests: list[Any]) -> None:
        """Begin and end countdowns; a negative ``expiration_time`` ends one."""

    @abstractmethod
    def clear_timers(self, worker_ids: set[Any]) -> None:
        """Drop all countdowns of these workers."""

    @abstractmethod
    def get_expired_timers(self, deadline: float) -> dict[Any, list[Any]]:
        """Return the countdowns that end at ``deadline`` (seconds since the epoch) or before, by worker."""

    @abstractmethod
    def _reap_worker(self, worker_id: Any) -> bool:
        """End the worker. Return whether it is ended; an exception counts as yes, so that its timers are dropped."""

    def start(self) -> None:
        """Start the server's thread. It can be started again when it was stopped."""
        if self._thread is not None:
            raise RuntimeError("the timer server runs already")
        self._is_stopping.clear()
        self._thread = threading.Thread(target=self._watchdog_loop, name="timer-server", daemon=self._daemon)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for it: ``max_interval`` seconds at most. Without effect when it does not run."""
        self._is_stopping.set()
        if self._thread is not None:
            self._thread.join(self._max_interval + 1.0)
            self._thread = None

    def _watchdog_loop(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._run_watchdog()
            except Exception:
                logger.exception("the timer server goes on after an error")
                self._is_stopping.wait(min(1.0, self._max_interval))  # not in a circle

    def _run_watchdog(self) -> None:
        size = max(1, self._request_queue.size())
        self.register_timers(self._request_queue.get(size, self._patience_s()))
        ended = set()
        for worker_id, timers in self.get_expired_timers(time.time()).items():
            logger.warning("worker %s is too slow in %s: it is ended", worker_id, self._get_scopes(timers))
            if self._reap_worker_no_throw(worker_id):
                ended.add(worker_id)
        self.clear_timers(ended)

    def _patience_s(self) -> float:
        """How long the next wait for requests may be; a subclass that knows its countdowns waits for the next one."""
        return self._max_interval

    def _reap_worker_no_throw(self, worker_id: Any) -> bool:
        try:
            return self._reap_worker(worker_id)
        except Exception:
            logger.exception("worker %s cannot be ended; its timers are dropped", worker_id)
            return True

    def _get_scopes(self, timer_requests: Iterable[TimerRequest]) -> list[str]:
        return [one.scope_id for one in timer_requests]
