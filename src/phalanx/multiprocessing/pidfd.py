"""One child process as a file descriptor: readable when it has ended, exact when it is signalled or waited for.

Only the given child is ever waited for: other children of the process belong to other code.

Where the kernel has no pidfd (before Linux 5.4, macOS, some sandboxes) a thread per child waits for it *without
reaping* (``WNOWAIT``) and then closes a pipe, whose other end is the descriptor. The number of an unreaped child is
never given to another process, so a plain ``kill`` by whoever reaps is exact too.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Protocol

from phalanx.records import Struct

__all__ = [
    "Child",
    "PidfdChild",
    "Remains",
    "ThreadedChild",
    "has_ended",
    "is_supported",
    "make_exits_observable",
    "ready_of",
    "watch_child",
]

# What a shell reports for a status that nobody knows. The status is lost when someone else waits for our child, or
# when SIGCHLD is ignored.
EXIT_CODE_LOST = 255

_FILE_BYTES = 16384  # of a /proc file about a dead process; its cgroups and limits are about a tenth of that


class Remains(Struct):
    """What the kernel tells of an ended process until it is reaped, and to nobody afterwards.

    ``peak_bytes``: the most memory that it or a child that it waited for had resident. A process that was started by
    vfork counts the memory of the one that started it as its own until it executes its program.
    """

    peak_bytes: int
    has_core: bool = False
    cgroups: str = ""
    """/proc/<pid>/cgroup; of deaths by a signal only. In a hierarchy of cgroup v1 the dead are all in the root."""
    core_limit: str = ""
    """The soft limit of a core file, in /proc's words: bytes or ``unlimited``; of deaths by a signal only."""


class Child(Protocol):
    """A process that we started. ``fileno()`` is readable from its end until ``close()``."""

    @property
    def pid(self) -> int:
        """Its process id, ours until it is reaped."""

    @property
    def remains(self) -> Remains | None:
        """What it left behind, when ``poll()`` has told its end; None where nobody could look before it was reaped."""

    def fileno(self) -> int:
        """A descriptor that is readable when it has ended; -1 after ``close()``."""

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal) and reap, or ``None`` while it runs. Never waits for its end."""

    def send_signal(self, signum: int) -> bool:
        """Signal it; False when it has ended, reaped or not, or may not be signalled by us."""

    def close(self) -> None:
        """Close the descriptors; the process goes on."""


@functools.cache
def is_supported() -> bool:
    """Whether this system opens, waits for and signals pidfds."""
    if not (hasattr(os, "pidfd_open") and hasattr(os, "P_PIDFD") and hasattr(signal, "pidfd_send_signal")):
        return False
    try:
        fd = os.pidfd_open(os.getpid())
    except OSError:  # ENOSYS, or EPERM from a seccomp filter that predates the call
        return False
    try:
        # ECHILD is the right answer (nobody is their own child); EINVAL means that P_PIDFD is unknown.
        os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def watch_child(pid: int) -> Child:
    """Watch an unreaped child of this process by the best means that the system has."""
    return PidfdChild(pid) if is_supported() else ThreadedChild(pid)


def has_ended(fd: int, timeout_s: float = 0.0) -> bool:
    """Wait until a pidfd's process has ended (or another descriptor is readable); negative: for ever."""
    return bool(ready_of((fd,), timeout_s))


def ready_of(fds: Iterable[int], timeout_s: float = 0.0) -> set[int]:
    """Wait until some of the descriptors are readable, or at their end, and return which; negative: for ever."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    # Rounded up: a wait that ends a fraction of a millisecond early would spin.
    return {fd for fd, _ in poller.poll(None if timeout_s < 0 else int(timeout_s * 1000 + 0.999))}


class PidfdChild:
    """A child behind a pidfd."""

    __slots__ = ("_fd", "pid", "remains")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.remains: Remains | None = None
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:  # noqa: D102 # see Child
        return self._fd

    def poll(self) -> int | None:  # noqa: D102
        code, self.remains = _reap(os.P_PIDFD, self._fd, self.pid)
        return code

    def send_signal(self, signum: int) -> bool:  # noqa: D102
        # The kernel accepts signals for a zombie without a word; "it was told" must mean that it could hear.
        if has_ended(self._fd):
            return False
        try:
            signal.pidfd_send_signal(self._fd, signum)
        except (ProcessLookupError, PermissionError):  # EPERM: a program that changed its user (sudo)
            return False
        return True

    def close(self) -> None:  # noqa: D102
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ThreadedChild:
    """A child watched by a thread that sleeps in ``waitid``; the fallback, 64 KiB of stack per child."""

    __slots__ = ("_is_reaped", "_read", "pid", "remains")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.remains: Remains | None = None
        self._is_reaped = False
        self._read, write = os.pipe()
        threading.Thread(target=_report_end, args=(pid, write), name=f"wait-{pid}", daemon=True).start()

    def fileno(self) -> int:  # noqa: D102 # see Child
        return self._read

    def poll(self) -> int | None:  # noqa: D102
        code, self.remains = _reap(os.P_PID, self.pid, self.pid)
        self._is_reaped = code is not None
        return code

    def send_signal(self, signum: int) -> bool:  # noqa: D102
        if self._is_reaped or has_ended(self._read):
            return False
        try:
            os.kill(self.pid, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def close(self) -> None:  # noqa: D102
        if self._read >= 0:
            os.close(self._read)
            self._read = -1


def _report_end(pid: int, write: int) -> None:
    with contextlib.suppress(ChildProcessError):  # reaped between the exit and this call
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    os.close(write)


def _reap(id_type: int, ident: int, pid: int) -> tuple[int | None, Remains | None]:
    """The exit code of an ended child and its remains, and reap it; None and None while it runs."""
    try:
        # Seen first and reaped then: in between its number is its own, and /proc still shows it.
        result = os.waitid(id_type, ident, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if result is None:
            return None, None
    except ChildProcessError:
        return EXIT_CODE_LOST, None
    if result.si_code == os.CLD_EXITED:
        code, cgroups, core_limit = result.si_status, "", ""
    else:
        code = -result.si_status
        cgroups, core_limit = _read(f"/proc/{pid}/cgroup"), _core_limit(_read(f"/proc/{pid}/limits"))
    try:
        reaped, _, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:  # another thread was faster
        return code, None
    if not reaped:  # and the number is that of another child already
        return code, None
    # Linux counts in KiB, macOS in bytes; there is no other system without pidfds that this is made for.
    peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return code, Remains(peak_bytes, result.si_code == os.CLD_DUMPED, cgroups, core_limit)


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(fd, _FILE_BYTES))
    except OSError:
        return ""
    finally:
        os.close(fd)


def _core_limit(limits: str) -> str:
    """The soft limit in ``Max core file size   <soft>   <hard>   bytes``."""
    for line in limits.splitlines():
        if line.startswith("Max core file size"):
            return line.split()[4]
    return ""


def make_exits_observable() -> None:
    """Undo an inherited ``SIGCHLD`` = ignore, under which the kernel throws exit codes away."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "SIGCHLD is ignored in this process, so no exit code can be learnt; set it to SIG_DFL"
        )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
