"""A folder of checkpoints: which steps are in it, whether they are good, and what becomes of those that are not needed.

Listing and looking change nothing. Only folders with names of ours are ever renamed or removed, and what is removed
gets another name first, so that under a step's name there is a whole step at any instant. What is done to names is done
under a lock on the folder; where locks do not reach, each single operation is safe by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from phalanx.checkpoint import naming
from phalanx.checkpoint.exceptions import CannotCheck, NoGoodStep
from phalanx.checkpoint.files import Files, RealFiles
from phalanx.checkpoint.listing import all_steps, is_folder, own_steps
from phalanx.checkpoint.locks import TRIES, Hold, Mark, changing, has_mark
from phalanx.checkpoint.manifest import Manifest
from phalanx.checkpoint.origin import log
from phalanx.checkpoint.replacing import free_aside_name, put_in_place
from phalanx.checkpoint.saved import Problem, said
from phalanx.checkpoint.tidying import doomed, remove, tidy
from phalanx.checkpoint.verification import (
    Damaged,
    checksum_problems,
    missing_problems,
    problem_of,
    read_manifest,
    share_of,
)
from phalanx.errors._printable import printable
from phalanx.records import Struct

__all__ = ["Checked", "Gone", "StepDirectory", "refused"]

_T = TypeVar("_T")


class Gone(NoGoodStep):
    """The step is not there, or not any more: nothing is wrong with it."""


class Checked(Struct):
    """What is wrong with a step, and which folder was looked at; None: it could not be opened, which is the problem."""

    problems: list[Problem]
    hold: Hold | None


class StepDirectory:
    """The checkpoints in ``folder``, which need not be there yet."""

    def __init__(self, folder: str | os.PathLike[str], files: Files | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))  # links on the way are followed once, here
        self.files: Files = RealFiles() if files is None else files
        self._is_ensured = False

    def steps(self) -> list[int]:
        """The published steps, ascending; those that are damaged, too."""
        found = all_steps(self.folder)
        return sorted(found or all_steps(self.folder))  # a listing in the midst of renames may miss all

    def folder_of(self, step: int) -> Path:
        """The folder of a step. Raises ``Gone`` if there is none, and ``OSError``."""
        own = naming.step_name(step)
        if is_folder(self.folder / own):
            return self.folder / own
        name = all_steps(self.folder).get(step)
        if name is None:
            raise Gone(f"step {step} cannot be loaded: it is not in {self.folder}")
        return self.folder / name

    def look(self, step: int) -> Manifest:
        """The manifest of a step all of whose files are there, with their sizes; no content is read.

        Raises ``NoGoodStep`` that names the file and what is wrong, or ``CannotCheck``.
        """

        def structure(folder: Path) -> Manifest | list[Problem]:
            manifest, problems = self._structure(folder, step)
            return problems if manifest is None or problems else manifest

        try:
            seen, hold = self._steadily(step, structure)
        except Damaged as damage:
            raise refused(self.folder, [damage.problem]) from damage
        if isinstance(seen, list):
            raise refused(hold.folder, seen)
        return seen

    def check(self, step: int, *, share: tuple[int, int] | None = None) -> list[Problem]:
        """All that is wrong with a step, as ``checked``."""
        return self.checked(step, share=share).problems

    def checked(self, step: int, *, share: tuple[int, int] | None = None) -> Checked:
        """Look at all of a step's files; with ``share=(index, count)`` at a part of them.

        What is found is of one folder: if another process replaces it meanwhile, the new one is looked at. Raises
        ``Gone`` if it is not there, ``CannotCheck`` if nobody can tell.
        """

        def content(folder: Path) -> list[Problem]:
            manifest, problems = self._structure(folder, step)
            if manifest is None:
                return problems
            wrong = {problem.file for problem in problems}
            names = [name for name in share_of(manifest.files, share) if name not in wrong]
            return [*problems, *checksum_problems(folder, manifest, names, self.files)]

        try:
            return Checked(*self._steadily(step, content))
        except Damaged as damage:
            return Checked([damage.problem], None)

    def good(self, step: int) -> Hold:
        """The folder of a step all of whose files are as they were saved. Raises ``NoGoodStep``, or ``CannotCheck``."""
        found = self.checked(step)
        if found.hold is None or found.problems:
            raise refused(self.folder if found.hold is None else found.hold.folder, found.problems)
        return found.hold

    def is_still(self, step: int, hold: Hold) -> bool:
        """Whether a step is this very folder."""
        try:
            return hold.is_at(self.folder_of(step))
        except (OSError, NoGoodStep):
            return False

    def set_aside(self, step: int, why: str, hold: Hold) -> Path | None:
        """Give a damaged step another name, under which people find it, and say ``why`` to who asks the log.

        None: it is not one of ours, cannot be renamed (a folder that is only read), or is not what was looked at any
        more because another process has replaced it.
        """
        with changing(self.folder, self.files):
            try:
                folder = self.folder_of(step)
            except (OSError, NoGoodStep):
                return None
            if not naming.is_own(folder.name) or not hold.is_at(folder):
                return None
            aside = free_aside_name(self.folder, step)
            try:
                self.files.rename(folder, aside)
                self._point_latest()
                self.files.sync_folder(self.folder)
            except OSError as error:
                log.debug("%s could not be set aside (%s): %s", folder, why, error)
                return aside if os.path.lexists(aside) else None
        return aside

    def publish(
        self,
        staged: Path,
        step: int,
        *,
        still_wanted: Callable[[], None] | None = None,
        supersedes: Mapping[int, Mark] | None = None,
    ) -> Path:
        """Give a staged step its name, on the disk, and let ``latest`` point to the newest. Raises ``OSError``.

        The steps of ``supersedes`` that are still the same are set aside right before: training has gone on
        from an older one, and would otherwise resume from them. They get their names back if this fails.
        """
        moved: dict[Path, Path] = {}
        with changing(self.folder, self.files):
            if still_wanted is not None:
                still_wanted()
            try:
                self._supersede(supersedes or {}, moved)
                final, old = put_in_place(self.files, staged, step)
            except OSError:
                self._move_back(moved)
                raise
            with suppress(OSError):
                self._point_latest()
            if old is None:
                try:
                    self.files.sync_folder(self.folder)
                except OSError as error:  # the step is there, whole, and on the disk
                    log.warning("step %d is saved, but in %s %s", step, self.folder, said(error))
        if moved:
            steps = ", ".join(str(naming.step_number(path.name)) for path in moved)
            log.warning(
                "training went on from an older step: %s in %s, newer than that, %s now called step-….superseded",
                f"steps {steps}" if len(moved) > 1 else f"step {steps}",
                self.folder,
                "are" if len(moved) > 1 else "is",
            )
        if old is not None:
            remove(self.folder, self.files, [old])
        return final

    def retain(self, keep: int, *, just: int | None = None) -> list[int]:
        """Remove all steps that are older than the newest ``keep`` good ones, but ``just``; returns those.

        For good counts a step whose structure is; ``just`` was read back when it was written. Steps that are not
        ours by name do not count, and are never removed. Never raises.
        """
        try:
            own = own_steps(self.folder)
        except OSError as error:
            log.warning("old steps in %s could not be removed: %s", self.folder, said(error))
            return []
        good = self._newest_good(own, keep, just)  # before the lock, because it may take long
        if len(good) < keep:
            return []

        def unless_needed(path: Path) -> Path | None:
            are_there = all(is_folder(self.folder / own[step]) for step in good)
            return doomed(path, self.folder, self.files) if are_there else None

        old = {self.folder / own[step]: step for step in sorted(own) if step < good[-1] and step != just}
        return [old[path] for path in remove(self.folder, self.files, old, unless_needed)]

    def tidy(self, *, run_id: str = "", round_number: int = 0, opening: str = "") -> None:
        """Remove what saves that were interrupted have left, and finish what they began. Never raises.

        ``run_id`` and ``round_number`` are the caller's: what an earlier round of the same job has left is nobody's,
        because Phalanx ends the workers of a round before the next one begins. ``opening``: the name of the staging
        folder that the caller is about to open, and in which other ranks of its job may write already.
        """
        tidy(self.folder, self.files, run_id, round_number, opening)

    def discard(self, folder: Path) -> None:
        """Remove a folder of ours that no step's name points to. Never raises."""
        remove(self.folder, self.files, [folder])

    def ensure(self) -> None:
        """Make the folder if it is not there, and put its name on the disk. Raises ``OSError``."""
        missing = []
        path = self.folder
        while not os.path.isdir(path) and path != path.parent:
            missing.append(path)
            path = path.parent
        for path in reversed(missing):
            try:
                self.files.make_folder(path)
            except FileExistsError:
                if not path.is_dir():
                    raise
        if missing or not self._is_ensured:
            # Also when it was there: who made it may have been killed before this.
            for path in (*missing, self.folder):
                self._sync_parent(path, is_new=path in missing)
            self._is_ensured = True

    def _sync_parent(self, path: Path, *, is_new: bool) -> None:
        try:
            self.files.sync_folder(path.parent)
        except PermissionError:  # it may be entered, but not listed, as /home and /scratch of many sites
            if is_new:
                log.warning(
                    "%s may not be read, so %s may be gone after a power loss", path.parent, path.name
                )

    def _supersede(self, steps: Mapping[int, Mark], moved: dict[Path, Path]) -> None:
        """Put into ``moved`` from where to where."""
        for step in sorted(steps):
            path = self.folder / naming.step_name(step)
            if has_mark(path, steps[step]):
                aside = free_aside_name(self.folder, step, "superseded")
                moved[path] = aside  # before it is done: an error may come after the effect
                self.files.rename(path, aside)
        if moved:  # on the disk before the new step is: else that of after a power loss may be an old one
            self.files.sync_folder(self.folder)

    def _move_back(self, moved: Mapping[Path, Path]) -> None:
        for path, aside in moved.items():
            with suppress(OSError):
                self.files.rename(aside, path)
        if moved:
            with suppress(OSError):
                self.files.sync_folder(self.folder)

    def _steadily(self, step: int, look: Callable[[Path], _T]) -> tuple[_T, Hold]:
        """What ``look`` finds in a step, and in which folder: from its beginning to its end the same one.

        Raises ``Damaged`` if the folder cannot be opened: no damage, but no step to use either.
        """
        for _ in range(TRIES):
            try:
                hold = self.files.hold(self.folder_of(step))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                why = problem_of(step, "", error).what
                raise Damaged(Problem(step, "", why, is_damage=False)) from error
            try:
                found = look(hold.folder)
            except CannotCheck:
                if self.is_still(step, hold):
                    raise
                continue
            if self.is_still(step, hold):
                return found, hold
        raise CannotCheck(f"step {step} in {self.folder} cannot be checked: it is replaced all the time")

    def _structure(self, folder: Path, step: int) -> tuple[Manifest | None, list[Problem]]:
        try:
            manifest = read_manifest(folder, step, self.files)
        except Damaged as damage:
            return None, [damage.problem]
        return manifest, missing_problems(folder, manifest)

    def _newest_good(self, own: Mapping[int, str], keep: int, just: int | None) -> list[int]:
        good: list[int] = []
        for step in sorted(own, reverse=True):
            if len(good) == keep:
                break
            if step == just or self._is_whole(step):
                good.append(step)
        return good

    def _is_whole(self, step: int) -> bool:
        try:
            self.look(step)
        except (NoGoodStep, CannotCheck):
            return False
        return True

    def _point_latest(self) -> None:
        """Let ``latest`` point to the newest step. It is for people: without it all works, so it gives way to all."""
        own = own_steps(self.folder)
        link, draft = self.folder / naming.LATEST, self.folder / naming.LATEST_DRAFT
        try:
            if os.path.lexists(link) and not os.path.islink(link):
                return  # DeepSpeed's, for one, is a file
            if not own:
                self.files.unlink(link)
                return
            newest = own[max(own)]
            if os.path.islink(link) and os.readlink(link) == newest:
                return
            with suppress(FileNotFoundError):
                self.files.unlink(draft)
            self.files.symlink(newest, draft)
            self.files.rename(draft, link)
        except OSError as error:
            log.debug("%s could not be set: %s", link, error)


def refused(folder: Path, problems: list[Problem]) -> NoGoodStep:
    """What to raise for a step that cannot be loaded."""
    first = problems[0]
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    what = printable(f"{first.file + ' ' if first.file else ''}{first.what}")
    return NoGoodStep(f"step {first.step} cannot be loaded: {what}{more} (in {printable(str(folder))})")
