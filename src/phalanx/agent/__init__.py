"""The supervising agent of one node: machines that decide, and the driver that performs.

``phalanx.agent.elastic`` has another kind, torchelastic's; its names are here, too, and load on first use.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

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

__getattr__, __dir__, _ = lazy.names(__name__, {"phalanx.agent.elastic": " ".join(__all__)})
