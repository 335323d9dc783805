"""How many workers this machine has room for, without importing torch or a vendor's library.

CPUs are those this process may use: its affinity mask, cut by the CPU quota of its cgroup and of every group above.
torchrun counts all CPUs of the machine instead, and so overloads a container that has two of its sixty-four.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

WORKERS_MAX = 32768  # the kernel's usual number of processes; far more than anybody's memory takes

__all__ = ["cpu_slots", "gpu_slots", "worker_slots"]


def worker_slots(raw: str, *, root: str = "/") -> int:
    """Return the number of workers that ``--nproc-per-node`` asks for: a number, ``cpu``, ``gpu`` or ``auto``.

    Raises ``ValueError`` with the rest of a sentence. ``root`` is where ``proc``, ``sys`` and ``dev`` are, for tests.
    """
    word = raw.strip().lower()
    if word == "cpu":
        return cpu_slots(root=root)
    if word == "gpu":
        found = gpu_slots(root=root)
        if not found:
            raise ValueError(
                "'gpu' finds no GPU here (CUDA_VISIBLE_DEVICES and /dev/nvidia* name none); write a number"
            )
        return found
    if word == "auto":
        # A variable alone is no proof: CUDA_VISIBLE_DEVICES=0 is in many shell profiles of machines without a GPU.
        return (gpu_slots(root=root) if _gpu_files(root) else 0) or cpu_slots(root=root)
    if word == "xpu":
        raise ValueError("'xpu' is not supported by this version; write a number")
    try:
        number = int(word)
    except ValueError:
        raise ValueError(f"{raw!r} is no number of workers; write a number, auto, cpu or gpu") from None
    if number < 1:
        raise ValueError(f"{raw!r} is too few; at least one worker is needed")
    if number > WORKERS_MAX:
        raise ValueError(f"{raw!r} is too many; one machine takes {WORKERS_MAX} workers at most")
    return number


def gpu_slots(*, root: str = "/") -> int:
    """Return the number of visible NVIDIA GPUs: those of ``CUDA_VISIBLE_DEVICES``, else the device files."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return _gpu_files(root) if visible is None else sum(1 for _ in _visible_devices(visible))


def _visible_devices(listed: str) -> Iterator[str]:
    """Yield devices up to the first invalid one, as CUDA reads the list: ``-1`` or an empty item ends it."""
    for item in listed.split(","):
        name = item.strip()
        if not (name.isdecimal() or name.startswith(("GPU-", "MIG-"))):
            return
        yield name


def _gpu_files(root: str) -> int:
    try:
        return sum(
            1 for name in os.listdir(os.path.join(root, "dev")) if name.removeprefix("nvidia").isdecimal()
        )
    except OSError:
        return 0


def cpu_slots(*, root: str = "/", allowed: int | None = None) -> int:
    """Return the number of CPUs that this process may use, at least 1; a quota of 2.5 CPUs gives 2.

    ``allowed`` is the size of the affinity mask, which is asked of the kernel if it is not given.
    """
    return max(1, min([allowed or _allowed_cpus(), *map(int, _cpu_quotas(root))]))


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
