"""What a saved step is to its reader, and what can be wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.errors._printable import printable
from phalanx.records import Struct

__all__ = ["Loaded", "Problem", "SavedStep", "said"]


class SavedStep(Struct):
    """A step that was found good. Unsharded, ``parts`` is ``(folder,)``; sharded, ``parts[i]`` is what rank i wrote.

    ``world_size`` is that of the job that saved it; ``rank`` of ``world_size_now`` is who reads it.

    >>> import tempfile
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp())
    >>> checkpointer.save(100, lambda folder: (folder / "weights").write_bytes(b"1234"), {"epoch": 3})
    >>> saved = checkpointer.load(100, lambda saved: saved).saved
    >>> saved.step, saved.meta, saved.world_size, (saved.parts[0] / "weights").read_bytes()
    (100, {'epoch': 3}, 1, b'1234')
    """

    step: int
    meta: dict[str, Any]
    world_size: int
    folder: Path
    parts: tuple[Path, ...]
    rank: int = 0
    world_size_now: int = 1


class Loaded:
    """A step that was loaded: ``value`` is what the reader returned, or the mapping that was saved.

    >>> Loaded(100, {"epoch": 3}, {"seed": 1}, SavedStep(100, {}, 1, Path("/nowhere"), ())).value
    {'seed': 1}
    """

    __match_args__ = ("step", "meta", "value", "saved")

    def __init__(self, step: int, meta: dict[str, Any], value: Any, saved: SavedStep) -> None:
        self.step = step
        self.meta = meta
        self.value = value
        self.saved = saved

    def __repr__(self) -> str:
        return f"Loaded(step={self.step}, meta={self.meta!r}, folder={str(self.saved.folder)!r})"


class Problem(Struct):
    """One thing that is wrong with a step: in which file of it (empty: the step as a whole), and what.

    ``is_damage`` is False where only this machine cannot read it (EIO, which a network file system gives, too): another
    one may.

    >>> print(Problem(100, "model.pt", "has 5 bytes instead of 7"))
    step 100: model.pt has 5 bytes instead of 7
    """

    step: int
    file: str
    what: str
    is_damage: bool = True

    def __str__(self) -> str:
        return printable(f"step {self.step}: {self.file + ' ' if self.file else ''}{self.what}")


def said(error: OSError) -> str:
    """What went wrong with which file, for a sentence.

    >>> said(OSError(28, "No space left on device", "a/b"))
    'a/b: No space left on device'
    """
    return printable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
