"""Reads error files, whoever wrote them: torchelastic's two formats, ours, and anything that only has the name.

A worker's file is input from outside. Nothing in it can fail the reader: what cannot be understood becomes one sentence
in ``problem``, with the beginning of the content, because half of a traceback is better than none.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any

from ._description import clean

__all__ = ["ErrorRecord", "read_error_file"]

_MAX_BYTES = 16 * 1024 * 1024  # torch's recorder writes messages of any length; a 10 MB one was seen
_EXCERPT = 400  # characters of an unreadable file that go into its problem
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """What an error file says. Times are of the worker's machine; ``place`` is (file, line) of the failing frame.

    ``data`` is the file's JSON as found, or a substitute in torchelastic's short format when ``problem`` is set: one
    sentence on why the file could not be used. ``text`` is the exception's text without its type, ``script_place`` the
    deepest frame in the script itself, ``exit_code`` is set for ``SystemExit`` only, ``thread`` for threads only.

    >>> record = ErrorRecord(data={}, message="ValueError: bad batch", timestamp=0)
    >>> record.message, record.place
    ('ValueError: bad batch', None)
    """

    data: dict[str, Any]
    message: str
    timestamp: int
    exception_type: str = ""
    text: str = ""
    traceback: str = ""
    place: tuple[str, int] | None = None
    script_place: tuple[str, int] | None = None
    wall_ns: int | None = None
    monotonic_ns: int | None = None
    thread: str | None = None
    exit_code: int | None = None
    problem: str | None = None


def read_error_file(path: str | os.PathLike[str]) -> ErrorRecord:
    """Read the error file at ``path``. Never raises; see ``ErrorRecord.problem``.

    >>> with open("error.json", "w") as file:
    ...     _ = file.write('{"message": "out of paper"}')
    >>> read_error_file("error.json").message
    'out of paper'
    """
    try:
        content = _content(os.fspath(path))
        return _record(content)
    except _Unusable as problem:
        return _substitute(f"the error file {os.fspath(path)!r} {problem}")
    except FileNotFoundError:
        return _substitute(f"there is no error file {os.fspath(path)!r}")
    except OSError as error:
        return _substitute(f"the error file {os.fspath(path)!r} cannot be read: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 # a border: input from outside, and the agent must go on
        return _substitute(f"the error file {path!r} cannot be understood: {type(error).__name__}: {error}")


class _Unusable(Exception):
    """The rest of the sentence "the error file 'x' …"."""


def _content(path: str) -> bytes:
    descriptor = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    )  # a fifo by that name must not block us
    with open(descriptor, "rb") as file:
        if not os.path.isfile(path):
            raise _Unusable("is no regular file")
        content = file.read(_MAX_BYTES + 1)
    if not content.strip():
        raise _Unusable("is empty")
    if len(content) > _MAX_BYTES:
        raise _Unusable(f"is larger than {_MAX_BYTES >> 20} MiB; it begins with {_excerpt(content)}")
    return content


def _record(content: bytes) -> ErrorRecord:
    try:
        data = json.loads(content)
    except UnicodeDecodeError:
        raise _Unusable(f"is no text; it begins with {_excerpt(content)}") from None
    except RecursionError:
        raise _Unusable(f"is nested too deeply; it begins with {_excerpt(content)}") from None
    except ValueError as error:
        raise _Unusable(f"is no JSON ({error}); it begins with {_excerpt(content)}") from None
    message = data.get("message") if isinstance(data, dict) else None
    if isinstance(message, str):
        return _short_form(data, clean(message))
    if isinstance(message, dict):
        return _long_form(data, message)
    raise _Unusable(f"has no message; it begins with {_excerpt(content)}")


def _short_form(data: dict[str, Any], message: str) -> ErrorRecord:
    kind, text = _split(message)
    stamp = _int(data.get("timestamp"))
    return ErrorRecord(data, message, _now() if stamp is None else stamp, kind, text)


def _long_form(data: dict[str, Any], message: dict[str, Any]) -> ErrorRecord:
    info = message.get("extraInfo")
    if not isinstance(info, dict):
        info = {}
    sentence = clean(str(message.get("message", "<N/A>")))
    kind, text = _split(sentence)
    stamp = _int(info.get("timestamp"))
    thread = info.get("thread")
    return ErrorRecord(
        data=data,
        message=sentence,
        timestamp=_now() if stamp is None else stamp,
        exception_type=_text(info.get("exception_type")) or kind,
        text=_text(info.get("text"), text),
        traceback=_text(info.get("py_callstack")),
        place=_place(info.get("place")),
        script_place=_place(info.get("script_place")),
        wall_ns=_int(info.get("wall_ns")),
        monotonic_ns=_int(info.get("monotonic_ns")),
        thread=clean(thread) if isinstance(thread, str) else None,
        exit_code=_int(info.get("exit_code")),
    )


def _substitute(problem: str) -> ErrorRecord:
    sentence = clean(problem)
    now = _now()
    return ErrorRecord({"message": sentence, "timestamp": now}, sentence, now, problem=sentence)


def _split(message: str) -> tuple[str, str]:
    """Type and text of ``<Type>: <text>``; no type when it does not begin with one word."""
    kind, colon, text = message.partition(": ")
    return (kind, text) if colon and kind.replace(".", "").isidentifier() else ("", message)


def _text(value: Any, substitute: str = "") -> str:
    return clean(value) if isinstance(value, str) else substitute


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1 << 63 else None


def _place(value: Any) -> tuple[str, int] | None:
    if not isinstance(value, dict) or not isinstance(value.get("file"), str):
        return None
    line = _int(value.get("line"))
    return None if line is None else (clean(value["file"]), line)


def _excerpt(content: bytes) -> str:
    return repr(content[:_EXCERPT].decode("utf-8", "replace"))


def _now() -> int:
    return time.time_ns() // _NS
