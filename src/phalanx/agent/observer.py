"""Between the driver and whoever looks on: job events are made, and handed out, and cannot hurt the job."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from phalanx.agent.observing import Observing
from phalanx.agent.spec import JobSpec
from phalanx.agent.verdict.verdict import Verdict
from phalanx.events.job import JobEvent, JobStarted

__all__ = ["JobObserver", "observing_of"]


def observing_of(spec: JobSpec) -> Observing:
    """What is to be told of this job."""
    entry = spec.entrypoint
    started = JobStarted(
        at_ns=0,
        name=spec.name,
        entry_point=os.path.basename(entry)
        if isinstance(entry, str)
        else getattr(entry, "__name__", repr(entry)),
        role=spec.role,
        run_id=spec.membership.run_id,
        host=spec.membership.host,
        backend=spec.backend,
        nproc=spec.nproc,
        pid=os.getpid(),
    )
    return Observing(started, spec.restarts)


class JobObserver:
    """Calls ``observe`` with each job event; when that raises, it is not called again, and ``say`` tells why.

    ``observe`` runs on the agent's loop: it must not block. Make this inside the loop that ``driver`` uses.
    """

    def __init__(
        self,
        observing: Observing,
        observe: Callable[[JobEvent], object],
        say: Callable[[str], None],
        *,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._observing = observing
        self._observe: Callable[[JobEvent], object] | None = observe
        self._say = say
        self._wall_ns = wall_ns
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def saw(self, event: object, commands: list[Any], now: float) -> None:
        """One step of the driver. Never raises."""
        self._tell(lambda at_ns: self._observing.see(event, commands, now, at_ns))

    def progressed(self, step: int) -> None:
        """A worker told how far it is. Never raises."""
        self._tell(lambda at_ns: self._observing.progressed(step, self._loop.time(), at_ns))
        due = self._observing.progress_due
        if due is not None and self._timer is None and self._observe is not None:
            self._timer = self._loop.call_at(due, self._progress_passed)

    def timers_moved(self) -> None:
        """Workers have begun or ended blocks that have a timer. Never raises."""
        self._tell(self._observing.timers_moved)

    def ended(self, verdict: Verdict) -> None:
        """The driver has ended without its machine. Never raises."""
        self._tell(lambda at_ns: self._observing.over(verdict, at_ns))

    def close(self) -> None:
        """The loop is about to end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _progress_passed(self) -> None:
        self._timer = None
        self._tell(lambda at_ns: self._observing.progress_passed(self._loop.time(), at_ns))

    def _tell(self, tell: Callable[[int], list[JobEvent]]) -> None:
        if self._observe is None:
            return
        try:
            for one in tell(self._wall_ns()):
                self._observe(one)
        except Exception as error:  # noqa: BLE001 # nobody who looks on may end a job
            self._observe = None
            what = str(error).strip().splitlines()[:1]
            why = ": ".join((type(error).__name__, *what))
            self._say(f"the observer of this job failed and hears no more of it ({why}); the job goes on")
