"""What a process is doing, as one letter: torchelastic's two functions."""

from __future__ import annotations

from phalanx.multiprocessing.procfs import read_stat

__all__ = ["is_uninterruptible_state", "read_proc_state"]


def read_proc_state(pid: int) -> str | None:
    """Return the letter of a process's state in ``/proc/<pid>/stat``; None without such a process, or without /proc.

    >>> import os
    >>> read_proc_state(os.getpid())
    'R'
    """
    stat = read_stat(pid)
    return None if stat is None else stat.state


def is_uninterruptible_state(state: str | None) -> bool:
    """Whether the letter means a wait in the kernel that no signal ends, SIGKILL neither.

    >>> is_uninterruptible_state("D"), is_uninterruptible_state(None)
    (True, False)
    """
    return state == "D"
