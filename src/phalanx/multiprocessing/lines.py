r"""Bytes of one stream in, whole lines out: pure, and the same for every way the bytes are cut into chunks.

A line ends with ``\n`` or ``\r\n``; a part waits for its rest. ``\r`` inside a line is a progress bar that draws
over itself: of such a line only the last state that shows something counts. No byte is changed otherwise; what a
screen or a filter cannot take is replaced by `printable`, for them alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["MAX_LINE", "LineAssembler", "matching", "prefixed", "printable"]

# One part of a line is held in memory, so it needs a limit; a longer line is shown in pieces of this size.
# One MiB is far above anything people read and far below what hurts: 8 workers can hold 16 MiB at the very
# worst.
MAX_LINE = 1 << 20

# What leaves a terminal's line empty: white space, and escape sequences (colours, cursor, "clear to the
# end").
_SHOWS_NOTHING = re.compile(rb"(?:\s|\x1b\[[0-9;:?]*[ -/]*[@-~])*\Z")


class LineAssembler:
    """Puts one stream's chunks together to whole lines; `feed` gives them as one block, ready for bulk work."""

    __slots__ = ("_max_line", "_part")

    def __init__(self, *, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._part = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        r"""Take the next bytes; return the lines that they complete, each ending in ``\n`` and without ``\r``."""
        end = chunk.rfind(b"\n") + 1
        if end == 0:
            self._part += chunk
            return self._hold(b"\r" in chunk)
        block = chunk if end == len(chunk) else chunk[:end]
        if self._part:
            block = b"".join((self._part, block))
            self._part.clear()
        if b"\r" in block:
            block = _drawn(block)
        if end == len(chunk):
            return block
        self._part += memoryview(chunk)[end:]
        return block + self._hold(b"\r" in self._part)

    def flush(self) -> bytes:
        """The stream has ended: return its unfinished line as a whole one, or nothing."""
        rest = self.unfinished
        self._part.clear()
        return rest + b"\n" if rest else b""

    @property
    def unfinished(self) -> bytes:
        """What a terminal would show of the line that has not ended yet."""
        part = bytes(self._part)
        return _last_state(part.split(b"\r")) if b"\r" in part else part

    def _hold(self, redrawn: bool) -> bytes:
        """Keep the part's memory bounded: forget states that were drawn over, and cut what is no line any
        more.
        """
        if redrawn:
            self._part = bytearray(_last_states(bytes(self._part)))
        if len(self._part) <= self._max_line:
            return b""
        pieces = []
        while len(self._part) > self._max_line:
            cut = _character_start(self._part, self._max_line)
            pieces.append(self._part[:cut] + b"\n")
            del self._part[:cut]
        block = b"".join(pieces)
        return _drawn(block) if b"\r" in block else block


def _drawn(block: bytes) -> bytes:
    r"""Whole lines with ``\r`` → what they look like in the end; a bar that was wiped out gives no line at all."""
    block = block.replace(b"\r\n", b"\n")
    if b"\r" not in block:
        return block
    out = []
    for line in block[:-1].split(b"\n"):
        state = _last_state(line.split(b"\r")) if b"\r" in line else line
        if state or not line:
            out.append(state + b"\n")
    return b"".join(out)


def _last_state(states: Sequence[bytes]) -> bytes:
    for state in reversed(states):
        if state and not _SHOWS_NOTHING.match(state):
            return state
    return b""


def _last_states(part: bytes) -> bytes:
    r"""Cut an unfinished redrawn line to what can still matter: its last visible state and the one being drawn.

    What is left must become the same line as the whole would. So a ``\r`` at the very end stays, because a ``\n``
    may make it a plain line end, and enough of them stay to tell a wiped-out bar from an empty line.
    """
    *drawn, drawing = part.split(b"\r")
    if not drawn or (len(drawn) == 1 and not drawing):
        return part
    visible = _last_state(drawn)
    return visible + b"\r" + drawing if visible or drawing else b"\r\r"


def _character_start(text: bytearray, limit: int) -> int:
    """The last place at or before ``limit`` that does not cut a UTF-8 character (or ``limit``, if it is
    none).
    """
    for place in range(limit, max(limit - 4, 0), -1):
        if text[place] & 0xC0 != 0x80:
            return place
    return limit


def printable(block: bytes) -> bytes:
    """The block as valid UTF-8; bytes that are none become U+FFFD."""
    if block.isascii():
        return block
    return block.decode("utf-8", "replace").encode("utf-8")


def prefixed(block: bytes, prefix: bytes) -> bytes:
    r"""Put ``prefix`` before each line of a block of whole lines (each ends in ``\n``)."""
    if not prefix or not block:
        return block
    after_each_end = memoryview(block.replace(b"\n", b"\n" + prefix))
    return b"".join((prefix, after_each_end[: -len(prefix)]))


def matching(block: bytes, filters: Sequence[bytes]) -> bytes:
    """The lines of a block that contain at least one of the ``filters``."""
    if not any(wanted in block for wanted in filters):
        return b""
    lines = block[:-1].split(b"\n")
    return b"".join(line + b"\n" for line in lines if any(wanted in line for wanted in filters))
