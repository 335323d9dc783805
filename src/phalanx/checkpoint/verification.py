"""Looks at the folder of one step: its manifest, whether all its files are there, and their checksums. Changes nothing.

No symbolic link within the folder is followed. What is in a step without being in its manifest does no harm, and is
no problem.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from phalanx.checkpoint.checksums import checksums_of
from phalanx.checkpoint.exceptions import CannotCheck
from phalanx.checkpoint.files import Files
from phalanx.checkpoint.manifest import (
    DIGITS,
    MANIFEST_BYTES_MAX,
    FileRecord,
    Manifest,
    NewerManifest,
    UnreadableManifest,
    decode,
)
from phalanx.checkpoint.naming import MANIFEST
from phalanx.checkpoint.saved import Problem, said
from phalanx.errors._printable import printable

__all__ = [
    "Damaged",
    "Seen",
    "checksum_problems",
    "missing_problems",
    "problem_of",
    "read_all",
    "read_manifest",
    "share_of",
    "tree",
]

_UNSURE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.ETIMEDOUT)
_MD5 = ".md5"
_BLOCK_BYTES = 64 * 1024
Seen = dict[str, os.stat_result]


class Damaged(ValueError):
    """A step has no manifest that can be used."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def tree(folder: Path) -> Seen:
    """All that is below ``folder``, by relative name, as ``lstat`` gives it. Raises ``OSError``."""
    found: Seen = {}
    waiting = [""]
    while waiting:
        below = waiting.pop()
        with os.scandir(folder / below) as entries:
            for entry in entries:
                name = below + entry.name
                found[name] = status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(name + "/")
    return found


def read_manifest(folder: Path, step: int, files: Files) -> Manifest:
    """The manifest of a step, or what the ``.md5`` files of another program say in its stead.

    Raises ``Damaged``, or ``CannotCheck``.
    """
    try:
        with files.opened(folder / MANIFEST) as file:
            data = read_all(file, MANIFEST_BYTES_MAX)
        manifest = decode(data)
    except FileNotFoundError:
        return _md5_manifest(folder, step, files)
    except OSError as error:
        raise _damaged(step, MANIFEST, error) from None
    except NewerManifest as newer:
        raise CannotCheck(
            f"step {step} in {folder} was saved by a newer phalanx: its manifest {newer}; update phalanx here, "
            f"or remove the step"
        ) from None
    except UnreadableManifest as fault:
        raise Damaged(Problem(step, MANIFEST, str(fault))) from None
    if manifest.step != step:
        raise Damaged(Problem(step, MANIFEST, f"is that of another step, {manifest.step}"))
    return manifest


def read_all(file: BinaryIO, most: int) -> bytes:
    """The content of a small file, in as many reads as it takes; of more than ``most`` bytes only that it is more.

    One read of so many bytes would allocate them, and some file systems give less at once than is there.
    """
    blocks, size = [], 0
    while size <= most and (block := file.read(_BLOCK_BYTES)):
        blocks.append(block)
        size += len(block)
    return b"".join(blocks)


def missing_problems(folder: Path, manifest: Manifest) -> list[Problem]:
    """Which files of the manifest are not there as it says, by kind and size. Raises ``CannotCheck``."""
    try:
        seen = tree(folder)
    except OSError as error:
        return [problem_of(manifest.step, "", error)]
    found = [
        Problem(manifest.step, name, "is missing: a rank's part")
        for name in manifest.parts
        if name not in seen or not stat.S_ISDIR(seen[name].st_mode)
    ]
    for name, file in manifest.files.items():
        status = seen.get(name)
        if status is None:
            found.append(Problem(manifest.step, name, "is missing"))
        elif not stat.S_ISREG(status.st_mode):
            found.append(Problem(manifest.step, name, "is no regular file"))
        elif status.st_size != file.size:
            found.append(Problem(manifest.step, name, f"has {status.st_size} bytes instead of {file.size}"))
    return found


