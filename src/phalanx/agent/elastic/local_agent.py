"""``LocalElasticAgent``: the agent of torchelastic's kind whose workers are processes of this machine.

Its workers are a ``PContext``: they are started, watched and stopped as everywhere here, with their whole trees. The
end of a worker wakes the agent; ``monitor_interval`` bounds only how often it asks whether nodes wait.
"""

from __future__ import annotations

import os
import select
import time
from signal import Signals
from typing import TYPE_CHECKING, Any

from phalanx.agent.devices import CUDA, HIP, ZE, DeviceMask, virtual_mask, visible_by
from phalanx.agent.elastic.elastic_agent import SimpleElasticAgent
from phalanx.agent.elastic.health_check import server_from_environment
from phalanx.agent.elastic.stuck import StuckWorkers, timeout_from_environment
from phalanx.agent.elastic.worker_group import RunResult, WorkerGroup, WorkerState, round_of
from phalanx.agent.environment import ENABLE_FILE_TIMER, worker_environment
from phalanx.logger import get_logger
from phalanx.metrics import prof
from phalanx.multiprocessing.macros import arguments_for
from phalanx.multiprocessing.prefix import prefix_for
from phalanx.multiprocessing.procfs import read_stat
from phalanx.timer.client import OUR_TIMER_FILE, TIMER_FILE

if TYPE_CHECKING:
    from phalanx.agent.elastic.health_check import HealthCheckServer
    from phalanx.agent.elastic.worker_spec import WorkerSpec
    from phalanx.errors import ProcessFailure
    from phalanx.multiprocessing.context import PContext
    from phalanx.multiprocessing.logs import LogsSpecs
    from phalanx.timer import FileTimerRequest, FileTimerServer

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "LocalElasticAgent",
]

TORCHELASTIC_ENABLE_FILE_TIMER = ENABLE_FILE_TIMER
TORCHELASTIC_TIMER_FILE = TIMER_FILE
TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
WATCHDOG_INTERVAL_S = 0.1  # torchelastic's

logger = get_logger(__name__)


