"""All that is removed from a folder of steps, by one way, and which of its hidden entries are left over.

What is removed is renamed first, and the folder is put on the disk before anything in it is deleted: so that under a
step's name there is a whole step at any instant, also after a power loss. One entry that cannot be removed keeps no
other. Nothing here raises: what could not be removed is named, and tried again by the next save.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from phalanx.checkpoint import naming
from phalanx.checkpoint.files import Files
from phalanx.checkpoint.listing import is_folder
from phalanx.checkpoint.locks import Lock, changing
from phalanx.checkpoint.mounts import is_local
from phalanx.checkpoint.origin import log
from phalanx.checkpoint.saved import said
from phalanx.checkpoint.verification import tree

__all__ = ["doomed", "remove", "tidy"]

_Doom = Callable[[Path], Path | None]

# Without locks that reach, a staging folder in which nothing happened for a day is left over.
_LEFT_AFTER_S = 86400.0


def doomed(path: Path, folder: Path, files: Files) -> Path:
    """Give something in ``folder`` the name of what is to be deleted, and return that. Raises ``OSError``."""
    last = folder / naming.deleting_name(path.name, os.urandom(4).hex())
    files.rename(path, last)
    return last


def remove(folder: Path, files: Files, paths: Collection[Path], doom: _Doom | None = None) -> list[Path]:
    """Remove these folders, as said above; returns those that nobody finds under their names any more.

    ``doom`` gives one its last name and returns that, or None if it is to stay; it raises ``OSError``, and does not
    take long: for all of them the lock on names is taken once.
    """
    last: dict[Path, Path] = {}
    if not paths:
        return []
    with changing(folder, files):
        for path in paths:
            try:
                to_delete = doomed(path, folder, files) if doom is None else doom(path)
            except FileNotFoundError:
                continue  # another process was quicker
            except OSError as error:
                log.warning("a folder could not be removed: %s", said(error))
                continue
            if to_delete is not None:
                last[path] = to_delete
    if last:
        try:
            files.sync_folder(folder)
        except OSError as error:
            log.warning("what is removed from %s is deleted another time: %s", folder, said(error))
            return list(last)
    for path in last.values():
        _delete(path, files)
    return list(last)


def tidy(folder: Path, files: Files, run_id: str, round_number: int, opening: str) -> None:
    """Remove what saves that were interrupted have left, and finish what they began; see ``StepDirectory.tidy``."""

    def doom(path: Path) -> Path | None:
        if naming.is_deleting(path.name):
            return path
        if (step := naming.replaced_step(path.name)) is not None:
            return _end_of_replacing(path, step, folder, files)
        try:
            with _locked(path, files):
                is_same = _made(path) == left[path]  # what was looked at, and is locked now
                return doomed(path, folder, files) if is_same else None
        except BlockingIOError:
            return None  # somebody writes there again

    try:
        names = [name for name in os.listdir(folder) if name.startswith(".step-")]
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("what earlier saves left in %s could not be removed: %s", folder, said(error))
        return
    left: dict[Path, tuple[int, int, int]] = {}
    for path in sorted(folder / name for name in names):
        try:
            made = _made(path)
            if _is_left(path, files, run_id, round_number, opening):
                left[path] = made
        except OSError as error:  # somebody writes there, or it is gone, or not for us to look into
            log.debug("%s is left where it is: %s", path.name, said(error))
    remove(folder, files, left, doom)


def _is_left(path: Path, files: Files, run_id: str, round_number: int, opening: str) -> bool:
    """Whether nobody needs this any more. May take long, for it may look at all that is in it. Raises ``OSError``."""
    if not is_folder(path):
        return False  # not ours, whatever its name
    token = naming.staging_token(path.name)
    if token is None:
        return naming.is_deleting(path.name) or naming.replaced_step(path.name) is not None
    is_shared = path.name == opening or naming.is_of_round(token, run_id, round_number)
    if is_shared and _has_parts(path) and not _is_old(path):
        return False  # a rank on another machine may write there, whose lock is not seen here
    with _locked(path, files) as lock:
        is_nobodys = naming.is_earlier(token, run_id, round_number) or (lock.held and is_local(path.parent))
        return is_nobodys or _is_old(path)


def _end_of_replacing(path: Path, step: int, folder: Path, files: Files) -> Path | None:
    """Who replaced this step was killed between two renames: either the new one is there, or this one is the step."""
    final = folder / naming.step_name(step)
    if os.path.lexists(final):
        return doomed(path, folder, files)
    files.rename(path, final)
    files.sync_folder(folder)
    return None


@contextmanager
def _locked(path: Path, files: Files) -> Iterator[Lock]:
    lock = files.lock(path, exclusive=True)
    try:
        yield lock
    finally:
        lock.release()


def _made(path: Path) -> tuple[int, int, int]:
    """Tells a folder from one that is made under its name, and with its number on the disk, later."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _has_parts(path: Path) -> bool:
    """Whether ranks write there together, or are about to."""
    names = os.listdir(path)
    return not names or any(name.startswith(("rank-", "part-")) for name in names)


def _is_old(path: Path) -> bool:
    """Whether nothing has happened there for a day.

    "Now" is when the folder of steps was changed last: a time of the same file system, which is not this machine's
    clock, and late rather than early.
    """
    now = os.lstat(path.parent).st_mtime
    changed = [os.lstat(path).st_mtime, *(status.st_mtime for status in tree(path).values())]
    return max(changed) < now - _LEFT_AFTER_S


def _delete(folder: Path, files: Files) -> None:
    try:
        seen = tree(folder)
        for name in sorted(seen, reverse=True):  # what is in a folder comes before the folder
            with suppress(FileNotFoundError):
                is_folder = stat.S_ISDIR(seen[name].st_mode)
                (files.remove_folder if is_folder else files.unlink)(folder / name)
        files.remove_folder(folder)
    except FileNotFoundError:
        return  # somebody else deletes it as well
    except OSError as error:
        log.warning("%s could not be deleted: %s", folder.name, said(error))
