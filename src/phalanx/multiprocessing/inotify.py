"""Linux inotify through ctypes: a descriptor that becomes readable when somebody wrote to a watched file.

The standard library has none. Watches see writes of processes on this machine, on network file systems too.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import Any

__all__ = ["CREATED", "MODIFIED", "OVERFLOW", "Inotify"]

MODIFIED = 0x2
CREATED = 0x100 | 0x80  # IN_CREATE, IN_MOVED_TO: a name has appeared in a watched folder
OVERFLOW = 0x4000  # the kernel dropped events: look at everything

_HEADER = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class Inotify:
    """One inotify instance. Users have few of them (128 by default), so one serves all files of a reader.

    Raises ``OSError`` when the system has no inotify or no instance is left; callers then look at their files
    from time to time.
    """

    __slots__ = ("_fd", "_libc")

    def __init__(self) -> None:
        import ctypes  # 5 ms, and only tees need it

        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self._fd = -1
        if not hasattr(self._libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "this system has no inotify")
        self._fd = self._checked(self._libc.inotify_init1(_NONBLOCK_CLOEXEC))

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._fd

    def watch(self, path: str, mask: int) -> int:
        """Watch a file or folder; the number that comes back is in its events. Raises ``OSError``."""
        return self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), mask))

    def unwatch(self, watch: int) -> None:
        """End a watch; one that ended with its file is no matter."""
        self._libc.inotify_rm_watch(self._fd, watch)

    def read(self) -> dict[int, int]:
        """What happened since the last call, never blocking: watch → mask. ``OVERFLOW`` comes as watch -1."""
        happened: dict[int, int] = {}
        try:
            data = os.read(self._fd, 1 << 16)
        except BlockingIOError:
            return happened
        place = 0
        while place < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, place)
            happened[watch] = happened.get(watch, 0) | mask
            place += _HEADER.size + length
        return happened

    def close(self) -> None:
        """Close the instance and its watches. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            import ctypes

            number = ctypes.get_errno()
            raise OSError(number, f"inotify: {os.strerror(number)}")
        return result
