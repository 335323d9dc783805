"""``ElasticAgent`` and ``SimpleElasticAgent``: torchelastic's template of an agent, with hooks for subclasses.

One thread does all of it: meet, start workers, look after them, meet again. What nodes have to agree on beyond the
handler's ranks (how many workers each has, rank 0's address, how many restarts are used) goes through the round's
store, with words that no other round uses.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from signal import Signals
from typing import TYPE_CHECKING, Any

from phalanx.agent.elastic.meeting import Meeting
from phalanx.agent.elastic.signals import RaisingSignals, signals_to_handle
from phalanx.agent.elastic.telemetry import AgentAccounts
from phalanx.agent.elastic.worker_group import RunResult, Worker, WorkerGroup, WorkerState
from phalanx.logger import get_logger
from phalanx.metrics import prof, put_metric
from phalanx.multiprocessing.stopping import SignalException

if TYPE_CHECKING:
    from phalanx.agent.elastic.worker_spec import WorkerSpec

__all__ = ["ElasticAgent", "SimpleElasticAgent"]

DEFAULT_ROLE = "default"

logger = get_logger(__name__)


class ElasticAgent(ABC):
    """Runs the workers of one node, and starts them anew when they fail or the nodes change.

    Subclass it for an agent that is quite different; ``SimpleElasticAgent`` is the usual base.

    >>> class Idle(ElasticAgent):
    ...     def run(self, role="default"):
    ...         return RunResult(WorkerState.SUCCEEDED)
    ...
    ...     def get_worker_group(self, role="default"):
    ...         raise KeyError(role)
    >>> Idle().run().state.name
    'SUCCEEDED'
    """

    @abstractmethod
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers until they have succeeded, or failed too often.

        Raises what is no failure of a worker: ``SignalException``, a ``RendezvousError``, a bug.
        """

    @abstractmethod
    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group of workers of a role; the agent goes on changing it."""


class SimpleElasticAgent(AgentAccounts, ElasticAgent):
    """The template: fill in ``_start_workers``, ``_stop_workers``, ``_monitor_workers`` and ``_shutdown``.

    ``exit_barrier_timeout``: seconds that a node whose workers have succeeded waits for the others;
    ``shutdown_timeout``: grace of workers that are stopped. In the main thread the signals of
    ``TORCHELASTIC_SIGNALS_TO_HANDLE`` raise ``SignalException`` while it runs. ``LocalElasticAgent`` is one.

    >>> SimpleElasticAgent.__abstractmethods__ == {"_start_workers", "_stop_workers", "_monitor_workers", "_shutdown"}
    True
    """

    def __init__(
        self, spec: WorkerSpec, exit_barrier_timeout: float = 300, shutdown_timeout: int = 30
    ) -> None:
        self._worker_group = WorkerGroup(spec)
        self._remaining_restarts = spec.max_restarts
        self._store: Any = None
        self._exit_barrier_timeout = exit_barrier_timeout
        self._shutdown_timeout = shutdown_timeout
        self._total_execution_time = 0
        self._in_exit_barrier = False
        self._meeting = Meeting(spec)
        self._signals = RaisingSignals()
        self.stop_signals: tuple[int, ...] | None = None
        """Which signals end ``run`` in the main thread; None: those of ``TORCHELASTIC_SIGNALS_TO_HANDLE``."""

    def get_worker_group(self, role: str = DEFAULT_ROLE) -> WorkerGroup:
        """Return the group of workers; there is one, whatever its role."""
        return self._worker_group

    # What subclasses fill in

    @abstractmethod
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        """Start ``spec.local_world_size`` workers; return an id for each local rank."""

    @abstractmethod
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        """Stop all workers of the group, before they are started anew or given up."""

    @abstractmethod
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        """Look at the workers, and return at once how they are."""

    @abstractmethod
    def _shutdown(self, death_sig: Signals = Signals.SIGTERM, timeout: int = 30) -> None:
        """Stop all that runs, and let go of everything: the agent ends."""

    def _await_change(self, interval_s: float) -> None:
        """Wait until there may be something new about the workers, ``interval_s`` seconds at most."""
        time.sleep(interval_s)

    # The run

    @prof
    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run the workers; see ``ElasticAgent``. A node that was never needed has succeeded."""
        from phalanx.rendezvous.errors import RendezvousGracefulExitError

        began_at = time.monotonic()
        signals = signals_to_handle() if self.stop_signals is None else self.stop_signals
        # Around the shutdown, too: a second signal makes that faster, and does not end this process in the middle.
        with RaisingSignals(signals) as self._signals:
            death_sig = Signals.SIGTERM
            try:
                result = self._invoke_run(role)
                self._total_execution_time = int(time.monotonic() - began_at)
                self._record_metrics(result)
                self._record_worker_events(result)
                return result
            except SignalException as stop:
                death_sig = Signals(stop.sigval)
                logger.warning("received %s: stopping the workers", death_sig.name)
                raise
            except Exception as error:
                if not _is_called(error, RendezvousGracefulExitError):
                    raise
                logger.info("the job has ended well, and this node was not needed: %s", error)
                return RunResult(state=WorkerState.SUCCEEDED)
            finally:
                self._shutdown(death_sig, timeout=self._shutdown_timeout)
                self._total_execution_time = int(time.monotonic() - began_at)

    def _invoke_run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """The loop: everything that may happen to workers, and what is done about it."""
        group = self._worker_group
        spec = group.spec
        logger.info("[%s] starting workers for entrypoint: %s", spec.role, spec.get_entrypoint_name())
        self._initialize_workers(group)
        while True:
            assert group.state != WorkerState.INIT, "workers were started"
            self._await_change(spec.monitor_interval)
            result = self._monitor_workers(group)
            group.state = result.state
            put_metric(f"workers.{spec.role}.remaining_restarts", self._remaining_restarts)
            put_metric(f"workers.{spec.role}.{result.state.name.lower()}", 1)
            if result.state == WorkerState.SUCCEEDED:
                self._exit_barrier()
                return result
            if result.state in (WorkerState.UNHEALTHY, WorkerState.FAILED):
                if self._remaining_restarts <= 0:
                    return self._give_up(result)
                logger.warning(
                    "[%s] worker group %s; %s of %s restarts are left: starting all workers anew",
                    spec.role,
                    result.state.name,
                    self._remaining_restarts,
                    spec.max_restarts,
                )
                self._remaining_restarts -= 1
                self._restart_workers(group)
            elif result.state == WorkerState.HEALTHY:
                self._look_at_nodes(group)
            else:
                raise RuntimeError(f"[{spec.role}] the worker group is in state {result.state.name}")

    def _give_up(self, result: RunResult) -> RunResult:
        """Failed for good. The other nodes are told: they would wait for this one in vain."""
        self._stop_workers(self._worker_group)
        self._worker_group.state = WorkerState.FAILED
        self._meeting.tell_failure()
        # An unhealthy group that is given up has failed; torchelastic's caller takes it for a success.
        return RunResult(WorkerState.FAILED, result.return_values, result.failures)

    def _look_at_nodes(self, group: WorkerGroup) -> None:
        """Nodes wait: meet anew, which costs no restart. Another node has given up: so do we."""
        spec = group.spec
        waiting = spec.rdzv_handler.num_nodes_waiting()
        if waiting > 0:
            logger.info("[%s] %s nodes wait to join: starting all workers anew", spec.role, waiting)
            self._restart_workers(group)
        elif self._meeting.has_other_failed():
            from phalanx.rendezvous.errors import RendezvousClosedError

            self._stop_workers(group)
            self._meeting.part()
            raise RendezvousClosedError("another node's workers have failed, and no restart is left")

    # Its steps, which subclasses may extend

    @prof
    def _initialize_workers(self, worker_group: WorkerGroup) -> None:
        """Meet, and start the workers of the round."""
        self._rendezvous(worker_group)
        self._meeting.release_port()  # rank 0 binds it
        worker_ids = self._start_workers(worker_group)
        for worker in worker_group.workers:
            worker.id = worker_ids.get(worker.local_rank)
        self._record_starts(worker_group)
        worker_group.state = WorkerState.HEALTHY

    @prof
    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Stop the workers, and begin again with a meeting."""
        self._stop_workers(worker_group)
        worker_group.state = WorkerState.STOPPED
        self._initialize_workers(worker_group)

    @prof
    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other nodes, and fill in the group: ranks, sizes, where rank 0 is."""
        spec = worker_group.spec
        with self.record_duration("RENDEZVOUS"):
            info = self._meeting.meet(spec.rdzv_handler)
        self._store = info.store
        with self.record_duration("ASSIGN_WORKER_RANKS"):
            workers = self._assign_worker_ranks(info.store, info.rank, info.world_size, spec)
        worker_group.workers = workers
        worker_group.store = info.store
        worker_group.group_rank = info.rank
        worker_group.group_world_size = info.world_size
        worker_group.master_addr, worker_group.master_port = self._meeting.master()
        logger.info(
            "[%s] round %s: node %s of %s, ranks %s, master %s:%s",
            spec.role,
            self._meeting.round_number,
            info.rank,
            info.world_size,
            [worker.global_rank for worker in workers],
            worker_group.master_addr,
            worker_group.master_port,
        )

    @prof
    def _assign_worker_ranks(
        self, store: Any, group_rank: int, group_world_size: int, spec: WorkerSpec
    ) -> list[Worker]:
        """Agree with the other nodes on every worker's ranks, and on how many restarts are used by now."""
        used = spec.max_restarts - self._remaining_restarts
        settled = self._meeting.agree(store, group_rank, group_world_size, restart_count=used)
        # One budget for the job: whoever has used more of it is right.
        self._remaining_restarts = max(0, spec.max_restarts - settled.restart_count)
        return [
            Worker(
                local_rank,
                global_rank=settled.rank(local_rank),
                role_rank=settled.role_rank(local_rank),
                world_size=settled.world_size,
                role_world_size=settled.role_size,
            )
            for local_rank in range(spec.local_world_size)
        ]

    def _exit_barrier(self) -> None:
        """Wait for the workers of the other nodes, ``exit_barrier_timeout`` seconds at most; never a failure."""
        logger.info("waiting %s s at most for the other nodes to end", self._exit_barrier_timeout)
        self._in_exit_barrier = True
        try:
            self._meeting.wait_for_others(self._exit_barrier_timeout)
        except SignalException as stop:
            logger.warning("received %s while waiting for the other nodes", Signals(stop.sigval).name)
            raise
        except Exception:
            logger.exception("this node's workers have succeeded; the others are waited for no longer")
        finally:
            self._in_exit_barrier = False


def _is_called(error: BaseException, kind: type[BaseException]) -> bool:
    """Whether it is such an error, of ours or of torchelastic, whose handlers raise its own."""
    return any(one.__name__ == kind.__name__ for one in type(error).__mro__)
