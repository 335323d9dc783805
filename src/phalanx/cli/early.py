"""Stop signals that come before the launcher's loop listens to them: nothing has been started yet, so it ends.

Python would print a traceback for SIGINT, and the kernel's default actions do not exist for the first process of a
container, which would not hear SIGTERM at all.
"""

from __future__ import annotations

import os
import signal

__all__ = ["end_by_stop_signals"]

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_ACTIONS_OF_PYTHON = (signal.SIG_DFL, signal.default_int_handler)


def end_by_stop_signals() -> None:
    """From now on a stop signal ends this process with one line and 128+N; one that is ignored stays so."""
    for number in STOPPING:
        if signal.getsignal(number) in _ACTIONS_OF_PYTHON:
            signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    name = signal.Signals(number).name
    try:
        os.write(2, f"phalanx: stopped by {name} before anything was started\n".encode())
    finally:
        os._exit(128 + number)
