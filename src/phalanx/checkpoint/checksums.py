"""Checksums of files, computed while reading in large blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.checkpoint.exceptions import CannotCheck
from phalanx.checkpoint.files import Files

__all__ = ["algorithm", "checksum_of"]

BLOCK_BYTES = 4 * 1024 * 1024


def algorithm(*, strong: bool) -> str:
    """The kind of checksum of what is saved here: xxh3_128 if xxhash is installed, sha256 if not, or if ``strong``.

    >>> algorithm(strong=True)
    'sha256'
    """
    if not strong:
        try:
            import xxhash  # noqa: F401
        except ImportError:
            pass
        else:
            return "xxh3_128"
    return "sha256"


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
