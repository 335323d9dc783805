"""Agents of torchelastic's kind: they run in this process, synchronously, over a live ``RendezvousHandler``.

For programs that build an agent themselves, or subclass one. ``phalanx run`` and ``elastic_launch`` have another agent,
see ``phalanx.agent.driver``. Names load on first use.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.agent.elastic.elastic_agent import ElasticAgent as ElasticAgent
    from phalanx.agent.elastic.elastic_agent import SimpleElasticAgent as SimpleElasticAgent
    from phalanx.agent.elastic.health_check import (
        TORCHELASTIC_HEALTH_CHECK_PORT as TORCHELASTIC_HEALTH_CHECK_PORT,
    )
    from phalanx.agent.elastic.health_check import HealthCheckServer as HealthCheckServer
    from phalanx.agent.elastic.health_check import create_healthcheck_server as create_healthcheck_server
    from phalanx.agent.elastic.local_agent import (
        TORCHELASTIC_ENABLE_FILE_TIMER as TORCHELASTIC_ENABLE_FILE_TIMER,
    )
    from phalanx.agent.elastic.local_agent import TORCHELASTIC_TIMER_FILE as TORCHELASTIC_TIMER_FILE
    from phalanx.agent.elastic.local_agent import (
        TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT as TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT,
    )
    from phalanx.agent.elastic.local_agent import LocalElasticAgent as LocalElasticAgent
    from phalanx.agent.elastic.worker_group import RunResult as RunResult
    from phalanx.agent.elastic.worker_group import Worker as Worker
    from phalanx.agent.elastic.worker_group import WorkerGroup as WorkerGroup
    from phalanx.agent.elastic.worker_group import WorkerState as WorkerState
    from phalanx.agent.elastic.worker_spec import WorkerSpec as WorkerSpec

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.agent.elastic.elastic_agent": "ElasticAgent SimpleElasticAgent",
        "phalanx.agent.elastic.health_check": (
            "HealthCheckServer TORCHELASTIC_HEALTH_CHECK_PORT create_healthcheck_server"
        ),
        "phalanx.agent.elastic.local_agent": (
            "LocalElasticAgent TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_TIMER_FILE "
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
        ),
        "phalanx.agent.elastic.worker_group": "RunResult Worker WorkerGroup WorkerState",
        "phalanx.agent.elastic.worker_spec": "WorkerSpec",
    },
)
