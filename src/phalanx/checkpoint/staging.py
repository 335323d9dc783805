"""Writes one step beside the published ones, and publishes it: until the rename at the end, nobody sees it.

The order is what makes it durable: files, their folders, the manifest, the staging folder, each on the disk before the
next; then the rename, and the folder of the steps. Checksums are of what is read back after the writing. That comes
from the page cache: it finds what was written wrongly, or is still being written, not a disk that lies.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from phalanx.checkpoint import checksums, naming
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.exceptions import SaveFailed
from phalanx.checkpoint.lineage import Lineage
from phalanx.checkpoint.locks import Lock
from phalanx.checkpoint.manifest import FileRecord, Manifest, PartRecord, encode, file_name_fault, joined
from phalanx.checkpoint.saved import said
from phalanx.checkpoint.states import writer_of
from phalanx.checkpoint.verification import Seen, tree

__all__ = ["Staging"]

_LOCK_WAIT_S = 30.0  # who holds it is deleting a folder of the same name, left by an earlier try


class Staging:
    """The staging folder of a step, for the only part (``part=None``) or for a rank's.

    Of a sharded step, all ranks open the same folder, which ``run_id``, ``round_number`` and ``attempt`` name (number
    of the save within the round); each writes its own part, and one of them publishes. What a rank finds of an earlier
    try of its own part is removed. The folder is locked until ``publish``, ``abandon`` or ``release``. Raises
    ``SaveFailed``; so do the methods.
    """

    def __init__(
        self,
        directory: StepDirectory,
        step: int,
        *,
        part: int | None = None,
        world_size: int = 1,
        layout: str = "whole",
        run_id: str = "",
        round_number: int = 0,
        attempt: int = 0,
        checksum: str | None = None,
        lineage: Lineage | None = None,
    ) -> None:
        self.step = step
        self._process = os.getpid()
        self.part = part
        self._directory = directory
        self._files = directory.files
        self._world_size = world_size
        self._layout = layout
        self.lineage = lineage or Lineage(directory)
        self._run_id = run_id
        self._round = round_number
        self._algorithm = checksums.algorithm(checksum)
        # Of an unsharded step nobody else needs the name, and of two jobs without a run id each has its own.
        last = int.from_bytes(os.urandom(4)) if part is None else attempt
        self.folder = directory.folder / naming.shared_name(step, run_id, round_number, last)
        self._lock: Lock | None = None
        with self.failing():
            directory.ensure()
            self._lock = self._opened()

    @property
    def place(self) -> Path:
        """Where this part is written."""
        return self.folder if self.part is None else self.folder / naming.part_name(self.part)

    def write(self, state: object) -> PartRecord:
        """``fill`` and ``seal``."""
        self.fill(state)
        return self.seal()

    def fill(self, state: object) -> None:
        """Let ``state`` write its files: after that it may change."""
        write = writer_of(state, self.part)
        with self.failing():
            if self.part is not None:
                self._make_part()
        try:
            write(self.place)
        except OSError as error:
            raise self._failure(error) from error
        except Exception as error:
            raise SaveFailed(
                f"step {self.step} was not saved: its writer failed with {type(error).__name__}: {error}"
            ) from error

    def seal(self) -> PartRecord:
        """Put what was written on the disk, and read it back for its checksums.

        Refuses what cannot be kept: links, FIFOs and the like, names that are not UTF-8, and files that are still
        being changed. An unsharded step needs a file; a rank's part may be empty.
        """
        with self.failing():
            seen = tree(self.place)
            regular = sorted(self._kept(seen))
            for name in regular:
                self._files.sync_file(self.place / name)
                # Only now: some network file systems (NFS with delegations, Lustre) tell a file's time when it is
                # flushed. What changed before that is in the checksum.
                seen[name] = os.lstat(self.place / name)
            record = PartRecord(self.part, self._read_back(regular, seen))
            self._refuse_changes(seen, tree(self.place))
            for name in sorted(seen.keys() - set(regular), reverse=True):
                self._files.sync_folder(self.place / name)
            self._files.sync_folder(self.place)
        return record

    def publish(
        self,
        parts: list[PartRecord],
        meta: Mapping[str, Any] | None = None,
        *,
        still_wanted: Callable[[], None] | None = None,
    ) -> Path:
        """Make the step visible, whole, in one moment; ``parts`` are the records of all. Returns its folder.

        Looks once more whether all files are there. A step of this number that was there before is replaced.
        ``still_wanted`` is called right before the step gets its name, and raises if it is not to get it.
        """
        files = joined(parts)
        ranks = [part.part for part in parts]
        if ranks not in ([None], list(range(self._world_size))):
            raise SaveFailed(f"step {self.step} was not saved: it has {self._world_size} parts, not {ranks}")
        if not files:
            raise SaveFailed(f"step {self.step} was not saved: the writer wrote no file")
        manifest = Manifest(
            step=self.step,
            world_size=self._world_size,
            layout=self._layout,
            algorithm=self._algorithm,
            files=files,
            parts=tuple(naming.part_name(rank) for rank in ranks if rank is not None),
            meta=dict(meta or {}),
            run_id=self._run_id,
            round=self._round,
            saved_at=time.time(),
        )
        with self.failing():
            self._refuse_missing(manifest)
            path = self.folder / naming.MANIFEST
            if os.path.lexists(path):  # of an earlier try in this round
                self._files.unlink(path)
            self._files.write(path, encode(manifest))
            self._files.sync_file(path)
            self._files.sync_folder(self.folder)
            final = self._directory.publish(
                self.folder, self.step, still_wanted=still_wanted, supersedes=self.lineage.superseded
            )
            self.lineage.has_published()
        self.release()
        return final

    def abandon(self) -> None:
        """Give the step up: what was written of it is removed. Of a sharded one by rank 0; the others let go of it.

        Never raises; after ``publish`` it does nothing.
        """
        if os.getpid() != self._process:
            return  # a child that the writer forked: the step, and the lock, are its parent's
        # Is it the folder that was opened? After an exchange that could not be undone the old step has its name.
        if self._lock is not None and not self.part and self._lock.is_on(self.folder):
            self._directory.discard(self.folder)
        self.release()

    def release(self) -> None:
        """Let go of the folder: once all have, it is somebody's to tidy."""
        if self._lock is not None and os.getpid() == self._process:
            self._lock.release()
            self._lock = None

    def _opened(self) -> Lock:
        """Make the folder, or find it, and hold it. Who tidies may be quicker than the lock: then once more."""
        ends_at = time.monotonic() + _LOCK_WAIT_S
        while True:
            with suppress(FileExistsError):
                self._files.make_folder(self.folder)
            with suppress(BlockingIOError, FileNotFoundError):
                lock = self._files.lock(self.folder, exclusive=False)
                if lock.is_on(self.folder):
                    return lock
                lock.release()
            if time.monotonic() > ends_at:
                raise SaveFailed(
                    f"step {self.step} was not saved: another process has held {self.folder} for {_LOCK_WAIT_S:g} "
                    "s, to remove it, or removes it again and again"
                )
            time.sleep(0.01)

    def _make_part(self) -> None:
        if os.path.lexists(self.place):
            self._directory.discard(self.place)
        self._files.make_folder(self.place)

    def _kept(self, seen: Seen) -> Iterator[str]:
        """The names of the files. Raises ``SaveFailed`` for what cannot be kept."""
        for name, status in seen.items():
            is_folder = stat.S_ISDIR(status.st_mode)
            kind = "" if is_folder or stat.S_ISREG(status.st_mode) else _kind(status.st_mode)
            # In a rank's part manifest.json is a file like any other: the step's own is one folder above.
            fault = file_name_fault(name if self.part is None else f"{naming.part_name(self.part)}/{name}")
            if kind or fault:
                raise SaveFailed(
                    f"step {self.step} was not saved: the writer made {kind or 'a file'} that cannot be kept, "
                    f"{name!r}{'' if kind else ': its name ' + str(fault)}"
                )
            if not is_folder:
                yield name
        if self.part is None and not any(stat.S_ISREG(status.st_mode) for status in seen.values()):
            raise SaveFailed(f"step {self.step} was not saved: the writer wrote no file")

    def _refuse_changes(self, before: Seen, after: Seen) -> None:
        for name in sorted(before.keys() | after.keys()):
            if name not in before or name not in after or _mark(before[name]) != _mark(after[name]):
                raise SaveFailed(
                    f"step {self.step} was not saved: {name!r} changed after the writer had returned; it must return "
                    f"when its files are complete"
                )

    def _refuse_missing(self, manifest: Manifest) -> None:
        seen = tree(self.folder)
        for name, file in manifest.files.items():
            status = seen.get(name)
            if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                raise SaveFailed(
                    f"step {self.step} was not saved: {name!r} is not as it was written; is "
                    f"{self._directory.folder} the same folder for all ranks?"
                )

    def _read_back(self, names: list[str], seen: Seen) -> dict[str, FileRecord]:
        kinds = dict.fromkeys((self.place / name for name in names), self._algorithm)
        answers = checksums.checksums_of(kinds, sum(seen[name].st_size for name in names), self._files)
        records = {}
        for name in names:
            answer = answers[self.place / name]
            if isinstance(answer, Exception):
                raise answer
            records[name] = FileRecord(*answer, self._algorithm)
        return records

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An ``OSError`` within is a ``SaveFailed`` that says which file, why, and what to do."""
        try:
            yield
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> SaveFailed:
        """Always names the folder: which of a job's disks is meant is the first question."""
        what, folder = said(error), self._directory.folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what += f"; free some space for {folder}, or keep fewer steps"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            what += f"; can this process write into {folder}?"
        elif error.errno in (errno.EIO, errno.ENXIO, errno.ESTALE):
            what += f"; look at the disk, or the server, that has {folder}"
        elif error.errno is None:  # of a library that does not say what the system said: numpy's tofile
            what += f"; if no space is left for {folder}, free some, or keep fewer steps"
        else:  # may be the writer's own matter
            what += f" (saving into {folder})"
        return SaveFailed(f"step {self.step} was not saved: {what}")


def _mark(status: os.stat_result) -> tuple[int, ...]:
    if stat.S_ISDIR(status.st_mode):
        return status.st_ino, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a FIFO" if stat.S_ISFIFO(mode) else "a special file"
