"""How a job stands on one node, folded from its job events. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from phalanx.events import job
from phalanx.records import Struct, changed

__all__ = ["EndingName", "JobStatus", "Phase", "WorkerState", "WorkerStatus"]

Phase = Literal["rendezvous", "running", "stopping", "waiting", "ended"]
"""``rendezvous``: nodes meet for this node's first round. ``running``: workers run, or start. ``stopping``: they are
asked to stop. ``waiting``: they are gone, and another round or the job's end is to come. ``ended``."""
WorkerState = Literal["starting", "running", "succeeded", "failed", "stopped"]
"""``stopped``: it ended because it was asked to."""
EndingName = Literal["succeeded", "failed", "stopped"]


class WorkerStatus(Struct, kw_only=True):
    """One worker of this node.

    >>> WorkerStatus(rank=3, local_rank=1).state
    'starting'
    """

    rank: int
    """The global one."""
    local_rank: int
    pid: int = 0
    """0: it has not started yet."""
    state: WorkerState = "starting"
    exit_code: int | None = None
    """Negative: the number of the signal that killed it. None: it has not ended."""


class JobStatus(Struct, kw_only=True):
    """How a job stands on one node.

    >>> status = JobStatus().after(job.RoundOpened(at_ns=0, round=1))
    >>> status.phase, status.after(job.WaitingFor(at_ns=0, sentence="1 of 2 nodes is here")).waiting_for
    ('rendezvous', '1 of 2 nodes is here')
    """

    phase: Phase = "rendezvous"
    """See ``Phase``."""
    name: str = ""
    run_id: str = ""
    host: str = ""
    round: int = 0
    """The last that settled here; 0: none has."""
    restarts: int = 0
    """How many were charged, as far as this node knows."""
    restarts_left: int | None = None
    """None: none was needed yet."""
    group_rank: int | None = None
    """This node's place among ``nodes``."""
    nodes: int = 0
    world_size: int = 0
    workers: tuple[WorkerStatus, ...] = ()
    """Of this node, by local rank; of the round that runs or ran last."""
    step: int | None = None
    """The furthest that workers of this node have told of in this round."""
    checkpoint: int | None = None
    """The last that a worker of this node has told of."""
    progress_at_ns: int | None = None
    """When workers of this node have last told of a step or a checkpoint in this round, or, where the agent has a
    watchdog, have begun or ended a block of ``phalanx.timer``. Wall time, to about a second."""
    waiting_for: str = ""
    """What is waited for, in words, as long as no workers run."""
    reason: str = ""
    """Why the workers are stopped, why there is another round, or why the job has ended."""
    ending: EndingName | None = None
    """None: it goes on."""
    exit_code: int | None = None
    """As of ``phalanx run``."""

    def after(self, job_event: job.JobEvent) -> JobStatus:
        """The status when this has happened, too.

        >>> JobStatus().after(job.JobEnded(at_ns=0, ending="succeeded", exit_code=0)).phase
        'ended'
        """
        take = _AFTER.get(type(job_event))
        return self if take is None else changed(self, **take(self, job_event))


def _settled(_status: JobStatus, it: job.RoundSettled) -> dict[str, Any]:
    return {
        "phase": "running",
        "run_id": it.run_id,
        "round": it.round,
        "restarts": it.restart_count,
        "group_rank": it.group_rank,
        "nodes": it.group_world_size,
        "world_size": it.world_size,
        "workers": tuple(
            WorkerStatus(rank=rank, local_rank=local_rank) for local_rank, rank in enumerate(it.ranks)
        ),
        "step": None,
        "progress_at_ns": None,
        "waiting_for": "",
        "reason": it.reason,
    }


def _with(status: JobStatus, local_rank: int, **changes: Any) -> tuple[WorkerStatus, ...]:
    return tuple(changed(one, **changes) if one.local_rank == local_rank else one for one in status.workers)


def _started(status: JobStatus, it: job.WorkersStarted) -> dict[str, Any]:
    workers = tuple(
        changed(one, pid=it.pids[one.local_rank], state="running", exit_code=None)
        if one.local_rank in it.pids
        else one
        for one in status.workers
    )
    return {"workers": workers}


def _ended(status: JobStatus, it: job.WorkerEnded) -> dict[str, Any]:
    state = "succeeded" if it.exit_code == 0 else "stopped" if it.was_asked else "failed"
    return {"workers": _with(status, it.local_rank, state=state, exit_code=it.exit_code)}


def _failed(status: JobStatus, it: job.WorkerFailed) -> dict[str, Any]:
    """What it left tells better than the order of the ends whether it was stopped or had failed before."""
    has_ended = any(one.local_rank == it.local_rank and one.exit_code is not None for one in status.workers)
    state = "stopped" if it.is_collateral else "failed"
    return {"workers": _with(status, it.local_rank, state=state)} if has_ended else {}


def _decided(_status: JobStatus, it: job.RestartDecided) -> dict[str, Any]:
    return {"restarts": it.restart_count, "restarts_left": it.left, "reason": it.reason}


_AFTER: dict[type, Callable[[JobStatus, Any], dict[str, Any]]] = {
    job.JobStarted: lambda _, it: {"name": it.name, "run_id": it.run_id, "host": it.host},
    job.WaitingFor: lambda _, it: {"waiting_for": it.sentence},
    job.RoundSettled: _settled,
    job.WorkersStarted: _started,
    job.WorkerProgress: lambda _, it: {"step": it.step, "progress_at_ns": it.at_ns},
    job.CheckpointSaved: lambda _, it: {"checkpoint": it.step, "progress_at_ns": it.at_ns},
    job.TimerProgress: lambda _, it: {"progress_at_ns": it.at_ns},
    job.StopBegan: lambda _, it: {"phase": "stopping", "reason": it.reason},
    job.WorkerEnded: _ended,
    job.WorkerFailed: _failed,
    job.RoundEnded: lambda _, __: {"phase": "waiting"},
    job.RestartDecided: _decided,
    job.JobEnded: lambda _, it: {
        "phase": "ended",
        "waiting_for": "",
        "reason": it.reason,
        "ending": it.ending,
        "exit_code": it.exit_code,
    },
}
