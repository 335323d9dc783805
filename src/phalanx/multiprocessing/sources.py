"""Where the bytes of a worker stream come from: a file that grows, a pipe, or a pseudo-terminal.

Every source reads without waiting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import termios

__all__ = ["NOTHING", "FollowedFile", "PipeSource", "PtySource", "Source", "open_raw_pty"]

NOTHING = b""


class Source:
    """A descriptor that bytes come from; it is owned."""

    __slots__ = ("_fd",)

    settle_s = 0.0  # how long after a worker's end bytes may still appear that it wrote before

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._fd

    def read(self, size: int) -> bytes | None:
        """Return the next bytes; `NOTHING` when there are none now; None when there will never be any again."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the descriptor; once."""
        os.close(self._fd)


class FollowedFile(Source):
    """A file that others append to; it may appear later.

    When it was cut short (log rotation by copying), it is read from its start.
    """

    __slots__ = ("_place", "path")

    def __init__(self, path: str) -> None:
        super().__init__(-1)
        self.path = path
        self._place = 0

    def read(self, size: int) -> bytes:
        """Return what was appended; a file never ends."""
        if self._fd < 0:
            try:
                self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except FileNotFoundError:
                return NOTHING
        chunk = os.read(self._fd, size)
        if not chunk and self._place and os.fstat(self._fd).st_size < self._place:
            self._place = os.lseek(self._fd, 0, os.SEEK_SET)
            chunk = os.read(self._fd, size)
        self._place += len(chunk)
        return chunk

    def close(self) -> None:
        """Close the file if it was there."""
        if self._fd >= 0:
            os.close(self._fd)


class PipeSource(Source):
    """The reading end of a pipe."""

    __slots__ = ()

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        os.set_blocking(fd, False)

    def read(self, size: int) -> bytes | None:
        """Return what is in the pipe; it ends when all its writers have."""
        try:
            return os.read(self._fd, size) or None
        except BlockingIOError:
            return NOTHING


class PtySource(Source):
    """The master of a pseudo-terminal whose size follows that of the console's terminal.

    The size is compared when the worker writes: a bar that is drawn anew asks for it then, and no signal
    handler is needed.
    """

    __slots__ = ("_size", "_terminal")

    # The kernel hands bytes from the slave to the master in a work item of its own.
    settle_s = 0.05

    def __init__(self, master: int, *, terminal: int) -> None:
        super().__init__(master)
        os.set_blocking(master, False)
        self._terminal = terminal
        self._size = b""
        self._copy_size()

    def read(self, size: int) -> bytes | None:
        """Return what is there; it ends when all slave descriptors are closed."""
        try:
            chunk = os.read(self._fd, size)
        except BlockingIOError:
            return NOTHING
        except OSError as error:
            if error.errno == errno.EIO:  # the last slave descriptor was closed
                return None
            raise
        self._copy_size()
        return chunk or None

    def _copy_size(self) -> None:
        try:
            size = fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, b"\0" * 8)
            if size != self._size:
                fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
                self._size = size
        except OSError:
            return  # the terminal is gone; the worker keeps the last size


def open_raw_pty() -> tuple[int, int]:
    """A pseudo-terminal (master, slave) that passes bytes unchanged: no echo, no newline translation, no
    signals.

    Raises ``OSError`` when the system has none to give.
    """
    master, slave = os.openpty()
    _, oflag, cflag, lflag, ispeed, ospeed, cc = termios.tcgetattr(slave)
    cflag = cflag & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    lflag &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    cc[termios.VMIN], cc[termios.VTIME] = 1, 0
    termios.tcsetattr(slave, termios.TCSANOW, [0, oflag & ~termios.OPOST, cflag, lflag, ispeed, ospeed, cc])
    return master, slave
