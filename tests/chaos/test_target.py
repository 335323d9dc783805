"""The job that chaos is at: when all of it is there, and which agent is meant."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from phalanx.chaos.jobs import Agent, Job, Process, Worker
from phalanx.chaos.plan import Aim
from phalanx.chaos.target import COMPLETE_S, Target
from phalanx.multiprocessing.procfs import start_ticks_of

LATER = 1000.0


@pytest.fixture
def pids() -> Iterator[list[int]]:
    """Two live processes, which are taken for agents."""
    with ExitStack() as running:
        processes = [running.enter_context(subprocess.Popen(["sleep", "1000"])) for _ in range(2)]
        for one in processes:
            running.callback(one.kill)
        yield [one.pid for one in processes]


@pytest.fixture
def target(pids: list[int]) -> Iterator[Target]:
    found = Target(Job("x", (agent(pids[0], 0), agent(pids[1], 1))), below=None)
    yield found
    found.close()


def agent(
    pid: int, node: int, *, round_number: int = 1, born: int = 1, world: int = 4, only: int | None = None
) -> Agent:
    """One with two workers, or with this one alone; `born` tells the processes of one life from those of the next."""
    workers = [
        Worker(
            Process(10_000 + rank, born), rank, rank % 2, node, 2, world, round_number, "x", "token", "a:1"
        )
        for rank in (2 * node, 2 * node + 1)
        if only in (None, rank)
    ]
    return Agent(Process(pid, start_ticks_of(pid) or 0), "run train.py", tuple(workers))


def test_an_agent_whose_workers_are_not_there_yet_is_waited_for(target: Target, pids: list[int]) -> None:
    half = Job("x", (agent(pids[0], 0, round_number=2),))
    assert half.is_complete
    assert not target.is_settled(half, LATER)
    assert not target.is_settled(half, LATER + 2 * COMPLETE_S)

    whole = Job("x", (agent(pids[0], 0, round_number=2), agent(pids[1], 1, round_number=2)))
    assert target.is_settled(whole, LATER + 2 * COMPLETE_S)


def test_an_agent_that_has_no_place_is_not_waited_for(target: Target, pids: list[int]) -> None:
    half = Job("x", (agent(pids[0], 0, round_number=2),))
    assert not target.is_settled(half, LATER)
    assert target.is_settled(half, LATER + 20 * COMPLETE_S)  # the other ranks are on other machines

    alone = Job("x", (agent(pids[0], 0, round_number=3, world=2),))
    assert target.is_settled(alone, LATER + 20 * COMPLETE_S)


def test_a_worker_that_has_ended_is_not_waited_for(target: Target, pids: list[int]) -> None:
    fewer = Job("x", (agent(pids[0], 0), agent(pids[1], 1, only=2)))
    assert not target.is_settled(fewer, LATER)
    assert target.is_settled(fewer, LATER + 2 * COMPLETE_S)


def test_nobody_is_drawn_from_those_who_are_being_stopped_for_a_killed_one(
    target: Target, pids: list[int]
) -> None:
    both = Job("x", (agent(pids[0], 0), agent(pids[1], 1)))
    assert target.is_settled(both, LATER)
    target.killed(both, [both.workers[3]])

    assert not target.is_settled(both, LATER)  # the dead one is still to be seen
    dying = Job("x", (agent(pids[0], 0), agent(pids[1], 1, only=2)))
    assert not target.is_settled(dying, LATER + 30 * COMPLETE_S)

    anew = Job("x", (agent(pids[0], 0, round_number=2, born=2), agent(pids[1], 1, round_number=2, born=2)))
    assert target.is_settled(anew, LATER + 31 * COMPLETE_S)


def test_a_killed_one_is_back_in_the_same_round_where_workers_are_restarted_alone(
    target: Target, pids: list[int]
) -> None:
    before = Job("x", (agent(pids[0], 0), agent(pids[1], 1)))
    assert target.is_settled(before, LATER)
    target.killed(before, list(agent(pids[1], 1).workers))

    assert not target.is_settled(before, LATER + 9 * COMPLETE_S)
    assert target.is_settled(Job("x", (agent(pids[0], 0), agent(pids[1], 1, born=2))), LATER)


def test_a_random_agent_is_one_that_is_fit(target: Target) -> None:
    aim = Aim(random_node=True)
    assert {target.agent(aim, draw, is_fit=lambda _: True).node for draw in range(4)} == {0, 1}
    assert {target.agent(aim, draw, is_fit=lambda one: one.node == 1).node for draw in range(4)} == {1}
    assert {target.agent(aim, draw, is_fit=lambda _: False).node for draw in range(4)} == {0, 1}
