"""Why a signal killed a worker, in sentences for people. Pure: ``postmortem.py`` has looked at the machine.

Sentences are honest about what is known. The kernel's log names a process: that is certain. A counter of its cgroup
rose: another process may have been it, so "probably". Nothing moved: then who else kills is named, and no more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from signal import Signals

from phalanx.records import Struct

__all__ = ["CgroupLevel", "Explanation", "Facts", "OutOfMemory", "explain", "is_about", "out_of_memory"]

KERNEL_LINES_MAX = 2
KERNEL_LINE_WIDTH = 200
SHM_SMALL_BYTES = 64 << 20  # what Docker and Kubernetes give to a container that asks for nothing
SHM_FULL_BYTES = 1 << 20  # less than that is free: no tensor fits

LESS_MEMORY = (
    "raise the limit (docker run --memory, Kubernetes resources.limits.memory, Slurm --mem), or use less: a smaller "
    "batch, fewer data-loader workers"
)
MORE_SHM = (
    "give it more (docker run --shm-size=8g or --ipc=host; Kubernetes: an emptyDir of medium Memory at /dev/shm; "
    "mount -o remount,size=8G /dev/shm), or use fewer data-loader workers"
)


class CgroupLevel(Struct, kw_only=True):
    """The memory accounts of one cgroup: the worker's own, or one above it. None: the kernel does not tell."""

    path: str
    limit_bytes: int | None = None
    kills_before: int | None = None
    kills_after: int | None = None
    """``oom_kill``: processes of this cgroup that were killed, whosever limit was reached."""
    is_limit_hit: bool = False
    """It was the limit of this very cgroup that was reached since the round began (cgroup v2 tells)."""


class OutOfMemory(Struct, kw_only=True):
    """The kernel's own words on whom it killed for want of memory."""

    limit_of: str = ""
    """The cgroup whose limit was reached; empty: the machine had no memory left, or the log does not say."""
    victims_cgroup: str = ""
    is_machine: bool = False
    resident_bytes: int | None = None


class Facts(Struct, kw_only=True):
    """What is known of a worker that a signal killed, and of the machine right after."""

    pid: int
    signal: int
    """0: it ended by itself, with a failure; its child may have been killed."""
    was_asked_to_stop: bool = False
    why_ended: str = ""
    """What ended it on this launcher's behalf, and why, in half a sentence; empty: nothing did."""
    cgroups: tuple[CgroupLevel, ...] = ()
    """The worker's own first; empty: nothing can be read."""
    kernel_lines: tuple[str, ...] = ()
    """Lines of the kernel's log since the round began that name this process."""
    is_log_readable: bool = False
    peak_bytes: int | None = None
    shm_free_bytes: int | None = None
    shm_total_bytes: int | None = None
    has_core: bool | None = None
    core_limit_bytes: int | None = None
    """None: unlimited, or unknown."""
    core_pattern: str = ""


class Explanation(Struct, kw_only=True):
    """``sentences``: likeliest cause first. ``certain``: words for a summary of one line, if there is no doubt."""

    sentences: tuple[str, ...] = ()
    certain: str = ""


# What the default action of a signal means, where its name alone leaves people guessing.
MEANINGS = {
    "SIGSEGV": "it touched memory that is not its own: a bug in native code (an extension, a driver), or a full stack "
    "(ulimit -s)",
    "SIGABRT": "it gave itself up (abort): its last words on standard error say why",
    "SIGILL": "it met an instruction that this processor does not know: it may be built for a newer one",
    "SIGFPE": "it divided an integer by zero, in native code",
    "SIGTRAP": "it met a breakpoint, or a check in native code failed",
    "SIGSYS": "a sandbox (seccomp) refused it a system call",
    "SIGXCPU": "its limit of processor time was used up (ulimit -t)",
    "SIGXFSZ": "a file grew beyond its limit (ulimit -f)",
    "SIGPIPE": "it wrote to a pipe or socket that nobody reads any more",
}
CORE_SIGNALS = frozenset({"SIGSEGV", "SIGABRT", "SIGILL", "SIGFPE", "SIGBUS", "SIGSYS", "SIGTRAP", "SIGQUIT"})


