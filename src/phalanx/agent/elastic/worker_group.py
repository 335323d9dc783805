"""The workers of one node as torchelastic's agents keep them, and how a run ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.agent.elastic.worker_spec import WorkerSpec
    from phalanx.errors import ProcessFailure

__all__ = ["RunResult", "Worker", "WorkerGroup", "WorkerState", "round_of"]


class WorkerState(str, Enum):  # noqa: UP042 # prints as torchelastic's does
    """Where a worker group is. ``FAILED``: a worker has; ``UNHEALTHY``: it runs, and is to be started anew.

    >>> [state.value for state in WorkerState if WorkerState.is_running(state)]
    ['HEALTHY', 'UNHEALTHY']
    """

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """Whether processes of the group run in this state."""
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


class Worker:
    """One worker. ``id`` is what ``_start_workers`` gives it, its process id for one. Ranks are -1 until a round.

    >>> Worker(local_rank=1, global_rank=9)
    local_rank=1,global_rank=9,role_rank=-1,world_size=-1,role_world_size=-1
    """

    __slots__ = ("global_rank", "id", "local_rank", "role_rank", "role_world_size", "world_size")

    def __init__(
        self,
        local_rank: int,
        global_rank: int = -1,
        role_rank: int = -1,
        world_size: int = -1,
        role_world_size: int = -1,
    ) -> None:
        self.id: Any = None
        self.local_rank = local_rank
        self.global_rank = global_rank
        self.role_rank = role_rank
        self.world_size = world_size
        self.role_world_size = role_world_size

    def __repr__(self) -> str:
        names = ("local_rank", "global_rank", "role_rank", "world_size", "role_world_size")
        return ",".join(f"{name}={getattr(self, name)}" for name in names)


class WorkerGroup:
    """All workers of a spec on this node, and the round that they are in.

    >>> from phalanx.agent.elastic import WorkerSpec
    >>> spec = WorkerSpec("trainer", local_world_size=2, rdzv_handler=None, entrypoint=print)
    >>> group = WorkerGroup(spec)
    >>> len(group.workers), group.state.name, group.group_rank
    (2, 'INIT', None)
    """

    __slots__ = (
        "group_rank",
        "group_world_size",
        "master_addr",
        "master_port",
        "spec",
        "state",
        "store",
        "workers",
    )

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.workers = [Worker(local_rank) for local_rank in range(spec.local_world_size)]
        self.store: Any = None
        self.group_rank: int | None = None
        self.group_world_size: int | None = None
        self.state = WorkerState.INIT
        self.master_addr: str | None = None
        self.master_port: int | None = None


@dataclass
class RunResult:
    """How a run ended: values or failures, both by global rank of this node's workers.

    >>> RunResult(WorkerState.SUCCEEDED, return_values={0: 7}).is_failed()
    False
    """

    state: WorkerState
    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether a worker has failed."""
        return self.state == WorkerState.FAILED


def round_of(group: WorkerGroup, worker: Worker, *, number: int, restart_count: int) -> Round:
    """The round as this worker has it: a subclass of the agent may have given the ranks in its own way."""
    return Round(
        number=number,
        restart_count=restart_count,
        reason="",
        group_rank=-1 if group.group_rank is None else group.group_rank,
        group_world_size=-1 if group.group_world_size is None else group.group_world_size,
        first_rank=worker.global_rank - worker.local_rank,
        local_world_size=group.spec.local_world_size,
        world_size=worker.world_size,
        master_addr=str(group.master_addr),
        master_port=-1 if group.master_port is None else group.master_port,
        role_first_rank=worker.role_rank - worker.local_rank,
        role_world_size=worker.role_world_size,
    )
