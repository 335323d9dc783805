"""``launch_agent`` with an agent in this program: for rendezvous handlers and log layouts that cannot leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.launcher.elastic_options import stop_signals_of

if TYPE_CHECKING:
    from phalanx.launcher.launch_config import LaunchConfig

__all__ = ["launch_here"]


def launch_here(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any]
) -> dict[int, Any]:
    """Run a job to its end by a ``LocalElasticAgent``; returns and raises as ``launch_agent``.

    At a stop signal the rendezvous is left open, as torchelastic does it: the other nodes may go on.
    """
    from phalanx.agent.elastic import LocalElasticAgent, WorkerSpec
    from phalanx.errors import ChildFailedError
    from phalanx.events import record
    from phalanx.multiprocessing.stopping import SignalException
    from phalanx.rendezvous.parameters import RendezvousParameters
    from phalanx.rendezvous.registry import get_rendezvous_handler

    handler = get_rendezvous_handler(
        RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            config.local_addr,
            **config.rdzv_configs,
        )
    )
    is_job_over = True
    try:
        spec = WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=entrypoint,
            args=tuple(args),
            rdzv_handler=handler,
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            event_log_handler=config.event_log_handler,
            numa_options=config.numa_options,
            duplicate_stdout_filters=config.duplicate_stdout_filters,
            duplicate_stderr_filters=config.duplicate_stderr_filters,
            virtual_local_rank=config.virtual_local_rank,
        )
        assert config.logs_specs is not None, "__post_init__ sees to it"
        agent = LocalElasticAgent(
            spec,
            config.logs_specs,
            start_method=config.start_method,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=config.shutdown_timeout or 0,
        )
        agent.stop_signals = stop_signals_of(config.signals_to_handle)
        try:
            result = agent.run()
        except SignalException:
            is_job_over = False
            record(agent.get_event_failed(), config.event_log_handler)
            raise
        except Exception:
            record(agent.get_event_failed(), config.event_log_handler)
            raise
        if result.is_failed():
            record(agent.get_event_failed(), config.event_log_handler)
            raise ChildFailedError(spec.get_entrypoint_name(), result.failures)
        record(agent.get_event_succeeded(), config.event_log_handler)
        return result.return_values
    finally:
        if is_job_over:
            handler.shutdown()
