"""Signals that end an in-process agent's run: they become exceptions in the main thread, as torchelastic's do."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from phalanx.multiprocessing.stopping import SignalException

__all__ = ["TORCHELASTIC_SIGNALS_TO_HANDLE", "signals_raise", "signals_to_handle"]

TORCHELASTIC_SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
_DEFAULT = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"  # torchelastic's


def signals_to_handle() -> tuple[int, ...]:
    """The signals that the environment names; names that this system has not are left out."""
    names = os.environ.get(TORCHELASTIC_SIGNALS_TO_HANDLE, _DEFAULT).split(",")
    found = (getattr(signal.Signals, name.strip().upper(), None) for name in names)
    return tuple(int(one) for one in found if one is not None)


@contextmanager
def signals_raise(signums: Iterable[int]) -> Iterator[None]:
    """Let these signals raise ``SignalException`` within the block; the program's handlers are back after it.

    That needs the main thread: in another one nothing changes. A signal that is ignored stays ignored.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for signum in signums:
            there = signal.getsignal(signum)
            if there not in (None, signal.SIG_IGN):  # None: of a library, and could not be put back
                before[signum] = there
    try:
        for signum in before:
            signal.signal(signum, _raise)
        yield
    finally:
        for signum, there in before.items():
            signal.signal(signum, there)


def _raise(signum: int, _frame: object) -> NoReturn:
    number = signal.Signals(signum)
    raise SignalException(f"Process {os.getpid()} got signal: {int(number)}", sigval=number)
