"""Writes an error file so that a reader finds the old content or the new one, and never a part.

``encode`` is a small JSON writer of our own: at the moment of failure ``json`` may not be importable (a ``json.py``
beside the script, no descriptors or memory left), and the data is ours, so that thirty lines suffice.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import Any

__all__ = ["encode", "remove_unfinished", "write_atomically"]

# The folder refuses, and not the disk: a full one would only lose the old content too.
_NO_ROOM_BESIDE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV, errno.ENAMETOOLONG}
)


def encode(value: Any) -> str:
    """ASCII-only JSON of strings, numbers, booleans, None, lists and dictionaries; keys must be strings."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(encode, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {encode(item)}" for key, item in value.items()) + "}"
    raise TypeError(f"an error file has no {type(value).__name__}")


def _quoted(text: str) -> str:
    try:
        from _json import encode_basestring_ascii

        return encode_basestring_ascii(text)
    except ImportError:  # an interpreter without the accelerator
        from json.encoder import py_encode_basestring_ascii

        return str(py_encode_basestring_ascii(text))


def write_atomically(path: str, content: bytes) -> None:
    """Replace ``path`` by a file with ``content``: temporary file beside it, fsync, rename.

    Where no file can be made beside it or renamed over it (a single bind-mounted file, as Kubernetes' termination log)
    an existing file is written in place, and so is a device. Raises OSError, and leaves no temporary file then.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        _write(path, content, os.O_NONBLOCK)  # a fifo without a reader must not block us
        return
    temporary = _temporary(path, os.getpid())
    try:
        _write(temporary, content, os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
        os.replace(temporary, path)
    except OSError as first:
        _remove(temporary)
        if first.errno not in _NO_ROOM_BESIDE or not os.path.isfile(path):
            raise
        _write(path, content, os.O_TRUNC)


def remove_unfinished(path: str, pid: int) -> None:
    """Remove what a process of this machine left beside ``path`` that was killed while it wrote. Raises nothing."""
    _remove(_temporary(path, pid))


def _temporary(path: str, pid: int) -> str:
    # Containers on a shared folder often have the same process ids.
    return os.path.join(os.path.dirname(path), f".error-{os.uname().nodename}-{pid}.tmp")


def _write(path: str, content: bytes, flags: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in (
                errno.EINVAL,
                errno.ENOTSUP,
                errno.EROFS,
            ):  # devices and pipes know no fsync
                raise
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    try:  # noqa: SIM105 # contextlib would be one more import at the moment of failure
        os.unlink(path)
    except OSError:
        pass
