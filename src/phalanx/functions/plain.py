"""Plain data as JSON that keeps types apart: what may cross between nodes. Used on both sides.

None, truths, numbers, texts, bytes, and lists, tuples, dictionaries and sets of such, of exactly these types. Never a
pickle: who can write to a job's store must not be able to run code in the programs that launched it.
"""

from __future__ import annotations

import binascii
import json

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["NotPlain", "from_plain", "to_plain"]

_DEPTH = 100
# Of more, Python refuses to make decimal digits, or to read them (sys.set_int_max_str_digits); hexadecimal ones never.
_DECIMAL_BITS = 2048
_SEQUENCES: dict[type, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_MAKERS: dict[str, Callable[[list[Any]], Any]] = {name: kind for kind, name in _SEQUENCES.items()}


class NotPlain(TypeError):
    """There is something in the value that is no plain data; the text says what."""


def to_plain(value: object) -> bytes:
    """The value as ASCII JSON. Raises ``NotPlain``."""
    return json.dumps(_written(value, 0), separators=(",", ":")).encode("ascii")


def from_plain(data: bytes) -> Any:
    """The value again, new objects throughout. Raises ``ValueError`` for what ``to_plain`` does not write."""
    try:
        return _read(json.loads(data), 0)
    except (KeyError, TypeError, RecursionError, UnicodeError, binascii.Error) as reason:
        raise ValueError(f"no plain data: {reason}") from None


def _written(value: Any, depth: int) -> Any:
    if type(value) is int and value.bit_length() > _DECIMAL_BITS:
        return {"int": hex(value)}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth == _DEPTH:
        raise NotPlain(f"it is nested deeper than {_DEPTH} levels")
    if type(value) is bytes:
        return {"bytes": binascii.b2a_base64(value, newline=False).decode("ascii")}
    if type(value) is dict:
        pairs = [[_written(key, depth + 1), _written(one, depth + 1)] for key, one in value.items()]
        return {"dict": pairs}
    if type(value) in _SEQUENCES:
        return {_SEQUENCES[type(value)]: [_written(one, depth + 1) for one in value]}
    kind = type(value)
    raise NotPlain(f"it has something of type {kind.__module__}.{kind.__qualname__} in it")


def _read(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > _DEPTH or not isinstance(value, dict) or len(value) != 1:
        raise ValueError("no plain data: of another form")
    ((kind, content),) = value.items()
    if kind == "bytes":
        return binascii.a2b_base64(content)
    if kind == "int":
        return int(content, 16)
    if not isinstance(content, list):
        raise ValueError("no plain data: of another form")  # noqa: TRY004 # what was written is wrong
    if kind == "dict":
        return {_read(key, depth + 1): _read(one, depth + 1) for key, one in content}
    return _MAKERS[kind]([_read(one, depth + 1) for one in content])
