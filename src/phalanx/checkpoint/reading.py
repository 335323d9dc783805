"""Lets a reader read a step that was found good: the very folder that was, from the reader's beginning to its end."""

from __future__ import annotations

from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError
from phalanx.checkpoint.locks import TRIES, Hold
from phalanx.checkpoint.saved import Loaded, SavedStep
from phalanx.checkpoint.states import read_by

__all__ = ["read"]


def read(
    directory: StepDirectory, step: int, hold: Hold, reader: object, rank: int, world_size: int
) -> Loaded:
    """What ``reader`` makes of a step that was found good in the folder ``hold``.

    If another process replaces the step meanwhile, the new one is checked and read; one of several ranks would have
    another one than the others then, and raises ``CheckpointError``. Raises ``NoGoodStep`` if it is gone.
    """
    for _ in range(TRIES):
        if directory.is_still(step, hold):
            try:
                loaded = _read_once(directory, step, reader, rank, world_size)
            except Exception:
                if directory.is_still(step, hold):
                    raise
            else:
                if directory.is_still(step, hold):
                    return loaded
        if world_size > 1:
            raise CheckpointError(
                f"step {step} in {directory.folder} was replaced or removed by another process while rank {rank} "
                "loaded it, and other ranks may have read what was there before: start the job again"
            )
        hold = directory.good(step)
    raise CannotCheck(f"step {step} in {directory.folder} cannot be read: it is replaced all the time")


def _read_once(directory: StepDirectory, step: int, reader: object, rank: int, world_size: int) -> Loaded:
    manifest, folder = directory.look(step), directory.folder_of(step)
    parts = tuple(folder / part for part in manifest.parts) or (folder,)
    saved = SavedStep(step, manifest.meta, manifest.world_size, folder, parts, rank, world_size)
    return Loaded(step, manifest.meta, read_by(reader, saved), saved)
