"""``launch_agent`` with an agent in this program: for rendezvous handlers and log layouts that cannot leave it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.agent.elastic.signals import read_signals

if TYPE_CHECKING:
    from phalanx.agent.elastic import LocalElasticAgent
    from phalanx.launcher.elastic.launch_config import LaunchConfig
    from phalanx.rendezvous import RendezvousHandler

__all__ = ["launch_here"]


def launch_here(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: list[Any]
) -> dict[int, Any]:
    """Run a job to its end by a ``LocalElasticAgent``; returns and raises as ``launch_agent``.

    At a stop signal the rendezvous is left open, as torchelastic does it: the other nodes may go on.
    """
    from phalanx.multiprocessing.stopping import SignalException

    handler = _handler(config)
    is_job_over = True
    try:
        return _run(_agent(config, handler, entrypoint, args))
    except SignalException:
        is_job_over = False
        raise
    finally:
        if is_job_over:
            handler.shutdown()


def _run(agent: LocalElasticAgent) -> dict[int, Any]:
    from phalanx.errors import ChildFailedError
    from phalanx.events import record

    spec = agent.get_worker_group().spec
    try:
        result = agent.run()
        if result.failures:
            raise ChildFailedError(spec.get_entrypoint_name(), result.failures)
        if result.is_failed():
            raise RuntimeError(f"{spec.get_entrypoint_name()} failed, and its workers do not say why")
    except Exception:
        record(agent.get_event_failed(), spec.event_log_handler)
        raise
    record(agent.get_event_succeeded(), spec.event_log_handler)
    return result.return_values


def _handler(config: LaunchConfig) -> RendezvousHandler:
    from phalanx.rendezvous.parameters import RendezvousParameters
    from phalanx.rendezvous.registry import get_rendezvous_handler

    return get_rendezvous_handler(
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


def _agent(
    config: LaunchConfig, handler: RendezvousHandler, entrypoint: Callable[..., Any] | str, args: list[Any]
) -> LocalElasticAgent:
    from phalanx.agent.elastic import LocalElasticAgent, WorkerSpec

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
    agent.stop_signals = read_signals(config.signals_to_handle)
    return agent
