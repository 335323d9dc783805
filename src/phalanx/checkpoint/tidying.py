"""What of a folder's hidden entries was left over by saves that were interrupted."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from phalanx.checkpoint import naming
from phalanx.checkpoint.files import Files
from phalanx.checkpoint.mounts import is_local
from phalanx.checkpoint.verification import tree

__all__ = ["tidied"]

_LEFT_AFTER_S = (
    86400.0  # without locks that reach, a staging folder in which nothing happened for a day is left over
)


def tidied(
    folder: Path,
    name: str,
    files: Files,
    begin_deletion: Callable[[Path], Path],
    run_id: str,
    round_number: int,
) -> Path | None:
    """What is to be deleted of this entry, under its last name, which ``begin_deletion`` gives. Raises ``OSError``.

    Finishes a replacement that was cut off.
    """
    path = folder / name
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        return None  # not ours, whatever its name
    if naming.is_deleting(name):
        return path
    step = naming.replaced_step(name)
    if step is not None:
        final = folder / naming.step_name(step)
        if os.path.lexists(final):
            return begin_deletion(path)
        files.rename(path, final)
        files.sync_folder(folder)
        return None
    token = naming.staging_token(name)
    if token is None:
        return None
    if naming.is_of_round(token, run_id, round_number) and _has_parts(path) and not _is_old(path):
        return None  # a rank on another machine may write there, whose lock is not seen here
    try:
        lock = files.lock(path, exclusive=True)
    except OSError:
        return None  # somebody writes there, or it is gone
    try:
        is_left = naming.is_earlier(token, run_id, round_number) or (lock.held and is_local(folder))
        return begin_deletion(path) if is_left or _is_old(path) else None
    finally:
        lock.release()


def _has_parts(path: Path) -> bool:
    """Whether ranks write there together, or are about to."""
    names = os.listdir(path)
    return not names or any(name.startswith(("rank-", "part-")) for name in names)


def _is_old(path: Path) -> bool:
    changed = [os.lstat(path).st_mtime, *(status.st_mtime for status in tree(path).values())]
    return max(changed) < time.time() - _LEFT_AFTER_S
