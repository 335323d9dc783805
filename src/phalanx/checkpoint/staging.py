"""Writes one step beside the published ones, and publishes it: until the rename at the end, nobody sees it.

The order is what makes it durable: files, their folders, the manifest, the staging folder, each on the disk before the
next; then the rename, and the folder of the steps.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.checkpoint import checksums, naming
from phalanx.checkpoint.checking import tree
from phalanx.checkpoint.exceptions import SaveFailed
from phalanx.checkpoint.manifest import (
    FileRecord,
    Manifest,
    PartRecord,
    encode,
    joined,
)
from phalanx.checkpoint.saved import writer_of
from phalanx.checkpoint.shelf import Shelf

__all__ = ["Staging"]


class Staging:
    """The staging folder of a step, for the only part (``part=None``) or for a rank's.

    Of a sharded step, all ranks open the same folder, which ``run_id`` and ``round_number`` name; each writes its own
    part, and one of them publishes. Raises ``SaveFailed``; so do the methods.
    """

    def __init__(
        self,
        shelf: Shelf,
        step: int,
        *,
        part: int | None = None,
        world_size: int = 1,
        writer: str = "job",
        run_id: str = "",
        round_number: int = 0,
        strong: bool = False,
    ) -> None:
        self.step = step
        self.part = part
        self._shelf = shelf
        self._files = shelf.files
        self._world_size = world_size
        self._writer = writer
        self._run_id = run_id
        self._round = round_number
        self._algorithm = checksums.algorithm(strong=strong)
        token = naming.token_of(run_id, round_number)
        if part is None:
            token = f"{token}.{secrets.token_hex(4)}"
        self.folder = shelf.folder / naming.staging_name(step, token)
        os.makedirs(self.folder, exist_ok=True)

    @property
    def place(self) -> Path:
        """Where this part is written."""
        return self.folder if self.part is None else self.folder / naming.part_name(self.part)

    def write(self, state: object) -> PartRecord:
        """Write ``state``, put it on the disk, and read it back for its checksums."""
        try:
            if self.part is not None:
                self._files.make_folder(self.place)
            writer_of(state)(self.place)
            seen = tree(self.place)
            regular = [name for name, status in seen.items() if stat.S_ISREG(status.st_mode)]
            for name in regular:
                self._files.sync_file(self.place / name)
            record = PartRecord(self.part, {name: self._record(name) for name in regular})
            self._files.sync_folder(self.place)
        except Exception as error:
            raise SaveFailed(f"step {self.step} was not saved: {error}") from error
        return record

    def publish(self, parts: list[PartRecord], meta: Mapping[str, Any] | None = None) -> Path:
        """Make the step visible, whole, in one moment; ``parts`` are the records of all. Returns its folder."""
        manifest = Manifest(
            step=self.step,
            world_size=self._world_size,
            writer=self._writer,
            algorithm=self._algorithm,
            files=joined(parts),
            parts=tuple(naming.part_name(part.part) for part in parts if part.part is not None),
            meta=dict(meta or {}),
            run_id=self._run_id,
            round=self._round,
            saved_at=time.time(),
        )
        if not manifest.files:
            raise SaveFailed(f"step {self.step} was not saved: the writer wrote no file")
        final = self._shelf.folder / naming.step_name(self.step)
        self._files.write(self.folder / naming.MANIFEST, encode(manifest))
        self._files.sync_file(self.folder / naming.MANIFEST)
        self._files.sync_folder(self.folder)
        self._files.rename(self.folder, final)
        self._files.sync_folder(self._shelf.folder)
        return final

    def abandon(self) -> None:
        """Give the step up: what was written of it is removed. Of a sharded one by rank 0; the others let go of it."""

    def _record(self, name: str) -> FileRecord:
        size, checksum = checksums.checksum_of(self.place / name, self._algorithm, self._files)
        return FileRecord(size, checksum, self._algorithm)
