"""What an in-process agent tells of its run: torchelastic's events and metrics.

The names of methods are torchelastic's, because subclasses override them.
"""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phalanx.agent.elastic.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from phalanx.metrics import put_metric
from phalanx.metrics.run import numbers_of_run, worker_metric

if TYPE_CHECKING:
    from phalanx.events import Event, EventSource

__all__ = ["AgentAccounts"]


class AgentAccounts:
    """The part of an agent that tells. The agent has what is read here: see ``SimpleElasticAgent``."""

    _worker_group: WorkerGroup
    _remaining_restarts: int
    _total_execution_time: int

    # Events

    def get_event_failed(self) -> Event:
        """Return the event of an agent that failed, with the exception that is handled at this moment."""
        from phalanx.events import EventSource

        return self._construct_event("FAILED", EventSource.AGENT, raw_error=traceback.format_exc())

    def get_event_succeeded(self) -> Event:
        """Return the event of an agent whose job succeeded."""
        from phalanx.events import EventSource

        return self._construct_event("SUCCEEDED", EventSource.AGENT)

    @contextmanager
    def record_duration(self, state: str) -> Iterator[None]:
        """Record an event of the agent with the time that the block takes, also of a block that raises."""
        from phalanx.events import EventSource, record

        started_at = time.monotonic()
        try:
            yield
        finally:
            took_ms = (time.monotonic() - started_at) * 1000
            event = self._construct_event(state, EventSource.AGENT, duration_ms=took_ms)
            record(event, self._worker_group.spec.event_log_handler)

    def _record_worker_events(self, result: RunResult) -> None:
        """How each worker ended."""
        from phalanx.events import EventSource, record

        for worker in self._worker_group.workers:
            failure = result.failures.get(worker.global_rank)
            event = self._construct_event(
                self._get_worker_state(worker, result),
                EventSource.WORKER,
                worker=worker,
                raw_error=None if failure is None else json.dumps(failure.error_file_data),
                exit_code=None if failure is None else failure.exitcode,
                worker_pid=None if failure is None else failure.pid,
            )
            record(event, self._worker_group.spec.event_log_handler)

    def _record_starts(self, worker_group: WorkerGroup) -> None:
        from phalanx.events import EventSource, record

        for worker in worker_group.workers:
            event = self._construct_event("START", EventSource.WORKER, worker=worker)
            record(event, worker_group.spec.event_log_handler)

    def _get_worker_state(self, worker: Worker, result: RunResult) -> str:
        """A worker that had not failed when its group did was stopped: TERMINATED."""
        if result.state != WorkerState.SUCCEEDED and worker.global_rank not in result.failures:
            return "TERMINATED"
        if worker.global_rank in result.failures:
            return "FAILED"
        return str(result.state.value)

    def _construct_event(
        self,
        state: str,
        source: EventSource,
        worker: Worker | None = None,
        raw_error: str | None = None,
        duration_ms: float | None = None,
        exit_code: int | None = None,
        worker_pid: int | None = None,
    ) -> Event:
        from phalanx.events.making import WorkerFacts, status_event

        group, spec = self._worker_group, self._worker_group.spec
        about = None
        if worker is not None:
            about = WorkerFacts(
                local_rank=worker.local_rank,
                global_rank=worker.global_rank,
                role_rank=worker.role_rank,
                role_world_size=worker.role_world_size,
                worker_id=str(worker.id),
                pid=worker_pid,
                exit_code=exit_code,
            )
        return status_event(
            state,
            source,
            at_ns=time.time_ns(),
            run_id=spec.rdzv_handler.get_run_id(),
            role=spec.role,
            host=socket.gethostname(),
            entry_point=spec.get_entrypoint_name(),
            backend=spec.rdzv_handler.get_backend(),
            group_rank=group.group_rank,
            group_world_size=group.group_world_size,
            restarts=spec.max_restarts - self._remaining_restarts,
            run_time_s=self._total_execution_time,
            worker=about,
            raw_error=raw_error,
            duration_ms=duration_ms,
        )

    # Metrics

    def _put(self, name: str, value: int) -> None:
        put_metric(worker_metric(self._worker_group.spec.role, name), value)

    def _record_metrics(self, group_results: RunResult) -> None:
        """How the run ended, as numbers."""
        spec = self._worker_group.spec
        used = spec.max_restarts - self._remaining_restarts
        is_failed = group_results.is_failed()
        for name, value in numbers_of_run(spec.role, has_failed=is_failed, used=used, most=spec.max_restarts):
            put_metric(name, value)
