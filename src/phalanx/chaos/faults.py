"""What is done to processes: signals, stops that end, and a share of the time in which to run.

Whatever is stopped was given to a guard before. A worker is stopped with all that descends from it, or a shell script
would stand still while its program runs on; an agent alone, for its workers are to run on.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator

from phalanx.chaos.guard import Guard
from phalanx.chaos.hold import Held, hold
from phalanx.chaos.jobs import Process, descendants, open_process, signal_process
from phalanx.records import Struct

__all__ = ["Opened", "Wait", "opened", "slowed", "stopped"]

# Long enough for the kernel's scheduler, short enough that a step of training feels it as one slow machine.
PERIOD_S = 0.2
# Children that a worker has started meanwhile are slowed, too: a scan of /proc costs milliseconds.
_PERIODS_BETWEEN_SCANS = 5

Wait = Callable[[float], bool]
"""Wait until this moment of ``time.monotonic``; False when the act is to end before it."""


class Opened(Struct):
    """A process behind a descriptor that is its alone."""

    process: Process
    pidfd: int


@contextlib.contextmanager
def opened(processes: Collection[Process]) -> Iterator[list[Opened]]:
    """Those of the processes that are alive, each behind a pidfd."""
    with contextlib.ExitStack() as stack:
        found = []
        for process in processes:
            fd = open_process(process)
            if fd is not None:
                stack.callback(os.close, fd)
                found.append(Opened(process, fd))
        yield found


class _Troop:
    """Processes that are stopped and continued together, the guard's knowledge of them included."""

    def __init__(self, roots: Collection[Opened], guard: Guard, *, with_children: bool) -> None:
        self._guard = guard
        self._with_children = with_children
        self._roots = list(roots)
        self._known: dict[Process, int] = {}
        self._locks: list[int] = []

    def find(self) -> bool:
        """Look for those who are new; whether there were any.

        Raises ``BrokenPipeError`` when the guard has healed, and ``Held`` for a root that is somebody else's. What has
        descended from one, and is somebody else's, is left alone.
        """
        before = len(self._known)
        for root in self._roots:
            for process in descendants(root.process) if self._with_children else (root.process,):
                if process in self._known:
                    continue
                fd = open_process(process)
                if fd is None:
                    continue
                try:
                    lock = hold(process)
                except (Held, FileNotFoundError, ProcessLookupError) as reason:
                    os.close(fd)
                    if isinstance(reason, Held) and process == root.process:
                        raise
                    continue
                self._known[process] = fd
                self._locks.append(lock)
                if not self._guard.take(fd, lock):
                    raise BrokenPipeError("the guard that is to continue it has ended")
        return len(self._known) > before

    def stop(self, *, scan: bool) -> None:
        """Stop all; with a scan also those whom they have started until then. Raises ``PermissionError``."""
        self.send(signal.SIGSTOP)
        while scan and self.find():
            self.send(signal.SIGSTOP)

    def send(self, number: int) -> None:
        """Signal all that are alive."""
        for fd in self._known.values():
            signal_process(fd, number)

    def close(self) -> None:
        for fd in self._known.values():
            os.close(fd)
        for lock in self._locks:
            os.close(lock)
        self._known.clear()
        self._locks.clear()


@contextlib.contextmanager
def _troop(roots: Collection[Opened], limit_s: float, *, with_children: bool) -> Iterator[_Troop]:
    with Guard(limit_s) as guard:
        troop = _Troop(roots, guard, with_children=with_children)
        try:
            troop.find()
            yield troop
        finally:
            troop.send(signal.SIGCONT)
            troop.close()


# What the guard allows beyond the time that was asked for, on a machine so loaded that this process comes too late.
SLACK_S = 5.0


def stopped(
    roots: Collection[Opened], for_s: float, wait: Wait, *, with_children: bool, begun: Callable[[], None]
) -> None:
    """Stop these processes for so long, then continue them; ``begun`` is called when they stand still.

    Raises ``PermissionError``; they run again then. Raises ``Held`` when one is somebody else's; nothing was done.
    """
    with _troop(roots, for_s + SLACK_S, with_children=with_children) as troop:
        troop.stop(scan=with_children)
        until = time.monotonic() + for_s
        begun()
        wait(until)


def slowed(
    roots: Collection[Opened], for_s: float, share: float, wait: Wait, *, begun: Callable[[], None]
) -> None:
    """Let these processes and their children run for ``share`` (0 to 1) of the time, for so long.

    Raises ``PermissionError``; they run as usual then. Raises ``Held`` when one is somebody else's.
    """
    with contextlib.suppress(BrokenPipeError), _troop(roots, for_s + SLACK_S, with_children=True) as troop:
        until = time.monotonic() + for_s
        for period in itertools.count():
            now = time.monotonic()
            if now >= until:
                return
            troop.stop(scan=period % _PERIODS_BETWEEN_SCANS == 0)
            if not period:
                begun()
            if not wait(min(until, now + PERIOD_S * (1 - share))):
                return
            troop.send(signal.SIGCONT)
            if not wait(min(until, now + PERIOD_S)):
                return
