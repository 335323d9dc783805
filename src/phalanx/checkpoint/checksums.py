"""Checksums of files, computed while reading in large blocks, by a few threads where there is much to read.

Reading and hashing both release the interpreter's lock: where there are cores for them, threads are faster.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.checkpoint.exceptions import CannotCheck
from phalanx.checkpoint.files import Files

__all__ = ["Found", "algorithm", "checksum_of", "checksums_of"]

BLOCK_BYTES = 4 * 1024 * 1024
THREADS_MAX = 4  # more read no faster from most disks, and training has uses for the other cores
THREADS_FROM_BYTES = 64 * 1024 * 1024  # less is read before the threads are there

Found = tuple[int, str]


def algorithm(wanted: str | None = None) -> str:
    """The kind of checksum of what is saved here: ``wanted``, else xxh3_128 if xxhash is installed, else sha256.

    Raises ``ValueError`` for a kind that is unknown, or not possible here.

    >>> algorithm("sha256")
    'sha256'
    """
    if wanted == "sha256":
        return wanted
    if wanted not in (None, "xxh3_128"):
        raise ValueError(f"checksum is 'xxh3_128' or 'sha256', not {wanted!r}")
    try:
        import xxhash  # noqa: F401
    except ImportError:
        if wanted is None:
            return "sha256"
        raise ValueError(
            "checksum='xxh3_128' needs the package xxhash, which is not installed here: pip install xxhash"
        ) from None
    return "xxh3_128"


def checksum_of(path: Path, kind: str, files: Files) -> tuple[int, str]:
    """The number of bytes that were read from the file, and their checksum.

    Raises ``OSError``, or ``CannotCheck`` if the package for this kind of checksum is not installed.
    """
    digest = _digest(kind)
    block = memoryview(bytearray(BLOCK_BYTES))
    size = 0
    with files.opened(path) as file:
        while count := file.readinto(block):  # type: ignore[attr-defined] # an unbuffered file has it
            digest.update(block[:count])
            size += count
    return size, digest.hexdigest()


def checksums_of(kinds: Mapping[Path, str], total: int, files: Files) -> dict[Path, Found | Exception]:
    """For each file, of some ``total`` bytes together, what ``checksum_of`` returns or raises."""
    waiting = deque(kinds)
    found: dict[Path, Found | Exception] = {}

    def work() -> None:
        while True:
            try:
                path = waiting.popleft()
            except IndexError:
                return
            try:
                found[path] = checksum_of(path, kinds[path], files)
            except Exception as error:  # noqa: BLE001 # whoever asked gets it
                found[path] = error

    threads = []
    if total >= THREADS_FROM_BYTES:
        from threading import Thread

        for _ in range(min(THREADS_MAX, len(os.sched_getaffinity(0)), len(kinds)) - 1):
            thread = Thread(target=work, name="phalanx-checksums", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads, or the interpreter is ending: it goes without
                break
            threads.append(thread)
    try:
        work()
    finally:
        waiting.clear()  # after Ctrl-C the others have no more to read
    for thread in threads:
        thread.join()
    return found


def _digest(kind: str) -> Any:
    if kind == "xxh3_128":
        try:
            import xxhash
        except ImportError:
            raise CannotCheck(
                "its checksums are xxh3_128, and the package xxhash is not installed here: pip install xxhash"
            ) from None
        return xxhash.xxh3_128()
    import hashlib

    # Neither is a signature here; without this word md5 is refused on machines in FIPS mode.
    return hashlib.new(kind, usedforsecurity=False)
