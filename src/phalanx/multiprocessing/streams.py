"""The streams of one worker group: which descriptors its workers get, and what becomes of what they write.

For each worker: `open_for`, start the process, `spawned`, …, `worker_ended`; for the group: `drain`,
`stderr_tail`, `close`. What a stream becomes:

    not redirected   stdout is inherited; stderr comes through us and goes on to our stderr unchanged
    redirected       the worker appends to its file by itself, which costs nothing here
    teed             redirected, and we follow the file
    capped           a pipe to us, and we write the files (``LogsDest.max_bytes``)
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from phalanx.multiprocessing.console import Console, console_for, same_place
from phalanx.multiprocessing.logs import LogsDest
from phalanx.multiprocessing.mover import Stream
from phalanx.multiprocessing.outlets import ConsoleCopy, LastBytes, LineOutlet, MatchingLines, Outlet
from phalanx.multiprocessing.pump import LogPump
from phalanx.multiprocessing.rotation import CappedFile
from phalanx.multiprocessing.sources import FollowedFile, PipeSource, PtySource, Source, open_raw_pty
from phalanx.records import Struct

__all__ = ["StreamEnds", "WorkerStreams"]

_Name = Literal["stdout", "stderr"]


class StreamEnds(Struct):
    """Descriptors to give to a worker as its stdout and stderr; None: it inherits ours."""

    stdout: int | None
    stderr: int | None


class WorkerStreams:
    """All streams of the workers of one attempt. One thread calls it; one background thread moves the bytes.

    ``prefixes`` are by local rank, from `prefix_for`; a rank without one gets torchelastic's
    ``[<name><rank>]:``. ``forks`` says that workers are forked from this process without exec: the background
    thread then starts only when all of ``local_ranks`` have been spawned, because forking beside a thread is
    unsafe.
    """

    def __init__(
        self,
        dest: LogsDest,
        *,
        local_ranks: Collection[int],
        prefixes: Mapping[int, str] | None = None,
        name: str = "",
        stdout_filters: Sequence[str] = (),
        stderr_filters: Sequence[str] = (),
        forks: bool = False,
    ) -> None:
        self._dest = dest
        # Log specs that were written for torchelastic return its own class, which lacks our fields.
        self._tail_size: int = getattr(dest, "stderr_tail", LogsDest.stderr_tail)
        self._max_bytes: int | None = getattr(dest, "max_bytes", LogsDest.max_bytes)
        self._prefixes = dict(prefixes or {})
        self._name = name
        self._filters = {"stdout": tuple(stdout_filters), "stderr": tuple(stderr_filters)}
        self._filtered: dict[str, MatchingLines] = {}
        self._consoles: dict[str, Console | None] = {}
        self._is_shared = len(local_ranks) > 1
        self._unspawned = set(local_ranks) if forks else set()
        self._ends: dict[int, StreamEnds] = {}
        self._tails: dict[int, LastBytes] = {}
        self._pump: LogPump | None = None

    def environment(self) -> dict[str, str]:
        """Variables for workers that do not have them: ``FORCE_COLOR=1`` when a tee goes to a terminal.

        Programs look at their own stdout, which is a file then, and would show no colour. A user's
        ``NO_COLOR`` or ``FORCE_COLOR`` stands.
        """
        if "NO_COLOR" in os.environ or "FORCE_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
            return {}
        tees = ((sys.stdout, self._dest.tee_stdouts), (sys.stderr, self._dest.tee_stderrs))
        coloured = any(
            stream is not None and stream.isatty() and any(path != os.devnull for path in paths.values())
            for stream, paths in tees
        )
        return {"FORCE_COLOR": "1"} if coloured else {}

    def open_for(self, local_rank: int) -> StreamEnds:
        """Open the worker's ends; call `spawned` after the start, also when the start failed.

        Raises ``OSError`` when a log file cannot be opened; nothing stays open for this worker then.
        """
        stdout = self._open(local_rank, "stdout", self._dest.stdouts, self._dest.tee_stdouts)
        try:
            stderr = self._open(local_rank, "stderr", self._dest.stderrs, self._dest.tee_stderrs)
        except BaseException:
            if stdout is not None:
                os.close(stdout)
            raise
        self._ends[local_rank] = StreamEnds(stdout, stderr)
        return self._ends[local_rank]

    def spawned(self, local_rank: int) -> None:
        """Close our copies of the ends that the worker has now, so that its pipes end when it does."""
        ends = self._ends.pop(local_rank, None)
        if ends is not None:
            for fd in (ends.stdout, ends.stderr):
                if fd is not None:
                    os.close(fd)
        self._unspawned.discard(local_rank)
        if self._pump is not None and not self._unspawned:
            self._pump.start()

    def worker_ended(self, local_rank: int) -> None:
        """The worker is gone: all that it wrote is to be read, and its last line completed."""
        if self._pump is not None:
            self._pump.end(local_rank)

    def renew(self, local_rank: int, dest: LogsDest) -> None:
        """The ended worker gets a successor, whose streams go to ``dest``; `open_for` follows.

        Nothing of the old one may be left that writes. What its streams still hold is shown first.
        """
        if self._pump is not None:
            self._pump.retire(local_rank)
        self._tails.pop(local_rank, None)
        for name in ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs"):
            paths: dict[int, str] = getattr(self._dest, name)
            paths.pop(local_rank, None)
            if local_rank in (new := getattr(dest, name)):
                paths[local_rank] = new[local_rank]

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that ended workers wrote is in files and on the console; False when time ran out.

        Children of a worker that hold its pipes do not prolong it. Raises ``RuntimeError`` when our log
        thread has crashed, which is a bug.
        """
        return self._pump is None or self._pump.drain(timeout_s)

    def stderr_tail(self, local_rank: int) -> bytes:
        """The last bytes that the worker wrote to stderr, at most ``dest.stderr_tail``; complete after `drain`."""
        size = self._tail_size
        if local_rank in self._tails:
            return self._tails[local_rank].last()
        path = self._dest.stderrs.get(local_rank, "")
        if size <= 0 or path in ("", os.devnull):
            return b""
        try:
            # Without waiting: a worker may have put a fifo where its log was.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                length = os.fstat(file.fileno()).st_size
                file.seek(max(0, length - size))
                return file.read(min(size, length))
        except OSError:
            return b""

    def close(self) -> None:
        """Bring home what takes no more than a second, stop the thread, close everything. Idempotent."""
        for local_rank in list(self._ends):
            self.spawned(local_rank)
        if self._pump is not None:
            self._pump.close()
        for filtered in self._filtered.values():
            filtered.close()
        for console in self._consoles.values():
            if console is not None:
                console.close()
        self._filtered.clear()
        self._consoles.clear()

    def _open(
        self, local_rank: int, name: _Name, paths: Mapping[int, str], tees: Mapping[int, str]
    ) -> int | None:
        path, keeps = paths.get(local_rank, ""), self._tail_size
        if path == os.devnull:
            return _open_to_append(path)
        if not path:
            return self._open_copied(local_rank) if name == "stderr" and keeps > 0 else None
        outlets: list[Outlet] = []
        consoles: list[Console] = []
        if local_rank in tees:
            console = self._console(name)
            outlets.append(self._lines(local_rank, name, console))
            consoles += [console] if console is not None else []
        if self._max_bytes is None:
            fd = _open_to_append(path)
            if outlets:
                self._move(Stream(local_rank, FollowedFile(path), outlets, consoles))
            return fd
        outlets.insert(0, CappedFile(path, max_bytes=self._max_bytes))
        if name == "stderr" and keeps > 0:
            outlets.insert(0, self._tail(local_rank))
        reading, writing = os.pipe()
        self._move(Stream(local_rank, PipeSource(reading), outlets, consoles))
        return writing

    def _open_copied(self, local_rank: int) -> int:
        """An un-redirected stderr: a terminal if ours is one, so that the worker behaves as if it had inherited it."""
        console = self._console("stderr")
        outlets: list[Outlet] = [self._tail(local_rank)]
        consoles: list[Console] = []
        if console is not None:
            outlets.append(ConsoleCopy(console, is_shared=self._is_shared))
            consoles.append(console)
        source, writing = _open_like(console)
        self._move(Stream(local_rank, source, outlets, consoles))
        return writing

    def _move(self, stream: Stream) -> None:
        if self._pump is None:
            self._pump = LogPump()
        self._pump.add(stream)

    def _tail(self, local_rank: int) -> LastBytes:
        return self._tails.setdefault(local_rank, LastBytes(self._tail_size))

    def _lines(self, local_rank: int, name: _Name, console: Console | None) -> LineOutlet:
        if self._filters[name] and name not in self._filtered:
            path = self._dest.filtered_stdout if name == "stdout" else self._dest.filtered_stderr
            self._filtered[name] = MatchingLines(path, self._filters[name])
        prefix = self._prefixes.get(local_rank, f"[{self._name}{local_rank}]:")
        return LineOutlet(prefix, console=console, filtered=self._filtered.get(name))

    def _console(self, name: _Name) -> Console | None:
        """Our stdout or stderr; one console for both when they lead to one place, so that their lines stay whole."""
        if name not in self._consoles:
            other = self._consoles.get("stderr" if name == "stdout" else "stdout")
            if other is not None and same_place(sys.stdout, sys.stderr):
                self._consoles[name] = other
            else:
                self._consoles[name] = console_for(sys.stdout if name == "stdout" else sys.stderr)
        return self._consoles[name]


def _open_to_append(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _open_like(console: Console | None) -> tuple[Source, int]:
    """A source and the end to write to it: a pseudo-terminal if the console is a terminal, else a pipe."""
    if console is not None and console.is_terminal:
        # Without one (none left, no /dev/pts here) a pipe does it: the worker loses what isatty() says.
        with contextlib.suppress(OSError):
            master, slave = open_raw_pty()
            return PtySource(master, terminal=console.fileno()), slave
    reading, writing = os.pipe()
    return PipeSource(reading), writing
