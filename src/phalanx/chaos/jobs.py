"""Finds jobs on this machine: their agents, and the workers of each, through ``/proc``.

An agent is known by its keeper, a child of the same program whose name is ``phalanx-keeper``; its workers are those of
its children that lead a session and have a rank in their environment. A process is a number *and* a start time, checked
again behind a pidfd before anything is done to it. Those of other users are seen by root alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection

from phalanx.multiprocessing.identity import open_checked
from phalanx.multiprocessing.pidfd import has_ended
from phalanx.multiprocessing.procfs import (
    Stat,
    is_open_to_us,
    now_ticks,
    read_all,
    read_file,
    read_stat,
    start_ticks_of,
)
from phalanx.records import Struct

__all__ = [
    "Agent",
    "Job",
    "Process",
    "Worker",
    "descendants",
    "find_jobs",
    "open_process",
    "same_job",
    "signal_process",
]

_GONE = "ZX"
_KEEPER = "phalanx-keeper"
_LOOKS, _LOOK_S = 20, 0.005  # at each worker that waits in the kernel
_PATIENCE_S = 1.0  # with all of them together: a disk that is busy with a checkpoint
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SHOWN = 60  # letters of a command in a message


class Process(Struct):
    """A process: its number, and when it started in clock ticks since boot."""

    pid: int
    start_ticks: int


class Worker(Struct):
    """A live worker, as its environment describes it."""

    process: Process
    rank: int
    local_rank: int
    node: int
    local_world_size: int
    world_size: int
    round: int
    run_id: str
    token: str
    master: str
    """Where the workers of its round meet: the same for all of them, and for no other job's."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid


class Agent(Struct):
    """A launcher and its workers on this machine, by rank. ``node`` is its number in the job (GROUP_RANK)."""

    process: Process
    command: str
    workers: tuple[Worker, ...]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def node(self) -> int:
        """The number of its node in the job."""
        return self.workers[0].node

    @property
    def run_id(self) -> str:
        """The id of the job."""
        return self.workers[0].run_id

    @property
    def is_complete(self) -> bool:
        """Whether all workers of the round are there: they are started one after the other."""
        return len(self.workers) >= self.workers[0].local_world_size


