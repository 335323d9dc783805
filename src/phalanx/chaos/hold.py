"""Whose a process is while it is stopped: two who stop and continue it would undo each other's acts.

The lock is ``flock`` on the process's own folder in ``/proc``: it is found by every user, in every network, it is of
exactly this process, and nothing is left behind. The guard has it, too, so it lasts until all is healed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from phalanx.chaos.jobs import Process
from phalanx.multiprocessing.procfs import read_stat

__all__ = ["Held", "hold"]

_STOPPED = {"T": "is stopped already, and not by chaos", "t": "is held by a debugger"}


class Held(Exception):
    """Somebody else has stopped this process, or continues it soon: why it is left alone, without a full stop."""


def hold(process: Process) -> int:
    """Lock the process and return the descriptor that does so. Raises ``Held``, ``OSError`` when it has ended."""
    fd = os.open(f"/proc/{process.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a system whose /proc knows no locks: as well as it can be
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Held(f"pid {process.pid} is in the hands of another phalanx chaos") from None
        stat = read_stat(process.pid)
        if stat is not None and stat.state in _STOPPED:
            raise Held(f"pid {process.pid} {_STOPPED[stat.state]}")
    except BaseException:
        os.close(fd)
        raise
    return fd
