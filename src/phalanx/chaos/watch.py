"""How chaos waits, and the lines that say for what.

Nobody tells of a process that appears in ``/proc``, so while a job or a worker is waited for, it is looked at ten times
a second; everything else (times, signals, ends of processes) is waited for in one ``poll``.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterable

from phalanx.chaos.faults import Opened, Wait
from phalanx.chaos.sentences import time_words
from phalanx.chaos.target import Target
from phalanx.chaos.waiting import Child, Signals, wait_for
from phalanx.early import STOPPING

__all__ = ["Over", "Watch"]

LOOK_S = 0.1
_QUIET_S = 10.0  # what takes its time is told when it has taken so long


class Over(Exception):
    """There is nothing left to do anything to, or we were told to stop."""


class Watch:
    """``child``: the command, if there is one; ``target``: the job, as soon as it is found.

    ``stopped_by``: the signal that told us to stop, or 0. ``why``: what was waited for last, "" for nothing.
    """

    def __init__(self, signals: Signals) -> None:
        self.child: Child | None = None
        self.target: Target | None = None
        self.stopped_by = 0
        self.why = ""
        self.start_at = time.monotonic()
        self._signals = signals
        self._told = ""
        self._tell_at = math.inf

    def say(self, words: str) -> None:
        """Print a line, at once and in one piece: the job writes to the same place."""
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(f"chaos: {time.monotonic() - self.start_at:.1f} s: {words}\n")
            sys.stderr.flush()

    def begin(self) -> None:
        """Something else is waited for from now on."""
        self._told, self._tell_at = "", time.monotonic() + _QUIET_S

    def look_again(self, why: str, *, is_in_the_way: bool = False) -> None:
        """Wait a moment, for nobody tells of it. Raises ``Over``.

        What is in the way is said at once, and what comes in its place, too; what takes its time late, and once.
        """
        self.why = why
        now = time.monotonic()
        if why != self._told if is_in_the_way else now >= self._tell_at:
            self.say(f"waiting: {why}")
            self._told, self._tell_at = why, now + _QUIET_S if is_in_the_way else math.inf
        self._wait(now + LOOK_S)

    def pause(self, seconds: float) -> None:
        """Wait so long. Raises ``Over``."""
        self.why = f"{time_words(seconds)} of waiting were not over" if seconds else ""
        until = time.monotonic() + seconds
        self._wait(until)
        while time.monotonic() < until:
            self._wait(until)

    def waiting_for(self, found: list[Opened]) -> Wait:
        """How an act waits that lasts until all of these have ended, or the job has."""
        ends = {one.pidfd for one in found}

        def wait(until: float) -> bool:
            while time.monotonic() < until:
                ends.difference_update(self._ready(until, ends))
                if not ends or self._is_told_to_end:
                    return False
            return True

        return wait

    def end_child(self) -> None:
        """The experiment is not the one that was meant: have the command stop, and wait for that."""
        if self.child is not None and not self.child.has_ended:
            self.child.send(signal.SIGTERM)
            self.await_child(self.child)

    def await_child(self, child: Child) -> int:
        """Wait for the command's end, and return its code."""
        while not child.has_ended:
            self._ready(time.monotonic() + 3600.0, ())
        assert child.code is not None
        return child.code

    def _wait(self, until: float) -> None:
        """Wait until then, or until something has happened."""
        self._ready(until, () if self.target is None else self.target.fds())
        if self._is_told_to_end or (self.target is not None and self.target.is_over):
            raise Over

    def _ready(self, until: float, others: Iterable[int]) -> set[int]:
        """Wait until then, for a signal, for the command's end, or for these descriptors; return which are readable."""
        child = () if self.child is None else (self.child.pidfd,)
        ready = wait_for([self._signals.fileno(), *child, *others], until)
        while (taken := self._signals.read()) is not None:
            number, is_from_terminal = taken
            if self.child is not None and not is_from_terminal:
                self.child.send(number)
            if number in STOPPING:
                self.stopped_by = self.stopped_by or number
        return ready

    @property
    def _is_told_to_end(self) -> bool:
        return bool(self.stopped_by) or (self.child is not None and self.child.has_ended)
