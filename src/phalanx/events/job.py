"""What happens to a job, as one node sees it: typed records for whoever looks on. Pure.

An agent makes them in the order in which things happen (``JobSpec.observe``). Each stands for itself as far as it can:
ranks, process ids and numbers of rounds are in it. ``JobStarted`` comes first and ``JobEnded`` last, once each.
"""

from __future__ import annotations

from phalanx.records import Struct

__all__ = [
    "CheckpointSaved",
    "EventsDropped",
    "JobEnded",
    "JobEvent",
    "JobStarted",
    "RestartDecided",
    "RoundEnded",
    "RoundOpened",
    "RoundSettled",
    "SignalPassedOn",
    "StopBegan",
    "TimerProgress",
    "WaitingFor",
    "WorkerEnded",
    "WorkerFailed",
    "WorkerProgress",
    "WorkersStarted",
]


class JobEvent(Struct, kw_only=True):
    """Base of them all.

    >>> WaitingFor(at_ns=1_700_000_000_000_000_000, sentence="1 more node")
    WaitingFor(at_ns=1700000000000000000, sentence='1 more node')
    """

    at_ns: int
    """When this agent learned of it: wall time of its host, nanoseconds since the epoch."""


class JobStarted(JobEvent, kw_only=True):
    """The agent of this node begins its part in the job.

    >>> JobStarted(
    ...     at_ns=0, name="train.py", entry_point="python", role="default", run_id="7", host="a", backend="c10d",
    ...     nproc=8, pid=4,
    ... ).nproc
    8
    """

    name: str
    """What reports call the job."""
    entry_point: str
    """The program that workers execute, without its folder, or the function."""
    role: str
    run_id: str
    """Empty: nobody gave one, and the store will tell it (``RoundSettled``)."""
    host: str
    backend: str
    """How nodes meet; ``memory``: this node is alone."""
    nproc: int
    pid: int
    """The agent's."""


class RoundOpened(JobEvent, kw_only=True):
    """A round is open, the first that this node can be in: nodes meet.

    >>> RoundOpened(at_ns=0, round=1).reason
    ''
    """

    round: int
    reason: str = ""


class WaitingFor(JobEvent, kw_only=True):
    """No workers run here, because somebody or something is waited for.

    >>> WaitingFor(at_ns=0, sentence="2 of 4 nodes are here").sentence
    '2 of 4 nodes are here'
    """

    sentence: str


class RoundSettled(JobEvent, kw_only=True):
    """A round is agreed on; this node's workers are about to start.

    >>> RoundSettled(
    ...     at_ns=0, round=1, restart_count=0, run_id="7", group_rank=0, group_world_size=1, ranks=(0, 1),
    ...     world_size=2, role_ranks=(0, 1), role_world_size=2, master_addr="a", master_port=29400, waited_s=0.5,
    ... ).ranks
    (0, 1)
    """

    round: int
    """1, 2, …: grows with every round, also with those that cost nothing."""
    restart_count: int
    """Restarts that were charged to the budget before it."""
    reason: str = ""
    """Why there is another round; empty for the first."""
    run_id: str
    group_rank: int
    """This node's place among ``group_world_size`` nodes."""
    group_world_size: int
    ranks: tuple[int, ...]
    """Global ranks of this node's workers, by local rank."""
    world_size: int
    role_ranks: tuple[int, ...]
    role_world_size: int
    master_addr: str
    master_port: int
    waited_s: float
    """Since this node had no round."""


class WorkersStarted(JobEvent, kw_only=True):
    """Workers of this node run: all of a round, or one alone after its single restart.

    >>> WorkersStarted(at_ns=0, round=1, pids={0: 71, 1: 72}).pids[1]
    72
    """

    round: int
    pids: dict[int, int]
    """Local rank → process id."""


class WorkerProgress(JobEvent, kw_only=True):
    """Workers of this node have come further: at most once a second, the furthest step.

    >>> WorkerProgress(at_ns=0, step=1000).step
    1000
    """

    step: int


