"""Signal, or watch, exactly one process: it is known by its number and its start time, for numbers are used again."""

from __future__ import annotations

import contextlib
import os
import signal

from phalanx.multiprocessing.pidfd import is_supported
from phalanx.multiprocessing.procfs import start_ticks_of

__all__ = ["open_checked", "send_checked"]


def open_checked(pid: int, start_ticks: int) -> int:
    """A pidfd of exactly this process. Opened first, compared after: the number cannot change hands unseen.

    Raises ``OSError``: ``ProcessLookupError`` if it is gone.
    """
    fd = os.pidfd_open(pid)
    if start_ticks_of(pid) != start_ticks:
        os.close(fd)
        raise ProcessLookupError
    return fd


def send_checked(pid: int, start_ticks: int, signum: int) -> bool:
    """Signal exactly this process; False if it is gone. Raises ``OSError``: no descriptor is left, or not permitted."""
    with contextlib.suppress(ProcessLookupError):
        if is_supported():
            fd = open_checked(pid, start_ticks)
            try:
                signal.pidfd_send_signal(fd, signum)
            finally:
                os.close(fd)
            return True
        if start_ticks_of(pid) == start_ticks:
            os.kill(pid, signum)
            return True
    return False
