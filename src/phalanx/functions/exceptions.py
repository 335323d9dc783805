"""An exception with all that belongs to it, as bytes: type, arguments, traceback, cause, context, members of a group.

Each exception of a chain is pickled by itself, so that one that cannot be sent is replaced by its type's name and its
text, and the rest arrives. Used on both sides: ``packed`` in the worker, ``unpacked`` in the program that launched it.
"""

from __future__ import annotations

import io
import pickle

from .pickling import dump
from .tracebacks import frames_of, traceback_of

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

__all__ = ["packed", "rebuilt", "unpacked"]

_MEMBERS = 200  # exceptions of chains and groups; what is beyond is told in the report as text


def packed(
    failure: BaseException,
    *,
    by_value: bool,
    users_part: Callable[[TracebackType | None], TracebackType | None],
) -> bytes:
    """The exception as bytes. Never raises an ``Exception``. ``users_part`` cuts a traceback's frames of ours off."""
    numbers: dict[int, int] = {}
    alive: list[BaseException] = []  # ids are theirs as long as they are
    entries: list[dict[str, Any]] = []

    def number(one: BaseException | None) -> int | None:
        if one is None:
            return None
        if id(one) not in numbers and len(alive) < _MEMBERS:
            numbers[id(one)] = len(alive)
            alive.append(one)
        return numbers.get(id(one))

    number(failure)
    while len(entries) < len(alive):
        one = alive[len(entries)]
        entries.append(
            {
                "pickle": _pickle_of(one, by_value=by_value),
                "type": _named(type(one)),
                "text": _text_of(one),
                "frames": frames_of(users_part(one.__traceback__)),
                "cause": number(one.__cause__),
                "context": number(one.__context__),
                "suppress": one.__suppress_context__,
                "members": [number(m) for m in one.exceptions] if isinstance(one, BaseExceptionGroup) else [],
            }
        )
    return pickle.dumps(entries, protocol=5)


def unpacked(data: bytes, substitute: Callable[[str, str], BaseException]) -> BaseException:
    """The exception again. ``substitute(type's name, text)`` stands in for one that cannot be made here."""
    entries: list[dict[str, Any]] = pickle.loads(data)
    made = [_made(entry, substitute) for entry in entries]
    for one, entry in zip(made, entries, strict=True):
        one.__traceback__ = traceback_of(entry["frames"])
        one.__cause__ = None if entry["cause"] is None else made[entry["cause"]]
        one.__context__ = None if entry["context"] is None else made[entry["context"]]
        one.__suppress_context__ = entry["suppress"]
    for one, entry in zip(made, entries, strict=True):
        if isinstance(one, BaseExceptionGroup) and len(one.exceptions) == len(entry["members"]):
            for member, index in zip(one.exceptions, entry["members"], strict=True):
                if (
                    index is not None
                ):  # the group was pickled with members of its own: they get what was sent apart
                    _resemble(member, made[index])
    return made[0]


def rebuilt(kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    """An exception as it was, without a call of its ``__init__``, which may want other arguments than ``args``."""
    one = kind.__new__(kind, *args)
    one.args = args
    one.__dict__.update(state)
    return one


def _pickle_of(failure: BaseException, *, by_value: bool) -> bytes | None:
    """A pickle that can be read again: this is tried here, where a way around it is known. None: there is none."""
    for form in (lambda: failure, lambda: (type(failure), failure.args, vars(failure))):
        try:
            file = io.BytesIO()
            dump(form(), file, by_value=by_value)
            data = file.getvalue()
            if isinstance(_loaded(data), BaseException):
                return data
        except Exception:  # noqa: BLE001 # the user's code: __reduce__, __init__, recursion
            continue
    return None


def _loaded(data: bytes) -> Any:
    found = pickle.loads(data)
    return rebuilt(*found) if isinstance(found, tuple) else found


def _made(entry: dict[str, Any], substitute: Callable[[str, str], BaseException]) -> BaseException:
    try:
        found = None if entry["pickle"] is None else _loaded(entry["pickle"])
    except Exception:  # noqa: BLE001 # as above; also classes that cannot be imported here
        found = None
    return found if isinstance(found, BaseException) else substitute(entry["type"], entry["text"])


def _resemble(one: BaseException, other: BaseException) -> None:
    one.__traceback__ = other.__traceback__
    one.__cause__, one.__context__ = other.__cause__, other.__context__
    one.__suppress_context__ = other.__suppress_context__


def _named(kind: type[BaseException]) -> str:
    try:
        plain = kind.__module__ in ("builtins", "__main__", "__mp_main__")
        return str(kind.__qualname__ if plain else f"{kind.__module__}.{kind.__qualname__}")
    except Exception:  # noqa: BLE001 # a metaclass of the user's
        return "an exception with a broken type"


def _text_of(failure: BaseException) -> str:
    try:
        return str(failure)[:100_000]
    except Exception:  # noqa: BLE001 # the user's code
        return "<exception str() failed>"
