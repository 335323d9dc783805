"""Which steps are in a folder, by the names in it. Changes nothing, and opens no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from phalanx.checkpoint import naming

__all__ = ["all_steps", "asides", "is_folder", "own_steps"]

_MD5 = ".md5"


def own_steps(folder: Path) -> dict[int, str]:
    """The folder's name of each step of ours. Raises ``OSError``."""
    return _own(_folders(folder))


def all_steps(folder: Path) -> dict[int, str]:
    """The folder's name of each step that can be loaded. Raises ``OSError``.

    A name of ours goes before another program's, then the first in order. Another program's step has, in the folder
    itself, a file with its ``.md5`` beside it; what is below is not looked at: it may be large.
    """
    names = _folders(folder)
    found = _own(names)
    for name in names:
        step = naming.step_number(name)
        if step is not None and step not in found and _is_foreign_step(folder / name):
            found[step] = name
    for name in names:
        step = naming.replaced_step(name)
        if step is not None:  # who replaced it was killed between two renames
            found.setdefault(step, name)
    return found


def asides(folder: Path) -> list[str]:
    """The names of steps that were set aside, in the order of their steps. Raises ``OSError``."""
    found = filter(naming.is_aside, _folders(folder))
    return sorted(found, key=lambda name: (int(name.removeprefix("step-").partition(".")[0]), name))


def is_folder(path: Path) -> bool:
    """Whether this is a folder, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _own(names: list[str]) -> dict[int, str]:
    return {int(name.removeprefix("step-")): name for name in names if naming.is_own(name)}


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return []


def _is_foreign_step(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except OSError:
        return False
    return any(name.endswith(_MD5) and name.removesuffix(_MD5) in names for name in names)
