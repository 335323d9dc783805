"""Of which jobs a process is, as the environment that it was started with says."""

from __future__ import annotations

import os

from phalanx.multiprocessing.procfs import Stat, is_open_to_us, read_file

__all__ = ["marked"]

_GONE = "ZX"
_KTHREADD = 2  # the parent of the kernel's own threads, which have no environment
_READS_IN_EXEC = 3


def marked(stat: Stat, mark: bytes, token: bytes) -> bool | None:
    """Whether a process is of the job ``token``; None: that cannot be told just now.

    ``mark`` is a variable's name and ``=``. It lists the jobs that the process is in, the outermost first:
    ``<token>/<token>``.

    Reading the environment takes a lock of the process's memory map; one that waits in the kernel (state D) may hold
    it, and the reader would wait with it for ever. In the middle of exec the old environment is gone, and the new one
    is not there yet.
    """
    if stat.state == "D" and stat.parent != _KTHREADD and is_open_to_us(stat.pid):
        return None
    if stat.state in _GONE or stat.state == "D":
        return False
    for _ in range(_READS_IN_EXEC):
        environment = read_file(f"/proc/{stat.pid}/environ", None)
        if environment or environment is None or stat.parent == _KTHREADD:
            return environment is not None and _names_job(environment, mark, token)
        os.sched_yield()
    # Still in exec, or it has ended meanwhile; one that was started without any environment has a command line.
    return False if read_file(f"/proc/{stat.pid}/cmdline", None) else None


def _names_job(environment: bytes, mark: bytes, token: bytes) -> bool:
    for entry in environment.split(b"\0"):
        if entry.startswith(mark):
            return token in entry[len(mark) :].split(b"/")
    return False
