"""The lock on a folder of checkpoints, under which names in it are changed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from phalanx.checkpoint.files import Files, Lock

__all__ = ["changing"]

_LOCK_WAIT_S = 10.0  # renames are short; who holds the lock for longer is stopped, and must not stop others
_changed: set[tuple[int, int, Path]] = set()  # folders, by process and thread


@contextmanager
def changing(folder: Path, files: Files) -> Iterator[None]:
    """While this is held, no other process on this machine changes names in the folder.

    It is waited for, but not for ever: what is done under it is safe without it, and only less tidy. A signal handler
    that interrupts who holds it goes without: it would wait for itself.
    """
    own = (os.getpid(), get_ident(), folder)
    if own in _changed:
        yield
        return
    _changed.add(own)
    lock = None
    try:
        lock = _lock(folder, files)
        yield
    finally:
        _changed.discard(own)
        if lock is not None:
            lock.release()


def _lock(folder: Path, files: Files) -> Lock | None:
    ends_at = time.monotonic() + _LOCK_WAIT_S
    while True:
        try:
            return files.lock(folder, exclusive=True)
        except BlockingIOError:
            if time.monotonic() > ends_at:
                return None
            time.sleep(0.01)
        except OSError:
            return None  # a folder that is not there, or may not be read, says so where it is used
