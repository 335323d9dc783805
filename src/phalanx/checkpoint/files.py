"""All that checkpoints do to files, one small operation each: where tests kill, lose power and fill the disk.

``RealFiles`` is the real one. No operation follows a symbolic link in the last part of its path, and none overwrites.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO, Protocol

from phalanx.checkpoint.locks import Hold, Lock

__all__ = ["Files", "RealFiles"]

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP)  # some network file systems have no fsync of folders
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100  # linux/fcntl.h


class Files(Protocol):
    """What is done to files. Every method raises ``OSError``."""

    def make_folder(self, path: Path) -> None:
        """Make a folder; its parent is there."""

    def write(self, path: Path, data: bytes) -> None:
        """Make a file with this content."""

    def sync_file(self, path: Path) -> None:
        """Return when the content of the file is on the disk."""

    def sync_folder(self, path: Path) -> None:
        """Return when the names in the folder are on the disk."""

    def rename(self, old: Path, new: Path) -> None:
        """Rename a folder or a symbolic link. A folder never replaces one that has something in it."""

    def exchange(self, one: Path, other: Path) -> None:
        """Let two folders have each other's names, in one moment. ``EINVAL`` or ``ENOSYS`` where that cannot be."""

    def symlink(self, target: str, path: Path) -> None:
        """Make a symbolic link."""

    def unlink(self, path: Path) -> None:
        """Remove a file or a symbolic link."""

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""

    def opened(self, path: Path) -> BinaryIO:
        """A regular file, opened for reading; ``ELOOP`` for a symbolic link, ``EINVAL`` for anything else."""

    def hold(self, folder: Path) -> Hold:
        """Hold a folder, whatever becomes of its name; ``ENOTDIR`` for a symbolic link, and for anything else."""

    def lock(self, folder: Path, *, exclusive: bool) -> Lock:
        """Lock a folder; raises ``BlockingIOError`` at once when another process holds it."""


class RealFiles:
    """The file system.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> files = RealFiles()
    >>> files.write(folder / "a", b"1")
    >>> files.sync_file(folder / "a")
    >>> files.sync_folder(folder)
    >>> with files.opened(folder / "a") as file:
    ...     file.read()
    b'1'
    """

    def make_folder(self, path: Path) -> None:
        """See ``Files``."""
        os.mkdir(path)

    def write(self, path: Path, data: bytes) -> None:
        """See ``Files``."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        finally:
            os.close(descriptor)  # NFS tells here that the disk is full

    def sync_file(self, path: Path) -> None:
        """See ``Files``.

        An error of an earlier write to the file that nobody was told of is told here, whoever made it: since Linux
        4.16 a newly opened descriptor sees it.
        """
        self._sync(path, os.O_NONBLOCK)

    def sync_folder(self, path: Path) -> None:
        """See ``Files``."""
        try:
            self._sync(path, os.O_DIRECTORY)
        except OSError as error:
            if error.errno not in _NO_SYNC:
                raise

    def rename(self, old: Path, new: Path) -> None:
        """See ``Files``."""
        os.rename(old, new)

    def exchange(self, one: Path, other: Path) -> None:
        """See ``Files``."""
        import ctypes

        try:
            renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
        except (AttributeError, OSError):  # musl before 1.2.4 has no such function
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(one), None, str(other))

    def symlink(self, target: str, path: Path) -> None:
        """See ``Files``."""
        os.symlink(target, path)

    def unlink(self, path: Path) -> None:
        """See ``Files``."""
        os.unlink(path)

    def remove_folder(self, path: Path) -> None:
        """See ``Files``."""
        os.rmdir(path)

    def opened(self, path: Path) -> BinaryIO:
        """See ``Files``."""
        import stat

        # Without NONBLOCK the opening of a FIFO waits for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "is no regular file", str(path))
        return open(descriptor, "rb", buffering=0)

    def hold(self, folder: Path) -> Hold:
        """See ``Files``."""
        return Hold(folder, os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def lock(self, folder: Path, *, exclusive: bool) -> Lock:
        """See ``Files``."""
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return Lock(descriptor, held=False)
            os.close(descriptor)
            raise
        return Lock(descriptor, held=True)

    def _sync(self, path: Path, flags: int) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
