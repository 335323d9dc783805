"""The names of environment variables, and what each worker finds in them.

Semantics are torchelastic 2.13's, with the differences that architecture and exit-code pages list as meant:
``TORCHELASTIC_USE_AGENT_STORE`` is always False (rank 0 hosts its own store, so no round can read an earlier one's
keys), and ``PHALANX_*`` variables are added. Variables that stand for options are rows of the option table.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.rendezvous.round import Round

__all__ = ["PYTHON", "worker_environment"]

PYTHON = "PYTHON_EXEC"  # torchrun's name for the workers' interpreter


def worker_environment(
    inherited: Mapping[str, str],
    settled: Round,
    local_rank: int,
    agent_socket: str,
    *,
    role: str,
    run_id: str,
    max_restarts: int,
    stop_signals: str,
    job_token: str,
    error_handler: str | None = None,
) -> dict[str, str]:
    """What one worker's environment has beyond the launcher's own, which is ``inherited``."""
    rank = settled.rank(local_rank)
    environment = {
        "LOCAL_RANK": str(local_rank),
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
        "TORCHELASTIC_SIGNALS_TO_HANDLE": stop_signals,
        # A job inside a worker of another job belongs to both: whoever is left can end it.
        "PHALANX_JOB": "/".join(filter(None, (inherited.get("PHALANX_JOB"), job_token))),
        "PHALANX_ROUND": str(settled.number),
        "PHALANX_RESTART_REASON": settled.reason,
        "PHALANX_AGENT": agent_socket,
    }
    if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in inherited:
        environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if settled.local_world_size > 1 and "OMP_NUM_THREADS" not in inherited:
        environment["OMP_NUM_THREADS"] = "1"
    if error_handler is not None:
        environment["PHALANX_ERROR_HANDLER"] = error_handler
    return environment
