"""The server of file timers beside an agent: workers that are too slow in a block of theirs are ended, and fail.

It runs with ``--watchdog``, or as torchelastic's when ``TORCHELASTIC_ENABLE_FILE_TIMER`` is 1, at the FIFO that
``TORCHELASTIC_TIMER_FILE`` names or at one of its own, and workers are told where. Scripts use ``phalanx.timer`` or
torch's own client. The server's thread ends nobody: it tells the agent's loop, where stacks are saved first. Loads only
when it is asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from phalanx.agent.spec import JobSpec
from phalanx.agent.stacks import TimerExpired
from phalanx.errors._printable import printable
from phalanx.multiprocessing.inotify import Inotify
from phalanx.multiprocessing.marks import marked
from phalanx.multiprocessing.masks import all_signals_blocked
from phalanx.multiprocessing.procfs import read_stat, start_ticks_of
from phalanx.records import changed
from phalanx.timer.client import OUR_TIMER_FILE, TIMER_FILE
from phalanx.timer.file_server import FileTimerServer
from phalanx.timer.requests import FileTimerRequest

__all__ = ["Watchdog", "place_of"]

SCOPE_MAX = 200  # characters of a scope's name in a report
WAKE_S = 10.0  # at the latest; a request or the end of a countdown wakes it, too
# Workers may enter a block a thousand times a second; who looks on wants to see that they move.
PROGRESS_EVERY_S = 1.0
# IN_ATTRIB (its name has gone, and we hold it open), IN_DELETE_SELF, IN_MOVE_SELF.
REMOVED = 0x4 | 0x400 | 0x800


def place_of(environ: Mapping[str, str]) -> str:
    """Where the FIFO is to be: where the variable says, or at a new place.

    A worker has the variable from its agent. A launcher that runs in one has a job of its own, and leaves that FIFO.
    Torch's agent does not say that it is its own.
    """
    asked = environ.get(TIMER_FILE)
    is_workers = "TORCHELASTIC_RUN_ID" in environ and "LOCAL_RANK" in environ
    agents = environ.get(OUR_TIMER_FILE, asked if is_workers else None)
    if asked and asked != agents:
        return asked
    return os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")  # torchelastic's name


class Watchdog:
    """A server of file timers with the life of a job."""

    def __init__(self, path: str, *, run_id: str, is_paused: bool = False) -> None:
        """``is_paused``: workers are heard, as they wait for a server, and nobody is ever too slow."""
        self._path = path
        self._mark = b""
        kind = _Paused if is_paused else FileTimerServer
        self._server = kind(
            path,
            run_id,
            WAKE_S,
            log_event=self._on_event,
            is_worker=self.is_of_the_job,
            end_worker=self._expired,
            on_requests=self._progressed,
        )
        self._why: dict[int, str] = {}  # pid → why it was ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._post: Callable[[object], None] = _nobody
        self._on_progress: Callable[[], None] | None = None
        self._told_at = float("-inf")
        self._inotify: Inotify | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], *, run_id: str, is_paused: bool = False) -> Self:
        """The server, not started yet, at the place that the variable says or at a new one."""
        return cls(place_of(environ), run_id=run_id, is_paused=is_paused)

    def beside(self, spec: JobSpec) -> JobSpec:
        """The same job with this server: it starts when the keeper has been forked, which a thread would harm."""
        self._mark = spec.job_token.encode()
        return changed(
            spec,
            prepare=partial(self._start, spec.prepare),
            environment=partial(self._environment, spec.environment),
            why_ended=lambda pid: self._why.get(pid, ""),
            watchdog=self,
        )

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        post: Callable[[object], None],
        on_progress: Callable[[], None] | None = None,
    ) -> None:
        """From now on tell this loop, in its own thread, whose time is over (``TimerExpired``).

        ``on_progress`` is called when workers have begun or ended a block, once in a second at most.
        """
        self._loop, self._post, self._on_progress = loop, post, on_progress
        with contextlib.suppress(OSError):  # without it the server looks every ten seconds
            self._inotify = Inotify()
            loop.add_reader(self._inotify.fileno(), self._on_removed)
        self._watch_file()

    def detach(self) -> None:
        """Nobody is told any more."""
        loop, self._loop = self._loop, None
        if self._inotify is not None and loop is not None:
            loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
            self._inotify = None

    def finish(self) -> None:
        """Stop the server and remove its FIFO."""
        self._server.stop()

    def last_progress(self) -> int:
        """When workers have last begun or ended a block; now, while none is in one. Seconds since the epoch."""
        return self._server.get_last_progress_time()

    def is_of_the_job(self, pid: int) -> bool:
        """A request may name anybody: the keeper, or a stranger who has got the number of a worker that has ended."""
        stat = read_stat(pid)
        if stat is None:
            return False
        is_marked = marked(stat, b"PHALANX_JOB=", self._mark)
        return stat.parent == os.getpid() if is_marked is None else is_marked

    def ends(self, pid: int, scope: str, folder: str) -> None:
        """A worker was sent its signal: whoever sees its end, in this loop and so later, finds the reason."""
        saved = f"; stacks of all ranks: {folder}" if folder else ""
        self._why[pid] = f"its timer ended it, because it was too slow in {scope}{saved}"

    def new_round(self) -> None:
        """Forget who was ended: their numbers may become others'."""
        self._why.clear()

    # In the server's thread

    def _expired(self, request: FileTimerRequest) -> None:
        pid = request.worker_pid
        if (started := start_ticks_of(pid)) is not None:  # else it has ended just now
            scope = printable(request.scope_id[:SCOPE_MAX])
            self._tell(self._post, TimerExpired(pid, request.signal, scope, started))

    def _progressed(self) -> None:
        now = time.monotonic()
        if self._on_progress is not None and now - self._told_at >= PROGRESS_EVERY_S:
            self._told_at = now
            self._tell(self._on_progress)

    def _on_event(self, event: str, _request: FileTimerRequest | None) -> None:
        if event == "watchdog file made anew":
            self._tell(self._watch_file)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it closes just now: the job has ended
                loop.call_soon_threadsafe(callback, *arguments)

    # In the loop's thread

    def _watch_file(self) -> None:
        if self._inotify is not None:
            with contextlib.suppress(OSError):  # it has gone again
                self._inotify.watch(self._path, REMOVED)
        self._server.look()  # it may have gone before it was watched

    def _on_removed(self) -> None:
        if self._inotify is not None:
            self._inotify.read()
            self._server.look()

    def _start(self, before: Callable[[], None] | None) -> None:
        """Raises ``ValueError`` when the FIFO cannot be made."""
        if before is not None:
            before()
        # A thread inherits the mask. The agent's signals are its loop's, and no other thread may take one of them.
        with all_signals_blocked():
            try:
                self._server.start()
            except OSError as reason:
                raise ValueError(
                    f"{TIMER_FILE}: the timer server cannot make {self._path!r}: {reason.strerror}"
                ) from None

    def _environment(self, inner: Callable[..., dict[str, str]], *place: Any) -> dict[str, str]:
        return {**inner(*place), TIMER_FILE: self._path, OUR_TIMER_FILE: self._path}


def _nobody(_event: object) -> None:
    """Before a loop is there, no worker is."""


class _Paused(FileTimerServer):
    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Nothing counts: a person at a debugger takes their time."""
        super().register_timers([])