class LocalElasticAgent(SimpleElasticAgent):
    """Runs a spec's workers on this machine. Parameters are torchelastic 2.13's; times in seconds.

    ``uninterruptible_state_timeout``: a worker that waits in the kernel for so long ends the job as failed, without a
    restart, because no signal ends it; None: ``TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT``; 0: never.
    ``TORCHELASTIC_ENABLE_FILE_TIMER=1`` watches the workers' timers, ``TORCHELASTIC_HEALTH_CHECK_PORT`` answers
    health checks while workers run. Raises ``ValueError`` for a variable that cannot be read.

    >>> from phalanx.agent.elastic import WorkerSpec
    >>> from phalanx.multiprocessing import DefaultLogsSpecs
    >>> from phalanx.rendezvous import RendezvousParameters, rendezvous_handler_registry
    >>> from phalanx.store.tcp import get_free_port
    >>> place = f"localhost:{get_free_port()}"
    >>> handler = rendezvous_handler_registry.create_handler(RendezvousParameters("c10d", place, "example", 1, 1))
    >>> spec = WorkerSpec("trainer", 2, handler, entrypoint="/bin/true")
    >>> LocalElasticAgent(spec, DefaultLogsSpecs(log_dir="/dev/null")).run().return_values
    {0: None, 1: None}
    >>> handler.shutdown()
    True
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogsSpecs,
        start_method: str = "spawn",
        exit_barrier_timeout: float = 300,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: int = 30,
        health_check_server: HealthCheckServer | None = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        super().__init__(spec, exit_barrier_timeout, shutdown_timeout)
        self._start_method = start_method
        self._pcontext: PContext | None = None
        self._rdzv_handler = spec.rdzv_handler
        self._log_line_prefix_template = log_line_prefix_template
        self._worker_watchdog: FileTimerServer | None = None
        self._timer_file = ""
        self._logs_specs = logs_specs
        self._health_check_server = health_check_server
        self._exit_codes: dict[int, int] = {}
        self._looked_at = int(time.time())
        if uninterruptible_state_timeout is None:
            uninterruptible_state_timeout = timeout_from_environment(
                TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT
            )
        self._stuck = StuckWorkers(uninterruptible_state_timeout)

    # Starting

    @prof
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        from phalanx.multiprocessing.start import start_processes

        spec = worker_group.spec
        envs: dict[int, dict[str, str]] = {}
        args: dict[int, tuple[Any, ...]] = {}
        prefixes: dict[int, str] = {}
        devices = _virtual_devices(spec)
        for worker in worker_group.workers:
            local_rank = worker.local_rank
            settled = round_of(
                worker_group,
                worker,
                number=max(1, self._meeting.round_number),
                restart_count=spec.max_restarts - self._remaining_restarts,
            )
            envs[local_rank] = worker_environment(
                os.environ,
                settled,
                local_rank,
                role=spec.role,
                run_id=spec.rdzv_handler.get_run_id(),
                max_restarts=spec.max_restarts,
                devices=devices,
            )
            args[local_rank] = arguments_for(local_rank, spec.args)
            if self._log_line_prefix_template is not None:
                prefixes[local_rank] = prefix_for(
                    self._log_line_prefix_template,
                    role=spec.role,
                    rank=worker.global_rank,
                    local_rank=local_rank,
                    host=os.uname().nodename,
                    round=settled.number,
                )
        self._setup_local_watchdog(envs)
        self._setup_healthcheck()
        self._exit_codes = {}
        assert spec.entrypoint is not None, "the spec sees to it"
        with self._signals.held():
            self._pcontext = start_processes(
                spec.role,
                spec.entrypoint,
                args,
                envs,
                self._logs_specs,
                prefixes or None,
                self._start_method,
                spec.numa_options,
                spec.duplicate_stdout_filters,
                spec.duplicate_stderr_filters,
            )
        self._stuck.began()
        return self._pcontext.pids()

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Watch the workers' timers, if the environment asks for it."""
        if os.environ.get(TORCHELASTIC_ENABLE_FILE_TIMER) != "1":
            return
        from phalanx.agent.watchdog import place_of
        from phalanx.timer import FileTimerServer

        if self._worker_watchdog is None:
            self._timer_file = place_of(os.environ)
            self._worker_watchdog = FileTimerServer(
                self._timer_file,
                self._rdzv_handler.get_run_id(),
                max_interval=WATCHDOG_INTERVAL_S,
                log_event=self._log_watchdog_event,
                is_worker=self._is_of_a_worker,
            )
            self._worker_watchdog.start()
        for env in envs.values():
            env[TORCHELASTIC_TIMER_FILE] = env[OUR_TIMER_FILE] = self._timer_file

    def _is_of_a_worker(self, pid: int) -> bool:
        """A request may name anybody. What descends from this program may be ended, and nobody else.

        Not asked of the context: a worker may be late while others of its round are still being started.
        """
        while (stat := read_stat(pid)) is not None and stat.parent != 0:
            pid = stat.parent
            if pid == os.getpid():
                return True
        return False

    def _log_watchdog_event(self, name: str, request: FileTimerRequest | None) -> None:
        from phalanx.events import Event, EventSource, record

        metadata: dict[str, Any] = {"watchdog_event": name}
        if request is not None:
            metadata |= {
                "worker_pid": str(request.worker_pid),
                "scope_id": request.scope_id,
                "expiration_time": str(request.expiration_time),
                "signal": str(request.signal),
            }
        metadata["run_id"] = self._rdzv_handler.get_run_id()
        record(Event(name, EventSource.AGENT, metadata=metadata), self._worker_group.spec.event_log_handler)

    def _setup_healthcheck(self) -> None:
        """Answer health checks, if the environment names a port; a server that was given is its giver's to start."""
        if self._health_check_server is None:
            self._health_check_server = server_from_environment(self._get_alive_time)

    def _get_alive_time(self) -> int:
        """The last sign of life: of the timers' watchdog, else of the loop, which stands in the exit barrier."""
        if self._in_exit_barrier:
            return int(time.time())
        if self._worker_watchdog is not None:
            return int(self._worker_watchdog.get_last_progress_time())
        return self._looked_at

    # Watching

    def _await_change(self, interval_s: float) -> None:
        """Until a worker has ended, or the interval is over."""
        if self._pcontext is None:
            super()._await_change(interval_s)
            return
        poller = select.poll()
        poller.register(self._pcontext.fileno(), select.POLLIN)
        poller.poll(max(1, round(interval_s * 1000)))

    @prof
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        context = self._pcontext
        assert context is not None, "workers were started"
        self._looked_at = int(time.time())
        running = context.collect()
        self._exit_codes.update(context.reap())
        if any(self._exit_codes.values()):
            context.close(timeout=self._shutdown_timeout)
        elif running:
            stuck = self._stuck.look({rank: context.pids()[rank] for rank in running})
            return self._give_up_stuck(worker_group, stuck) if stuck else RunResult(WorkerState.HEALTHY)
        result = context.wait(0)
        assert result is not None, "all have ended, or one has failed"
        ranks = {worker.local_rank: worker.global_rank for worker in worker_group.workers}
        if result.is_failed():
            for local_rank, failure in result.failures.items():
                logger.error(
                    "[%s] worker failed (exitcode: %s) local_rank: %s (pid: %s)",
                    worker_group.spec.role,
                    failure.exitcode,
                    local_rank,
                    failure.pid,
                )
            failures = {ranks[local_rank]: one for local_rank, one in result.failures.items()}
            return RunResult(WorkerState.FAILED, failures=failures)
        values = {ranks[local_rank]: value for local_rank, value in result.return_values.items()}
        return RunResult(WorkerState.SUCCEEDED, return_values=values)

    def _give_up_stuck(self, worker_group: WorkerGroup, stuck: dict[int, float]) -> RunResult:
        """Workers that no signal ends: whoever starts them anew has them twice, so the job ends here, as failed."""
        context = self._pcontext
        assert context is not None, "workers were started"
        self._remaining_restarts = 0
        context.close(timeout=self._shutdown_timeout)
        failures: dict[int, ProcessFailure] = {}
        for worker in worker_group.workers:
            if worker.local_rank in stuck:
                failure = context.failure(worker.local_rank)
                waited_s = stuck[worker.local_rank]
                failure.message = f"process {failure.pid} was in an uninterruptible wait for {waited_s:.0f} s"
                failures[worker.global_rank] = failure
                logger.error("[%s] %s: the job has failed", worker_group.spec.role, failure.message)
        return RunResult(WorkerState.FAILED, failures=failures)

    # Stopping

    @prof
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._shutdown(timeout=self._shutdown_timeout)

    def _shutdown(self, death_sig: Signals = Signals.SIGTERM, timeout: int = 30) -> None:
        if self._worker_watchdog is not None:
            self._worker_watchdog.stop()
            self._worker_watchdog = None
        if self._health_check_server is not None:
            self._health_check_server.stop()
            self._health_check_server = None
        self._meeting.release_port()
        if self._pcontext is not None:
            self._pcontext.close(death_sig, timeout=timeout)


def _virtual_devices(spec: WorkerSpec) -> DeviceMask | None:
    """With virtual local ranks: by ``CUDA_VISIBLE_DEVICES``, and the other vendors' variables if they are set."""
    if not spec.virtual_local_rank:
        return None
    names = (CUDA, *(name for name in (HIP, ZE) if name in os.environ))
    return virtual_mask(visible_by(names, os.environ), spec.local_world_size)
