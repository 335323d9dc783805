"""What a saved step is to its reader, what can be wrong with it, and what a state and a reader may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from phalanx.records import Struct

__all__ = ["Loaded", "Problem", "Readable", "SavedStep", "Writable", "printable", "read_by", "writer_of"]


class Writable(Protocol):
    """An object that can write itself into a folder.

    One that also has ``write_part(folder, rank)`` is asked for that in a sharded step: what ``rank`` writes of it.
    """

    def write(self, folder: Path) -> None:
        """Write all of it into ``folder``, which is there and empty. Nothing may change a file after the return."""


class Readable(Protocol):
    """An object that reads what its like has written."""

    def read(self, saved: SavedStep) -> Any:
        """Read from ``saved.folder``, or from all ``saved.parts``; the return value becomes ``Loaded.value``."""


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


def printable(text: str) -> str:
    r"""``text`` without what a terminal would obey, and without line feeds: names of files are anybody's.

    >>> print(printable("a\x1b[2J\nstep 7"))
    a\x1b[2J\nstep 7
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text
    )


def writer_of(state: object, part: int | None = None) -> Callable[[Path], None]:
    """What writes ``state`` into a folder: itself, its ``write``, or for a mapping one file per entry.

    Of a sharded step ``part`` is the rank whose part it is, and ``write_part`` goes before ``write``. Raises
    ``TypeError`` for anything else.

    >>> writer_of(print) is print
    True
    """
    write_part = getattr(state, "write_part", None)
    if part is not None and callable(write_part):
        return lambda folder: write_part(folder, part)
    write = getattr(state, "write", None)
    if callable(write):
        return cast("Callable[[Path], None]", write)
    _refuse_stateful(state, "saves")
    if isinstance(state, Mapping):
        from functools import partial

        return partial(_write_mapping, state)
    if callable(state):
        return state
    raise TypeError(
        f"a state to save is a mapping, a callable that takes a folder, or an object with write(folder), "
        f"not {type(state).__name__}"
    )


def read_by(reader: object, saved: SavedStep) -> Any:
    """What ``reader`` makes of a step: its ``read``, itself, or without one the mapping that was saved.

    >>> read_by(lambda saved: saved.step, SavedStep(100, {}, 1, Path("/nowhere"), ()))
    100
    """
    if reader is None:
        from phalanx.checkpoint.adapters import plain

        return plain.read(saved)
    read = getattr(reader, "read", None)
    if callable(read):
        return read(saved)
    _refuse_stateful(reader, "loads")
    if callable(reader):
        return reader(saved)
    raise TypeError(
        f"a reader is a callable that takes a SavedStep, or has read(saved), not {type(reader).__name__}"
    )


def _refuse_stateful(thing: object, does: str) -> None:
    """A model is callable, and would be called with a folder."""
    if callable(getattr(thing, "state_dict", None)):
        raise TypeError(f"{type(thing).__name__} has a state_dict: wrap it, TorchState(model=…) {does} it")


def _write_mapping(state: Mapping[str, Any], folder: Path) -> None:
    from phalanx.checkpoint.adapters import plain

    plain.write(folder, state)
