"""The server of file timers beside an agent: workers that are too slow in a block of theirs are ended, and fail.

As torchelastic's it runs when ``TORCHELASTIC_ENABLE_FILE_TIMER`` is 1, at the FIFO that ``TORCHELASTIC_TIMER_FILE``
names or at one of its own, and workers are told where. Scripts use ``phalanx.timer`` or torch's own client. Loads only
when it is asked for.
"""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

from phalanx.agent.spec import JobSpec
from phalanx.multiprocessing.procfs import read_file, read_stat
from phalanx.multiprocessing.trees import names_job
from phalanx.records import changed
from phalanx.timer.client import TIMER_FILE
from phalanx.timer.file_server import FileTimerServer
from phalanx.timer.requests import FileTimerRequest

__all__ = ["Watchdog", "place_of"]

SCOPE_MAX = 200  # characters of a scope's name in a report
WAKE_S = 10.0  # at the latest; a request or the end of a countdown wakes it, too


def place_of(environ: Mapping[str, str]) -> str:
    """Where the FIFO is to be: where the variable says, or at a new place."""
    own = os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")  # torchelastic's name
    return environ.get(TIMER_FILE) or own


class Watchdog:
    """A server of file timers with the life of a job."""

    def __init__(self, path: str, *, run_id: str, is_paused: bool = False) -> None:
        """``is_paused``: workers are heard, as they wait for a server, and nobody is ever too slow."""
        self._path = path
        self._mark = b""
        kind = _Paused if is_paused else FileTimerServer
        self._server = kind(path, run_id, WAKE_S, log_event=self._remember, is_worker=self._is_of_the_job)
        self._ended: dict[int, str] = {}  # written by the server's thread: pid → where it was too slow

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
            why_ended=self._why,
        )

    def finish(self) -> None:
        """Stop the server and remove its FIFO."""
        self._server.stop()

    def _start(self, before: Callable[[], None] | None) -> None:
        """Raises ``ValueError`` when the FIFO cannot be made."""
        if before is not None:
            before()
        # A thread inherits the mask. The agent's signals are its loop's, and no other thread may take one of them.
        mask = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            self._server.start()
        except OSError as reason:
            raise ValueError(
                f"{TIMER_FILE}: the timer server cannot make {self._path!r}: {reason.strerror}"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _is_of_the_job(self, pid: int) -> bool:
        """A request may name anybody: the keeper, or a stranger who has got the number of a worker that has ended."""
        stat = read_stat(pid)
        if stat is None:
            return False
        if (
            stat.state == "D"
        ):  # reading the environment of one that waits in the kernel could wait with it for ever
            return stat.parent == os.getpid()
        environment = read_file(f"/proc/{pid}/environ", None)
        return environment is not None and names_job(environment, b"PHALANX_JOB=", self._mark)

    def _remember(self, event: str, request: FileTimerRequest | None) -> None:
        """Told before the signal is sent: whoever sees the worker's end finds the reason."""
        if event == "timer expired" and request is not None and request.signal > 0:
            scope = "".join(one if one.isprintable() else "?" for one in request.scope_id[:SCOPE_MAX])
            self._ended[request.worker_pid] = scope

    def _why(self, pid: int) -> str:
        scope = self._ended.get(pid)
        return "" if scope is None else f"its timer ended it, because it was too slow in {scope}"

    def _environment(self, inner: Callable[..., dict[str, str]], *place: Any) -> dict[str, str]:
        return {**inner(*place), TIMER_FILE: self._path}


class _Paused(FileTimerServer):
    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Nothing counts: a person at a debugger takes their time."""
        super().register_timers([])
