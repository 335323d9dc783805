"""The server's end of its FIFO: made, read, and heard to its end when somebody has removed its name."""

from __future__ import annotations

import contextlib
import errno
import os

__all__ = ["Fifo", "is_read"]

READ_BYTES = 16 * os.sysconf("SC_PAGESIZE")  # a pipe's usual size: all of it in one call
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Fifo:
    """A new FIFO (mode 0600), open for reading.

    It is open for writing, too, as long as it has its name: one whose last writer has gone is readable all the time,
    and says nothing. By a descriptor of its own, which can be closed alone: then the end of the FIFO is that of the
    last client that has it open, and until then nothing that is written into it is lost.

    >>> import tempfile
    >>> fifo = Fifo(os.path.join(tempfile.mkdtemp(), "fifo"))
    >>> fifo.read(), fifo.is_at_end
    (b'', False)
    >>> fifo.let_go()
    >>> fifo.read(), fifo.is_at_end
    (b'', True)
    >>> fifo.close()
    """

    def __init__(self, path: str) -> None:
        """Raises ``FileExistsError`` when something has this name, and other ``OSError``."""
        self.fd = self._own_writer = -1
        self.rest = b""  # of a line that is not complete yet
        self.is_at_end = False  # nobody can write into it any more
        os.mkfifo(path, 0o600)
        made = os.lstat(path)
        try:
            self.fd = os.open(path, os.O_RDONLY | _FLAGS)
            self._own_writer = os.open(path, os.O_WRONLY | _FLAGS)
            if not all(os.path.samestat(os.fstat(fd), made) for fd in (self.fd, self._own_writer)):
                raise FileExistsError(errno.EEXIST, "something else has taken its place", path)
        except OSError:
            self.close()
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(path), made):
                    os.unlink(path)
            raise

    def is_at(self, path: str) -> bool:
        """Whether it has this name. Raises ``FileNotFoundError`` and other ``OSError`` when nothing has."""
        return os.path.samestat(os.fstat(self.fd), os.lstat(path))

    def let_go(self) -> None:
        """It has lost its name: nobody can open it any more, and when all have closed it, it is at its end."""
        fd, self._own_writer = self._own_writer, -1
        if fd >= 0:
            os.close(fd)

    def read(self) -> bytes:
        """What is there, without waiting."""
        try:
            found = os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""
        self.is_at_end = not found
        return found

    def close(self) -> None:
        """Without effect when it is closed."""
        self.let_go()
        fd, self.fd = self.fd, -1  # in this order: a child forked in between must not close another's
        if fd >= 0:
            os.close(fd)


def is_read(path: str) -> bool:
    """Whether some process has this FIFO open for reading. Raises ``OSError`` where that cannot be known."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError as reason:
        if reason.errno in (errno.ENXIO, errno.ENOENT):
            return False
        raise
    return True
