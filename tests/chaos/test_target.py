"""The job that chaos is at: when all of it is there, and which agent is meant."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from phalanx.chaos import injector
from phalanx.chaos import target as target_module
from phalanx.chaos.jobs import Agent, Job, Process, Worker
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, Aim
from phalanx.chaos.target import Target, has_started
from phalanx.chaos.waiting import Signals
from phalanx.multiprocessing.procfs import now_ticks, start_ticks_of

LATE, LONG = 4, 20  # seconds after their start
PIDS = itertools.count(10_000)


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
    pid: int, node: int, *, round_number: int = 1, age_s: int = 0, world: int = 4, only: int | None = None
) -> Agent:
    """One with two workers, or with this one alone. Each call makes new processes; `age_s`: how old they are."""
    start = now_ticks() - age_s * os.sysconf("SC_CLK_TCK")
    workers = [
        Worker(Process(next(PIDS), start), rank, rank % 2, node, 2, world, round_number, "x", "token", "a:1")
        for rank in (2 * node, 2 * node + 1)
        if only in (None, rank)
    ]
    return Agent(Process(pid, start_ticks_of(pid) or 0), "run train.py", tuple(workers))


@pytest.fixture
def is_settled(target: Target, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bool]:
    """Whether it is, when these agents are seen."""

    def look(*agents: Agent) -> bool:
        monkeypatch.setattr(target_module, "find_jobs", lambda *, below: [Job("x", agents)])
        job = target.look()
        assert job is not None
        return target.is_settled(job)

    return look


def test_an_agent_whose_workers_are_not_there_yet_is_waited_for(
    is_settled: Callable[..., bool], pids: list[int]
) -> None:
    half = agent(pids[0], 0, round_number=2)
    assert half.is_complete
    assert not is_settled(half)
    assert is_settled(half, agent(pids[1], 1, round_number=2))


def test_an_agent_that_has_no_place_is_not_waited_for(
    is_settled: Callable[..., bool], pids: list[int]
) -> None:
    assert is_settled(agent(pids[0], 0, round_number=2, age_s=LONG))  # the other ranks are on other machines
    assert is_settled(agent(pids[0], 0, round_number=3, world=2))  # there are none


def test_a_worker_that_is_late_is_waited_for(is_settled: Callable[..., bool], pids: list[int]) -> None:
    late = agent(pids[1], 1, round_number=2, only=2, age_s=LATE)
    assert not is_settled(agent(pids[0], 0, round_number=2, age_s=LATE), late)
    assert not has_started(Job("x", (late,)))
    long_since = agent(pids[1], 1, round_number=2, only=2, age_s=LONG)
    assert is_settled(agent(pids[0], 0, round_number=2, age_s=LONG), long_since)
    assert has_started(Job("x", (long_since,)))


def test_a_job_whose_worker_is_late_is_found_when_it_is_there(
    monkeypatch: pytest.MonkeyPatch, pids: list[int]
) -> None:
    half = Job("x", (agent(pids[0], 0, world=2, only=0, age_s=LATE),))
    whole = Job("x", (agent(pids[0], 0, world=2, age_s=LATE),))
    seen = [half, half, whole]
    monkeypatch.setattr(injector, "find_jobs", lambda *, below: [seen.pop(0)])
    monkeypatch.setattr(injector, "OTHERS_S", 0.0)
    with Signals() as signals:
        assert injector._Injector(Orders(act=Act.KILL, job="x"), signals)._find() is whole


def test_an_aim_at_an_agent_that_is_late_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch, target: Target, pids: list[int]
) -> None:
    first, second = (agent(pid, node, age_s=LATE) for node, pid in enumerate(pids))
    seen = [[Job("x", (first,))], [Job("x", (first, second))]]
    monkeypatch.setattr(target_module, "find_jobs", lambda *, below: seen.pop(0))
    monkeypatch.setattr(injector, "OTHERS_S", 0.0)
    with Signals() as signals:
        one = injector._Injector(Orders(act=Act.KILL, aim=Aim(ranks=(2,)), job="x"), signals)
        one._watch.target = target
        assert one._checked(Job("x", (first,))).agents == (first, second)


def test_a_worker_that_has_ended_is_not_waited_for(is_settled: Callable[..., bool], pids: list[int]) -> None:
    assert is_settled(agent(pids[0], 0), agent(pids[1], 1, only=2))  # the target was made when all were there
    assert is_settled(agent(pids[0], 0, round_number=2), agent(pids[1], 1, round_number=2))
    assert is_settled(agent(pids[0], 0, round_number=2), agent(pids[1], 1, round_number=2, only=3))


def test_nobody_is_drawn_from_those_who_are_being_stopped_for_a_killed_one(
    target: Target, is_settled: Callable[..., bool], pids: list[int]
) -> None:
    first, second = agent(pids[0], 0, age_s=LONG), agent(pids[1], 1, age_s=LONG)
    assert is_settled(first, second)
    target.killed(Job("x", (first, second)), [second.workers[1]])

    assert not is_settled(first, second)  # the dead one is still to be seen
    assert not is_settled(first, Agent(second.process, second.command, second.workers[:1]))

    assert is_settled(agent(pids[0], 0, round_number=2), agent(pids[1], 1, round_number=2))


def test_a_killed_one_is_back_in_the_same_round_where_workers_are_restarted_alone(
    target: Target, is_settled: Callable[..., bool], pids: list[int]
) -> None:
    first, second = agent(pids[0], 0, age_s=LONG), agent(pids[1], 1, age_s=LONG)
    assert is_settled(first, second)
    target.killed(Job("x", (first, second)), list(second.workers))

    assert not is_settled(first, second)
    assert is_settled(first, agent(pids[1], 1))


def test_a_random_agent_is_one_that_is_fit(target: Target) -> None:
    aim = Aim(random_node=True)
    assert {target.agent(aim, draw, is_fit=lambda _: True).node for draw in range(4)} == {0, 1}
    assert {target.agent(aim, draw, is_fit=lambda one: one.node == 1).node for draw in range(4)} == {1}
    assert {target.agent(aim, draw, is_fit=lambda _: False).node for draw in range(4)} == {0, 1}
