"""What in a value keeps it from being pickled: found by trying its parts, once the whole has failed. On both sides."""

from __future__ import annotations

from .pickling import Nowhere, dump

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["culprit"]

_DEPTH = 8
_PARTS = 1000  # of one value; the one at fault is often a single attribute, and each try costs a pickle


def culprit(value: object, name: str, reason: Exception, *, by_value: bool) -> str:
    """``result['lock'] is a _thread.lock (cannot pickle …)``: the deepest part that fails, and why."""
    for _ in range(_DEPTH):
        found = next(_failing(value, name, by_value=by_value), None)
        if found is None:
            break
        value, name, reason = found
    kind = type(value)
    shown = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} is of type {shown} ({_sentence(reason)})"


def _failing(value: object, name: str, *, by_value: bool) -> Iterator[tuple[object, str, Exception]]:
    for count, (part, place) in enumerate(_parts(value, name)):
        if count == _PARTS:
            return
        try:
            dump(part, Nowhere(), by_value=by_value)
        except Exception as reason:  # noqa: BLE001 # the user's classes
            yield part, place, reason


def _parts(value: object, name: str) -> Iterator[tuple[object, str]]:
    if isinstance(value, dict):
        for key, part in list(value.items()):
            yield key, f"a key of {name}"
            yield part, f"{name}[{_short(key)}]"
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield part, f"{name}[{index}]"
    elif isinstance(value, set | frozenset):
        for part in value:
            yield part, f"an item of {name}"
    elif not isinstance(value, type):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            for key, part in list(attributes.items()):
                yield part, f"{name}.{key}"
        closure = getattr(value, "__closure__", None) or ()
        variables = getattr(getattr(value, "__code__", None), "co_freevars", ())
        for variable, cell in zip(variables, closure, strict=False):
            try:
                yield cell.cell_contents, f"the variable {variable!r} of {name}"
            except ValueError:  # an empty cell
                continue


def _short(key: object) -> str:
    try:
        text = repr(key)
    except Exception:  # noqa: BLE001 # the user's code
        return "…"
    return text if len(text) <= 60 else f"{text[:60]}…"


def _sentence(reason: Exception) -> str:
    try:
        return str(reason).partition("\n")[0][:300] or type(reason).__name__
    except Exception:  # noqa: BLE001 # the user's code
        return type(reason).__name__
