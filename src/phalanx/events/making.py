"""torchelastic's events of a job, made from its job events. Pure.

Names, fields and moments are torchelastic's: ``RENDEZVOUS`` of the agent when a round has settled, ``START`` of each
worker, and at the end of the job how each worker of the last round ended, and the agent. Unlike there, ``timestamp``
is filled, no value is wrapped in a list, an agent has ``SUCCEEDED`` only where its job has, and a worker that was ended
for the failure of another is ``TERMINATED``.
"""

from __future__ import annotations

import json

from phalanx.events.event import Event, EventMetadataValue, EventSource
from phalanx.events.job import (
    JobEnded,
    JobEvent,
    JobStarted,
    RoundSettled,
    WorkerEnded,
    WorkerFailed,
    WorkersStarted,
)
from phalanx.records import Struct

__all__ = ["EventMaker", "WorkerFacts", "status_event"]

PREFIX = "torchelastic.worker.status."


class WorkerFacts(Struct, kw_only=True):
    """What an event says of its worker."""

    local_rank: int
    global_rank: int | None
    role_rank: int | None
    role_world_size: int | None
    worker_id: str | None
    pid: int | None
    exit_code: int | None


def status_event(
    state: str,
    source: EventSource,
    *,
    at_ns: int,
    run_id: str | None,
    role: str | None,
    host: str | None,
    entry_point: str | None,
    backend: str | None,
    group_rank: int | None,
    group_world_size: int | None,
    restarts: int,
    run_time_s: int,
    worker: WorkerFacts | None,
    raw_error: str | None,
    duration_ms: float | None,
) -> Event:
    """Make torchelastic's event of an agent, or of a worker, for both kinds of agent."""
    about: dict[str, EventMetadataValue] = {"group_world_size": group_world_size, "entry_point": entry_point}
    if worker is not None:
        about |= {
            "local_rank": worker.local_rank,
            "role_rank": worker.role_rank,
            "role_world_size": worker.role_world_size,
            "exit_code": worker.exit_code,
            "worker_pid": worker.pid,
        }
    metadata: dict[str, EventMetadataValue] = {
        "run_id": run_id,
        "global_rank": None if worker is None else worker.global_rank,
        "group_rank": group_rank,
        "worker_id": None if worker is None else worker.worker_id,
        "role": role,
        "hostname": host,
        "state": state,
        "total_run_time": run_time_s,
        "rdzv_backend": backend,
        "raw_error": raw_error,
        "metadata": json.dumps(about),
        "agent_restarts": restarts,
        "duration_ms": duration_ms,
    }
    return Event(f"{PREFIX}{state}", source, at_ns // 1_000_000, metadata)


class EventMaker:
    """Makes events of one job on one node; it remembers the job and its round.

    ``entry_point`` and ``rdzv_backend`` are what the events say of the program and of the way to meet, if that is not
    what the agent knows of them.

    >>> from phalanx.events import job
    >>> maker = EventMaker(entry_point="train")
    >>> [event] = maker.from_job_event(job.JobEnded(at_ns=5_000_000, ending="succeeded", exit_code=0))
    >>> event.name, event.timestamp, event.metadata["state"]
    ('torchelastic.worker.status.SUCCEEDED', 5, 'SUCCEEDED')
    """

    def __init__(self, *, entry_point: str | None = None, rdzv_backend: str | None = None) -> None:
        self._entry_point = entry_point
        self._rdzv_backend = rdzv_backend
        self._started: JobStarted | None = None
        self._round: RoundSettled | None = None
        self._restarts = 0
        self._pids: dict[int, int] = {}
        self._ended: dict[int, WorkerEnded] = {}
        self._failed: dict[int, WorkerFailed] = {}

    def from_job_event(self, job_event: JobEvent) -> list[Event]:
        """The events that this is for torchelastic: none, one, or one for each worker.

        >>> from phalanx.events import job
        >>> EventMaker().from_job_event(job.WaitingFor(at_ns=0, sentence="1 of 2 nodes is here"))
        []
        """
        if isinstance(job_event, JobStarted):
            self._started = job_event
        elif isinstance(job_event, RoundSettled):
            self._round, self._restarts = job_event, job_event.restart_count
            self._pids, self._ended, self._failed = {}, {}, {}
            return [self._of_agent("RENDEZVOUS", job_event, duration_ms=job_event.waited_s * 1000)]
        elif isinstance(job_event, WorkersStarted):
            self._pids |= job_event.pids
            for local_rank in job_event.pids:
                self._ended.pop(local_rank, None)
                self._failed.pop(local_rank, None)
            return [self._of_worker("START", one, job_event) for one in sorted(job_event.pids)]
        elif isinstance(job_event, WorkerEnded):
            self._ended[job_event.local_rank] = job_event
        elif isinstance(job_event, WorkerFailed):
            self._failed[job_event.local_rank] = job_event
        elif isinstance(job_event, JobEnded):
            return [*self._workers_ends(job_event), self._agents_end(job_event)]
        return []

    def _workers_ends(self, end: JobEnded) -> list[Event]:
        found = []
        for local_rank, ended in sorted(self._ended.items()):
            failed = self._failed.get(local_rank)
            if failed is not None and not failed.is_collateral:
                state = "FAILED"
            else:
                state = "SUCCEEDED" if ended.exit_code == 0 else "TERMINATED"
            found.append(
                self._of_worker(
                    state, local_rank, end, exit_code=ended.exit_code, raw_error=_raw_error(failed)
                )
            )
        return found

    def _agents_end(self, end: JobEnded) -> Event:
        if end.ending == "succeeded":
            return self._of_agent("SUCCEEDED", end)
        cause = end.cause
        what = (
            "" if cause is None else f"rank {cause.rank}: {cause.message or f'exit code {cause.exit_code}'}"
        )
        return self._of_agent("FAILED", end, raw_error="; ".join(filter(None, (what, end.reason))))

    def _of_agent(
        self,
        state: str,
        job_event: JobEvent,
        *,
        raw_error: str | None = None,
        duration_ms: float | None = None,
    ) -> Event:
        return self._event(state, EventSource.AGENT, job_event, raw_error=raw_error, duration_ms=duration_ms)

    def _of_worker(
        self,
        state: str,
        local_rank: int,
        job_event: JobEvent,
        *,
        exit_code: int | None = None,
        raw_error: str | None = None,
    ) -> Event:
        settled = self._round
        is_known = settled is not None and local_rank < len(settled.ranks)
        pid = self._pids.get(local_rank)
        about = WorkerFacts(
            local_rank=local_rank,
            global_rank=settled.ranks[local_rank] if settled is not None and is_known else None,
            role_rank=settled.role_ranks[local_rank] if settled is not None and is_known else None,
            role_world_size=None if settled is None else settled.role_world_size,
            worker_id=None if pid is None else str(pid),
            pid=pid,
            exit_code=exit_code,
        )
        return self._event(state, EventSource.WORKER, job_event, worker=about, raw_error=raw_error)

    def _event(
        self,
        state: str,
        source: EventSource,
        job_event: JobEvent,
        *,
        worker: WorkerFacts | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
    ) -> Event:
        started, settled = self._started, self._round
        run_id = None if started is None else started.run_id
        since_ns = 0 if started is None else job_event.at_ns - started.at_ns
        return status_event(
            state,
            source,
            at_ns=job_event.at_ns,
            run_id=run_id if settled is None else settled.run_id,
            role=None if started is None else started.role,
            host=None if started is None else started.host,
            entry_point=self._entry_point or (None if started is None else started.entry_point),
            backend=self._rdzv_backend or (None if started is None else started.backend),
            group_rank=None if settled is None else settled.group_rank,
            group_world_size=None if settled is None else settled.group_world_size,
            restarts=self._restarts,
            run_time_s=max(0, since_ns) // 1_000_000_000,
            worker=worker,
            raw_error=raw_error,
            duration_ms=duration_ms,
        )


def _raw_error(failed: WorkerFailed | None) -> str | None:
    """As torchelastic writes it: an error file's content within ``message``, ``<NONE>`` where there is no such file."""
    if failed is None:
        return None
    if not failed.traceback and not failed.error_file:
        return json.dumps({"message": failed.message or "<NONE>"})
    extra = {"py_callstack": failed.traceback}
    return json.dumps({"message": {"message": failed.message, "extraInfo": extra}})
