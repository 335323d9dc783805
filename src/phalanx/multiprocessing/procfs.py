"""Processes as ``/proc`` shows them, by plain system calls. Nothing here decides whose process it is."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = [
    "Stat",
    "is_open_to_us",
    "now_ticks",
    "own_children",
    "read_all",
    "read_file",
    "read_stat",
    "start_ticks_of",
]

_STAT_BYTES = 1024  # one line of about 300 bytes
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """What ``/proc/<pid>/stat`` says of a process. A tuple, not a Struct: a scan makes hundreds."""

    pid: int
    command: str
    state: str
    parent: int
    session: int
    start_ticks: int


def now_ticks() -> int:
    """The time in clock ticks since boot. The kernel rounds start times down: who starts now may seem a tick older."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return int(time.clock_gettime(clock) * _TICKS_PER_S)


def start_ticks_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with the pid, its identity. None: no such process."""
    stat = read_stat(pid)
    return None if stat is None else stat.start_ticks


def is_open_to_us(pid: int) -> bool:
    """Whether a process is one of this user's, or this user may look into everybody's."""
    try:
        return os.geteuid() in (0, os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return False


def read_all() -> dict[int, Stat]:
    """Every process by its pid; none without a /proc."""
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    return {stat.pid: stat for name in names if name.isdigit() and (stat := read_stat(int(name))) is not None}


def read_stat(pid: int) -> Stat | None:
    """One process; None when there is none."""
    line = read_file(f"/proc/{pid}/stat", _STAT_BYTES)
    if line is None:
        return None
    # The name may hold anything, spaces and parentheses too: it ends at the last ")".
    head, _, tail = line.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return Stat(
        pid=pid,
        command=os.fsdecode(head.partition(b"(")[2]),
        state=chr(fields[0][0]),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
    )


def read_file(path: str, limit: int | None) -> bytes | None:
    """A file of /proc, by plain system calls: a scan reads hundreds, and a file object costs twice as much."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if limit is not None:
            return os.read(fd, limit)
        parts = []
        while part := os.read(fd, 131072):
            parts.append(part)
        return b"".join(parts)
    except OSError:  # it ended meanwhile, or belongs to another user
        return None
    finally:
        os.close(fd)


def own_children() -> list[int]:
    """The children of this process, of all its threads; a whole scan where the kernel keeps no lists."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return []
    pids: list[int] = []
    for thread in threads:
        text = read_file(f"/proc/self/task/{thread}/children", None)
        if text is None:
            own = os.getpid()
            return [stat.pid for stat in read_all().values() if stat.parent == own]
        pids += map(int, text.split())
    return pids
