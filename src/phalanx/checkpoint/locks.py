"""What keeps processes out of each other's way: locks on folders, and what tells whether one is still the same.

A lock ends with its process. On a network file system it may hold on one machine only, or nowhere: what is done under
it is safe without it, and only less tidy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING

from phalanx.checkpoint.naming import MANIFEST

if TYPE_CHECKING:
    from phalanx.checkpoint.files import Files

__all__ = ["TRIES", "Hold", "Identity", "Lock", "Mark", "changing", "has_mark", "identity_of", "mark_of"]

TRIES = 20  # a look is lost only to a save, or a removal, of the same step in the midst of it
_LOCK_WAIT_S = 10.0  # renames are short; who holds the lock for longer is stopped, and must not stop others
_changed: set[tuple[int, int, Path]] = set()  # folders, by process and thread

Identity = tuple[int, int]  # device and inode
Mark = tuple[int, int, int]  # and the time of a step's manifest


def identity_of(folder: Path) -> Identity | None:
    """Which folder has this name now; None: it is gone."""
    try:
        status = os.lstat(folder)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def mark_of(step: Path) -> Mark:
    """What tells a step from all others that get its name or its number on the disk, and holds nothing. Raises
    ``OSError``. A manifest is never changed, and that of a later step is of a later time; 0: none is to be seen.
    """
    status = os.lstat(step)
    try:
        written_at = os.lstat(step / MANIFEST).st_mtime_ns
    except (FileNotFoundError, PermissionError):
        written_at = 0
    return status.st_dev, status.st_ino, written_at


def has_mark(step: Path, mark: Mark) -> bool:
    """Whether this is the step of that mark."""
    try:
        return mark_of(step) == mark
    except OSError:
        return False


class Lock:
    """A lock on a folder; ``held`` is False where the file system has no locks. It ends with the process, too."""

    def __init__(self, descriptor: int, held: bool) -> None:
        self.descriptor = descriptor
        self.held = held

    def is_on(self, folder: Path) -> bool:
        """Whether the folder of this name is still the one that was locked."""
        try:
            status = os.fstat(self.descriptor)
        except OSError:
            return False
        return identity_of(folder) == (status.st_dev, status.st_ino)

    def release(self) -> None:
        """Give it up; a second time does nothing. Also for children that were forked while it was held."""
        if self.descriptor < 0:
            return
        import fcntl

        try:
            if self.held:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        except OSError:
            pass  # closing it is as good, but for forked children
        finally:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class Hold:
    """A folder, whatever its name, by a descriptor that is closed with the last reference to this.

    While it is held no other folder gets its number, also when it is removed (a server may give it out nevertheless).
    """

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder = folder
        self._descriptor = descriptor
        status = os.fstat(descriptor)
        self.identity: Identity = (status.st_dev, status.st_ino)

    def is_at(self, folder: Path) -> bool:
        """Whether this name is that of the folder that is held."""
        return identity_of(folder) == self.identity

    def __del__(self) -> None:
        os.close(self._descriptor)


@contextmanager
def changing(folder: Path, files: Files) -> Iterator[None]:
    """While this is held, no other process on this machine changes names in the folder of steps.

    It is waited for, but not for ever. A signal handler that interrupts who holds it goes without: it would wait for
    itself.
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
