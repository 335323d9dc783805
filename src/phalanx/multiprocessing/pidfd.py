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
from typing import Protocol

__all__ = ["Child", "PidfdChild", "ThreadedChild", "has_ended", "is_supported", "watch_child"]

# What a shell reports for a status that nobody knows. The status is lost when someone else waits for our child, or
# when SIGCHLD is ignored.
EXIT_CODE_LOST = 255


class Child(Protocol):
    """A process that we started. ``fileno()`` is readable from its end until ``close()``."""

    @property
    def pid(self) -> int:
        """Its process id, ours until it is reaped."""

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
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    # Rounded up: a wait that ends a fraction of a millisecond early would spin.
    return bool(poller.poll(None if timeout_s < 0 else int(timeout_s * 1000 + 0.999)))


class PidfdChild:
    """A child behind a pidfd."""

    __slots__ = ("_fd", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:  # noqa: D102 # see Child
        return self._fd

    def poll(self) -> int | None:  # noqa: D102
        return _exit_code(os.P_PIDFD, self._fd)

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

    __slots__ = ("_is_reaped", "_read", "pid")

    def __init__(self, pid: int) -> None:
        import threading

        self.pid = pid
        self._is_reaped = False
        self._read, write = os.pipe()
        threading.Thread(target=_report_end, args=(pid, write), name=f"wait-{pid}", daemon=True).start()

    def fileno(self) -> int:  # noqa: D102 # see Child
        return self._read

    def poll(self) -> int | None:  # noqa: D102
        code = _exit_code(os.P_PID, self.pid)
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


def _exit_code(id_type: int, ident: int) -> int | None:
    try:
        result = os.waitid(id_type, ident, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return EXIT_CODE_LOST
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
