"""What a state may be: a mapping, a callable that takes a folder, or an object with ``write``; and what a reader.

Whatever a save has to know of a state is asked here: what writes it, whether that needs all ranks at once, and, in the
background, whether a copy of it waits to be written or it is written while the program waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from phalanx.checkpoint.adapters import plain
from phalanx.checkpoint.saved import SavedStep

__all__ = [
    "Readable",
    "Writable",
    "check",
    "is_collective",
    "is_written_at_once",
    "read_by",
    "snapshot_of",
    "writer_of",
]


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


def check(state: object, part: int | None = None) -> None:
    """Raises for what cannot be saved, before anything is written: as ``writer_of``, and for a mapping ``plain.check``.

    >>> check({"shape": (2, 3)})
    Traceback (most recent call last):
    TypeError: shape is a tuple, which JSON would give back as a list; save a list
    """
    writer_of(state, part)
    if isinstance(state, Mapping):
        plain.check(state)


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
        return lambda folder: plain.write(folder, state)
    if callable(state):
        return state
    raise TypeError(
        f"a state to save is a mapping, a callable that takes a folder, or an object with write(folder), "
        f"not {type(state).__name__}"
    )


def is_collective(state: object) -> bool:
    """Whether the writing of ``state`` needs all ranks at once: torch.distributed.checkpoint, say."""
    return bool(getattr(state, "is_collective", False))


def is_written_at_once(state: object) -> bool:
    """Whether ``state`` is a callable, of which nobody can take a copy: it is called while the program waits.

    One that ``is_collective`` is not: ``snapshot_of`` refuses it.

    >>> is_written_at_once(print), is_written_at_once({"epoch": 1})
    (True, False)
    """
    is_object = callable(getattr(state, "snapshot", None)) or callable(getattr(state, "write", None))
    return callable(state) and not (is_object or isinstance(state, Mapping) or is_collective(state))


def snapshot_of(state: Any, part: int | None = None) -> Any:
    """What ``save`` can write later, whatever the training does to ``state`` meanwhile.

    A mapping: a copy of its entries. An object: what its ``snapshot()`` returns; of a sharded step, for the rank
    ``part``, ``snapshot_part(part)`` if it has that: no more than this rank writes. Raises ``TypeError`` for an object
    that has ``write`` but no ``snapshot``, and for one that ``is_collective``.

    >>> weights = bytearray(b"1")
    >>> copy = snapshot_of({"weights": weights, "epoch": [1]})
    >>> weights[0] = 50
    >>> copy
    {'weights': b'1', 'epoch': [1]}
    """
    name = type(state).__name__
    if is_collective(state):
        raise TypeError(
            f"the ranks that write a {name} talk to each other: in the background they would meet the collectives of "
            "the training; save it in the foreground"
        )
    snapshot_part = getattr(state, "snapshot_part", None)
    if part is not None and callable(snapshot_part):
        return snapshot_part(part)
    snapshot = getattr(state, "snapshot", None)
    if callable(snapshot):
        return snapshot()
    if callable(getattr(state, "write", None)):
        raise TypeError(
            f"{name} has write() and no snapshot(): in the background it would be written while it "
            "changes; give it one, or save it in the foreground"
        )
    if isinstance(state, Mapping):
        return {name: _copy(value) for name, value in state.items()}
    return state  # who writes it says what is wrong with it


def _copy(value: Any) -> Any:
    if isinstance(value, bytes | str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "__array_interface__"):
        return value.copy()
    from copy import deepcopy

    return deepcopy(value)


def read_by(reader: object, saved: SavedStep) -> Any:
    """What ``reader`` makes of a step: its ``read``, itself, or without one the mapping that was saved.

    >>> read_by(lambda saved: saved.step, SavedStep(100, {}, 1, Path("/nowhere"), ()))
    100
    """
    if reader is None:
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
