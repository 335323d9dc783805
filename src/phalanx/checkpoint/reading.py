"""Lets a reader read a step that was found good: the very folder that was, from the reader's beginning to its end."""

from __future__ import annotations

from contextlib import suppress

from phalanx.checkpoint.directory import StepDirectory, refused
from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError
from phalanx.checkpoint.holding import TRIES, Hold
from phalanx.checkpoint.saved import Loaded, read_by

__all__ = ["read"]


def read(directory: StepDirectory, step: int, reader: object, rank: int, world_size: int) -> Loaded:
    """What ``reader`` makes of a step right after ``directory.check``.

    If another process replaces the step meanwhile, the new one is checked and read; one of several ranks would have
    another one than the others then, and raises ``CheckpointError``. Raises ``NoGoodStep`` if it is gone.
    """
    for _ in range(TRIES):
        hold = directory.checked(step)
        if hold is None and world_size > 1:
            with suppress(OSError):
                hold = Hold(directory.folder_of(step))
        if hold is not None and directory.is_still(step, hold):
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
        if problems := directory.check(step):
            raise refused(directory.folder_of(step), problems)
    raise CannotCheck(f"step {step} in {directory.folder} cannot be read: it is replaced all the time")


def _read_once(directory: StepDirectory, step: int, reader: object, rank: int, world_size: int) -> Loaded:
    saved = directory.saved(step, directory.look(step), rank, world_size)
    return Loaded(step, saved.meta, read_by(reader, saved), saved)
