"""Records as JSON and back: what a program and the agent that it hosts hand each other.

The annotations of a record say how. Both ways are strict, so that a value that fits no field is one sentence about
that field in the program that made it, and no surprise in another process. What JSON lacks is written as follows:
bytes ``{"hex": "…"}``, a mapping as a list of pairs, a set or a tuple as a list, an enumeration by its value.
"""

from __future__ import annotations

import collections.abc
import json
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from operator import index
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from phalanx.multiprocessing.std import Std
from phalanx.records import Struct

__all__ = ["from_json", "to_json"]

AnyStruct = TypeVar("AnyStruct", bound=Struct)

_SETS = (set, frozenset)
_MAPPINGS = (dict, collections.abc.Mapping)
_SEQUENCES = (tuple, list, collections.abc.Sequence)


def to_json(record: Struct) -> str:
    """The record as text. Raises ``TypeError``, with a sentence, when a value is not of its field's kind."""
    # Not UTF-8 as it is: arguments and paths may hold bytes that are no text, which Python keeps as lone surrogates.
    return json.dumps(_write(record, type(record), type(record).__name__), separators=(",", ":"))


def from_json(text: str | bytes, kind: type[AnyStruct]) -> AnyStruct:
    """What ``to_json`` wrote of a record of this kind. Raises ``ValueError``, with a sentence, for anything else."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"{kind.__name__} cannot be read: {reason}") from None
    record: AnyStruct = _read(read, kind, kind.__name__)
    return record


@lru_cache
def _fields(kind: type[Struct]) -> dict[str, Any]:
    """Each field's annotation, evaluated. ``Std`` is imported for type checkers only where it is used so."""
    hints = get_type_hints(kind, localns={"Std": Std})
    return {name: hints[name] for name in kind.__struct_fields__}


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


def _first(
    kinds: Iterable[Any], convert: Callable[[Any], Any], complaint: type[Exception], otherwise: str
) -> Any:
    for kind in kinds:
        try:
            return convert(kind)
        except complaint:
            continue
    raise complaint(otherwise)


def _item_kinds(kind: Any, count: int) -> list[Any] | None:
    """The kinds of the items of a sequence or set of that length; None if it cannot have that length."""
    kinds = get_args(kind)
    if get_origin(kind) is not tuple or (len(kinds) == 2 and kinds[1] is Ellipsis):
        return [kinds[0]] * count
    return list(kinds) if len(kinds) == count else None


def _one_of(value: Any, kind: Any, complaint: type[Exception], otherwise: str) -> Any:
    if any(type(value) is type(one) and value == one for one in get_args(kind)):
        return value
    # Made here: an exception that a frame knows by name keeps that frame, and all above it, until the next collection.
    raise complaint(otherwise)


def _name(kind: Any) -> str:
    return (
        kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")
    )


# Writing


def _write(value: Any, kind: Any, where: str) -> Any:
    wrong = f"{where} is to be {_name(kind)}, and is {value!r}, of type {type(value).__name__}"
    if kinds := _alternatives(kind):
        return _first(kinds, lambda one: _write(value, one, where), TypeError, wrong)
    if (origin := get_origin(kind)) is not None:
        return _write_other(value, kind, origin, where, wrong)
    if kind is float and type(value) is not bool and isinstance(value, int | float):
        return float(value)
    if kind is int and not isinstance(value, bool) and hasattr(value, "__index__"):
        return index(value)  # of numpy, too
    if not (isinstance(kind, type) and isinstance(value, kind)) or kind in (int, float):
        raise TypeError(wrong)
    if isinstance(value, Struct):
        return {
            name: _write(getattr(value, name), one, f"{where}.{name}") for name, one in _fields(kind).items()
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if kind not in (str, bool, NoneType):
        raise TypeError(f"{where}: no form in JSON is known for {_name(kind)}")
    return value


def _write_other(value: Any, kind: Any, origin: Any, where: str, wrong: str) -> Any:
    if origin is Literal:
        return _one_of(value, kind, TypeError, wrong)
    if origin in _MAPPINGS and isinstance(value, collections.abc.Mapping):
        of_key, of_value = get_args(kind)
        return [
            [_write(key, of_key, f"a key of {where}"), _write(one, of_value, f"{where}[{key!r}]")]
            for key, one in value.items()
        ]
    if origin in _SETS and isinstance(value, collections.abc.Set):
        items: Any = sorted(value)
    elif origin in _SEQUENCES and isinstance(value, tuple | list):
        items = value
    else:
        raise TypeError(wrong)
    kinds = _item_kinds(kind, len(items))
    if kinds is None:
        raise TypeError(wrong)
    return [
        _write(one, of_one, f"{where}[{n}]") for n, (one, of_one) in enumerate(zip(items, kinds, strict=True))
    ]


# Reading


def _read(value: Any, kind: Any, where: str) -> Any:
    wrong = f"{where} is to be {_name(kind)}, and is {_shown(value)}"
    if kinds := _alternatives(kind):
        return _first(kinds, lambda one: _read(value, one, where), ValueError, wrong)
    if (origin := get_origin(kind)) is not None:
        return _read_other(value, kind, origin, where, wrong)
    if issubclass(kind, Struct):
        return _read_record(value, kind, where, wrong)
    if issubclass(kind, Enum):
        if type(value) not in (int, str):
            raise ValueError(wrong)
        return kind(value)
    if kind is bytes:
        if not (isinstance(value, dict) and value.keys() == {"hex"} and isinstance(value["hex"], str)):
            raise ValueError(wrong)
        return bytes.fromhex(value["hex"])
    if type(value) is not kind:
        raise ValueError(wrong)
    return value


def _read_record(value: Any, kind: type[Struct], where: str, wrong: str) -> Struct:
    if not isinstance(value, dict):
        raise ValueError(wrong)  # noqa: TRY004 # what was written is wrong, not what we were called with
    kinds = _fields(kind)
    if odd := sorted(value.keys() ^ kinds.keys()):
        raise ValueError(f"{where}: missing or unknown: {', '.join(odd)}")
    return kind(**{name: _read(value[name], one, f"{where}.{name}") for name, one in kinds.items()})


def _read_other(value: Any, kind: Any, origin: Any, where: str, wrong: str) -> Any:
    if origin is Literal:
        return _one_of(value, kind, ValueError, wrong)
    if not isinstance(value, list):
        raise ValueError(wrong)  # noqa: TRY004 # as above
    if origin in _MAPPINGS:
        if not all(isinstance(one, list) and len(one) == 2 for one in value):
            raise ValueError(wrong)
        of_key, of_value = get_args(kind)
        return {
            _read(key, of_key, f"a key of {where}"): _read(one, of_value, f"{where}[{_shown(key)}]")
            for key, one in value
        }
    kinds = _item_kinds(kind, len(value))
    if kinds is None:
        raise ValueError(wrong)
    make = origin if origin in (*_SETS, list) else tuple
    return make(
        _read(one, of_one, f"{where}[{n}]") for n, (one, of_one) in enumerate(zip(value, kinds, strict=True))
    )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
