"""What the agent itself says: short lines on standard error, which never hold up supervision.

A console that nobody reads (a full pipe, a paused pager) blocks a plain ``write``. Lines in the middle of a job are
written only when they fit at once and are kept otherwise; the end of the job waits for the reader like any program.
"""

from __future__ import annotations

import os
import select
from collections import deque

__all__ = ["Console"]

KEPT_LINES_MAX = 1000


class Console:
    """Lines to a descriptor. Errors of the descriptor are ignored: there is nobody to tell."""

    def __init__(self, fd: int = 2) -> None:
        self._fd = fd
        self._kept: deque[bytes] = deque(maxlen=KEPT_LINES_MAX)

    def say(self, text: str) -> None:
        """Print ``phalanx: text`` as one line now if the console takes it, else keep it for the next chance.

        What cannot be printed is escaped (a worker's words may be in it), and what is longer than a pipe takes in one
        piece is cut.
        """
        self._kept.append(_one_line(f"phalanx: {text}"))
        while self._kept and self._is_writable():
            self._write(self._kept.popleft())

    def finish(self, text: str) -> None:
        """Print everything that was kept, then ``text`` as it is, however long the reader takes."""
        while self._kept:
            self._write(self._kept.popleft())
        self._write(text.encode(errors="backslashreplace"))

    def _is_writable(self) -> bool:
        """For a pipe the kernel says yes only when PIPE_BUF bytes fit: a line of ours."""
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            ready = poll.poll(0)
        except OSError:
            return True
        return bool(ready)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:  # somebody made the shared description non-blocking
                    select.select([], [self._fd], [])
        except OSError:
            return


def _one_line(text: str) -> bytes:
    shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text[: select.PIPE_BUF])
    line = shown.encode(errors="backslashreplace")
    if len(line) < select.PIPE_BUF:
        return line + b"\n"
    return line[: select.PIPE_BUF - 4].decode(errors="ignore").encode() + "…".encode() + b"\n"
