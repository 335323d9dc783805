"""Stop signals that come before the launcher's loop listens to them. Light: it is imported before anything else.

Until the job is about to start nothing has been started, and such a signal ends the process with one line. Python
would print a traceback for SIGINT, and the kernel's default actions do not exist for the first process of a container,
which would not hear SIGTERM at all. From then on it is remembered for the loop: an exception would come anywhere, leave
folders behind, or be lost in a place that forgives all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable

TYPE_CHECKING = False  # typing costs 15 ms; type checkers take this for typing's own

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["STOPPING", "end_by_stop_signals", "remember_stop_signals", "remembered"]

WARNING = (signal.SIGUSR1, signal.SIGUSR2)  # no worker is there yet that could be warned
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_ACTIONS_OF_PYTHON = (signal.SIG_DFL, signal.default_int_handler)

_taken: list[int] = []


def end_by_stop_signals() -> None:
    """From now on a stop signal ends this process with one line and 128+N; one that is ignored stays so.

    A warning signal ends nothing, as later: Slurm sends them whatever a launcher is just doing.
    """
    for number in WARNING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
    for number in STOPPING:
        if signal.getsignal(number) in _ACTIONS_OF_PYTHON:
            signal.signal(number, _end)


def remember_stop_signals(numbers: Iterable[int]) -> None:
    """From now on these are remembered, and end nothing; one that is ignored stays so."""
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _remember)


def remembered() -> tuple[int, ...]:
    """Those that came, in order, also one whose exception was lost on its way; each is told once."""
    taken = tuple(_taken)
    _taken.clear()
    return taken


def _remember(number: int, _frame: object) -> None:
    _taken.append(number)


def _end(number: int, _frame: object) -> None:
    for one in STOPPING:  # the second one does not wait for what the first has to clear away
        if signal.getsignal(one) is _end:
            signal.signal(one, _end_at_once)
    _taken.append(number)
    line = f"phalanx: stopped by {signal.Signals(number).name} before anything was started\n"
    import select

    with contextlib.suppress(OSError, ValueError):
        if select.select((), (2,), (), 0)[1]:  # nobody may be reading, which may be why we are told to stop
            os.write(2, line.encode())
    end = SystemExit(128 + number)

    def ignored(what: UnraisableHookArgs) -> None:
        """It was raised in a callback, as imports have them, where Python loses what is raised, and says so."""
        if what.exc_value is end:
            os._exit(128 + number)
        sys.__unraisablehook__(what)

    sys.unraisablehook = ignored
    raise end


def _end_at_once(number: int, _frame: object) -> None:
    os._exit(128 + number)
