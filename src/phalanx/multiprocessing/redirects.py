"""Send this process's stdout or stderr to a file for a while, at descriptor level: C code and children write there too.

Works on Linux and macOS.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    import ctypes

__all__ = ["get_libc", "redirect", "redirect_stderr", "redirect_stdout"]

_STREAMS = ("stdout", "stderr")


@functools.cache
def get_libc() -> ctypes.CDLL | None:
    """The C library, whose own buffers must be flushed at a change of descriptors; None where it cannot be loaded.

    >>> libc = get_libc()
    >>> libc is None or libc.abs(-3)
    3
    """
    import ctypes

    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):
        return None


@contextlib.contextmanager
def redirect(std: str, to_file: str) -> Iterator[None]:
    """Within the ``with`` block, ``std`` ("stdout" or "stderr") goes to ``to_file``, which is overwritten.

    As in torchelastic, except that text still in Python's or C's buffers goes to where it was written for, and the
    file is closed when the block ends, also by an exception. Raises ``ValueError`` for another ``std``, ``OSError``
    when the file cannot be opened.

    >>> import os
    >>> with redirect("stdout", "out.log"):
    ...     _ = os.write(1, b"printed")
    >>> with open("out.log") as file:
    ...     file.read()
    'printed'
    """
    if std not in _STREAMS:
        raise ValueError(f"cannot redirect {std!r}: one of {', '.join(_STREAMS)}")
    with contextlib.ExitStack() as undo:
        opened = os.open(to_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        undo.callback(os.close, opened)
        _flush(std)
        for target in _descriptors(std):
            saved = _duplicate(target)
            undo.callback(os.close, saved)
            undo.callback(os.dup2, saved, target)
            os.dup2(opened, target)
        undo.callback(_flush, std)
        yield


redirect_stdout = functools.partial(redirect, "stdout")
redirect_stderr = functools.partial(redirect, "stderr")


def _descriptors(std: str) -> set[int]:
    """Where C code and children write, and where Python's stream does; they differ under some test runners."""
    found = {1 + _STREAMS.index(std)}
    stream: TextIO | None = getattr(sys, std)
    if stream is not None:
        with contextlib.suppress(AttributeError, ValueError, OSError):  # a notebook's stream has none
            found.add(stream.fileno())
    return found


def _duplicate(fd: int) -> int:
    """A copy that children do not inherit, out of the way of 0, 1 and 2."""
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def _flush(std: str) -> None:
    stream: Any = getattr(sys, std)
    if stream is not None:
        with contextlib.suppress(ValueError):  # it was closed
            stream.flush()
    libc = get_libc()
    if libc is not None:
        libc.fflush(None)
