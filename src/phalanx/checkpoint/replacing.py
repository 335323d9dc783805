"""Gives a staged step its name, so that at any instant there is a whole step under it if there was one before.

Replacing is one exchange of names where the kernel and the file system can do that, else two renames; a process that is
killed between them leaves the old step under ``.step-….replaced``, where listing finds it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from phalanx.checkpoint import naming
from phalanx.checkpoint.files import Files

__all__ = ["free_aside_name", "put_in_place"]

_IN_THE_WAY = (errno.ENOTEMPTY, errno.EEXIST)
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_TRIES = 8  # each is lost only to another job that publishes, or removes, the same step in this very moment


def put_in_place(files: Files, staged: Path, step: int) -> tuple[Path, Path | None]:
    """Publish ``staged`` as ``step`` in the same folder, and put that on the disk.

    Returns the step's folder, and where the step is that was there before. If the folder cannot be put on the disk,
    all is as it was before, and ``OSError`` is raised.
    """
    folder = staged.parent
    final = folder / naming.step_name(step)
    old, undo = _renamed(files, staged, step)
    try:
        files.sync_folder(folder)
    except OSError:
        with suppress(OSError):  # both names have a whole step either way
            undo()
        raise
    return final, old


def free_aside_name(folder: Path, step: int, why: str = "bad") -> Path:
    """A name that is not taken yet for a step that is set aside; ``why`` as in ``naming.aside_name``."""
    number = 1
    while os.path.lexists(aside := folder / naming.aside_name(step, why, number)):
        number += 1
    return aside


def _renamed(files: Files, staged: Path, step: int) -> tuple[Path | None, Callable[[], None]]:
    final = staged.parent / naming.step_name(step)
    replaced = staged.parent / naming.replaced_name(step)
    for _ in range(_TRIES):
        try:
            files.rename(staged, final)  # never replaces a step: a folder with something in it stays
            return None, lambda: files.rename(final, staged)
        except OSError as error:
            if error.errno == errno.ENOTDIR and os.path.lexists(final):  # a file or a link of somebody else
                files.rename(final, free_aside_name(final.parent, step))
                continue
            if error.errno not in _IN_THE_WAY:
                raise
        try:
            files.exchange(staged, final)
            return staged, lambda: files.exchange(staged, final)
        except OSError as error:
            if error.errno == errno.ENOENT:
                continue  # somebody has just removed the old one
            if error.errno not in _NO_EXCHANGE:
                raise
        try:
            return _renamed_twice(files, staged, final, replaced)
        except FileNotFoundError:
            continue
    raise OSError(errno.EBUSY, "other processes replace the same step all the time", str(final))


def _renamed_twice(
    files: Files, staged: Path, final: Path, replaced: Path
) -> tuple[Path, Callable[[], None]]:
    def back() -> None:
        files.rename(replaced, final)

    def undo() -> None:
        files.rename(final, staged)
        back()

    files.rename(
        final, replaced
    )  # if a power loss keeps the second one alone, the new step is there: no fsync here
    try:
        files.rename(staged, final)
    except OSError:
        back()
        raise
    return replaced, undo
