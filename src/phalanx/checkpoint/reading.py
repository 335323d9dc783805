"""Lets a reader read a step that was found good: the very folder that was, from the reader's beginning to its end."""

from __future__ import annotations

from contextlib import suppress

from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError
from phalanx.checkpoint.holding import TRIES, Hold
from phalanx.checkpoint.saved import Loaded, read_by
from phalanx.checkpoint.shelf import Shelf, refused

__all__ = ["read"]


def read(shelf: Shelf, step: int, reader: object, rank: int, world_size: int) -> Loaded:
    """What ``reader`` makes of a step right after ``shelf.check``.

    If another process replaces the step meanwhile, the new one is checked and read; one of several ranks would have
    another one than the others then, and raises ``CheckpointError``. Raises ``NoGoodStep`` if it is gone.
    """
    for _ in range(TRIES):
        hold = shelf.checked(step)
        if hold is None and world_size > 1:
            with suppress(OSError):
                hold = Hold(shelf.place(step))
        if hold is not None and shelf.is_still(step, hold):
            try:
                loaded = _read_once(shelf, step, reader, rank, world_size)
            except Exception:
                if shelf.is_still(step, hold):
                    raise
            else:
                if shelf.is_still(step, hold):
                    return loaded
        if world_size > 1:
            raise CheckpointError(
                f"step {step} in {shelf.folder} was replaced or removed by another process while rank {rank} loaded "
                "it, and other ranks may have read what was there before: start the job again"
            )
        if problems := shelf.check(step):
            raise refused(shelf.place(step), problems)
    raise CannotCheck(f"step {step} in {shelf.folder} cannot be read: it is replaced all the time")


def _read_once(shelf: Shelf, step: int, reader: object, rank: int, world_size: int) -> Loaded:
    saved = shelf.saved(step, shelf.look(step), rank, world_size)
    return Loaded(step, saved.meta, read_by(reader, saved), saved)