def explain(facts: Facts) -> Explanation:
    """All that can be said of this death; nothing where its signal says it all."""
    name = _name(facts.signal)
    if facts.why_ended:
        return Explanation(sentences=(facts.why_ended,), certain=facts.why_ended)
    if facts.signal == 0:
        return _child_killed(facts)
    if name == "SIGKILL":
        return _killed(facts)
    if name == "SIGBUS":
        said = _bus_error(facts)
    elif name in MEANINGS:
        said = Explanation(sentences=(f"{name}: {MEANINGS[name]}",))
    elif not facts.was_asked_to_stop:
        said = Explanation(
            sentences=(f"{name}: this launcher did not send it; the scheduler, a user or the job itself did",)
        )
    else:
        said = Explanation()
    sentences = (
        said.sentences + _kernel_says(facts.kernel_lines) + (_core(facts) if name in CORE_SIGNALS else ())
    )
    return Explanation(sentences=sentences, certain=said.certain)


# SIGKILL


def _killed(facts: Facts) -> Explanation:
    known = out_of_memory(facts.kernel_lines, facts.pid)
    if known is not None:
        return _out_of_memory(facts, known)
    if facts.was_asked_to_stop:
        what = "it had been asked to stop, and still ran when its grace was over"
        return Explanation(sentences=(f"probably this launcher killed it: {what}",))
    if _has_own_count_risen(facts.cgroups):
        return Explanation(sentences=(_probably_out_of_memory(facts), LESS_MEMORY))
    return Explanation(sentences=(_somebody_else(facts), *_kernel_says(facts.kernel_lines)))


def _child_killed(facts: Facts) -> Explanation:
    """A worker that failed by itself where the kernel killed somebody: a data loader, or what a shell script ran."""
    if facts.was_asked_to_stop or not _has_own_count_risen(facts.cgroups):
        return Explanation()
    whose, limit, times = _shortage(facts.cgroups)
    killed = "a process" if times == 1 else f"{times} processes"
    what = f"while it ran, the kernel killed {killed} of its cgroup because {whose} was out of memory"
    doubt = "one that this worker had started may be the reason of its failure"
    return Explanation(sentences=(f"{what}{_in_brackets(limit)}: {doubt}", LESS_MEMORY))


def _out_of_memory(facts: Facts, known: OutOfMemory) -> Explanation:
    had = _had(facts.peak_bytes if facts.peak_bytes is not None else known.resident_bytes)
    if known.is_machine:
        what = "the kernel killed it because the machine was out of memory"
        advice = "use less memory: a smaller batch, fewer data-loader workers, fewer workers on this machine"
        return Explanation(
            sentences=(f"{what}{_in_brackets(had)}", advice),
            certain=f"out of memory{_in_brackets('the whole machine', had)}",
        )
    limit = _limit_of(facts.cgroups, known.limit_of)
    is_own = known.limit_of == known.victims_cgroup
    whose = (
        "its cgroup" if is_own else f"the cgroup {known.limit_of} around it" if known.limit_of else "a cgroup"
    )
    return Explanation(
        sentences=(
            f"the kernel killed it because {whose} was out of memory{_in_brackets(limit, had)}",
            LESS_MEMORY,
        ),
        certain=f"out of memory{_in_brackets(limit, had)}",
    )


def _probably_out_of_memory(facts: Facts) -> str:
    whose, limit, times = _shortage(facts.cgroups)
    killed = "one process" if times == 1 else f"{times} processes"
    known = _in_brackets(limit, _had(facts.peak_bytes))
    doubt = f"it has killed {killed} of this cgroup for that, which another may have been"
    return f"probably the kernel killed it because {whose} was out of memory{known}: {doubt}"


