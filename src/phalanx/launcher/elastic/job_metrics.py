"""torchelastic's metrics of an agent, made from what a hosted agent tells. Pure: names and numbers, no clock.

The agent does not run torchelastic's methods; a number stands under the name of the method that does the same there.
Durations are those that the job events' times give.
"""

from __future__ import annotations

from phalanx.events import job
from phalanx.metrics.run import Numbers, numbers_of_run, worker_metric

__all__ = ["JobMetrics"]

_AGENT = "SimpleElasticAgent"
_LOCAL = "LocalElasticAgent"


class JobMetrics:
    """Remembers what a number needs of earlier job events. One for each job.

    >>> numbers = JobMetrics("default", max_restarts=3)
    >>> numbers.of(job.JobEnded(at_ns=0, ending="succeeded", exit_code=0))[:2]
    [('workers.default.remaining_restarts', 3), ('workers.default.succeeded', 1)]
    """

    def __init__(self, role: str, *, max_restarts: int) -> None:
        self._role = role
        self._max_restarts = max_restarts
        self._used = 0
        self._began_ns: int | None = None
        self._settled_ns: int | None = None
        self._stopping_ns: int | None = None
        self._restarting_ns: int | None = None

    def of(self, job_event: job.JobEvent) -> Numbers:
        """The numbers to put for a job event, in order."""
        match job_event:
            case job.JobStarted():
                self._began_ns = job_event.at_ns
            case job.RoundSettled():
                self._settled_ns = job_event.at_ns
                self._used = job_event.restart_count
                return _done(f"{_AGENT}._rendezvous", round(job_event.waited_s * 1e9))
            case job.WorkersStarted():
                return self._started(job_event.at_ns)
            case job.StopBegan():
                self._stopping_ns = job_event.at_ns
            case job.RoundEnded():
                return self._stopped(job_event.at_ns)
            case job.RestartDecided():
                self._restarting_ns = job_event.at_ns
                self._used = job_event.restart_count
                return [*self._state("failed" if job_event.is_charged else "healthy")]
            case job.JobEnded():
                return self._ended(job_event)
        return []

    @property
    def _left(self) -> int:
        return max(0, self._max_restarts - self._used)

    def _state(self, name: str) -> Numbers:
        return [
            (worker_metric(self._role, "remaining_restarts"), self._left),
            (worker_metric(self._role, name), 1),
        ]

    def _started(self, at_ns: int) -> Numbers:
        since_ns = 0 if self._settled_ns is None else at_ns - self._settled_ns
        found = [
            *_done(f"{_LOCAL}._start_workers", since_ns),
            *_done(f"{_AGENT}._initialize_workers", since_ns),
        ]
        if self._restarting_ns is not None:
            found += _done(f"{_AGENT}._restart_workers", at_ns - self._restarting_ns)
            self._restarting_ns = None
        return [*found, *self._state("healthy")]

    def _stopped(self, at_ns: int) -> Numbers:
        if self._stopping_ns is None:
            return []
        took_ns, self._stopping_ns = at_ns - self._stopping_ns, None
        return _done(f"{_LOCAL}._stop_workers", took_ns)

    def _ended(self, end: job.JobEnded) -> Numbers:
        has_failed = end.ending == "failed"
        took_ns = 0 if self._began_ns is None else end.at_ns - self._began_ns
        end_of_run = "success" if end.ending != "stopped" else "failure"  # torchelastic's raises at a signal
        run = f"{_AGENT}.run"
        tail = [(f"{run}.{end_of_run}", 1), (f"{run}.duration.ms", took_ns // 1_000_000)]
        if end.ending == "stopped":
            return tail
        return [
            *self._state("failed" if has_failed else "succeeded"),
            *numbers_of_run(self._role, has_failed=has_failed, used=self._used, most=self._max_restarts),
            *tail,
        ]


def _done(name: str, took_ns: int) -> Numbers:
    return [(f"{name}.success", 1), (f"{name}.duration.ms", max(0, took_ns) // 1_000_000)]
