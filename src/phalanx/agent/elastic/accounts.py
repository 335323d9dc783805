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
from typing import TYPE_CHECKING, Any

from phalanx.agent.elastic.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from phalanx.metrics import put_metric

if TYPE_CHECKING:
    from phalanx.events import Event, EventSource

__all__ = ["AgentAccounts"]

PREFIX = "torchelastic.worker.status."


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
        """Torchelastic's fields; unlike there the moment is filled in, and no value is wrapped in a list."""
        from phalanx.events import Event

        group = self._worker_group
        spec = group.spec
        about: dict[str, Any] = {
            "group_world_size": group.group_world_size,
            "entry_point": spec.get_entrypoint_name(),
        }
        if worker is not None:
            about |= {
                "local_rank": worker.local_rank,
                "role_rank": worker.role_rank,
                "role_world_size": worker.role_world_size,
                "exit_code": exit_code,
                "worker_pid": worker_pid,
            }
        metadata = {
            "run_id": spec.rdzv_handler.get_run_id(),
            "global_rank": None if worker is None else worker.global_rank,
            "group_rank": group.group_rank,
            "worker_id": None if worker is None else str(worker.id),
            "role": spec.role,
            "hostname": socket.gethostname(),
            "state": state,
            "total_run_time": self._total_execution_time,
            "rdzv_backend": spec.rdzv_handler.get_backend(),
            "raw_error": raw_error,
            "metadata": json.dumps(about),
            "agent_restarts": spec.max_restarts - self._remaining_restarts,
            "duration_ms": duration_ms,
        }
        return Event(f"{PREFIX}{state}", source, time.time_ns() // 1_000_000, metadata)

    # Metrics

    def _put(self, name: str, value: int) -> None:
        put_metric(f"workers.{self._worker_group.spec.role}.{name}", value)

    def _record_metrics(self, group_results: RunResult) -> None:
        """How the run ended, as numbers."""
        is_failed = group_results.is_failed()
        self._record_flakiness_metric(is_failed)
        retried = self._worker_group.spec.max_restarts != self._remaining_restarts
        self._put("run_total", 1)
        self._record_metric_with_condition("run_success_with_retries", not is_failed and retried)
        self._record_metric_with_condition("run_success_no_retries", not is_failed and not retried)
        self._record_metric_with_condition("run_failed_with_retries", is_failed and retried)
        self._record_metric_with_condition("run_failed_no_retries", is_failed and not retried)

    def _record_metric_with_condition(self, metric_name: str, condition: object) -> None:
        self._put(metric_name, int(bool(condition)))

    def _record_flakiness_metric(self, is_failed: bool = False) -> None:
        """100 for a run that failed, else the part of the budget that was needed."""
        if is_failed:
            self._put("flakiness", 100)
            return
        most = self._worker_group.spec.max_restarts
        self._put("flakiness", int(100 - 100 * (self._remaining_restarts + 1) / (most + 1)))
