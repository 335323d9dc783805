"""Folders that are made: one by its name, or a new one with a name of its own; and where temporary ones go."""

from __future__ import annotations

import os
import sys

__all__ = ["LogDirError", "make", "new_folder", "remove_if_blank", "temporary_folder"]

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789_"  # of mkdtemp's names
_NAME_ATTEMPTS = 100


class LogDirError(OSError):
    """A folder for logs, or ``what`` else, cannot be made or written to.

    >>> print(LogDirError("/logs", "it is a file"))
    cannot use the log folder '/logs': it is a file; choose another one with --log-dir
    """

    def __init__(
        self,
        path: str,
        reason: str,
        *,
        what: str = "log folder",
        advice: str = "choose another one with --log-dir",
    ) -> None:
        super().__init__(f"cannot use the {what} {path!r}: {reason}; {advice}")
        self.path = path
        self.reason = reason


def make(path: str) -> bool:
    """Make one folder; False when the name is taken."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return False
    except OSError as error:
        raise LogDirError(path, error.strerror or str(error)) from error
    return True


def new_folder(parent: str, prefix: str) -> str:
    """A new folder with an unguessable name, mode 0700: ``tempfile.mkdtemp``, whose import costs 10 ms here."""
    for _ in range(_NAME_ATTEMPTS):
        name = "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(8))
        path = os.path.join(parent, prefix + name)
        if make(path):
            return path
    raise LogDirError(parent, f"no free name was found for {prefix}*")


def remove_if_blank(root: str) -> bool:
    """Remove a folder and all below it if no file there has a byte; True when it is gone. Raises nothing."""
    try:
        for folder, _, names in os.walk(root):
            if any(os.lstat(os.path.join(folder, name)).st_size for name in names):
                return False
        for folder, _, names in os.walk(root, topdown=False):
            for name in names:
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
    except OSError:
        return False  # someone is using it or it is gone: no reason to end a job badly
    return True


def temporary_folder() -> str:
    """``tempfile.gettempdir()`` without importing it, unless somebody has (and may have set ``tempfile.tempdir``)."""
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        return str(tempfile.gettempdir())
    for path in (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp", "/usr/tmp"):
        if path and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            return os.path.abspath(path)
    return os.getcwd()
