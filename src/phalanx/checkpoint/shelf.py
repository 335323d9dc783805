"""A folder of checkpoints: which steps are in it, whether they are good, and what becomes of those that are not needed.

Listing and looking change nothing. Only folders with names of ours are ever renamed or removed, and what is removed
gets another name first, so that under a step's name there is a whole step at any instant.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.checkpoint import naming
from phalanx.checkpoint.checking import (
    Damaged,
    checksum_problems,
    missing_problems,
    read_manifest,
    share_of,
    tree,
)
from phalanx.checkpoint.exceptions import NoGoodStep
from phalanx.checkpoint.files import Files, RealFiles
from phalanx.checkpoint.manifest import Manifest
from phalanx.checkpoint.saved import Problem, SavedStep

__all__ = ["Shelf"]


class Shelf:
    """The checkpoints in ``folder``, which need not be there yet."""

    def __init__(self, folder: str | os.PathLike[str], files: Files | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.files: Files = RealFiles() if files is None else files

    def steps(self) -> list[int]:
        """The published steps, ascending; those that are damaged, too."""
        return sorted(self._found())

    def place(self, step: int) -> Path:
        """The folder of a step. Raises ``NoGoodStep`` if there is none."""
        name = self._found().get(step)
        if name is None:
            raise NoGoodStep(f"step {step} cannot be loaded: it is not in {self.folder}")
        return self.folder / name

    def look(self, step: int) -> Manifest:
        """The manifest of a step all of whose files are there, with their sizes; no content is read.

        Raises ``NoGoodStep`` that names the file and what is wrong, or ``CannotCheck``.
        """
        manifest, problems = self._structure(step)
        if manifest is None or problems:
            raise NoGoodStep(f"step {step} cannot be loaded: {_listed(problems)} (in {self.place(step)})")
        return manifest

    def check(self, step: int, *, share: tuple[int, int] | None = None) -> list[Problem]:
        """All that is wrong with a step. Reads all of its files; with ``share=(index, count)`` a part of them.

        Raises ``NoGoodStep`` if it is not there, ``CannotCheck`` if nobody can tell.
        """
        folder = self.place(step)
        manifest, problems = self._structure(step)
        if manifest is None:
            return problems
        wrong = {problem.file for problem in problems}
        names = [name for name in share_of(manifest.files, share) if name not in wrong]
        return [*problems, *checksum_problems(folder, manifest, names, self.files)]

    def saved(self, step: int, manifest: Manifest) -> SavedStep:
        """What a reader gets of a step that was looked at."""
        folder = self.place(step)
        parts = tuple(folder / part for part in manifest.parts) or (folder,)
        return SavedStep(step, manifest.meta, manifest.world_size, folder, parts)

    def set_aside(self, step: int, why: str) -> Path | None:
        """Give a damaged step another name, under which people find it. None: that cannot be, or it is not ours."""
        folder = self.place(step)
        if not naming.is_own(folder.name):
            return None
        number = 1
        while os.path.lexists(aside := self.folder / naming.aside_name(step, number)):
            number += 1
        try:
            self.files.rename(folder, aside)
            self.files.sync_folder(self.folder)
        except OSError:
            return None
        return aside

    def retain(self, keep: int, *, just: int | None = None) -> list[int]:
        """Remove all steps but the newest ``keep`` good ones and ``just``; returns those that were removed."""
        return []

    def tidy(self) -> None:
        """Remove what saves that were interrupted have left, and finish what they began."""

    def _structure(self, step: int) -> tuple[Manifest | None, list[Problem]]:
        folder = self.place(step)
        try:
            manifest = read_manifest(folder, step, self.files)
        except Damaged as damage:
            return None, [damage.problem]
        return manifest, missing_problems(folder, manifest)

    def _found(self) -> dict[int, str]:
        """The folder's name of each step. A name of ours goes before another program's, then the first in order."""
        try:
            with os.scandir(self.folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return {}
        found: dict[int, str] = {}
        for name in sorted(names, key=lambda name: not naming.is_own(name)):
            step = naming.step_number(name)
            if (
                step is not None
                and step not in found
                and (naming.is_own(name) or self._is_foreign_step(name))
            ):
                found[step] = name
        for name in names:
            step = naming.replaced_step(name)
            if step is not None:  # who replaced it was killed between two renames
                found.setdefault(step, name)
        return found

    def _is_foreign_step(self, name: str) -> bool:
        try:
            return any(
                file == naming.MANIFEST or file.endswith(".md5")
                for file, status in tree(self.folder / name).items()
                if stat.S_ISREG(status.st_mode)
            )
        except OSError:
            return False

    @contextmanager
    def changing(self) -> Iterator[None]:
        """While this is held, no other process on this machine renames anything in the folder."""
        yield


def _listed(problems: list[Problem]) -> str:
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{first.file + ' ' if first.file else ''}{first.what}{more}"
