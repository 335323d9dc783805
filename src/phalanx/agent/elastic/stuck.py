"""Workers that wait in the kernel where no signal reaches them, on a dead network file system or device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from phalanx.multiprocessing.process_state import is_uninterruptible_state, read_proc_state

__all__ = ["StuckWorkers", "timeout_from_environment"]


def timeout_from_environment(name: str) -> float:
    """Seconds that a variable names; 0 when it is not set. Raises ``ValueError`` with a sentence."""
    text = os.environ.get(name) or "0"
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = -1.0
    if not 0 <= timeout_s < float("inf"):
        raise ValueError(f"{name} is {text!r}, and must be a time in seconds; 0 switches it off")
    return timeout_s


def _is_waiting(pid: int) -> bool:
    return is_uninterruptible_state(read_proc_state(pid))


class StuckWorkers:
    """Remembers since when each worker has been seen in such a wait. ``timeout_s`` 0: nobody is looked at.

    ``is_waiting`` looks at a process id.
    """

    def __init__(self, timeout_s: float, is_waiting: Callable[[int], bool] = _is_waiting) -> None:
        self._timeout_s = timeout_s
        self._is_waiting = is_waiting
        self._since: dict[int, float] = {}

    def began(self) -> None:
        """Other workers run now."""
        self._since = {}

    def look(self, pids: Mapping[int, int]) -> dict[int, float]:
        """Local rank → seconds, of workers that have waited too long; ``pids`` by local rank."""
        if not self._timeout_s:
            return {}
        now = time.monotonic()
        waiting = {rank for rank, pid in pids.items() if self._is_waiting(pid)}
        # Every look has to find it so: one that comes out of its wait between two looks is not stuck.
        self._since = {rank: self._since.get(rank, now) for rank in waiting}
        return {rank: now - since for rank, since in self._since.items() if now - since >= self._timeout_s}
