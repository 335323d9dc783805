"""The modes of the launcher's terminal: kept before a worker gets it, put back when that worker has ended.

A debugger that is killed at its prompt leaves readline's modes behind: no echo, no lines. Loads only with a worker at
the terminal (``debug_rank``). Nobody is left to do it when the launcher itself is killed by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import termios
from typing import Any

__all__ = ["Terminal"]


class Terminal:
    """Its modes as they were, on standard input."""

    def __init__(self, modes: list[Any]) -> None:
        self._modes = modes

    @classmethod
    def kept(cls) -> Terminal | None:
        """Keep them; None where standard input is no terminal, or another process has it now."""
        try:
            return cls(termios.tcgetattr(0)) if _is_ours() else None
        except (OSError, termios.error):
            return None

    def restore(self) -> None:
        """Put them back, if the terminal is still ours: a shell that has sent us to the background has its own."""
        old = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGTTOU}
        )  # who is not in front is stopped by it
        try:
            if _is_ours() and termios.tcgetattr(0) != self._modes:
                termios.tcsetattr(0, termios.TCSANOW, self._modes)  # at once: output may be held by Ctrl-S
        except (OSError, termios.error):
            return  # it was closed
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, old)


def _is_ours() -> bool:
    return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
