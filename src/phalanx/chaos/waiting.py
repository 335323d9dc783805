"""Waiting for a moment, a signal, or the end of processes, all at once; and the child that chaos starts itself."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Collection, Sequence
from typing import Self

from phalanx.early import STOPPING, WARNING
from phalanx.multiprocessing.pidfd import has_ended, ready_of

__all__ = ["Child", "Signals", "wait_for"]

_SI_KERNEL = 0x80  # asm-generic/siginfo.h: sent by the kernel, as a terminal's Ctrl-C is
_INFO_BYTES = 128
_HEAD = struct.Struct("=IiiI")  # struct signalfd_siginfo: signo, errno, code, pid
_LISTENED = (*STOPPING, *WARNING)
_IGNORED_HERE = (*WARNING, signal.SIGPIPE, signal.SIGXFSZ)  # by our own start, and by Python's
_LONGEST_S = 1e6  # what poll takes


class Signals:
    """Stop and warning signals as a descriptor; use it in a ``with`` block. One that is ignored stays so.

    A descriptor, for it says who sent one: what a terminal sends goes to its whole foreground group, a child of ours
    included, and is not passed on to it a second time.
    """

    def __init__(self) -> None:
        ignored = {number for number in STOPPING if signal.getsignal(number) is signal.SIG_IGN}
        self._numbers = [number for number in _LISTENED if number not in ignored]
        self.former: set[signal.Signals] = set()
        self._fd = -1

    def __enter__(self) -> Self:
        """Listen."""
        self.former = {signal.Signals(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)}
        bits = sum(1 << (number - 1) for number in self._numbers)
        mask = ctypes.create_string_buffer(bits.to_bytes(_INFO_BYTES, "little"))
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, self.former)
            raise OSError(ctypes.get_errno(), "signals cannot be listened to")
        return self

    def __exit__(self, *_: object) -> None:
        """Forget signals that nobody has read, and be as before."""
        while self.read() is not None:
            pass
        os.close(self._fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.former)

    def fileno(self) -> int:
        """Readable when a signal is there."""
        return self._fd

    def read(self) -> tuple[int, bool] | None:
        """The next signal, and whether the kernel has sent it; None: there is none."""
        try:
            info = os.read(self._fd, _INFO_BYTES)
        except BlockingIOError:
            return None
        number, _, code, _ = _HEAD.unpack_from(info)
        return number, code == _SI_KERNEL


class Child:
    """The command that chaos was given, with our terminal, streams and process group. Raises ``OSError``."""

    def __init__(self, command: Sequence[str], *, environ: dict[str, str], mask: Collection[int]) -> None:
        # Not subprocess: the child must not inherit that we hold signals back, nor what is ignored here.
        self.pid = os.posix_spawnp(
            command[0], list(command), environ, setsigmask=mask, setsigdef=_IGNORED_HERE
        )
        self.pidfd = os.pidfd_open(self.pid)
        self.code: int | None = None

    def send(self, number: int) -> None:
        """Signal it, if it runs."""
        if not has_ended(self.pidfd):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(self.pidfd, number)

    @property
    def has_ended(self) -> bool:
        """Whether it has, and with which ``code``, as a shell tells it: 128+N for signal N."""
        if self.code is None and has_ended(self.pidfd):
            _, status = os.waitpid(self.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            self.code = 128 - code if code < 0 else code
        return self.code is not None


def wait_for(fds: Collection[int], until: float) -> set[int]:
    """Wait until some of the descriptors are readable, or this moment of ``time.monotonic``; return which are."""
    return ready_of(fds, min(max(0.0, until - time.monotonic()), _LONGEST_S))
