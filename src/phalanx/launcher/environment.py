"""The names of environment variables, and what each worker finds in them.

Semantics are torchelastic 2.13's, with the differences that architecture and exit-code pages list as meant:
``TORCHELASTIC_USE_AGENT_STORE`` is always False (rank 0 hosts its own store, so no round can read an earlier one's
keys), and ``PHALANX_*`` variables are added. Variables that stand for options are rows of the option table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.launcher.hardware.devices import DeviceMask

__all__ = ["ENABLE_FILE_TIMER", "LOCAL_RANK", "OMP", "check_env", "leaves_omp_to_us", "worker_environment"]

OMP = "OMP_NUM_THREADS"
ENABLE_FILE_TIMER = "TORCHELASTIC_ENABLE_FILE_TIMER"
LOCAL_RANK = "PHALANX_LOCAL_RANK"  # the true one, for phalanx.errors, where LOCAL_RANK is 0 in each worker


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
    env: Mapping[str, str] | None = None,
    omp_threads: int | None = None,
    devices: DeviceMask | None = None,
) -> dict[str, str]:
    """What one worker's environment has beyond the launcher's own, which is ``inherited``.

    ``env`` is what the user gives to every worker; what we tell them is stronger. ``omp_threads`` None: 1, if there
    are several workers and nobody has said anything.
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
        "TORCHELASTIC_SIGNALS_TO_HANDLE": stop_signals,
        # A job inside a worker of another job belongs to both: whoever is left can end it.
        "PHALANX_JOB": "/".join(filter(None, (inherited.get("PHALANX_JOB"), job_token))),
        "PHALANX_ROUND": str(settled.number),
        "PHALANX_RESTART_REASON": settled.reason,
        "PHALANX_AGENT": agent_socket,
    }
    if "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in known:
        environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
    if omp_threads is not None:
        environment[OMP] = str(omp_threads)
    elif leaves_omp_to_us(known, settled.local_world_size):
        environment[OMP] = "1"
    if is_virtual or LOCAL_RANK in known:  # a job inside of such a worker inherits that one's
        environment[LOCAL_RANK] = str(local_rank)
    if error_handler is not None:
        environment["PHALANX_ERROR_HANDLER"] = error_handler
    return environment


def leaves_omp_to_us(known: Mapping[str, str], nproc: int) -> bool:
    """Whether ``OMP_NUM_THREADS`` is ours to set: several workers would each take all CPUs for themselves."""
    return nproc > 1 and OMP not in known


def check_env(env: Mapping[str, str]) -> None:
    """Raise ``ValueError``, with a sentence, for a variable that no environment can hold."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(
                f"env: {name[:60]!r} is no name of a variable; it is not empty, and has no = and no NUL"
            )
        if "\0" in value:
            raise ValueError(f"env: the value of {name[:60]} has a NUL in it, which no environment can hold")
