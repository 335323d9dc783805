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
        self._head_room = max(max_bytes // 2, 1)
        self._tail_size = max(max_bytes // 4, 1)
        self._tail_room = 0
        self._fd = _open(path)
        self._in_head = True

    def take(self, chunk: bytes) -> None:
        """Write the next bytes."""
        view = memoryview(chunk)
        while view:
            room = self._head_room if self._in_head else self._tail_room
            count = len(view) if len(view) <= room else _cut(view, room)
            if count < len(view) and count == 0:
                self._next_file()
                continue
            self._write(view[:count])
            full = count < len(view)
            view = view[count:]
            if full:
                self._next_file()

    def close(self) -> None:
        """Close the file in use. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, view: memoryview) -> None:
        while view:
            written = os.write(self._fd, view)
            view = view[written:]
            if self._in_head:
                self._head_room -= written
            else:
                self._tail_room -= written

    def _next_file(self) -> None:
        tail = f"{self._path}.tail"
        if not self._in_head:
            os.replace(tail, f"{tail}.1")
        fd = _open(tail)
        os.close(self._fd)
        self._fd, self._in_head, self._tail_room = fd, False, self._tail_size


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _cut(view: memoryview, room: int) -> int:
    """How much of ``view`` goes into ``room``: whole lines if the last of them ends in its second half."""
    end = bytes(view[:room]).rfind(b"\n") + 1
    return end if end > room // 2 else room
