"""What the agent itself says: short lines on standard error, which never hold up supervision.

A console that nobody reads (a full pipe, a paused pager) blocks a plain ``write``. Lines in the middle of a job are
written only when they fit at once and are kept otherwise; the end of the job waits for the reader like any program.
"""

from __future__ import annotations

import os
import select
from collections import deque

from phalanx.errors._printable import printable

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

    @property
    def has_kept(self) -> bool:
        """Whether lines wait for a reader."""
        return bool(self._kept)

    def finish(self, text: str, *, hurry: int | None = None, patience_s: float | None = None) -> None:
        """Print everything that was kept, then ``text`` as it is, however long the reader takes.

        From when the descriptor ``hurry`` is readable, only what he takes at once; with ``patience_s`` only what he
        takes when no pause of his is longer.
        """
        for data in (*self._kept, text.encode(errors="backslashreplace")):
            if hurry is None and patience_s is None:
                self._write(data)
                continue
            for start in range(0, len(data), select.PIPE_BUF):  # what is written at once where it is writable
                if not self._is_writable(within_s=patience_s, unless=hurry):
                    return
                self._write(data[start : start + select.PIPE_BUF])
        self._kept.clear()

    def _is_writable(self, *, within_s: float | None = 0.0, unless: int | None = None) -> bool:
        """For a pipe the kernel says yes only when PIPE_BUF bytes fit: a line of ours.

        Wait for that so long (None: for ever), or until the descriptor ``unless`` is readable.
        """
        try:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if unless is not None:
                poll.register(unless, select.POLLIN)
            ready = poll.poll(None if within_s is None else within_s * 1000)
        except OSError:
            return True
        return any(fd == self._fd for fd, _ in ready)

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
    line = printable(text[: select.PIPE_BUF]).encode(errors="backslashreplace")
    if len(line) < select.PIPE_BUF:
        return line + b"\n"
    return line[: select.PIPE_BUF - 4].decode(errors="ignore").encode() + "…".encode() + b"\n"
