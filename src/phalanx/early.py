"""Stop signals that come before the launcher's loop listens to them. Light: it is imported before anything else.

Until the job is about to start nothing has been started, and such a signal ends the process with one line. Python
would print a traceback for SIGINT, and the kernel's default actions do not exist for the first process of a container,
which would not hear SIGTERM at all. From then on it is remembered for the loop: an exception would come anywhere, leave
folders behind, or be lost in a place that forgives all of them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterable, Iterator

__all__ = ["STOPPING", "end_by_stop_signals", "held_back", "remember_stop_signals", "remembered"]

WARNING = (signal.SIGUSR1, signal.SIGUSR2)  # no worker is there yet that could be warned
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_ACTIONS_OF_PYTHON = (signal.SIG_DFL, signal.default_int_handler)

_taken: list[int] = []


def end_by_stop_signals() -> None:
    """From now on a stop signal ends this process at once with one line and 128+N; one that is ignored stays so.

    Nothing is cleared away then: who has something to clear away holds the signals back. A warning signal ends nothing,
    as later: Slurm sends them whatever a launcher is just doing.
    """
    for number in WARNING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
    for number in STOPPING:
        if signal.getsignal(number) in _ACTIONS_OF_PYTHON:
            signal.signal(number, _end)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """A stop signal that comes in this block is heard at its end: for a short one, in the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def remember_stop_signals(numbers: Iterable[int]) -> None:
    """From now on these are remembered, and end nothing; one that is ignored stays so."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _remember)


def remembered() -> tuple[int, ...]:
    """Those that came, in order; each is told once."""
    taken = tuple(_taken)
    _taken.clear()
    return taken


def _remember(number: int, _frame: object) -> None:
    _taken.append(number)


def _end(number: int, _frame: object) -> None:
    # Not by an exception: in callbacks of imports Python loses one, and where a class is made it turns into another.
    line = f"phalanx: stopped by {signal.Signals(number).name} before anything was started\n"
    with contextlib.suppress(OSError, ValueError):
        if select.select((), (2,), (), 0)[1]:  # nobody may be reading, which may be why we are told to stop
            os.write(2, line.encode())
    os._exit(128 + number)
