"""The job that chaos is at: which one it is, who of it is here now, and whether it is over."""

from __future__ import annotations

import os
from collections.abc import Callable

from phalanx.chaos.jobs import Agent, Job, Worker, find_jobs, open_process
from phalanx.chaos.plan import Aim, Place, node_for, ranks_for
from phalanx.multiprocessing.pidfd import has_ended

__all__ = ["ANY", "LATE_S", "OTHERS_S", "Mistaken", "Target", "has_started", "ranks_of", "the_job"]

ANY = "any"  # --job: whichever is here, if it is the only one
# Who of a round has not been seen so long after the last one was started has ended, or is on another machine. Agents,
# and the workers of each, are started one after the other, and a machine with much to do is slow with it.
LATE_S = 10.0
# For more agents of a job that was just found, if ranks are missing: most are on other machines.
OTHERS_S = 1.0


class Mistaken(Exception):
    """What was asked for cannot be done here: one sentence for the user, without a full stop."""


def the_job(jobs: list[Job], wanted: str | None) -> Job | None:
    """The one job that is meant: by its id, its token or an agent's pid; None if there is none (yet).

    Raises ``Mistaken`` when there are several.
    """
    found = [job for job in jobs if wanted is None or _is_meant(job, wanted)]
    if not found:
        return None
    if len(found) > 1:
        listed = "; ".join(map(str, found))
        how = "name one with --job ID" if wanted is None else "name an agent's pid with --job"
        raise Mistaken(f"{len(found)} jobs are on this machine, {how}: {listed}")
    return found[0]


def _is_meant(job: Job, wanted: str) -> bool:
    return wanted == job.run_id or any(
        wanted in (str(agent.pid), agent.workers[0].token) for agent in job.agents
    )


def has_started(job: Job) -> bool:
    """Whether all workers of its agents here are there, or those who are not have had the time to be."""
    return job.is_complete or job.age_s >= LATE_S


class Target:
    """A job that was found once, and is followed from then on: its agents are held by pidfds.

    An agent that restarts its workers has none for a while, and is no other job for that. One that joins later with the
    same id, on another node, is of the job, too.
    """

    def __init__(self, job: Job, *, below: int | None) -> None:
        self._run_id = job.run_id
        self._below = below
        self._agents: dict[int, tuple[Agent, int]] = {}  # by pid: as it was last seen with workers
        self._complete: dict[int, int] = {}  # by pid: the last round of which all its workers were seen
        self._killed: dict[tuple[int, int], Worker] = {}  # by agent and local rank: not back yet
        self._follow(job.agents)

    def close(self) -> None:
        """Let go of the descriptors."""
        for _, fd in self._agents.values():
            os.close(fd)
        self._agents.clear()

    def fds(self) -> list[int]:
        """Descriptors that are readable when an agent has ended."""
        self._forget_ended()
        return [fd for _, fd in self._agents.values()]

    @property
    def is_over(self) -> bool:
        """Whether no agent of the job is left here."""
        self._forget_ended()
        return not self._agents

    def look(self) -> Job | None:
        """Who of the job has workers here now; None: nobody, at this moment."""
        seen = [agent for job in find_jobs(below=self._below) for agent in job.agents]
        # Ours are those that we have; and a newcomer, if it says the same id and none of ours has its place.
        ours = [one for one in seen if self._has(one)]
        taken = {one.node for one in ours}
        ours += [
            one
            for one in seen
            if not self._has(one)
            and one.run_id == self._run_id
            and one.node not in taken
            and self._joins(one)
        ]
        self._follow(ours)
        return Job(self._run_id, tuple(ours)) if ours else None

    def killed(self, job: Job, workers: list[Worker]) -> None:
        """These workers of it were killed by SIGKILL, which no worker survives."""
        self._killed |= {place: one for place, one in _by_place(job).items() if one in workers}

    def is_settled(self, job: Job) -> bool:
        """Whether all workers are there, or those who are not have had the time to be.

        Not before who was killed has come again, or the others are in a newer round. Until then the dead may still be
        seen, and the others are being stopped, for as long as their grace is: who is drawn from these was not meant.
        """
        self._forget_ended()
        newest = max(one.round for one in job.workers)
        here = _by_place(job)
        self._killed = {
            place: one
            for place, one in self._killed.items()
            if place[0] in self._agents
            and newest <= one.round
            and here.get(place, one).process == one.process
        }
        if self._killed:
            return False
        # An agent that is late has no workers: drawn from those of the others, a seed would meet somebody else.
        is_late = len(job.agents) < len(self._agents) and not job.is_whole
        # Who is missing where all have been seen has ended.
        were_there = all(self._complete.get(one.pid) == one.workers[0].round for one in job.agents)
        return (were_there and not is_late) or job.age_s >= LATE_S

    def agent(self, aim: Aim, draw: int, *, is_fit: Callable[[Agent], bool]) -> Agent:
        """The agent that is meant, also one that has no workers at the moment. Raises ``NotHere``.

        A random one is one that is fit for it, if there is any.
        """
        job = self.look()
        self._forget_ended()
        # One without workers has the number that it had; if another node has it by now, that one is meant.
        agents = {agent.node: agent for agent, _ in self._agents.values()}
        agents |= {agent.node: agent for agent in (job.agents if job else ())}
        if aim.random_node:
            agents = {node: agent for node, agent in agents.items() if is_fit(agent)} or agents
        return agents[node_for(aim, draw, agents)]

    def _has(self, agent: Agent) -> bool:
        held = self._agents.get(agent.pid)
        return held is not None and held[0].process == agent.process

    def _joins(self, agent: Agent) -> bool:
        """Whether a newcomer is of this job: it is in the same round as one of ours, and has met in the same place."""
        mine = (agent.workers[0].round, agent.workers[0].master)
        return any((one.workers[0].round, one.workers[0].master) == mine for one, _ in self._agents.values())

    def _follow(self, agents: list[Agent] | tuple[Agent, ...]) -> None:
        for agent in agents:
            if agent.is_complete:
                self._complete[agent.pid] = agent.workers[0].round
            if self._has(agent):
                self._agents[agent.pid] = (agent, self._agents[agent.pid][1])
                continue
            fd = open_process(agent.process)
            if fd is not None:
                self._agents[agent.pid] = (agent, fd)

    def _forget_ended(self) -> None:
        for pid, (_, fd) in list(self._agents.items()):
            if has_ended(fd):
                os.close(fd)
                del self._agents[pid]


def _by_place(job: Job) -> dict[tuple[int, int], Worker]:
    return {(agent.pid, one.local_rank): one for agent in job.agents for one in agent.workers}


def ranks_of(job: Job, aim: Aim, draw: int) -> tuple[int, ...]:
    """The ranks of a job that are meant. Raises ``NotHere``."""
    return ranks_for(aim, draw, [Place(one.rank, one.local_rank, one.node) for one in job.workers])
