"""Signals that end an in-process agent's run: they become exceptions in the main thread, as torchelastic's do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from phalanx.agent.environment import SIGNALS_TO_HANDLE
from phalanx.multiprocessing.stopping import SignalException

__all__ = ["TORCHELASTIC_SIGNALS_TO_HANDLE", "RaisingSignals", "read_signals", "signals_to_handle"]

TORCHELASTIC_SIGNALS_TO_HANDLE = SIGNALS_TO_HANDLE
_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # torchelastic's


def signals_to_handle() -> tuple[int, ...]:
    """The signals that the environment names."""
    return read_signals(os.environ.get(TORCHELASTIC_SIGNALS_TO_HANDLE, _DEFAULT))


def read_signals(names: str) -> tuple[int, ...]:
    """The numbers of signals in such a list, each once; names that this system has not are left out, as in torch.

    >>> read_signals("SIGTERM, sigint,SIGBREAK,SIGTERM")
    (15, 2)
    """
    found = (getattr(signal.Signals, name.strip().upper(), None) for name in names.split(","))
    return tuple(dict.fromkeys(int(one) for one in found if one is not None))


class RaisingSignals:
    """Lets signals raise ``SignalException`` within its block; the program's handlers are back after it.

    That needs the main thread: in another one nothing changes. A signal that is ignored stays ignored.
    """

    def __init__(self, signums: Iterable[int] = ()) -> None:
        self._signums = tuple(signums)
        self._before: dict[int, Any] = {}
        self._is_held = False
        self._held: int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for signum in self._signums:
                there = signal.getsignal(signum)
                if there not in (None, signal.SIG_IGN):  # None: of a library, and could not be put back
                    self._before[signum] = there
        for signum in self._before:
            signal.signal(signum, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this block a signal waits for its end: a process that is just being made must not be lost."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            if self._held is not None:
                signum, self._held = self._held, None
                self._take(signum, None)

    def _take(self, signum: int, _frame: object) -> None:
        if self._is_held:
            self._held = signum
            return
        number = signal.Signals(signum)
        raise SignalException(f"Process {os.getpid()} got signal: {int(number)}", sigval=number)
