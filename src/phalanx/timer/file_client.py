"""The client over a FIFO: one line for each countdown that begins or ends."""

from __future__ import annotations

import errno
import os
import select
import signal as signals
import time

from phalanx.timer.client import TimerClient
from phalanx.timer.requests import LINE_BYTES_MAX, FileTimerRequest

__all__ = ["FileTimerClient"]

# As torchelastic has it: a server may be starting while its first worker does.
OPEN_TRIES, OPEN_WAIT_S = 10, 0.1
# A pipe holds some hundred requests; a server that takes none of them for so long is dead or stopped.
FULL_S = 10.0
_NO_SERVER = (errno.ENXIO, errno.ENOENT)


class FileTimerClient(TimerClient):
    """Tells a ``FileTimerServer``, ours or torchelastic's, on the same machine; ``file_path`` is the server's FIFO.

    ``signal`` is what ends this worker when a countdown does; 0 or less: nothing. Raises ``BrokenPipeError`` when no
    server reads, after a second, and ``ValueError`` for a scope whose name does not fit into a line of the protocol.

    >>> client = FileTimerClient("/tmp/watchdog")  # the server may start later
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
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
        # Closed after each request: torchelastic's server hears nothing of others while one writer keeps it open.
        fd = self._open()
        try:
            self._write(line, fd)
        finally:
            os.close(fd)

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
                select.select((), (fd,), (), left_s)

    def _open(self) -> int:
        for tries_left in range(OPEN_TRIES - 1, -1, -1):
            try:
                return os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in _NO_SERVER:
                    raise
                if not tries_left:
                    raise BrokenPipeError(
                        errno.EPIPE, "no timer server reads from this FIFO", self._file_path
                    ) from None
                time.sleep(OPEN_WAIT_S)
        raise AssertionError("the last try returns or raises")
