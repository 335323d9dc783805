"""Where worker output is shown: our stdout and stderr, written without ever waiting for a slow or dead
reader.

A console that takes no more keeps a small backlog and says `blocked`; who feeds it stops reading its source
until then. A console that is gone (closed pipe, hung-up terminal) swallows everything: files and workers go
on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat
import sys
import termios
from collections import deque
from collections.abc import Hashable
from typing import TextIO

from phalanx.multiprocessing.live import LiveScreen

__all__ = ["Console", "FdConsole", "TextConsole", "console_for", "same_place"]

_GONE = frozenset({errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET})
_PIPE_SIZE = 1 << 20  # what Linux allows everybody
# Longer than any row; keeps a live line that is no line from costing more than it shows.
_LIVE_LIMIT = 4096


class Console:
    """The part that all consoles share: what is shown, in which order, and whether it has been shown yet."""

    def __init__(self) -> None:
        self.queued = 0
        self.written = 0
        self.gone = False
        self.is_terminal = False
        self._screen: LiveScreen | None = None

    @property
    def blocked(self) -> bool:
        """Something waits to be shown: feed no more until `push` has shown it."""
        return False

    @property
    def is_live(self) -> bool:
        """Unfinished lines are shown too."""
        return self._screen is not None

    def fileno(self) -> int:
        """The descriptor that is writable when `push` can go on; only a console that can be blocked has one."""
        raise ValueError("this console has no descriptor")

    def show(self, source: Hashable, lines: bytes, unfinished: bytes = b"") -> None:
        """Show whole prefixed lines; ``unfinished``, the source's line in the making, counts if `is_live`."""
        if self._screen is not None:
            lines = self._screen.compose(source, lines, unfinished[:_LIVE_LIMIT])
        self._queue(lines)

    def copy(self, chunk: bytes) -> None:
        """Show bytes as they are."""
        self._queue(chunk if self._screen is None else self._screen.passthrough(chunk))

    def push(self) -> None:
        """Write what can be written now."""

    def close(self) -> None:
        """Let go of what this object opened itself; a backlog is lost."""

    def _queue(self, data: bytes) -> None:
        raise NotImplementedError


class FdConsole(Console):
    """A console behind a descriptor of ours.

    Our descriptor is shared with our parent and our workers, so it must not be made non-blocking: pipes and
    terminals are opened anew. Where that fails, a poll before each write of `select.PIPE_BUF` bytes does it.

    Others write to it too (workers' inherited streams, a second launcher), and shall not get into the middle of our
    lines. A pipe takes a write in one piece if it has room for it, or if it is at most PIPE_BUF long; so portions are
    cut to that, and end with a line.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._backlog: deque[memoryview] = deque()
        self._borrowed = fd
        self._fd = fd
        self._polls = False
        mode = os.fstat(fd).st_mode
        self.is_terminal = os.isatty(fd)
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
            self._open_anew()
        self._pipe_size = _pipe_size(fd) if stat.S_ISFIFO(mode) else 0
        self._is_grown = False
        if self.is_terminal and os.environ.get("TERM", "dumb") != "dumb":
            self._screen = LiveScreen()

    def _open_anew(self) -> None:
        try:
            self._fd = os.open(
                f"/proc/self/fd/{self._borrowed}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            )
        except OSError:
            self._polls = True

    @property
    def blocked(self) -> bool:
        """It took less than it was given."""
        return bool(self._backlog)

    def fileno(self) -> int:
        """Our own descriptor of the console."""
        return self._fd

    def close(self) -> None:
        """Close our descriptor of it, not the borrowed one. Idempotent."""
        self._backlog.clear()
        self.gone = True
        if self._fd != self._borrowed:
            os.close(self._fd)
            self._fd = self._borrowed

    def _queue(self, data: bytes) -> None:
        if self.gone or not data:
            return
        self.queued += len(data)
        self._backlog.append(memoryview(data))
        if len(self._backlog) == 1:
            self.push()

    def push(self) -> None:
        """Write until it takes no more."""
        try:
            while self._backlog:
                self._push_first()
        except BlockingIOError:
            self._grow()
        except OSError as error:
            # A full disk may have room later; a reader that left does not come back.
            self.gone = error.errno in _GONE
            self._backlog.clear()
            self.written = self.queued

    def _push_first(self) -> None:
        view = self._backlog[0]
        place, size = 0, len(view)
        try:
            while place < size:
                if self._polls and not self._is_writable():
                    raise BlockingIOError
                end = place + self._portion(size)
                end = size if end >= size else _line_end(view, place, end)
                place += os.write(self._fd, view[place:end])
        finally:
            self.written += place
            if place == size:
                self._backlog.popleft()
            elif place:
                self._backlog[0] = view[place:]

    def _portion(self, size: int) -> int:
        """How much to write at once, of ``size`` or fewer bytes."""
        if self._polls:
            return select.PIPE_BUF
        if not self._pipe_size:
            return size
        # A pipe counts in pages. Ours are nearly full; that all of them are a quarter full is the safe side.
        return max(self._pipe_size - 4 * _unread_bytes(self._fd), select.PIPE_BUF)

    def _grow(self) -> None:
        """Give a slow reader a larger pipe, once: each time that we wait for it costs two changes of process."""
        if self._pipe_size and not self._is_grown:
            self._is_grown = True
            set_size = getattr(fcntl, "F_SETPIPE_SZ", None)  # Linux
            if set_size is not None:
                with contextlib.suppress(OSError):  # the user's limit is reached
                    self._pipe_size = fcntl.fcntl(self._fd, set_size, max(_PIPE_SIZE, self._pipe_size))

    def _is_writable(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))


def _pipe_size(pipe: int) -> int:
    get_size = getattr(fcntl, "F_GETPIPE_SZ", None)  # Linux
    return fcntl.fcntl(pipe, get_size) if get_size is not None else select.PIPE_BUF


def _unread_bytes(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4), sys.byteorder)


def _line_end(view: memoryview, start: int, limit: int) -> int:
    """The end of the last whole line in ``view[start:limit]``, or ``limit`` when there is none."""
    return start + (bytes(view[start:limit]).rfind(b"\n") + 1 or limit - start)


class TextConsole(Console):
    """A console behind a text stream without a descriptor: a notebook, a test's capture."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def _queue(self, data: bytes) -> None:
        if self.gone or not data:
            return
        self.queued += len(data)
        try:
            self._stream.write(data.decode("utf-8", "replace"))
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: it was closed
            self.gone = True
        self.written = self.queued


def console_for(stream: TextIO | None) -> Console | None:
    """The console of a stream such as ``sys.stdout``, whose buffer is flushed first; None: there is none."""
    if stream is None:
        return None
    try:
        stream.flush()
        fd = stream.fileno()
        return FdConsole(fd)
    except (AttributeError, ValueError, OSError):  # io.UnsupportedOperation is both of the latter
        return TextConsole(stream)


def same_place(first: TextIO | None, second: TextIO | None) -> bool:
    """Both streams lead to one file, pipe or terminal, so their output must pass through one queue."""
    if first is None or second is None:
        return False
    try:
        one, other = os.fstat(first.fileno()), os.fstat(second.fileno())
    except (AttributeError, ValueError, OSError):
        return False
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
