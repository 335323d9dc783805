"""The supervising agent of one node: machines that decide, and the driver that performs.

``phalanx.agent.elastic`` has another kind, torchelastic's; its names are here, too, and load on first use.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than this module

if TYPE_CHECKING:
    from phalanx.agent.elastic import (
        ElasticAgent,
        HealthCheckServer,
        LocalElasticAgent,
        RunResult,
        SimpleElasticAgent,
        Worker,
        WorkerGroup,
        WorkerSpec,
        WorkerState,
        create_healthcheck_server,
    )

__all__ = [
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from phalanx.agent import elastic

    return getattr(elastic, name)