def checksum_problems(folder: Path, manifest: Manifest, names: Iterable[str], files: Files) -> list[Problem]:
    """Which of these files have not the content that was saved. Reads them all. Raises ``CannotCheck``."""
    wanted = {folder / name: name for name in names}
    kinds = {path: manifest.files[name].algorithm for path, name in wanted.items()}
    answers = checksums_of(kinds, sum(manifest.files[name].size for name in wanted.values()), files)
    found = []
    for path, name in wanted.items():
        file, answer = manifest.files[name], answers[path]
        if isinstance(answer, OSError):
            found.append(problem_of(manifest.step, name, answer))
            continue
        if isinstance(answer, CannotCheck):
            raise CannotCheck(f"step {manifest.step} in {folder} cannot be checked: {answer}")
        if isinstance(answer, Exception):
            raise answer
        size, checksum = answer
        if size != file.size:
            found.append(Problem(manifest.step, name, f"has {size} bytes instead of {file.size}"))
        elif checksum != file.checksum:
            found.append(
                Problem(
                    manifest.step, name, f"is damaged: its {file.algorithm} is not the one that was saved"
                )
            )
    return found


def share_of(files: Mapping[str, FileRecord], share: tuple[int, int] | None) -> list[str]:
    """The files that reader ``index`` of ``count`` checks: all readers together check all, each about as many bytes.

    >>> files = {name: FileRecord(size, "0" * 64, "sha256") for name, size in [("a", 9), ("b", 5), ("c", 5)]}
    >>> share_of(files, (0, 2)), share_of(files, (1, 2))
    (['a'], ['b', 'c'])
    """
    if share is None:
        return sorted(files)
    index, count = share
    loads = [0] * count
    mine = []
    for name in sorted(files, key=lambda name: (-files[name].size, name)):
        taker = loads.index(min(loads))
        loads[taker] += files[name].size + 1  # empty files, too, go round
        if taker == index:
            mine.append(name)
    return mine


def _md5_manifest(folder: Path, step: int, files: Files) -> Manifest:
    try:
        seen = tree(folder)
        regular = {name: status for name, status in seen.items() if stat.S_ISREG(status.st_mode)}
        data = [name for name in regular if not (name.endswith(_MD5) and name.removesuffix(_MD5) in regular)]
        if not any(name + _MD5 in regular for name in data):
            raise Damaged(Problem(step, MANIFEST, "is missing"))
        sums = {name: _md5(folder, name, step, files) for name in data}
        saved_at = os.stat(folder).st_mtime
    except OSError as error:
        raise _damaged(step, "", error) from None
    return Manifest(
        step=step,
        world_size=1,
        layout="whole",
        algorithm="md5",
        files={name: FileRecord(regular[name].st_size, sums[name], "md5") for name in data},
        parts=(),
        meta={},
        run_id="",
        round=0,
        saved_at=saved_at,
    )


def _md5(folder: Path, name: str, step: int, files: Files) -> str:
    """What ``name.md5`` says: the digits alone, or as ``md5sum`` prints them."""
    try:
        with files.opened(folder / (name + _MD5)) as file:
            words = file.read(8192).decode("utf-8", "replace").split()
    except FileNotFoundError:
        raise Damaged(Problem(step, name, "has neither a manifest nor a .md5 beside it")) from None
    if not words or not re.fullmatch(f"[0-9a-fA-F]{{{DIGITS['md5']}}}", words[0]):
        raise Damaged(Problem(step, name + _MD5, "holds no md5"))
    return words[0].lower()


def problem_of(step: int, name: str, error: OSError) -> Problem:
    """What it says about a step that a file of it cannot be read. Raises ``CannotCheck`` if it says nothing."""
    if error.errno in _UNSURE:
        what = said(error) if error.filename else printable(f"{name}: {error.strerror}")
        raise CannotCheck(f"step {step} cannot be checked: {what}")
    if error.errno == errno.ENOENT:
        return Problem(step, name, "is missing")
    if error.errno in (errno.ELOOP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR):
        return Problem(step, name, "is no regular file")
    return Problem(step, name, f"cannot be read here: {error.strerror}", is_damage=False)


def _damaged(step: int, name: str, error: OSError) -> Damaged:
    return Damaged(problem_of(step, name, error))
