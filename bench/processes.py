"""Read from /proc what an agent costs: its own process and the helpers that it keeps, workers not counted."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path


def of_agent(launcher_pid: int, worker_pids: Collection[int]) -> list[int]:
    """The launcher and those of its descendants that are no workers and no children of workers."""
    children: dict[int, list[int]] = {}
    for pid in _all_pids():
        if stat := _read(pid, "stat"):
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(pid)

    def tree(pid: int) -> Iterator[int]:
        yield pid
        for child in children.get(pid, ()):
            if child not in worker_pids:
                yield from tree(child)

    return list(tree(launcher_pid))


def memory_mib(pids: list[int]) -> float:
    """Resident memory of the first, and what the others have beside it: a forked helper shares most pages."""
    resident_kib = _kib(pids[0], "Rss")
    own_kib = sum(_kib(pid, "Private_Clean") + _kib(pid, "Private_Dirty") for pid in pids[1:])
    return (resident_kib + own_kib) / 1024


def cpu_ticks(pids: list[int]) -> int:
    """User and system time in clock ticks (10 ms), of all threads."""
    return sum(int(ticks) for pid in pids for ticks in _read(pid, "stat").rpartition(")")[2].split()[11:13])


def wake_ups(pids: list[int]) -> int:
    """How often a thread has waited for something: each wait ends in a wake-up."""
    return sum(
        int(count)
        for pid in pids
        for task in os.listdir(f"/proc/{pid}/task")
        for count in re.findall(
            r"^voluntary_ctxt_switches:\s*(\d+)", _read(pid, f"task/{task}/status"), re.MULTILINE
        )
    )


def _all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def _kib(pid: int, name: str) -> int:
    found = re.search(rf"^{name}:\s*(\d+) kB", _read(pid, "smaps_rollup"), re.MULTILINE)
    return int(found[1]) if found else 0


def _read(pid: int, name: str) -> str:
    """Empty when the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
