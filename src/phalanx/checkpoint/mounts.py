"""Whether a folder is on a file system of this machine alone, where a lock on a folder keeps all others out."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["is_local", "kind_of"]

# On a network file system a folder's lock may hold on this machine only (NFS), or nowhere. What is not here is one.
_LOCAL = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs", "tmpfs", "xfs", "zfs")
)


def is_local(folder: Path) -> bool:
    """Whether no other machine can see this folder. False if nobody can tell.

    >>> is_local(Path("/proc"))
    False
    """
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return kind_of(os.path.realpath(folder), file.read()) in _LOCAL
    except OSError:
        return False


def kind_of(path: str, mountinfo: str) -> str:
    """The kind of file system that ``path``, without symbolic links, is on; empty if that is not to be found.

    >>> kind_of("/data/run 1", r"36 35 0:42 / /data rw,noatime shared:1 - nfs4 server:/data rw")
    'nfs4'
    """
    found, length = "", -1
    for line in mountinfo.splitlines():
        left, dash, right = line.partition(" - ")
        words = left.split(" ")
        if not dash or len(words) < 5:
            continue
        point = _unescaped(words[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= length:  # of two at one place the later one is on top
            found, length = right.split(" ")[0], len(point)
    return found


def _unescaped(text: str) -> str:
    for code, sign in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, sign)
    return text
