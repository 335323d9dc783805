"""A mapping of names to bytes, numpy arrays or JSON values: one file for each entry, and no pickle.

``entries.json`` lists them, in order. A value comes back with the type it had; what would not is refused when it is
saved. numpy loads only where there is an array.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from phalanx.checkpoint.exceptions import CheckpointError
from phalanx.checkpoint.saved import SavedStep

__all__ = ["check", "check_json", "check_name", "read", "read_part", "write"]

_INDEX = "entries.json"
_RESERVED = {
    "entries",
    "manifest",
}  # as JSON values they would have the names of the index and of the manifest
_VERSION = 1
_NAME_BYTES = 200  # a file name has up to 255, and a suffix
_DEPTH = 100  # of nested values; Python's own parser gives up at about a thousand
_SUFFIXES = {"bytes": ".bin", "array": ".npy", "json": ".json"}
_BEYOND_NUMPY = (
    "ml_dtypes."  # in a field's name, the type of an array that numpy itself cannot name in a file
)


def write(folder: Path, mapping: Mapping[str, Any]) -> None:
    """Write each entry as ``name.bin``, ``name.npy`` or ``name.json``.

    Raises as ``check`` does, before anything is written.
    """
    kinds = check(mapping)
    for name, kind in kinds.items():
        path, value = folder / (name + _SUFFIXES[kind]), mapping[name]
        if kind == "bytes":
            path.write_bytes(value)
        elif kind == "json":
            path.write_text(json.dumps(value), encoding="ascii")
        else:
            _write_array(path, value)
    index = {"version": _VERSION, "entries": kinds}
    (folder / _INDEX).write_text(json.dumps(index), encoding="ascii")


def read(saved: SavedStep) -> Any:
    """The mapping that was saved, as a dict; of a sharded step a list of them, by rank.

    Files that others wrote beside them are left alone. Raises ``CheckpointError`` for a folder that no mapping was
    saved into, and for entries of a later release.
    """
    if saved.parts == (saved.folder,):
        return read_part(saved.folder)
    return [read_part(part) for part in saved.parts]


def read_part(folder: Path) -> dict[str, Any]:
    """The entries in one folder; of an empty one none."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="ascii"))
    except FileNotFoundError:
        _refuse_others(folder)
        return {}
    except ValueError as error:
        raise CheckpointError(f"{folder / _INDEX} cannot be read: {error}") from None
    if not isinstance(index, dict) or index.get("version") != _VERSION:
        raise CheckpointError(
            f"{folder / _INDEX} was not written by this release; read the step with a later one"
        )
    return {name: _read(path, kind) for name, kind, path in _paths(folder, index.get("entries"))}


def _paths(folder: Path, entries: object) -> list[tuple[str, str, Path]]:
    """Where the entries are. A step may come from anybody: no name in it leads out of its folder."""
    if not isinstance(entries, dict):
        raise CheckpointError(f"{folder / _INDEX} has no entries")
    found = []
    for name, kind in entries.items():
        try:
            check_name(name)
        except ValueError as error:
            raise CheckpointError(f"{folder / _INDEX} is not one of ours: {error}") from None
        if not isinstance(kind, str) or kind not in _SUFFIXES:
            raise CheckpointError(f"{folder / _INDEX} says that {name} is {kind!r}, which is not known here")
        found.append((name, kind, folder / (name + _SUFFIXES[kind])))
    return found


