"""How many CPUs this process may use: its affinity mask, cut by the CPU quota of its cgroup and of every group above.

torchrun counts all CPUs of the machine instead, and so overloads a container that has two of its sixty-four.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["cpu_slots", "threads_per_worker"]


def cpu_slots(*, root: str = "/", allowed: int | None = None) -> int:
    """Return the number of CPUs that this process may use, at least 1; a quota of 2.5 CPUs gives 2.

    ``allowed`` is the size of the affinity mask, which is asked of the kernel if it is not given. ``root`` is where
    ``proc`` and ``sys`` are, for tests.
    """
    return max(1, min([allowed or _allowed_cpus(), *map(int, _cpu_quotas(root))]))


def threads_per_worker(nproc: int, *, root: str = "/", allowed: int | None = None) -> int:
    """Return how many of these CPUs there are for each of ``nproc`` workers, at least 1."""
    return max(1, cpu_slots(root=root, allowed=allowed) // nproc)


def _allowed_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quotas(root: str) -> Iterator[float]:
    """Yield each CPU quota that binds this process, in CPUs: its own cgroup's and those of the groups above."""
    for line in _lines(os.path.join(root, "proc/self/cgroup")):
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if controllers == "":
            for folder in _groups(root, ("sys/fs/cgroup", "sys/fs/cgroup/unified"), group):
                yield from _quota_v2(folder)
        elif "cpu" in controllers.split(","):
            for folder in _groups(root, ("sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"), group):
                yield from _quota_v1(folder)


def _groups(root: str, mounts: tuple[str, str], group: str) -> Iterator[str]:
    """Yield the group's folder and those above it, down from the mount.

    In a container that shares the host's cgroup namespace the group is a path of the host, and only the mount's own
    root exists: it is the container's group.
    """
    for mount in mounts:
        folder = os.path.join(root, mount)
        yield folder
        for name in filter(None, group.split("/")):
            folder = os.path.join(folder, name)
            yield folder


def _quota_v2(group: str) -> Iterator[float]:
    for line in _lines(os.path.join(group, "cpu.max")):
        quota, _, period = line.partition(" ")
        yield from _share(quota, period)


def _quota_v1(group: str) -> Iterator[float]:
    for quota in _lines(os.path.join(group, "cpu.cfs_quota_us")):
        for period in _lines(os.path.join(group, "cpu.cfs_period_us")):
            yield from _share(quota, period)


def _share(quota: str, period: str) -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(period):  # "max" and -1 are no quota
        yield int(quota) / int(period)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []
