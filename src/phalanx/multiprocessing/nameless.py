"""A file without a name, for what one worker has to say at its end: faulthandler's stacks, or a function's result.

It lives in memory and goes when the last descriptor is closed, so that nothing litters a disk however we end.
"""

from __future__ import annotations

import os

__all__ = ["NamelessFile", "crash_in"]

CRASH_BEGINS = b"Fatal Python error: "  # faulthandler's first words of a crash, and of nothing else
CRASH_TEXT_BYTES = 65536  # of 100 frames of each of up to 100 threads; a report shows the first page


def crash_in(text: bytes) -> str:
    """What faulthandler wrote of a crash, or the first of it, behind stacks that it was asked for before."""
    at = (b"\n" + text).find(b"\n" + CRASH_BEGINS)
    return "" if at < 0 else text[at : at + CRASH_TEXT_BYTES].decode("utf-8", "replace")


class NamelessFile:
    """An open file that no directory knows. Written by a worker, read by us when the worker has ended."""

    __slots__ = ("fd",)

    def __init__(self, name: str) -> None:
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create(name, os.MFD_CLOEXEC)
        else:
            import tempfile

            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())

    @classmethod
    def of(cls, fd: int) -> NamelessFile:
        """One that another process has made and handed to us; the descriptor is ours from now on."""
        self = cls.__new__(cls)
        self.fd = fd
        return self

    @property
    def path(self) -> str:
        """A path by which a process of the same user can open it; empty where there is none (no /proc)."""
        path = f"/proc/{os.getpid()}/fd/{self.fd}"
        return path if os.path.exists(path) else ""

    def write(self, data: bytes) -> None:
        """Have it hold this and nothing else. Raises ``OSError`` when there is no room."""
        os.ftruncate(self.fd, 0)
        offset = 0
        while offset < len(data):
            offset += os.pwrite(self.fd, data[offset:], offset)

    def read(self, limit: int | None = None, *, start: int = 0) -> bytes:
        """What was written from ``start`` on, at most ``limit`` bytes of it."""
        size = os.fstat(self.fd).st_size
        wanted = size if limit is None else min(size, start + limit)
        parts: list[bytes] = []
        offset = start
        while offset < wanted and (part := os.pread(self.fd, wanted - offset, offset)):
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close our descriptor; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