class Job(Struct):
    """A job's part on this machine: one agent, or several of one id whose ranks do not overlap."""

    run_id: str
    agents: tuple[Agent, ...]

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All its workers here, by rank."""
        return tuple(
            sorted((one for agent in self.agents for one in agent.workers), key=lambda one: one.rank)
        )

    @property
    def is_complete(self) -> bool:
        """Whether no worker of its agents here is missing."""
        return all(agent.is_complete for agent in self.agents)

    @property
    def is_whole(self) -> bool:
        """Whether all workers of the job are here."""
        return len(self.workers) >= self.agents[0].workers[0].world_size

    @property
    def age_s(self) -> float:
        """How long ago the last of its workers here was started."""
        return (now_ticks() - max(one.process.start_ticks for one in self.workers)) / _TICKS_PER_S

    def __str__(self) -> str:
        """The job in a list of several: id, script, ranks, pids."""
        ranks = ", ".join(str(one.rank) for one in self.workers)
        pids = ", ".join(str(agent.pid) for agent in self.agents)
        return f"{self.run_id} (agent pid {pids}; rank {ranks}; {self.agents[0].command})"


def find_jobs(*, below: int | None = None) -> list[Job]:
    """The jobs that have workers on this machine; of agents that are, or descend from, the process ``below`` alone."""
    table, give_up_at = read_all(), time.monotonic() + _PATIENCE_S
    keepers = [stat for stat in table.values() if stat.command == _KEEPER]
    agents = [
        agent for keeper in keepers if (agent := _agent_of(keeper, table, below, give_up_at)) is not None
    ]
    found: list[list[Agent]] = []
    for agent in sorted(agents, key=lambda one: (one.run_id, one.node, one.process.start_ticks)):
        for job in found:
            if same_job(job, agent):
                job.append(agent)
                break
        else:
            found.append([agent])
    return [Job(members[0].run_id, tuple(members)) for members in found]


def same_job(members: Collection[Agent], other: Agent) -> bool:
    """Whether an agent is one more of this job: the same id, a node that none of them is, and where they meet.

    Two jobs may have one id, each in a store of its own, and be in different rounds. Workers of one round of a job meet
    in one place, and no two rounds of a job run at once: who is in another round is of another job.
    """
    mine = other.workers[0]
    for agent in members:
        one = agent.workers[0]
        if agent.node == other.node:
            return False
        if (one.run_id, one.round, one.master) != (mine.run_id, mine.round, mine.master):
            return False
    return True


def descendants(process: Process) -> list[Process]:
    """The process, and all that descend from it; nobody if it has ended."""
    table = read_all()
    own = table.get(process.pid)
    if own is None or own.start_ticks != process.start_ticks:
        return []
    children: dict[int, list[Stat]] = {}
    for stat in table.values():
        children.setdefault(stat.parent, []).append(stat)
    found, pending = [process], [process.pid]
    while pending:
        for stat in children.get(pending.pop(), ()):
            found.append(Process(stat.pid, stat.start_ticks))
            pending.append(stat.pid)
    return found


def open_process(process: Process) -> int | None:
    """A pidfd of exactly this process; None if it has ended. Raises ``OSError``."""
    try:
        fd = open_checked(process.pid, process.start_ticks)
    except ProcessLookupError:
        return None
    if has_ended(fd):
        os.close(fd)
        return None
    return fd


def signal_process(fd: int, number: int) -> bool:
    """Signal the process behind a pidfd; False if it has ended. Raises ``PermissionError``."""
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    return True


def _agent_of(keeper: Stat, table: dict[int, Stat], below: int | None, give_up_at: float) -> Agent | None:
    """The agent of which this is the keeper, and its workers; None if there are none, or it is none."""
    stat = table.get(keeper.parent)
    if stat is None or not is_open_to_us(stat.pid) or not _descends(stat.pid, below, table):
        return None
    # The keeper was forked and has run no other program: an orphan's new parent has another command line.
    command = read_file(f"/proc/{stat.pid}/cmdline", None)
    if not command or command != read_file(f"/proc/{keeper.pid}/cmdline", None):
        return None
    own = [one for one in table.values() if one.parent == stat.pid and one.session == one.pid]
    workers = _newest_of_each([worker for one in own if (worker := _worker(one, give_up_at)) is not None])
    if not workers or start_ticks_of(stat.pid) != stat.start_ticks:
        return None
    return Agent(Process(stat.pid, stat.start_ticks), _shown(command), workers)


def _descends(pid: int, ancestor: int | None, table: dict[int, Stat]) -> bool:
    while ancestor is not None and pid != ancestor:
        stat = table.get(pid)
        if stat is None or pid <= 1:
            return False
        pid = stat.parent
    return True


def _worker(stat: Stat, give_up_at: float) -> Worker | None:
    # A process that waits in the kernel (D) may hold the lock that reading its environment takes, for ever; most wait
    # for a disk, and not for long. All have some patience in common, and each a little of its own.
    looks = 0
    while stat.state == "D" and (looks < _LOOKS or time.monotonic() < give_up_at):
        time.sleep(_LOOK_S)
        looks += 1
        again = read_stat(stat.pid)
        if again is None or again.start_ticks != stat.start_ticks:
            return None
        stat = again
    if stat.state in _GONE or stat.state == "D" or stat.command == _KEEPER:
        return None
    text = read_file(f"/proc/{stat.pid}/environ", None) or b""
    found = dict(entry.partition(b"=")[::2] for entry in text.split(b"\0"))

    def number(name: bytes) -> int:
        return int(found[name])

    try:
        return Worker(
            process=Process(stat.pid, stat.start_ticks),
            rank=number(b"RANK"),
            local_rank=number(b"PHALANX_LOCAL_RANK" if b"PHALANX_LOCAL_RANK" in found else b"LOCAL_RANK"),
            node=number(b"GROUP_RANK"),
            local_world_size=number(b"LOCAL_WORLD_SIZE"),
            world_size=number(b"WORLD_SIZE"),
            round=number(b"PHALANX_ROUND"),
            run_id=os.fsdecode(found[b"TORCHELASTIC_RUN_ID"]),
            token=os.fsdecode(found[b"PHALANX_JOB"].rpartition(b"/")[2]),
            master=_master(stat.pid, os.fsdecode(found[b"MASTER_ADDR"]), number(b"MASTER_PORT")),
        )
    except (KeyError, ValueError):
        return None


def _master(pid: int, host: str, port: int) -> str:
    """Where a worker's round meets; a loopback address is another one in each network namespace."""
    network = ""
    if host.startswith("127.") or host in ("::1", "localhost"):
        with contextlib.suppress(OSError):
            network = os.readlink(f"/proc/{pid}/ns/net")
    return f"{host}:{port} {network}"


def _newest_of_each(workers: list[Worker]) -> tuple[Worker, ...]:
    """One worker for each rank of the newest round: what an ended one left, and the agent adopted, is none.

    It has the environment of its worker, and may lead a session; but the worker was there first.
    """
    latest = max((one.round for one in workers), default=0)
    by_rank: dict[int, Worker] = {}
    for one in sorted(workers, key=lambda one: one.process.start_ticks):
        if one.round == latest:
            by_rank.setdefault(one.rank, one)
    return tuple(by_rank[rank] for rank in sorted(by_rank))


def _shown(command: bytes) -> str:
    text = os.fsdecode(command.rstrip(b"\0").replace(b"\0", b" "))
    return text if len(text) <= _SHOWN else f"…{text[1 - _SHOWN :]}"
