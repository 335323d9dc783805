"""The client over a FIFO: one line for each countdown that begins or ends."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import signal as signals
import stat
import time

from phalanx.timer.client import OUR_TIMER_FILE, TimerClient
from phalanx.timer.requests import LINE_BYTES_MAX, NO_ENDS, FileTimerRequest

__all__ = ["FileTimerClient"]

# As torchelastic has it: a server may be starting while its first worker does.
OPEN_TRIES, OPEN_WAIT_S = 10, 0.1
# A pipe holds some hundred requests; a server that takes none of them for so long is dead or stopped.
FULL_S = 10.0
_NO_SERVER = (errno.ENXIO, errno.ENOENT)


class _Kept:
    """A descriptor of a server's FIFO that stays open: to open it costs as much as all the rest of a request.

    It is closed when nobody uses it any more, so that no thread writes into what has got its number.
    """

    __slots__ = ("_fifo", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._fifo = _identity(os.fstat(fd))

    def is_of(self, path: str) -> bool:
        """Whether the server of this name reads it: the FIFO may have been made anew.

        It is not while something that is no FIFO has its name; then the server hears who has it open, as before.
        """
        try:
            found = os.lstat(path)
            return self._is_open() and (_identity(found) == self._fifo or not stat.S_ISFIFO(found.st_mode))
        except OSError:
            return False

    def _is_open(self) -> bool:
        """A script may close all descriptors, as one does that forks itself into the background, and open others."""
        return _identity(os.fstat(self.fd)) == self._fifo

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            if self._is_open():
                os.close(self.fd)


_kept: dict[str, _Kept] = {}  # of this process and, after a fork, of its child: a line is written at once


class FileTimerClient(TimerClient):
    """Tells a ``FileTimerServer``, ours or torchelastic's, on the same machine; ``file_path`` is the server's FIFO.

    ``signal`` is what ends this worker when a countdown does; 0 or less: nothing. Raises ``BrokenPipeError`` when no
    server reads, after a second, ``FileExistsError`` when the file is no FIFO, and ``ValueError`` for a scope whose
    name does not fit into a line of the protocol, and for a signal that ends no process, such as SIGSTOP.

    >>> client = FileTimerClient("/tmp/watchdog")  # the server may start later
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        if signal in NO_ENDS:
            raise ValueError(f"{signals.Signals(signal).name} ends no process; give SIGKILL or SIGTERM")
        self._file_path = file_path
        self._signal = int(signal)

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Begin a countdown for this process."""
        self._send(FileTimerRequest(os.getpid(), scope_id, expiration_time, self._signal))

    def release(self, scope_id: str) -> None:
        """End it."""
        self._send(FileTimerRequest(os.getpid(), scope_id, -1.0))

    def _send(self, request: FileTimerRequest) -> None:
        line = request.to_json().encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(
                f"the name of a timer's scope is too long ({len(line)} bytes in a line of {LINE_BYTES_MAX}); shorten it"
            )
        if os.environ.get(OUR_TIMER_FILE) == self._file_path:
            self._send_to_ours(line)
            return
        # Closed after each request: torchelastic's server hears nothing of others while one writer keeps it open.
        fd = self._open()
        try:
            self._write(line, fd)
        finally:
            os.close(fd)

    def _send_to_ours(self, line: bytes) -> None:
        kept = _kept.get(self._file_path)
        if kept is not None and kept.is_of(self._file_path):
            with contextlib.suppress(ConnectionError):  # its server has gone; there may be a new one
                self._write(line, kept.fd)
                return
        kept = _kept[self._file_path] = _Kept(self._open())
        self._write(line, kept.fd)

    def _write(self, line: bytes, fd: int) -> None:
        give_up_at = time.monotonic() + FULL_S
        while True:
            try:
                os.write(fd, line)  # whole or not at all: it is shorter than PIPE_BUF
                return
            except BlockingIOError:
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    raise BrokenPipeError(
                        errno.EPIPE, "the timer server takes no requests any more", self._file_path
                    ) from None
                writable = select.poll()  # select() refuses descriptors above 1023
                writable.register(fd, select.POLLOUT)
                writable.poll(math.ceil(left_s * 1000))

    def _open(self) -> int:
        for tries_left in range(OPEN_TRIES - 1, -1, -1):
            try:
                return _open_fifo(self._file_path)
            except OSError as error:
                if error.errno not in _NO_SERVER:
                    raise
                if not tries_left:
                    raise BrokenPipeError(
                        errno.EPIPE, "no timer server reads from this FIFO", self._file_path
                    ) from None
                time.sleep(OPEN_WAIT_S)
        raise AssertionError("the last try returns or raises")


def _open_fifo(path: str) -> int:
    """Who may write into the folder may have put anything there: a file, or a link to one, is not written to."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR):
            raise _no_fifo(path) from None
        raise
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise _no_fifo(path)


def _no_fifo(path: str) -> FileExistsError:
    return FileExistsError(
        errno.EEXIST, "the timer server cannot be told: something that is no FIFO has taken its place", path
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
