"""What a worker of an in-process agent finds in its environment: torchelastic 2.13's variables."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.agent.elastic.worker_group import Worker, WorkerGroup

__all__ = ["visible_device", "worker_variables"]


def worker_variables(
    group: WorkerGroup,
    worker: Worker,
    *,
    run_id: str,
    restart_count: int,
    round_number: int,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """The variables of one worker beyond those of its agent, which are ``inherited``.

    ``TORCHELASTIC_USE_AGENT_STORE`` is always False: rank 0 serves a store of its own, so that no round can read what
    an earlier one has left.
    """
    spec = group.spec
    variables = {
        "LOCAL_RANK": str(worker.local_rank),
        "RANK": str(worker.global_rank),
        "GROUP_RANK": str(group.group_rank),
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": str(spec.local_world_size),
        "WORLD_SIZE": str(worker.world_size),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(spec.max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "PHALANX_ROUND": str(round_number),
    }
    if "OMP_NUM_THREADS" in inherited:
        variables["OMP_NUM_THREADS"] = inherited["OMP_NUM_THREADS"]
    return variables


def visible_device(inherited: Mapping[str, str], local_rank: int) -> str:
    """The entry of ``CUDA_VISIBLE_DEVICES`` for a worker that is to see one device alone.

    Raises ``ValueError`` when there are fewer devices than workers.

    >>> visible_device({"CUDA_VISIBLE_DEVICES": "3,5"}, 1), visible_device({}, 1)
    ('5', '1')
    """
    listed = inherited.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(local_rank)
    entries = [one.strip() for one in listed.split(",") if one.strip()]
    if local_rank >= len(entries):
        raise ValueError(
            f"virtual_local_rank: CUDA_VISIBLE_DEVICES={listed} has no device for local rank {local_rank}"
        )
    return entries[local_rank]
