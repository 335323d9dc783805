r"""Composes what many streams show on one terminal: whole lines scroll, one unfinished line stays at the bottom.

Without this, a progress bar of one rank and the lines of another write over each other. The live line belongs to the
stream that began it until that stream ends the line, so bars of several ranks do not flicker; the others' last states
appear as whole lines. Pure: it returns bytes, and knows the terminal only by what it has told it to show.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["LiveScreen"]

_WIPE = b"\r\x1b[K"
# The live line must stay one row high, or it could not be wiped: the terminal itself cuts it (auto-wrap off),
# so no width needs to be known. Colours that the cut leaves open are closed.
_BEGIN, _END = b"\x1b[?7l", b"\x1b[0m\x1b[?7h"


class LiveScreen:
    """The bottom row of a terminal."""

    __slots__ = ("_inside_line", "_live", "_owner")

    def __init__(self) -> None:
        self._owner: Hashable = None
        self._live = b""
        self._inside_line = False

    def compose(self, source: Hashable, lines: bytes, unfinished: bytes) -> bytes:
        r"""Show whole ``lines`` (prefixed) of ``source``, whose line in the making is ``unfinished`` (prefixed).

        ``unfinished`` must have no ``\n``; empty: the source's last line has ended.
        """
        before = self._live
        if self._owner is None or self._owner == source:
            self._owner, self._live = (source, unfinished) if unfinished else (None, b"")
        if not lines and self._live == before:
            return b""
        out = _WIPE if before else b""
        if lines:
            out += self._end_foreign_line() + lines
        return out + self._draw()

    def passthrough(self, chunk: bytes) -> bytes:
        """Show bytes that nobody may touch (a worker's inherited stream); the live line makes room for them."""
        if not chunk:
            return b""
        out = (_WIPE if self._live and not self._inside_line else b"") + chunk
        self._inside_line = not chunk.endswith(b"\n")
        return out + self._draw()

    def _draw(self) -> bytes:
        # A foreign line that is not finished owns the bottom row: drawing there would wipe it.
        if not self._live or self._inside_line:
            return b""
        return _WIPE + _BEGIN + self._live + _END

    def _end_foreign_line(self) -> bytes:
        if not self._inside_line:
            return b""
        self._inside_line = False
        return b"\n"