def _shortage(cgroups: tuple[CgroupLevel, ...]) -> tuple[str, str, int]:
    """Whose memory was short, its limit, and how many were killed, as the counters tell without the kernel's log."""
    own = cgroups[0]
    hit = next((level for level in cgroups if level.is_limit_hit), None) or _tightest(cgroups)
    times = (own.kills_after or 0) - (own.kills_before or 0)
    if hit is None:
        return "an outer cgroup or the machine", "", times
    whose = "its cgroup" if hit is own else f"the cgroup {hit.path} around it"
    return whose, _limit_of((hit,), hit.path), times


def _somebody_else(facts: Facts) -> str:
    looked = []
    if any(level.kills_after is not None for level in facts.cgroups):
        looked.append("its cgroups count no kill for want of memory")
    if facts.is_log_readable and not facts.kernel_lines:
        looked.append("the kernel's log does not name it")
    what = ", and ".join(looked) or "neither its cgroup's counters nor the kernel's log can be read here"
    return (
        f"this launcher did not kill it; {what}{_in_brackets(_had(facts.peak_bytes))}: somebody with kill -9, an "
        "early-OOM daemon, or a memory limit that cannot be seen from here (Slurm, Kubernetes) may have"
    )


def _has_own_count_risen(cgroups: tuple[CgroupLevel, ...]) -> bool:
    """Whether the worker's own cgroup counts a kill.

    One that was not known when the round began (somebody moved the worker) counts for any kill in it: such cgroups are
    made for one program. Those above count their other children's too, and would blame memory for a neighbour's death.
    """
    if not cgroups or cgroups[0].kills_after is None:
        return False
    return cgroups[0].kills_after > (cgroups[0].kills_before or 0)


def _tightest(cgroups: tuple[CgroupLevel, ...]) -> CgroupLevel | None:
    limited = [level for level in cgroups if level.limit_bytes is not None]
    return min(limited, key=lambda level: level.limit_bytes or 0, default=None)


def _limit_of(cgroups: Iterable[CgroupLevel], path: str) -> str:
    found = next((level.limit_bytes for level in cgroups if level.path == path), None)
    return "" if found is None else f"limit {_size(found)}"


def _had(peak_bytes: int | None) -> str:
    return "" if peak_bytes is None else f"the worker had up to {_size(peak_bytes)}"


# SIGBUS


