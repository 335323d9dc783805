"""A log file with a size cap that keeps its beginning and its end: where it started, and where it failed.

``stdout.log`` takes the first half of the cap. What follows goes to ``stdout.log.tail``; when that has a
quarter of the cap it becomes ``stdout.log.tail.1`` (the one before is dropped) and begins anew. So the three
files never hold more than the cap, and always the last quarter of it. Files are cut at line ends where there
are any.
"""

from __future__ import annotations

import os

from phalanx.multiprocessing.outlets import Outlet

__all__ = ["CappedFile"]


class CappedFile(Outlet):
    """Append-only; raises ``OSError`` as ``os.write`` does. Bytes are kept exactly."""

    def __init__(self, path: str, *, max_bytes: int) -> None:
        self._path = path
        self._tail_size = max(max_bytes // 4, 1)
        self._size = self._room = max(max_bytes // 2, 1)
        self._fd = _open(path)
        self._in_head = True

    def take(self, chunk: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(chunk)
        while view:
            count = self._fitting(view)
            self._write(view[:count])
            view = view[count:]
            if view:
                self._next_file()

    def close(self) -> None:
        """Close the file in use. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fitting(self, view: memoryview) -> int:
        """How much goes into this file: whole lines, unless that leaves more than a quarter of the file unused."""
        if len(view) <= self._room:
            return len(view)
        lines = bytes(view[: self._room]).rfind(b"\n") + 1
        return lines if self._room - lines <= self._size // 4 else self._room

    def _write(self, view: memoryview) -> None:
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
            self._room -= written

    def _next_file(self) -> None:
        tail = f"{self._path}.tail"
        if not self._in_head:
            os.replace(tail, f"{tail}.1")
        fd = _open(tail)
        os.close(self._fd)
        self._fd, self._in_head = fd, False
        self._size = self._room = self._tail_size


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
