"""Turns an exception into the data of an error file: torchelastic's fields, and ours under ``extraInfo``.

Every field stands for itself: one whose making fails is replaced by a sentence that says so, because the exception at
hand may have a ``__str__`` that raises, a source file that is gone, or a chain without an end. Sizes are bounded here.
Imports only what the interpreter has loaded anyway; ``traceback`` when it is needed, and without it there is a plain
substitute, since a script's own ``tokenize.py`` can break the real one.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Any

__all__ = ["clean", "clip", "describe", "exit_code", "label"]

ROOM = (
    128 * 1024
)  # characters of a traceback; a report of that length is read by nobody, and the log has it whole
_MESSAGE_SHARE = 8  # a message may have an eighth of the room of the traceback
_ENTRIES = 16  # of a chain, and of notes
_MEMBERS = 32  # of a group and of the groups in it
_EXCEPTIONS = 500  # that are written out in one traceback
_FRAMES = 2000  # twice the interpreter's default recursion limit
_HERE = os.path.dirname(__file__)
# Of this package, and of what calls a function that is a worker.
_OUR_FOLDERS = (_HERE, os.path.join(os.path.dirname(_HERE), "functions"))


def describe(failure: BaseException, *, thread: str | None = None, room: int = ROOM) -> dict[str, Any]:
    """The data of an error file about ``failure``; strings, numbers, lists and dictionaries only. Never raises.

    ``thread`` is the name of the thread that raised, None for the main thread; ``room`` bounds the characters of the
    traceback, and everything else in proportion. The outer two levels are torchelastic 2.13's.
    """
    now_ns = time.time_ns()
    short = room // _MESSAGE_SHARE
    info: dict[str, Any] = {
        "py_callstack": _safely(lambda: clip(clean(format_traceback(failure)), room)),
        "timestamp": str(now_ns // 1_000_000_000),
        "format": 1,
        "wall_ns": now_ns,
        "monotonic_ns": time.monotonic_ns(),
        **_essentials(failure, short),
        "script_place": _safely(lambda: _place(failure, script_only=True), None),
        "exit_code": _safely(lambda: exit_code(failure), None),
        "notes": _safely(lambda: _notes(failure, short), []),
        "chain": _safely(lambda: _chain(failure, short // 4), []),
        "group": _safely(lambda: _group(failure, short // _MEMBERS, [_MEMBERS]), None),
        "thread": thread,
        "host": _safely(lambda: clean(os.uname().nodename)),
        "pid": os.getpid(),
        "rank": _number("RANK"),
        "local_rank": _number("PHALANX_LOCAL_RANK", "LOCAL_RANK"),  # the true one, where that is virtual
        "round": _number("PHALANX_ROUND"),
    }
    return {"message": {"message": label(failure, short), "extraInfo": info}}


def label(failure: BaseException, room: int = ROOM // _MESSAGE_SHARE) -> str:
    """``<Type>: <text>`` as torchelastic writes it. Never raises."""
    name = _safely(lambda: type(failure).__name__, "<exception with a broken type>")
    return clip(clean(f"{name}: {_text(failure)}"), room)


def exit_code(failure: BaseException) -> int | None:
    """The code with which the interpreter ends on this ``SystemExit``; None for every other exception."""
    if not isinstance(failure, SystemExit):
        return None
    code = failure.code
    return 0 if code is None else int(code) if isinstance(code, int) else 1


def clean(text: str) -> str:
    """The text with lone surrogates written as escapes: it goes into files and to consoles that refuse them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def clip(text: str, room: int) -> str:
    """The text, or its beginning and its end with a remark between them when it is longer than ``room``."""
    if len(text) <= room:
        return text
    head = room // 2
    tail = room - head
    return f"{text[:head]}\n… {len(text) - room} characters left out …\n{text[-tail:]}"


def format_traceback(failure: BaseException) -> str:
    """The traceback as the interpreter prints it, chain, notes and groups included, without frames of this package."""
    trace = _users_part(failure.__traceback__)
    if _is_endless(failure):
        return "".join(_plain_traceback(failure, trace))
    try:
        TracebackException = _traceback_module().TracebackException  # noqa: N806
        return "".join(
            TracebackException(type(failure), failure, trace, limit=-_FRAMES, compact=True).format()
        )
    except BaseException:  # noqa: BLE001 # no memory, no stack left, or not the real traceback module
        return "".join(_plain_traceback(failure, trace))