def _bus_error(facts: Facts) -> Explanation:
    if any("hardware memory corruption" in line for line in facts.kernel_lines):
        what = "a memory module of this machine is broken (hardware memory corruption)"
        return Explanation(sentences=(f"{what}: have the machine looked at",), certain=what)
    free, total = facts.shm_free_bytes, facts.shm_total_bytes
    if free is None or not total:
        return Explanation(sentences=(f"SIGBUS: /dev/shm was full, or {_other_bus_errors()}",))
    if free < min(SHM_FULL_BYTES, total // 16 + 1):
        full = f"/dev/shm is full ({_size(total)})"
        why = "who touches shared memory for which there is no room gets SIGBUS"
        return Explanation(sentences=(f"{full}, and {why}: {MORE_SHM}",), certain=full)
    if total <= SHM_SMALL_BYTES:
        was = f"/dev/shm has only {_size(total)} and may have been full until the worker died"
        return Explanation(sentences=(f"probably {was}: {MORE_SHM}", f"else: {_other_bus_errors()}"))
    room = f"/dev/shm has room ({_size(free)} of {_size(total)} free)"
    return Explanation(
        sentences=(f"SIGBUS: {room}, unless the dead worker filled it; {_other_bus_errors()}",)
    )


def _other_bus_errors() -> str:
    return "a mapped file was cut short while it was in use, or its disk is full or failing"


# Cores, the kernel's words


def _core(facts: Facts) -> tuple[str, ...]:
    """Whether a core was written, and where it is, or what to do to get one."""
    pattern = facts.core_pattern
    if facts.has_core:
        if pattern.startswith("|"):
            program = pattern[1:].split(" ", 1)[0]
            ask = f"; coredumpctl info {facts.pid} shows it" if "systemd-coredump" in program else ""
            return (f"a core dump was handed to {program}{ask}",)
        where = "" if pattern.startswith("/") else " in the folder that the worker was in"
        return (f"a core dump was written{where} (kernel.core_pattern is {pattern})",)
    if facts.core_limit_bytes == 0 and not pattern.startswith(
        "|"
    ):  # a program gets them without regard to it
        return ("no core dump was written: the limit is 0; `ulimit -c unlimited` before the start gives one",)
    if facts.has_core is False:
        place = (
            "does its program work"
            if pattern.startswith("|")
            else "is its folder writable, and its disk not full"
        )
        said = f"kernel.core_pattern is {pattern or 'empty'}: {place}?"
        return (f"no core dump was written, though the limit allows one; {said}",)
    return ()


def _kernel_says(lines: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"the kernel says: {line[:KERNEL_LINE_WIDTH]}" for line in lines[-KERNEL_LINES_MAX:])


# ``python3[17]: segfault at …``, ``Killed process 17 (…``, ``…,task=python3,pid=17,uid=0``, ``Xid …: 31, pid=17``,
# ``Killing python3:17 due to hardware memory corruption``; not the process table of a report, ``[    17]  0 …``.
_ABOUT = re.compile(r"\w\[(\d+)\]|\bpid[=:] ?'?(\d+)|\b[Pp]rocess (\d+)|\w:(\d+) due to ")


def is_about(line: str, pid: int | None = None) -> bool:
    """Whether a line of the kernel's log is about this process; without one, about any."""
    found = [number for match in _ABOUT.finditer(line) for number in match.groups() if number]
    return bool(found) if pid is None else str(pid) in found


_KILLED = re.compile(r"(?P<memcg>Memory cgroup o|O)ut of memory(?: \(\w+\))?: Killed process (?P<pid>\d+)\b")
_RESIDENT = re.compile(r"\b(?:anon|file|shmem)-rss:(\d+)kB")
_CONSTRAINT = re.compile(
    r"\boom-kill:constraint=.*?,(?:oom_memcg=(?P<limit_of>[^,]*)|global_oom)"
    r"(?:,task_memcg=(?P<victims>[^,]*))?,.*\bpid=(?P<pid>\d+)\b"
)


def out_of_memory(lines: Iterable[str], pid: int) -> OutOfMemory | None:
    """What the kernel's log says of the killing of this process for want of memory; None: nothing."""
    found: OutOfMemory | None = None
    for line in lines:
        if (match := _CONSTRAINT.search(line)) and int(match["pid"]) == pid:
            found = OutOfMemory(
                limit_of=match["limit_of"] or "",
                victims_cgroup=match["victims"] or "",
                is_machine=match["limit_of"] is None,
                resident_bytes=found.resident_bytes if found else None,
            )
        elif (match := _KILLED.search(line)) and int(match["pid"]) == pid:
            resident = [int(one) for one in _RESIDENT.findall(line)]
            found = OutOfMemory(
                limit_of=found.limit_of if found else "",
                victims_cgroup=found.victims_cgroup if found else "",
                is_machine=match["memcg"] == "O",
                resident_bytes=sum(resident) * 1024 if resident else None,
            )
    return found


# Words


def _name(number: int) -> str:
    """``SIGKILL``; ``signal 64`` where there is no name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _in_brackets(*parts: str) -> str:
    given = "; ".join(part for part in parts if part)
    return f" ({given})" if given else ""


def _size(count: int) -> str:
    """Bytes as people say them: ``57 MiB``, ``1.5 GiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            value = count / factor
            return f"{value:.0f} {unit}" if value >= 10 or value == int(value) else f"{value:.1f} {unit}"
    return f"{count} bytes"
