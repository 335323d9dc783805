"""Moves what workers write from sources to outlets, one turn at a time; the loop without the thread.

A turn sleeps until a descriptor is ready or a deadline falls, and moves a fair share of every stream that has
something. It never looks whether something changed; only where inotify fails does it look at the followed
files every 0.1 s. It never waits for a console, and holds no more than one chunk per stream.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Sequence

from phalanx.multiprocessing.console import Console
from phalanx.multiprocessing.inotify import CREATED, MODIFIED, OVERFLOW, Inotify
from phalanx.multiprocessing.outlets import Outlet
from phalanx.multiprocessing.sources import FollowedFile, Source

__all__ = ["LOOK_S", "Mover", "Stream"]

# Blocks of some 100 KiB come and go all the time. The C library would give that memory back to the kernel each time
# and fault it in anew (half of all time was spent so), unless it has once seen a large block come and go. Its pages
# are never touched, so it costs nothing.
_ALLOCATOR_HINT = 4 << 20
# Fits the second-level cache together with the lines made of it: twice as fast as 1 MiB here.
_CHUNK = 256 << 10
# A stream's share of a turn, so that a loud worker does not silence the others.
_CHUNKS_PER_TURN = 4
# After a turn that moved little the mover rests: a worker that writes each word by itself then costs one
# wake-up per rest, not one per word. Far below the 50 ms that a line may take to the screen.
_REST_S, _LITTLE = 0.004, 64 << 10
LOOK_S = 0.1  # where inotify fails; torchelastic's interval


class Stream:
    """One stream of one worker on its way from its source to its outlets."""

    __slots__ = ("consoles", "ends_at", "local_rank", "outlets", "source")

    def __init__(
        self, local_rank: int, source: Source, outlets: Sequence[Outlet], consoles: Sequence[Console] = ()
    ) -> None:
        self.local_rank = local_rank
        self.source = source
        self.outlets = list(outlets)
        self.consoles = consoles
        # Its worker has ended, and at this time the first read that finds nothing has found all. None: it
        # runs.
        self.ends_at: float | None = None

    @property
    def blocked(self) -> bool:
        """One of its consoles takes no more, so nothing may be read."""
        return any(console.blocked for console in self.consoles)

    def move(self) -> tuple[int, bool | None]:
        """Move one turn's share. Returns the bytes moved and whether more may be there (None: never again)."""
        moved = 0
        for _ in range(_CHUNKS_PER_TURN):
            if self.blocked:
                break
            try:
                chunk = self.source.read(_CHUNK)
            except OSError:  # the file system lost the file: nothing more can come of it
                chunk = None
            if not chunk:
                return moved, None if chunk is None else False
            moved += len(chunk)
            self._give(chunk)
        return moved, True

    def _give(self, chunk: bytes) -> None:
        for outlet in self.outlets[:]:
            try:
                outlet.take(chunk)
            except OSError:  # a full disk: this outlet is lost; the worker and the other outlets go on
                self.outlets.remove(outlet)
                outlet.close()

    @property
    def due(self) -> float | None:
        """When an outlet has held something back for long enough."""
        return min((outlet.due for outlet in self.outlets if outlet.due is not None), default=None)

    def release(self) -> None:
        """Have the outlets let go of what they hold back."""
        for outlet in self.outlets:
            outlet.release()

    def finish(self) -> None:
        """Complete the last line: its worker has ended, or its source."""
        self.ends_at = None
        for outlet in self.outlets:
            outlet.finish()

    def close(self) -> None:
        """Close the source and the outlets."""
        self.source.close()
        for outlet in self.outlets:
            outlet.close()


