"""What each worker finds in its environment, and the names of variables that agents read. Pure.

Semantics are torchelastic 2.13's, with the differences that architecture and exit-code pages list as meant:
``TORCHELASTIC_USE_AGENT_STORE`` is always False (rank 0 hosts its own store, so no round can read an earlier one's
keys), and ``PHALANX_*`` variables are added. Variables that stand for options are rows of the option table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.agent.devices import DeviceMask

__all__ = [
    "ENABLE_FILE_TIMER",
    "HEALTH_CHECK_PORT",
    "LOCAL_RANK",
    "OMP",
    "SIGNALS_TO_HANDLE",
    "worker_environment",
]

OMP = "OMP_NUM_THREADS"
ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
HEALTH_CHECK_PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"
SIGNALS_TO_HANDLE = "TORCHELASTIC_SIGNALS_TO_HANDLE"
LOCAL_RANK = "PHALANX_LOCAL_RANK"  # the true one, for phalanx.errors, where LOCAL_RANK is 0 in each worker


def worker_environment(
    inherited: Mapping[str, str],
    settled: Round,
    local_rank: int,
    *,
    role: str,
    run_id: str,
    max_restarts: int,
    agent_socket: str | None = None,
    stop_signals: str | None = None,
    job_token: str | None = None,
    error_handler: str | None = None,
    env: Mapping[str, str] | None = None,
    omp_threads: int | None = None,
    devices: DeviceMask | None = None,
) -> dict[str, str]:
    """What one worker's environment has beyond its agent's own, which is ``inherited``.

    ``env`` is what the user gives to every worker; what we tell them is stronger. ``omp_threads`` None: as inherited.
    An agent without a socket, a token or signals to name has None there.
    """
    rank = settled.rank(local_rank)
    known = {**inherited, **(env or {})}
    is_virtual = devices is not None and devices.is_virtual
    environment = {
        **(env or {}),
        **({} if devices is None else devices.environment(local_rank)),
        "LOCAL_RANK": "0" if is_virtual else str(local_rank),
        "RANK": str(rank),
        "GROUP_RANK": str(settled.group_rank),
        "ROLE_RANK": str(settled.role_rank(local_rank)),
        "ROLE_NAME": role,
        "LOCAL_WORLD_SIZE": str(settled.local_world_size),
        "WORLD_SIZE": str(settled.world_size),
        "GROUP_WORLD_SIZE": str(settled.group_world_size),
        "ROLE_WORLD_SIZE": str(settled.role_size),
        "MASTER_ADDR": settled.master_addr,
        "MASTER_PORT": str(settled.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(settled.restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "PHALANX_ROUND": str(settled.number),
        "PHALANX_RESTART_REASON": settled.reason,
    }
    told = {
        "PHALANX_AGENT": agent_socket,
        SIGNALS_TO_HANDLE: stop_signals,
        OMP: None if omp_threads is None else str(omp_threads),
        "PHALANX_ERROR_HANDLER": error_handler,
    }
    environment |= {name: value for name, value in told.items() if value is not None}
    if job_token is not None:
        # A job inside a worker of another job belongs to both: whoever is left can end it.
        environment["PHALANX_JOB"] = "/".join(filter(None, (inherited.get("PHALANX_JOB"), job_token)))
    if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in known:
        environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if is_virtual or LOCAL_RANK in known:  # a job inside of such a worker inherits that one's
        environment[LOCAL_RANK] = str(local_rank)
    return environment
