"""``with timer.expires(after=60):``, and the client that tells a server of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TimerClient", "configure", "expires"]

TIMER_FILE = "TORCHELASTIC_TIMER_FILE"
# Beside it, and the same: the server is ours. Another launcher that is started within a job sets the first one alone.
OUR_TIMER_FILE = "PHALANX_TIMER_FILE"


class TimerClient(ABC):
    """How a worker asks for countdowns: one object in a process, used by all of its threads.

    >>> class Printing(TimerClient):
    ...     def acquire(self, scope_id, expiration_time):
    ...         print("begin", scope_id)
    ...
    ...     def release(self, scope_id):
    ...         print("end", scope_id)
    >>> with expires(after=60, scope="forward", client=Printing()):
    ...     pass
    begin forward
    end forward
    """

    @abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Begin a countdown that ends at ``expiration_time``, in seconds since the epoch."""

    @abstractmethod
    def release(self, scope_id: str) -> None:
        """End the countdown of this scope."""


class _Process:
    """What this process has: its client, and the blocks that its threads are in, by scope."""

    def __init__(self) -> None:
        self.client: TimerClient | None = None
        self.forget_blocks()

    def forget_blocks(self) -> None:
        """For a forked child: it has none of its parent's threads, and so is in none of their blocks."""
        self.lock = threading.Lock()
        self.active: dict[str, set[int]] = {}


_here = _Process()
os.register_at_fork(after_in_child=_here.forget_blocks)


def configure(timer_client: TimerClient) -> None:
    """Have ``expires`` use this client in this process. Semantics of torchelastic 2.13.

    >>> from phalanx.timer import FileTimerClient
    >>> configure(FileTimerClient("/tmp/watchdog"))  # doctest: +SKIP
    """
    _here.client = timer_client


@contextmanager
def expires(after: float, scope: str | None = None, client: TimerClient | None = None) -> Iterator[None]:
    """Give the block ``after`` seconds. The server ends this worker if it is not left by then, at once or soon after.

    ``scope`` names the block in what the server says, by default by file and line. Blocks may be nested, also with
    the same name, and run in several threads. Without ``client`` it is that of ``configure``, else the one of the
    agent's watchdog, where it has one. Raises ``RuntimeError`` when there is none, ``ValueError`` for a time that
    is not above zero, and ``OSError`` or ``BrokenPipeError`` when the server is gone. Semantics of torchelastic 2.13.

    >>> from phalanx import timer
    >>> with timer.expires(after=60, scope="forward"):  # doctest: +SKIP
    ...     model(batch)
    """
    if not after > 0:
        raise ValueError(f"a block cannot be left within {after!r} seconds; give it more than 0")
    used = client or _here.client or _of_the_agent()
    # Frame 0 is this generator, 1 and 2 are contextlib's: making it, and entering it.
    name = scope or _caller(2 + 1)
    number = _enter(name)
    # Twice the same scope at once, nested or in two threads, are two countdowns.
    scope_id = name if number == 0 else f"{name} ({number + 1})"
    try:
        used.acquire(scope_id, time.time() + after)
        try:
            yield
        finally:
            used.release(scope_id)
    finally:
        _leave(name, number)


def _enter(name: str) -> int:
    with _here.lock:
        taken = _here.active.setdefault(name, set())
        number = next(one for one in range(len(taken) + 1) if one not in taken)
        taken.add(number)
        return number


def _leave(name: str, number: int) -> None:
    with _here.lock:
        taken = _here.active.get(name, set())  # empty in a child that was forked within the block
        taken.discard(number)
        if not taken:
            _here.active.pop(name, None)


def _caller(depth: int) -> str:
    frame = sys._getframe(depth)  # inspect.stack() costs milliseconds and reads source files
    return f"{frame.f_code.co_filename}#{frame.f_lineno}"


def _of_the_agent() -> TimerClient:
    path = os.environ.get(TIMER_FILE)
    if not path:
        raise RuntimeError(
            "no timer server is known: start the job with --watchdog (or TORCHELASTIC_ENABLE_FILE_TIMER=1), or call "
            "timer.configure(client) first"
        )
    from phalanx.timer.file_client import FileTimerClient

    found = FileTimerClient(path)
    configure(found)
    return found
