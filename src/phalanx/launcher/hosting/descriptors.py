"""Descriptors of a program that hosts an agent: made, copied and waited for without a trace in the program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from typing import IO, Any

from phalanx.multiprocessing.pidfd import Child, watch_child

__all__ = [
    "above_standard",
    "close_all",
    "copies",
    "open_or_null",
    "own_pidfd",
    "pipe",
    "readable",
    "watched",
]


def copies(*fds: int) -> list[int]:
    """Copies of those that are open (-1: it is not); all of them or none."""
    made: list[int] = []
    try:
        for fd in fds:
            if fd >= 0:
                made.append(os.dup(fd))  # noqa: PERF401 # those before a failure are to be closed
    except OSError:
        close_all(made)
        raise
    return made


def watched(pid: int) -> Child | None:
    """A child by descriptor; None if it has ended, and left no trace because this program ignores SIGCHLD."""
    try:
        return watch_child(pid)
    except ProcessLookupError:
        return None


def close_all(fds: Iterable[int]) -> None:
    """Close them."""
    for fd in fds:
        os.close(fd)


async def readable(fds: Sequence[int], limit_s: float | None) -> None:
    """Wait until one of the descriptors is readable, or time is over."""
    import asyncio

    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    timer = None if limit_s is None else loop.call_later(limit_s, wake)
    for fd in fds:
        loop.add_reader(fd, wake)
    try:
        await ready
    finally:
        for fd in fds:
            loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()


def own_pidfd() -> int:
    """A descriptor of this process, for the agent to see its end; -1 where the system has none."""
    try:
        return above_standard(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return -1


def above_standard(fd: int) -> int:
    """The same descriptor with a number that no standard stream has: a daemon may have closed its own."""
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pipe() -> tuple[int, int]:
    """A pipe, its end to read first; both numbers are of no standard stream."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        reader = above_standard(reader)
    except OSError:
        os.close(writer)
        raise
    try:
        return reader, above_standard(writer)
    except OSError:
        os.close(reader)
        raise


def open_or_null(stream: int | IO[Any] | None, inherited: int) -> int | IO[Any] | None:
    """What a child gets for a standard stream: null for one that this program has closed and nobody has given."""
    if stream is None:
        try:
            os.fstat(inherited)
        except OSError:
            return subprocess.DEVNULL
    return stream
