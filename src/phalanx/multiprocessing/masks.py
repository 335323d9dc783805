"""Signals that are held back while something is started: a thread, or a child, inherits the mask of who starts it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["all_signals_blocked"]


@contextmanager
def all_signals_blocked() -> Iterator[frozenset[int]]:
    """Block every signal for this thread within the block; gives the numbers of those that were blocked before.

    >>> with all_signals_blocked():
    ...     signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    True
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # from here on: when the next call has blocked them it may raise what a handler raises
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        yield frozenset(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
