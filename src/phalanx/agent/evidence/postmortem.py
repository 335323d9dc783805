"""Looks at the machine after a signal has killed a worker: memory counters, the kernel's log, /dev/shm, core limits.

A baseline is taken when the workers of a round start, and when one of them is started again beside the others; nothing
is read while they run. Every look is a handful of
files of the kernel, none of which can make the reader wait, and what cannot be read is unknown: nothing is raised.
``explanations.py`` makes sentences of it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.records import Struct

if TYPE_CHECKING:
    from phalanx.agent.evidence.explanations import CgroupLevel, Explanation
    from phalanx.multiprocessing.pidfd import Remains

__all__ = ["Postmortem"]

# proc_ns.h's PROC_PID_INIT_INO. The kernel's log has the numbers of this namespace: elsewhere they are somebody else's.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
RECORDS_MAX = 20_000  # of the kernel's log in one look, more than its buffer holds on most machines; 40 ms
RECORD_BYTES = 8192  # devkmsg's longest record
LINES_MAX = 1000  # kept of a round
# Between the kernel's count of a kill and the look at who died of it: a large worker dies slowly, its children get half
# a second and then five, its logs two.
DYING_S = 30.0
UNLIMITED_BYTES = 1 << 62  # how cgroup v1 says "no limit" is the largest number of whole pages


class _Count(Struct):
    kills: int | None
    limit_hits: int | None


class _Baseline(Struct):
    """The counters of each cgroup at one moment, in monotonic seconds."""

    at: float
    counts: dict[str, _Count]


class _Hierarchy(Struct):
    """Where memory is accounted: the folder of the cgroup ``top``, which may be one inside of a container."""

    folder: str
    top: str
    is_v1: bool


class Postmortem:
    """``begin()`` when workers start, ``begin_single()`` when one of them starts again, ``explain()`` for each that was
    killed. ``root``: what stands for ``/``.
    """

    def __init__(self, root: str = "", *, why_ended: Callable[[int], str] | None = None) -> None:
        self._root = root
        self._why_ended = why_ended
        self._hierarchy: _Hierarchy | None = None
        self._has_looked = False
        self._own = ""
        self._baselines = [
            _Baseline(0.0, {})
        ]  # in order of time; the last one older than DYING_S, and the younger ones
        self._began_at: dict[int, float] = {}  # of those that were started again
        self._log = -1
        self._lines: list[tuple[float, str]] = []  # and when each was read

    def begin(self) -> None:
        """Remember the counters, and the end of the kernel's log: what is older explains no death of this round."""
        if not self._has_looked:
            self._has_looked = True
            self._hierarchy = _memory_hierarchy(self._read("/proc/self/mountinfo"))
            self._log = self._open_log()
        self._own = self._cgroup_of(self._read("/proc/self/cgroup"))
        self._baselines = [self._baseline()]
        self._began_at.clear()
        self._lines.clear()
        self._skip_log()

    def begin_single(self, local_rank: int) -> None:
        """The same for one worker about to start while others run, or are dying: what explains those is kept."""
        self._read_log()
        old = self._before(time.monotonic() - DYING_S)
        self._baselines = [*self._baselines[self._baselines.index(old) :], self._baseline()]
        self._began_at[local_rank] = self._baselines[-1].at

    def explain(
        self,
        pid: int,
        exit_code: int,
        *,
        was_asked_to_stop: bool,
        remains: Remains | None,
        local_rank: int = 0,
    ) -> Explanation:
        """Why the worker died, as far as its machine tells; of most exit codes that are no signals nothing."""
        from phalanx.agent.evidence.explanations import Facts, explain, is_about, out_of_memory

        self._read_log()
        began_at = self._began_at.get(local_rank, 0.0)
        lines = tuple(line for at, line in self._lines if at >= began_at and is_about(line, pid))
        known = out_of_memory(lines, pid)
        is_of_memory = exit_code >= 0 or exit_code == -signal.SIGKILL
        is_bus_error = exit_code == -signal.SIGBUS
        moved_to = known.victims_cgroup if known else self._where_it_died(remains)
        paths = self._levels(moved_to or self._own)
        if known and known.limit_of and known.limit_of not in paths:
            paths.append(known.limit_of)
        shm_free, shm_total = self._shared_memory() if is_bus_error else (None, None)
        core_limit = remains.core_limit if remains else ""
        return explain(
            Facts(
                pid=pid,
                signal=max(-exit_code, 0),
                was_asked_to_stop=was_asked_to_stop,
                why_ended=self._why_ended(pid) if self._why_ended and exit_code < 0 else "",
                cgroups=self._accounts(paths, began_at) if is_of_memory else (),
                kernel_lines=lines,
                is_log_readable=self._log >= 0,
                peak_bytes=_own_peak(remains),
                shm_free_bytes=shm_free,
                shm_total_bytes=shm_total,
                has_core=remains.has_core if remains else None,
                core_limit_bytes=int(core_limit) if core_limit.isdecimal() else None,
                core_pattern=self._read("/proc/sys/kernel/core_pattern").strip(),
            )
        )

    def close(self) -> None:
        """Give the descriptor of the kernel's log back."""
        if self._log >= 0:
            os.close(self._log)
            self._log = -1

    # Cgroups

    def _baseline(self) -> _Baseline:
        at = time.monotonic()
        return _Baseline(at, {path: self._count(path) for path in self._levels(self._own)})

    def _before(self, at: float) -> _Baseline:
        """The last that was taken by then, or the first one."""
        return next((one for one in reversed(self._baselines) if one.at <= at), self._baselines[0])

    def _where_it_died(self, remains: Remains | None) -> str:
        """The cgroup that the dead worker was in; empty: the kernel does not tell (v1 moves its dead to the root)."""
        if remains is None or self._hierarchy is None or self._hierarchy.is_v1:
            return ""
        return self._cgroup_of(remains.cgroups).removesuffix(" (deleted)")

    def _cgroup_of(self, lines: str) -> str:
        """The path of the memory cgroup in the text of a /proc/<pid>/cgroup; empty where there is none."""
        for line in lines.splitlines():
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            is_memory = "memory" in controllers.split(",") if self._is_v1 else number == "0"
            if is_memory:
                return path
        return ""

    @property
    def _is_v1(self) -> bool:
        return self._hierarchy is not None and self._hierarchy.is_v1

    def _levels(self, path: str) -> list[str]:
        """The cgroup and those around it, as far as can be seen from here, innermost first."""
        if self._hierarchy is None or not path:
            return []
        top = self._hierarchy.top
        if path != top and not path.startswith(f"{top.rstrip('/')}/"):
            return [top]  # from inside of a container its own path may be told as seen from outside
        levels = [path]
        while levels[-1] != top:
            levels.append(os.path.dirname(levels[-1]))
        return levels

    def _file(self, path: str, name: str) -> str:
        if self._hierarchy is None:  # the kernel's log named a cgroup of which nothing can be seen from here
            return ""
        below = path.removeprefix(self._hierarchy.top).strip("/")
        return self._read(os.path.join(self._hierarchy.folder, below, name))

    def _count(self, path: str) -> _Count:
        if self._is_v1:
            return _Count(_field(self._file(path, "memory.oom_control"), "oom_kill"), None)
        # The counts of a folder alone, since 5.2; those of memory.events have the ones below added.
        events = self._file(path, "memory.events.local") or self._file(path, "memory.events")
        return _Count(_field(events, "oom_kill"), _field(events, "oom"))

    def _accounts(self, paths: list[str], began_at: float) -> tuple[CgroupLevel, ...]:
        """What they count since this worker began; if that was long ago, since shortly before it died."""
        from phalanx.agent.evidence.explanations import CgroupLevel

        counts = self._before(max(began_at, time.monotonic() - DYING_S)).counts
        levels = []
        is_hit_found = False
        for path in paths:
            before, after = counts.get(path, _Count(None, None)), self._count(path)
            # Innermost first: where only sums are told, everything around the one whose limit was reached rises, too.
            is_hit = not is_hit_found and (after.limit_hits or 0) > (before.limit_hits or 0)
            is_hit_found = is_hit_found or is_hit
            levels.append(
                CgroupLevel(
                    path=path,
                    limit_bytes=self._limit(path),
                    kills_before=before.kills,
                    kills_after=after.kills,
                    is_limit_hit=is_hit,
                )
            )
        return tuple(levels)

    def _limit(self, path: str) -> int | None:
        text = self._file(path, "memory.limit_in_bytes" if self._is_v1 else "memory.max").strip()
        limit = int(text) if text.isdecimal() else None
        return None if limit is None or limit >= UNLIMITED_BYTES else limit

    # The kernel's log

    def _open_log(self) -> int:
        """Open it, or return -1, which is normal: it takes a privilege, and in a container its pids are foreign."""
        try:
            if os.readlink(f"{self._root}/proc/self/ns/pid") != FIRST_PID_NAMESPACE:
                return -1
            return os.open(f"{self._root}/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return -1

    def _skip_log(self) -> None:
        """Go to its end, or do without it."""
        try:
            if self._log >= 0:
                os.lseek(self._log, 0, os.SEEK_END)
        except OSError:
            self.close()

    def _read_log(self) -> None:
        """Take in what is new and about a process; a record for each read, until there is none."""
        from phalanx.agent.evidence.explanations import is_about

        now = time.monotonic()
        for _ in range(RECORDS_MAX if self._log >= 0 else 0):
            try:
                record = os.read(self._log, RECORD_BYTES)
            except BrokenPipeError:  # the oldest were overwritten before we read them; the next read goes on
                continue
            except OSError:  # EAGAIN: that was all
                break
            if not record:
                break
            for line in record.decode("utf-8", "replace").splitlines():
                # <level>,<number>,<time>,<flags>;<text>; lines that begin with a blank are about devices
                _, _, text = line.partition(";")
                if not line.startswith(" ") and is_about(text):
                    self._lines.append((now, text))
        del self._lines[:-LINES_MAX]

    # The rest

    def _shared_memory(self) -> tuple[int | None, int | None]:
        """Free and total bytes of /dev/shm."""
        try:
            found = os.statvfs(f"{self._root}/dev/shm")
        except OSError:
            return None, None
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def _read(self, path: str) -> str:
        try:
            fd = os.open(self._root + path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            parts = []
            while part := os.read(fd, 65536):
                parts.append(part)
            return os.fsdecode(b"".join(parts))
        except OSError:
            return ""
        finally:
            os.close(fd)


def _memory_hierarchy(mountinfo: str) -> _Hierarchy | None:
    """Where the memory controller is mounted: its own hierarchy (v1), else the unified one (v2)."""
    unified: _Hierarchy | None = None
    for line in mountinfo.splitlines():
        mount, separator, kind = line.partition(" - ")
        fields, about = mount.split(" "), kind.split(" ")
        if not separator or len(fields) < 5 or len(about) < 3:
            continue
        top, folder = (one.replace("\\040", " ") for one in fields[3:5])
        if about[0] == "cgroup" and "memory" in about[2].split(","):
            return _Hierarchy(folder, top, is_v1=True)
        if about[0] == "cgroup2" and unified is None:
            unified = _Hierarchy(folder, top, is_v1=False)
    return unified


def _field(text: str, name: str) -> int | None:
    """The number in a line ``name number``."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return None


def _own_peak(remains: Remains | None) -> int | None:
    """The worker's peak of memory, if it is its own: before it runs its program it is charged with this process's."""
    if remains is None:
        return None
    import resource

    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return remains.peak_bytes if remains.peak_bytes > ours else None