class Mover:
    """All streams of a worker group; ``waker`` is a descriptor that ends a sleeping turn early."""

    def __init__(self, waker: int, *, look_s: float = LOOK_S) -> None:
        bytes(_ALLOCATOR_HINT)
        self._waker = waker
        self._look_s = look_s
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker, selectors.EVENT_READ)
        self._streams: dict[Stream, None] = {}  # in the order of their coming; so are the next two
        self._pending: dict[Stream, None] = {}  # may have something to read
        self._holding: dict[Stream, float] = {}  # until then an outlet holds something back
        self._paused: dict[Stream, None] = {}  # off the selector until their console takes more
        self._consoles: set[Console] = set()
        self._waiting: set[Console] = set()  # those on the selector until they take more
        # What each must have written before all that ended workers wrote is out.
        self._due: dict[Console, int] = {}
        self._inotify: Inotify | None = None
        # By inotify's number of a file, or of the folder that it is to appear in (then it is absent).
        self._watched: dict[int, list[Stream]] = {}
        self._absent: set[Stream] = set()
        self._unwatched: list[Stream] = []
        self._looks_at = 0.0
        self._leaving: set[Stream] = set()  # nobody will write to them again

    @property
    def is_drained(self) -> bool:
        """All that ended workers wrote has reached its files and its console."""
        if any(stream.ends_at is not None for stream in self._streams):
            return False
        return all(console.gone or console.written >= count for console, count in self._due.items())

    def add(self, stream: Stream) -> None:
        """Move this stream too, and own it."""
        self._streams[stream] = self._pending[stream] = None
        self._consoles.update(stream.consoles)
        if isinstance(stream.source, FollowedFile):
            self._watch(stream)
        else:
            self._selector.register(stream.source, selectors.EVENT_READ, stream)

    def end(self, local_rank: int | None = None) -> None:
        """The worker (None: every worker) is gone: what it wrote is there to be read."""
        now = time.monotonic()
        for stream in self._streams:
            if local_rank in (None, stream.local_rank):
                stream.ends_at = now + stream.source.settle_s
                self._pending[stream] = None

    def retire(self, local_rank: int) -> None:
        """Nobody will write to the streams that this ended worker has so far: each is let go when it is read."""
        for stream in [stream for stream in self._streams if stream.local_rank == local_rank]:
            self._leaving.add(stream)
            if stream.ends_at is None:  # read already, but what its children wrote since then
                stream.ends_at = time.monotonic() + stream.source.settle_s
                self._pending[stream] = None

    def turn(self, deadline: float | None = None) -> None:
        """Sleep until there is something to do, at most until ``deadline`` (monotonic), and do a share of it."""
        for key, _ in self._selector.select(self._sleep_s(deadline)):
            if isinstance(key.data, Stream):
                self._pending[key.data] = None
            elif isinstance(key.data, Console):
                key.data.push()
            elif isinstance(key.data, Inotify):
                self._note(key.data.read())
            else:
                os.read(self._waker, 4096)
        if self._unwatched and time.monotonic() >= self._looks_at:
            self._looks_at = time.monotonic() + self._look_s
            self._pending.update(dict.fromkeys(self._unwatched))
        self._resume()
        moved = sum(self._serve(stream) for stream in list(self._pending))
        self._release(time.monotonic())
        self._listen_to_consoles()
        if 0 < moved < _LITTLE and deadline is None and not self._pending:
            time.sleep(_REST_S)

    def discard(self) -> None:
        """From now on read and forget, so that no worker blocks on a pipe that nobody empties."""
        for stream in self._streams:
            for outlet in stream.outlets:
                outlet.close()
            stream.outlets, stream.consoles = [], ()
        self._consoles.clear()
        self._due.clear()

    def close(self) -> None:
        """Let go of every stream, wherever it stands."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        self._selector.close()
        if self._inotify is not None:
            self._inotify.close()

    def _sleep_s(self, deadline: float | None) -> float | None:
        if any(not stream.blocked and stream.ends_at is None for stream in self._pending):
            return 0.0
        deadlines = [stream.ends_at for stream in self._pending if stream.ends_at and not stream.blocked]
        deadlines += self._holding.values()
        if deadline is not None:
            deadlines.append(deadline)
        if self._unwatched:
            deadlines.append(self._looks_at)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _serve(self, stream: Stream) -> int:
        moved, more = stream.move()
        if moved and (due := stream.due) is not None:
            self._holding[stream] = due
        if more is None:
            self._finish(stream)
            self._retire(stream)
        elif not more:
            if stream.ends_at is None:
                del self._pending[stream]
            elif time.monotonic() >= stream.ends_at:
                self._finish(stream)
                del self._pending[stream]
                if stream in self._leaving:
                    self._retire(stream)
        return moved

    def _release(self, now: float) -> None:
        for stream in [stream for stream, until in self._holding.items() if until <= now]:
            due = stream.due
            if due is not None and due > now:  # what was held then is out, and this came later
                self._holding[stream] = due
            else:
                stream.release()
                del self._holding[stream]

    def _finish(self, stream: Stream) -> None:
        stream.finish()
        self._due.update((console, console.queued) for console in stream.consoles)

    def _retire(self, stream: Stream) -> None:
        for streams in (self._streams, self._pending, self._paused, self._holding):
            streams.pop(stream, None)
        self._leaving.discard(stream)
        self._absent.discard(stream)
        if stream in self._unwatched:
            self._unwatched.remove(stream)
        if isinstance(stream.source, FollowedFile):
            self._unwatch(stream)
        else:
            self._unregister(stream)
        stream.close()

    def _unwatch(self, stream: Stream) -> None:
        for watch in [watch for watch, streams in self._watched.items() if stream in streams]:
            self._watched[watch].remove(stream)
            if not self._watched[watch]:
                del self._watched[watch]
                assert self._inotify is not None, "it watches"
                self._inotify.unwatch(watch)

    def _watch(self, stream: Stream) -> None:
        """Have the kernel tell of writes to the stream's file, or of the file's appearance."""
        assert isinstance(stream.source, FollowedFile)
        path = stream.source.path
        try:
            if self._inotify is None:
                self._inotify = Inotify()
                self._selector.register(self._inotify, selectors.EVENT_READ, self._inotify)
            if not os.path.exists(path):
                folder = self._inotify.watch(os.path.dirname(os.path.abspath(path)), CREATED)
                self._watched.setdefault(folder, []).append(stream)
                self._absent.add(stream)
            # Once more in any case: it may have appeared before the watch of its folder was there.
            with contextlib.suppress(FileNotFoundError):
                self._watched.setdefault(self._inotify.watch(path, MODIFIED), []).append(stream)
                self._absent.discard(stream)
        except OSError:
            self._unwatched.append(stream)

    def _note(self, happened: dict[int, int]) -> None:
        """Take inotify's events: these streams may have something to read, and files may have appeared."""
        if any(mask & OVERFLOW for mask in happened.values()):
            happened = dict.fromkeys(self._watched, MODIFIED)
        for watch in happened:
            for stream in self._watched.get(watch, [])[:]:
                if stream not in self._streams:
                    continue
                self._pending[stream] = None
                if stream in self._absent:
                    self._absent.discard(stream)
                    self._watched[watch].remove(stream)
                    self._watch(stream)

    def _resume(self) -> None:
        for stream in [stream for stream in self._paused if not stream.blocked]:
            del self._paused[stream]
            self._selector.register(stream.source, selectors.EVENT_READ, stream)
            self._pending[stream] = None

    def _listen_to_consoles(self) -> None:
        """Wait for blocked consoles; meanwhile take pipes that feed them, always readable, off the selector."""
        blocked = {console for console in self._consoles if console.blocked}
        for console in self._waiting - blocked:
            self._unregister(console)
        for console in blocked - self._waiting:
            self._selector.register(console, selectors.EVENT_WRITE, console)
        self._waiting = blocked
        if blocked:
            for stream in self._streams:
                if (
                    stream.blocked
                    and not isinstance(stream.source, FollowedFile)
                    and stream not in self._paused
                ):
                    self._unregister(stream)
                    self._paused[stream] = None

    def _unregister(self, owner: Stream | Console) -> None:
        with contextlib.suppress(KeyError):  # it is paused already
            self._selector.unregister(owner.source if isinstance(owner, Stream) else owner)
