"""What happens to the bytes of one worker stream: each outlet takes every chunk and does one thing with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from phalanx.multiprocessing.console import Console
from phalanx.multiprocessing.lines import LineAssembler, matching, prefixed, printable
from phalanx.multiprocessing.prefix import LinePrefix

__all__ = ["ConsoleCopy", "LastBytes", "LineOutlet", "MatchingLines", "Outlet"]

# Long enough for the writes that make one line, and half of what a line may take to the screen.
_HELD_S = 0.025
_HELD_BYTES = 4096


class Outlet:
    """Takes the bytes of one stream, in order."""

    __slots__ = ()

    def take(self, chunk: bytes) -> None:
        """Deal with the next bytes. An ``OSError`` ends this outlet, and nothing else."""
        raise NotImplementedError

    def finish(self) -> None:
        """The worker has ended: complete what is unfinished. Its children may still write; then it goes on."""

    @property
    def due(self) -> float | None:
        """When to call `release` (monotonic), if something is held back."""
        return None

    def release(self) -> None:
        """Let go of what is held back for a while."""

    def close(self) -> None:
        """Let go of what this outlet opened itself."""


class LastBytes(Outlet):
    """Keeps the last ``size`` bytes of a stream, for the failure report."""

    __slots__ = ("_kept", "_size")

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = bytearray()

    def take(self, chunk: bytes) -> None:
        """Keep the end of it."""
        self._kept += chunk[-self._size :]
        if len(self._kept) > 2 * self._size:  # trimming each time would copy everything each time
            del self._kept[: -self._size]

    def last(self) -> bytes:
        """Return what is kept; callable from any thread, since each step on the bytes is one operation."""
        return bytes(self._kept[-self._size :])


class ConsoleCopy(Outlet):
    """Copies a stream to a console unchanged.

    ``is_shared`` says that other streams are copied there too. An unbuffered traceback is a dozen writes a line, and
    those of ranks that fail together would mix within the line; so the rest of a line may follow for a moment.
    """

    __slots__ = ("_console", "_due", "_is_shared", "_part")

    def __init__(self, console: Console, *, is_shared: bool) -> None:
        self._console = console
        self._is_shared = is_shared
        self._part = b""
        self._due: float | None = None

    def take(self, chunk: bytes) -> None:
        """Copy it, to the end of its last line."""
        if not self._is_shared:
            self._console.copy(chunk)
            return
        end = chunk.rfind(b"\n") + 1
        if end:
            self._part += chunk[:end]
            self.release()
        self._part += chunk[end:]
        if len(self._part) > _HELD_BYTES:
            self.release()
        if self._part and self._due is None:
            self._due = time.monotonic() + _HELD_S

    @property
    def due(self) -> float | None:
        """When a line's beginning has waited long enough: it may be a prompt or a progress bar."""
        return self._due

    def release(self) -> None:
        """Copy the part of a line that is held back."""
        part, self._part, self._due = self._part, b"", None
        self._console.copy(part)

    def finish(self) -> None:
        """Copy what was held back."""
        self.release()


class MatchingLines:
    """A ``filtered_*.log``: the prefixed lines of all workers that contain one of the filters. Shared by
    streams.
    """

    __slots__ = ("_fd", "_filters", "_path")

    def __init__(self, path: str, filters: Sequence[str]) -> None:
        self._path = path
        self._filters = [text.encode() for text in filters]
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)

    def add(self, lines: bytes, prefix: bytes) -> None:
        """Write those of the whole, unprefixed ``lines`` that match. A full disk costs lines, never the job."""
        view = memoryview(prefixed(matching(lines, self._filters), prefix))
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            return

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LineOutlet(Outlet):
    """Shows whole lines with the worker's prefix on a console, and gives them to the filtered file.

    ``select`` takes a block of whole lines and returns those that count.
    """

    __slots__ = ("_assembler", "_console", "_filtered", "_prefix", "_select")

    def __init__(
        self,
        prefix: str,
        *,
        console: Console | None,
        filtered: MatchingLines | None = None,
        select: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._assembler = LineAssembler()
        self._prefix = LinePrefix(prefix)
        self._console = console
        self._filtered = filtered
        self._select = select

    def take(self, chunk: bytes) -> None:
        """Show the lines that it completes."""
        self._put(self._assembler.feed(chunk))

    def finish(self) -> None:
        """Show the unfinished line as a whole one."""
        self._put(self._assembler.flush())

    def _put(self, lines: bytes) -> None:
        console = self._console
        is_live = console is not None and console.is_live
        if not lines and not is_live:
            return
        lines = printable(lines)
        if self._select is not None and lines:
            lines = self._select(lines)
        prefix = self._prefix.now()
        if self._filtered is not None and lines:
            self._filtered.add(lines, prefix)
        if console is None or console.gone:
            return
        if is_live:
            unfinished = printable(self._assembler.unfinished)
            console.show(self, prefixed(lines, prefix), prefix + unfinished if unfinished else b"")
        else:
            console.show(self, prefixed(lines, prefix))
