"""A small process that heals what was done when whoever did it cannot: killed with SIGKILL, or itself stopped.

Forked before an act begins, in a session of its own, deaf to the signals that end programs. It is given pidfds of the
processes that are about to be stopped; when its parent is gone, has let it go, or is later than it said it would be,
they are continued, and a last thing is done. An act tells it first and stops then: there is no moment in which a
stopped process is known to nobody.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Collection
from typing import NoReturn, Self

from phalanx.agent.processes.keeper import DEAF_TO
from phalanx.multiprocessing.pidfd import has_ended

__all__ = ["Guard"]

_END_S = 10.0


class Guard:
    """The parent's handle; use it in a ``with`` block, at whose end everything is continued and the guard is gone.

    ``limit_s``: when it heals at the latest. ``last``: what else it does then, in the guard's own process,
    in which the descriptors ``keep`` are open, too.
    Raises ``OSError`` when no process can be made: nothing was done then.
    """

    def __init__(
        self, limit_s: float, *, last: Callable[[], None] | None = None, keep: Collection[int] = ()
    ) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _live(theirs, time.monotonic() + limit_s, last, keep)
        except OSError:
            self._link.close()
            raise
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self._pid)

    def take(self, pidfd: int, *keep: int) -> bool:
        """Have this process continued at the end; descriptors are copied. False: it heals already, stop nobody.

        ``keep``: one more descriptor, that of its lock, which is open until it is continued.
        """
        try:
            socket.send_fds(self._link, [b"+"], [pidfd, *keep])
        except OSError:
            return False
        return True

    @property
    def link(self) -> int:
        """The descriptor whose end the guard waits for: whoever inherits it is waited for as we are."""
        return self._link.fileno()

    def fileno(self) -> int:
        """A descriptor that is readable when the guard has ended: it has healed, for it was time."""
        return self._pidfd

    def close(self) -> None:
        """Have everything continued, and wait for it. Idempotent."""
        if self._pidfd < 0:
            return
        self._link.close()
        if not has_ended(
            self._pidfd, _END_S
        ):  # it was stopped by somebody; what it holds is continued by nobody else
            signal.pidfd_send_signal(self._pidfd, signal.SIGCONT)
            has_ended(self._pidfd, -1)
        os.close(self._pidfd)
        self._pidfd = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()


def _live(
    link: socket.socket, limit_at: float, last: Callable[[], None] | None, keep: Collection[int]
) -> NoReturn:
    """The guard's whole life; nothing of the parent's code runs after it."""
    try:
        gc.disable()
        for number in DEAF_TO:
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _let_go({link.fileno(), *keep})
        held: list[int] = []
        try:
            while _wait(link, held, limit_at):
                pass
        finally:
            for fd in held:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGCONT)
            if last is not None:
                last()
    finally:
        os._exit(0)


def _let_go(kept: Collection[int]) -> None:
    """Hold nothing open that somebody waits to see closed, such as the pipe that a pager reads from."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(b"phalanx-chaos-g")


def _wait(link: socket.socket, held: list[int], limit_at: float) -> bool:
    """Take in one packet; False at the end of the link, or when time is over and none waits."""
    if not select.select([link], [], [], max(0.0, limit_at - time.monotonic()))[0]:
        return False
    packet, fds, _, _ = socket.recv_fds(link, 1, 2)  # what comes with it is open until we end
    held += fds[:1]
    return bool(packet)
