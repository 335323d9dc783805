"""Agents of torchelastic's kind: they run in this process, synchronously, over a live ``RendezvousHandler``.

For programs that build an agent themselves, or subclass one. ``phalanx run`` and ``elastic_launch`` have another agent,
see ``phalanx.agent.driver``. Names load on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than this module

if TYPE_CHECKING:
    from phalanx.agent.elastic.elastic_agent import ElasticAgent, SimpleElasticAgent
    from phalanx.agent.elastic.health_check import (
        TORCHELASTIC_HEALTH_CHECK_PORT,
        HealthCheckServer,
        create_healthcheck_server,
    )
    from phalanx.agent.elastic.local_agent import (
        TORCHELASTIC_ENABLE_FILE_TIMER,
        TORCHELASTIC_TIMER_FILE,
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
        LocalElasticAgent,
    )
    from phalanx.agent.elastic.worker_group import RunResult, Worker, WorkerGroup, WorkerState
    from phalanx.agent.elastic.worker_spec import WorkerSpec

__all__ = [
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "ElasticAgent",
    "HealthCheckServer",
    "LocalElasticAgent",
    "RunResult",
    "SimpleElasticAgent",
    "Worker",
    "WorkerGroup",
    "WorkerSpec",
    "WorkerState",
    "create_healthcheck_server",
]

_HOMES = {
    "ElasticAgent": "elastic_agent",
    "HealthCheckServer": "health_check",
    "RunResult": "worker_group",
    "SimpleElasticAgent": "elastic_agent",
    "TORCHELASTIC_HEALTH_CHECK_PORT": "health_check",
    "Worker": "worker_group",
    "WorkerGroup": "worker_group",
    "WorkerSpec": "worker_spec",
    "WorkerState": "worker_group",
    "create_healthcheck_server": "health_check",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'local_agent')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