def _refuse_others(folder: Path) -> None:
    """A folder with files of another writer is no empty mapping: training would go on with nothing."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        with_what = "the object that saved it" if "torch-state.json" not in names else "a TorchState"
        raise CheckpointError(
            f"{folder} holds no mapping but {shown}: give load a reader, {with_what} or a callable that takes the"
            " SavedStep"
        )


def check(mapping: Mapping[str, Any]) -> dict[str, str]:
    """What each entry is saved as: ``bytes``, ``array`` or ``json``.

    Raises ``ValueError`` for names that are no plain file names, ``TypeError`` or ``ValueError`` for values that would
    not come back as they are. Floats may be NaN and infinite.

    >>> check({"weights": b"1234", "epoch": 3})
    {'weights': 'bytes', 'epoch': 'json'}
    >>> check({"shape": (2, 3)})
    Traceback (most recent call last):
    TypeError: shape is a tuple, which JSON would give back as a list; save a list
    """
    return {check_name(name): _kind(name, value) for name, value in mapping.items()}


def check_name(name: object) -> str:
    """``name``, if it can be a file's on any system and hides nothing. Raises ``TypeError`` or ``ValueError``.

    >>> check_name("model/first")
    Traceback (most recent call last):
    ValueError: 'model/first' is no name for an entry: it contains '/'; names of entries become names of files
    """
    if not isinstance(name, str):
        raise TypeError(
            f"{name!r} is no name for an entry: it is no text; names of entries become names of files"
        )
    bad = sorted({character for character in name if character in "/\\" or not character.isprintable()})
    reason = ""
    if not name:
        reason = "it is empty"
    elif name.startswith("."):
        reason = "it begins with a dot"
    elif bad:
        reason = f"it contains {', '.join(map(repr, bad))}"
    elif len(name.encode()) > _NAME_BYTES:
        reason = f"it has more than {_NAME_BYTES} bytes"
    elif name.casefold() in _RESERVED:
        reason = "a file of that name is there already"
    if reason:
        raise ValueError(
            f"{name!r} is no name for an entry: {reason}; names of entries become names of files"
        )
    return name


def check_json(value: Any, where: str, depth: int = 0) -> None:
    """Raises ``TypeError`` or ``ValueError`` if ``value`` would not come back from JSON as it is, and says where.

    >>> check_json({"lr": [0.1, {3: None}]}, "schedule")
    Traceback (most recent call last):
    TypeError: schedule['lr'][1] has the key 3; keys in JSON are strings
    """
    kind = type(
        value
    )  # exactly: an IntEnum, a named tuple or numpy's float64 would come back as something else
    if value is None or kind in (bool, float):
        return
    if kind is int:
        if abs(value) >= 1 << 1024:
            raise ValueError(
                f"{where} has more than 1024 bits, which other readers of JSON do not take; save its bytes"
            )
    elif kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{where} is no text that could be encoded; save its bytes") from None
    elif depth == _DEPTH:
        raise ValueError(f"{where[:60]}… is nested more than {_DEPTH} times, or contains itself")
    elif kind is list:
        for index, item in enumerate(value):
            check_json(item, f"{where}[{index}]", depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(f"{where} has the key {key!r}; keys in JSON are strings")
            check_json(item, f"{where}[{key!r}]", depth + 1)
    else:
        raise TypeError(f"{where} is {_not_json(value)}")


def _not_json(value: object) -> str:
    kind = type(value)
    name = (
        f"a {kind.__name__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
    )
    if kind is tuple and not _has_tensors(value):
        return f"{name}, which JSON would give back as a list; save a list"
    if hasattr(value, "state_dict"):
        return f"{name}; save it with TorchState(model=…), which takes whatever has a state_dict"
    if kind.__module__ == "torch" or kind.__module__.startswith("torch.") or _has_tensors(value):
        held = "" if kind.__module__.startswith("torch") else " with tensors"
        return (
            f"{name}{held}; save a training with TorchState(model=…, optimizer=…), other tensors with"
            " TorchSave(value), a single number as float(…)"
        )
    if getattr(value, "ndim", 0) and kind.__module__.partition(".")[0] == "numpy":
        return f"{name}; an array is saved only as an entry of its own of a mapping, and not within another value"
    if kind.__module__ == "numpy" and hasattr(value, "item"):
        return f"{name}; save its item(), or an array of its own"
    return f"{name}, which JSON cannot hold; save bytes, a numpy array, or a dict, list, str, number, bool or None"


def _has_tensors(value: object, depth: int = 0) -> bool:
    """Whether a tensor of torch's is somewhere in it: a state dict is the first thing that people save."""
    torch = sys.modules.get("torch")
    if torch is None or depth > _DEPTH:
        return False
    if isinstance(value, Mapping):
        return any(_has_tensors(item, depth + 1) for item in value.values())
    if isinstance(value, list | tuple | set):
        return any(_has_tensors(item, depth + 1) for item in value)
    return isinstance(value, torch.Tensor)


def _kind(name: str, value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    numpy = sys.modules.get("numpy")  # who has an array has imported it
    if numpy is None or not isinstance(value, numpy.ndarray):
        check_json(value, name)
        return "json"
    if type(value) is not numpy.ndarray:
        raise TypeError(
            f"{name} is a {type(value).__name__}, which would come back as a plain array; save numpy.array(…) of it"
        )
    _stored(name, value)
    return "array"


def _stored(name: str, value: Any) -> Any:
    """``value`` as an array whose type numpy's files can name; the same memory."""
    import numpy as np

    dtype = value.dtype
    if dtype.hasobject:
        raise TypeError(
            f"{name} is an array of objects ({dtype}), which only pickle could save; save numbers or bytes"
        )
    if dtype.type.__module__ == "ml_dtypes":
        return value.view([(_BEYOND_NUMPY + dtype.name, f"<u{dtype.itemsize}")])
    if np.lib.format.descr_to_dtype(np.lib.format.dtype_to_descr(dtype)) != dtype:
        raise TypeError(
            f"{name} is an array of {dtype}, which numpy's files cannot name; save a view of its bytes"
        )
    if dtype.names and dtype.names[0].startswith(_BEYOND_NUMPY):
        raise ValueError(
            f"{name} has a field that is called {dtype.names[0]!r}; that name has another meaning here"
        )
    return value


def _write_array(path: Path, value: Any) -> None:
    import numpy as np

    with path.open("wb") as file:
        np.lib.format.write_array(_Sink(file), _stored(path.stem, value), allow_pickle=False)


class _Sink:
    """A file that numpy does not know for one: it would write by ``tofile``, whose errors do not say what the system
    said. A full disk has to be told from another fault.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.write = file.write


def _read(path: Path, kind: str) -> Any:
    if kind == "bytes":
        return path.read_bytes()
    if kind == "json":
        return json.loads(path.read_text(encoding="ascii"))
    import numpy as np

    value = np.load(path, allow_pickle=False)
    if value.dtype.names and value.dtype.names[0].startswith(_BEYOND_NUMPY):
        name = value.dtype.names[0].removeprefix(_BEYOND_NUMPY)
        try:
            import ml_dtypes
        except ImportError:
            raise CheckpointError(
                f"{path.name} is an array of {name}, which numpy alone does not know; pip install ml-dtypes"
            ) from None
        return value.view(getattr(ml_dtypes, name))
    return value