class TimerProgress(JobEvent, kw_only=True):
    """A worker of this node has begun or ended a block of ``phalanx.timer``: at most once a second.

    >>> TimerProgress(at_ns=0)
    TimerProgress(at_ns=0)
    """


class CheckpointSaved(JobEvent, kw_only=True):
    """A worker of this node told that a checkpoint is complete.

    >>> CheckpointSaved(at_ns=0, step=500).step
    500
    """

    step: int


class SignalPassedOn(JobEvent, kw_only=True):
    """A signal that stops nothing was passed to this node's workers.

    >>> SignalPassedOn(at_ns=0, signal=10).signal
    10
    """

    signal: int


class StopBegan(JobEvent, kw_only=True):
    """This node's workers are asked to stop.

    >>> StopBegan(at_ns=0, round=1, signal=15, grace_s=30.0, reason="SIGTERM").grace_s
    30.0
    """

    round: int
    signal: int
    grace_s: float
    """Until what still runs is killed, the time of a warning included."""
    reason: str
    """The line that the agent printed of it."""


class WorkerEnded(JobEvent, kw_only=True):
    """A worker of this node has ended, or could not be started.

    >>> WorkerEnded(at_ns=0, round=1, rank=3, local_rank=1, pid=72, exit_code=-9).exit_code
    -9
    """

    round: int
    rank: int
    local_rank: int
    pid: int
    """0: it never ran."""
    exit_code: int
    """Negative: the number of the signal that killed it."""
    was_asked: bool = False
    """It had been asked to stop by then."""
    why_not_started: str = ""


class WorkerFailed(JobEvent, kw_only=True):
    """How a worker of this node failed, once what it left is read; comes after its ``WorkerEnded``.

    >>> WorkerFailed(at_ns=0, round=1, rank=3, local_rank=1, pid=72, exit_code=1, message="ValueError: no").message
    'ValueError: no'
    """

    round: int
    rank: int
    local_rank: int
    pid: int
    exit_code: int
    message: str
    """One line: the exception, or what its signal means."""
    traceback: str = ""
    """Of the recorded exception."""
    host: str = ""
    error_file: str = ""
    """Where its error file is, on its host; empty: it has written none."""
    is_collateral: bool = False
    """Nothing was wrong with it before it was asked to stop."""


class RoundEnded(JobEvent, kw_only=True):
    """No process of the round is left on this node.

    >>> RoundEnded(at_ns=0, round=1, outcome="succeeded").outcome
    'succeeded'
    """

    round: int
    outcome: str
    """``succeeded``, ``failed``, or ``stopped`` where workers were ended that had not failed."""


class RestartDecided(JobEvent, kw_only=True):
    """There is another round, or, with ``local_rank``, another life of one worker beside others that run on.

    >>> RestartDecided(at_ns=0, round=2, reason="rank 1 failed", is_charged=True, restart_count=1, left=2).left
    2
    """

    round: int
    reason: str
    is_charged: bool
    restart_count: int
    """How many restarts are charged by now."""
    left: int
    """How many more the budget has."""
    delay_s: float = 0.0
    """How long it waits before it starts."""
    local_rank: int | None = None


class JobEnded(JobEvent, kw_only=True):
    """This agent's part in the job is over. Always the last.

    >>> JobEnded(at_ns=0, ending="succeeded", exit_code=0).exit_code
    0
    """

    ending: str
    """``succeeded``, ``failed`` or ``stopped``."""
    exit_code: int
    """As of ``phalanx run``."""
    reason: str = ""
    """Why it ended here and was not tried again."""
    cause: WorkerFailed | None = None
    """The first failure, perhaps of another node."""


class EventsDropped(JobEvent, kw_only=True):
    """So many are missing here, because nobody took them in time.

    >>> EventsDropped(at_ns=0, count=12).count
    12
    """

    count: int
