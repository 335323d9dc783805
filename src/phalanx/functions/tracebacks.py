"""A traceback as plain data, and again as a traceback that prints and can be walked through. Used on both sides.

A frame cannot be made, only entered: for each one a line of code runs that carries the name, the file and the line of
the frame that it stands for. Locals do not travel. Columns neither, so that no line is underlined wrongly.
"""

from __future__ import annotations

from types import CodeType, TracebackType

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import Any

__all__ = ["frames_of", "traceback_of"]

_FRAMES = 400  # of one traceback, half from each end: a recursion has a thousand that say the same
_UNITS_PER_ENTRY = 8  # code units that one entry of a table of locations covers at most
_NO_COLUMNS = (
    13  # the kind of entry that has a line alone; see "code objects" in CPython's internal documentation
)


def frames_of(trace: TracebackType | None) -> list[dict[str, Any]]:
    """Its frames from the outermost on: file, function, line, and the module's name. Never raises."""
    links = []
    while trace is not None:
        links.append(trace)
        trace = trace.tb_next
    if len(links) > _FRAMES:
        links = [*links[: _FRAMES // 2], *links[-_FRAMES // 2 :]]
    return [
        {
            "file": str(link.tb_frame.f_code.co_filename),
            "function": str(link.tb_frame.f_code.co_name),
            "line": int(link.tb_lineno or 0),
            "module": _text(link.tb_frame.f_globals.get("__name__")),
        }
        for link in links
    ]


def traceback_of(frames: list[dict[str, Any]]) -> TracebackType | None:
    """A traceback with these frames; None without any."""
    trace: TracebackType | None = None
    for frame in reversed(frames):
        here = _entered(frame)
        trace = TracebackType(trace, here.tb_frame, here.tb_lasti, max(frame["line"], 1))
    return trace


def _entered(frame: dict[str, Any]) -> TracebackType:
    code: CodeType = _RAISES.replace(
        co_filename=frame["file"],
        co_name=frame["function"],
        co_qualname=frame["function"],
        co_firstlineno=max(frame["line"], 1),
        co_linetable=_line_table(len(_RAISES.co_code) // 2),
    )
    try:
        exec(code, {"__name__": frame["module"], "__file__": frame["file"]})  # it raises, no more
    except ZeroDivisionError as passed:
        trace = passed.__traceback__
        assert trace is not None
        assert trace.tb_next is not None
        return trace.tb_next
    raise AssertionError("one divided by zero")


_RAISES = compile("1 / 0", "<frame>", "eval")


def _line_table(units: int) -> bytes:
    """A table that places all of a code object at its first line, at no column."""
    table = bytearray()
    while units > 0:
        covered = min(units, _UNITS_PER_ENTRY)
        table += bytes((0x80 | _NO_COLUMNS << 3 | covered - 1, 0))
        units -= covered
    return bytes(table)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
