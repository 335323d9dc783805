"""A folder of checkpoints: which steps are in it, whether they are good, and what becomes of those that are not needed.

Listing and looking change nothing. Only folders with names of ours are ever renamed or removed, and what is removed
gets another name first, so that under a step's name there is a whole step at any instant. What is done to names is done
under a lock on the folder; where locks do not reach, each single operation is safe by itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from phalanx.checkpoint import naming
from phalanx.checkpoint.changing import changing
from phalanx.checkpoint.exceptions import CannotCheck, NoGoodStep
from phalanx.checkpoint.files import Files, RealFiles
from phalanx.checkpoint.holding import TRIES, Hold
from phalanx.checkpoint.listing import all_steps, is_folder, own_steps
from phalanx.checkpoint.manifest import Manifest
from phalanx.checkpoint.origin import log
from phalanx.checkpoint.replacing import free_aside_name, put_in_place
from phalanx.checkpoint.saved import Problem, SavedStep, printable
from phalanx.checkpoint.tidying import tidied
from phalanx.checkpoint.verification import (
    Damaged,
    checksum_problems,
    missing_problems,
    read_manifest,
    share_of,
    tree,
)

__all__ = ["StepDirectory", "log", "refused"]


Identity = tuple[int, int]  # device and inode
_T = TypeVar("_T")


class StepDirectory:
    """The checkpoints in ``folder``, which need not be there yet."""

    def __init__(self, folder: str | os.PathLike[str], files: Files | None = None) -> None:
        self.folder = Path(os.path.realpath(folder))  # links on the way are followed once, here
        self.files: Files = RealFiles() if files is None else files
        self._is_ensured = False
        self._checked: dict[int, Hold] = {}  # the step that was found good last

    def steps(self) -> list[int]:
        """The published steps, ascending; those that are damaged, too."""
        found = all_steps(self.folder)
        return sorted(found or all_steps(self.folder))  # a listing in the midst of renames may miss all

    def folder_of(self, step: int) -> Path:
        """The folder of a step. Raises ``NoGoodStep`` if there is none."""
        own = naming.step_name(step)
        if is_folder(self.folder / own):
            return self.folder / own
        name = all_steps(self.folder).get(step)
        if name is None:
            raise NoGoodStep(f"step {step} cannot be loaded: it is not in {self.folder}")
        return self.folder / name

    def look(self, step: int) -> Manifest:
        """The manifest of a step all of whose files are there, with their sizes; no content is read.

        Raises ``NoGoodStep`` that names the file and what is wrong, or ``CannotCheck``.
        """

        def structure(folder: Path) -> Manifest | list[Problem]:
            manifest, problems = self._structure(folder, step)
            return problems if manifest is None or problems else manifest

        seen, hold = self._steadily(step, structure)
        if isinstance(seen, list):
            raise refused(hold.folder, seen)
        return seen

    def check(self, step: int, *, share: tuple[int, int] | None = None) -> list[Problem]:
        """All that is wrong with a step. Reads all of its files; with ``share=(index, count)`` a part of them.

        What is found is of one folder: if another process replaces it meanwhile, the new one is looked at. Raises
        ``NoGoodStep`` if it is not there, ``CannotCheck`` if nobody can tell.
        """

        def content(folder: Path) -> list[Problem]:
            manifest, problems = self._structure(folder, step)
            if manifest is None:
                return problems
            wrong = {problem.file for problem in problems}
            names = [name for name in share_of(manifest.files, share) if name not in wrong]
            return [*problems, *checksum_problems(folder, manifest, names, self.files)]

        self._checked = {}
        problems, hold = self._steadily(step, content)
        if not problems:
            self._checked = {step: hold}
        return problems

    def checked(self, step: int) -> Hold | None:
        """The folder that ``check`` found good, if that was the last step that it was asked about; asked once."""
        return self._checked.pop(step, None)

    def is_still(self, step: int, hold: Hold) -> bool:
        """Whether a step is this very folder."""
        return self.identity(step) == hold.identity

    def saved(self, step: int, manifest: Manifest, rank: int = 0, world_size_now: int = 1) -> SavedStep:
        """What a reader, which is ``rank``, gets of a step that was looked at."""
        folder = self.folder_of(step)
        parts = tuple(folder / part for part in manifest.parts) or (folder,)
        return SavedStep(step, manifest.meta, manifest.world_size, folder, parts, rank, world_size_now)

    def identity(self, step: int) -> Identity | None:
        """Which folder a step is, whatever its name: for ``set_aside`` after a long look. None: it is gone."""
        try:
            status = os.lstat(self.folder_of(step))
        except (OSError, NoGoodStep):
            return None
        return status.st_dev, status.st_ino

    def set_aside(self, step: int, why: str, *, identity: Identity | None = None) -> Path | None:
        """Give a damaged step another name, under which people find it, and say ``why`` to who asks the log.

        None: it is not one of ours, cannot be renamed (a folder that is only read), or is not ``identity`` any more
        because another process has replaced it.
        """
        with changing(self.folder, self.files):
            try:
                folder = self.folder_of(step)
            except NoGoodStep:
                return None
            if not naming.is_own(folder.name) or (identity is not None and self.identity(step) != identity):
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
        supersedes: Mapping[int, Identity | None] | None = None,
    ) -> Path:
        """Give a staged step its name, on the disk, and let ``latest`` point to the newest. Raises ``OSError``.

        The steps of ``supersedes`` that are still the same folders are set aside right before: training has gone on
        from an older one, and would otherwise resume from them.
        """
        with changing(self.folder, self.files):
            if still_wanted is not None:
                still_wanted()
            self._supersede(supersedes or {})
            final, old = put_in_place(self.files, staged, step)
            to_delete = []
            try:
                self._point_latest()
                if old is not None:
                    to_delete.append(self._begin_deletion(old))
                self.files.sync_folder(self.folder)
            except OSError as error:  # the step is there, whole, and on the disk: this is tidied another time
                log.warning("step %d is saved, but in %s %s", step, self.folder, _said(error))
                return final
        self._delete(to_delete)
        return final

    def retain(self, keep: int, *, just: int | None = None) -> list[int]:
        """Remove all steps that are older than the newest ``keep`` good ones, but ``just``; returns those.

        For good counts a step whose structure is; ``just`` was read back when it was written. Steps that are not
        ours by name do not count, and are never removed. Never raises.
        """
        gone: list[int] = []
        to_delete: list[Path] = []
        try:
            with changing(self.folder, self.files):
                own = own_steps(self.folder)
                for step in self._not_needed(own, keep, just):
                    to_delete.append(self._begin_deletion(self.folder / own[step]))
                    gone.append(step)
                if to_delete:
                    self.files.sync_folder(self.folder)
        except OSError as error:
            log.warning("old steps in %s could not be removed: %s", self.folder, _said(error))
            return gone
        self._delete(to_delete)
        return gone

    def tidy(self, *, run_id: str = "", round_number: int = 0) -> None:
        """Remove what saves that were interrupted have left, and finish what they began. Never raises.

        ``run_id`` and ``round_number`` are the caller's: what an earlier round of the same job has left is nobody's,
        because Phalanx ends the workers of a round before the next one begins.
        """
        try:
            names = [name for name in os.listdir(self.folder) if name.startswith(".step-")]
            if not names:
                return
            to_delete: list[Path] = []
            with changing(self.folder, self.files):
                for name in sorted(names):
                    path = tidied(self.folder, name, self.files, self._begin_deletion, run_id, round_number)
                    to_delete += [] if path is None else [path]
                if to_delete:  # nothing is deleted before it is on the disk that it has no step's name
                    self.files.sync_folder(self.folder)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("what earlier saves left in %s could not be removed: %s", self.folder, _said(error))
            return
        self._delete(to_delete)

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

    def discard(self, folder: Path) -> None:
        """Remove a folder of ours that no step's name points to. Never raises."""
        try:
            to_delete = self._begin_deletion(folder)
        except OSError as error:
            log.warning("%s could not be removed: %s", folder, _said(error))
            return
        self._delete([to_delete])

    def _supersede(self, steps: Mapping[int, Identity | None]) -> None:
        moved = []
        for step in sorted(steps):
            path = self.folder / naming.step_name(step)
            if is_folder(path) and self.identity(step) == steps[step]:
                self.files.rename(path, free_aside_name(self.folder, step, "superseded"))
                moved.append(step)
        if moved:  # on the disk before the new step is: else that of after a power loss may be an old one
            self.files.sync_folder(self.folder)
            log.warning(
                "training went on from an older step: %s in %s, newer than that, %s now called step-….superseded",
                f"step{'s' if moved[1:] else ''} {', '.join(map(str, moved))}",
                self.folder,
                "are" if moved[1:] else "is",
            )

    def _steadily(self, step: int, look: Callable[[Path], _T]) -> tuple[_T, Hold]:
        """What ``look`` finds in a step, and in which folder: from its beginning to its end the same one."""
        for _ in range(TRIES):
            try:
                hold = Hold(self.folder_of(step))
            except (FileNotFoundError, NotADirectoryError):
                continue
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

    def _not_needed(self, own: dict[int, str], keep: int, just: int | None) -> list[int]:
        good: list[int] = []
        for step in sorted(own, reverse=True):
            if len(good) == keep:
                break
            if step == just or self._is_whole(step):
                good.append(step)
        if len(good) < keep:
            return []
        return [step for step in sorted(own) if step < good[-1] and step != just]

    def _is_whole(self, step: int) -> bool:
        try:
            self.look(step)
        except (NoGoodStep, CannotCheck):
            return False
        return True

    def _begin_deletion(self, path: Path) -> Path:
        to_delete = self.folder / naming.deleting_name(path.name, os.urandom(4).hex())
        self.files.rename(path, to_delete)
        return to_delete

    def _delete(self, folders: list[Path]) -> None:
        for folder in folders:
            try:
                seen = tree(folder)
                for name in sorted(seen, reverse=True):  # what is in a folder comes before the folder
                    remove = (
                        self.files.remove_folder if stat.S_ISDIR(seen[name].st_mode) else self.files.unlink
                    )
                    _unless_gone(remove, folder / name)
                _unless_gone(self.files.remove_folder, folder)
            except FileNotFoundError:
                continue  # somebody else deletes it as well
            except OSError as error:
                log.warning("%s could not be deleted: %s", folder, _said(error))

    def _point_latest(self) -> None:
        """Let ``latest`` point to the newest step. It is for people: without it all works, so it gives way to all."""
        own = own_steps(self.folder)
        link, draft = self.folder / naming.LATEST, self.folder / naming.LATEST_DRAFT
        try:
            if os.path.lexists(link) and not os.path.islink(link):
                return  # DeepSpeed's, for one, is a file
            if not own:
                _unless_gone(self.files.unlink, link)
                return
            newest = own[max(own)]
            if os.path.islink(link) and os.readlink(link) == newest:
                return
            _unless_gone(self.files.unlink, draft)
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


def _unless_gone(remove: Callable[[Path], None], path: Path) -> None:
    with suppress(FileNotFoundError):
        remove(path)


def _said(error: OSError) -> str:
    return printable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