def _is_endless(failure: BaseException) -> bool:
    """Whether the chain and the groups, written out, have more than ``_EXCEPTIONS`` members.

    ``TracebackException`` writes all of it out first: a group of groups that share members took all memory.
    """
    pending = [failure]
    seen: set[int] = set()
    for _ in range(_EXCEPTIONS):
        if not pending:
            return False
        current = pending.pop()
        if isinstance(current, BaseExceptionGroup):
            pending += current.exceptions
        for led_to_it in (current.__cause__, current.__context__):
            if led_to_it is not None and id(led_to_it) not in seen:
                seen.add(id(led_to_it))
                pending.append(led_to_it)
    return bool(pending)


def _traceback_module() -> Any:
    """The standard library's, looked for without the script's folder: it needs ``tokenize``, a name that people use."""
    module = sys.modules.get("traceback")
    if module is not None or sys.flags.safe_path:
        import traceback

        return traceback
    folder = sys.path.pop(0) if sys.path else None
    try:
        import traceback
    finally:
        if folder is not None:
            sys.path.insert(0, folder)
    return traceback


def _plain_traceback(failure: BaseException, trace: TracebackType | None) -> Iterator[str]:
    yield "Traceback (most recent call last):\n"
    for frame, line in list(_walk(trace))[-_FRAMES:]:
        yield f'  File "{frame.co_filename}", line {line}, in {frame.co_name}\n'
    yield label(failure) + "\n"


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not of this package: of ``@record`` or the boot file."""
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) in _OUR_FOLDERS:
        trace = trace.tb_next
    return trace


def _walk(trace: TracebackType | None) -> Iterator[tuple[Any, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next


def _safely(make: Callable[[], Any], substitute: Any = "<not available>") -> Any:
    try:
        return make()
    except BaseException:  # noqa: BLE001 # user code runs here: __str__, metaclasses, properties
        return substitute


def _text(failure: BaseException) -> str:
    try:
        return str(failure)
    except BaseException:  # noqa: BLE001 # user code
        return "<exception str() failed>"


def _essentials(failure: BaseException, room: int) -> dict[str, Any]:
    return {
        "exception_type": _safely(lambda: clip(clean(_type_name(type(failure))), max(room, 200))),
        "text": clip(_safely(lambda: clean(_text(failure))), room),
        "place": _safely(lambda: _place(failure), None),
    }


def _type_name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


def _place(failure: BaseException, *, script_only: bool = False) -> dict[str, Any] | None:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(failure, SyntaxError) and failure.filename and failure.lineno:
        mistake = {"file": clean(failure.filename), "line": failure.lineno, "function": None}
        return mistake if not script_only or failure.filename == script else None
    place = None
    for code, line in _walk(_users_part(failure.__traceback__)):
        if not script_only or code.co_filename == script:
            place = (code, line)
    if place is None:
        return None
    return {"file": clean(place[0].co_filename), "line": place[1], "function": clean(place[0].co_name)}


def _notes(failure: BaseException, room: int) -> list[str]:
    notes = getattr(failure, "__notes__", [])
    return [clip(clean(str(note)), room // _ENTRIES) for note in list(notes)[:_ENTRIES]]


def _chain(failure: BaseException, room: int) -> list[dict[str, Any]]:
    """What led to ``failure``, nearest first, each with its relation to the one before it: cause or context."""
    chain: list[dict[str, Any]] = []
    seen = {id(failure)}
    current: BaseException | None = failure
    while current is not None and len(chain) < _ENTRIES:
        relation = "cause" if current.__cause__ is not None else "context"
        following = current.__cause__
        if following is None and not current.__suppress_context__:
            following = current.__context__
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        chain.append({"relation": relation, **_essentials(following, room)})
        current = following
    return chain


def _group(failure: BaseException, room: int, left: list[int]) -> list[dict[str, Any]] | None:
    """The members of an exception group, groups among them with members of their own; None for no group.

    ``left`` holds the number of members that may still be named: groups can share members without end.
    """
    if not isinstance(failure, BaseExceptionGroup):
        return None
    members = []
    for member in failure.exceptions:
        if left[0] == 0:
            break
        left[0] -= 1
        entry = _essentials(member, room)
        group = _group(member, room, left)
        members.append(entry if group is None else {**entry, "group": group})
    return members


def _number(*variables: str) -> int | None:
    for variable in variables:
        try:
            return int(os.environ[variable])
        except (KeyError, ValueError):
            continue
    return None
