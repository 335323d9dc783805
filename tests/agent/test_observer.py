"""Between the driver and who looks on: progress in measure, and no harm to the job. Worlds check what is told."""

from __future__ import annotations

import asyncio
import signal

import pytest
from tests.agent.observed import AgentMachineOf, observed

from phalanx.agent import observing as observing_module
from phalanx.agent.events import JobBegan
from phalanx.agent.group import StopAsked
from phalanx.agent.observing import PROGRESS_EVERY_S
from phalanx.events import job


def test_an_agent_that_is_stopped_before_it_began_tells_both_its_beginning_and_its_end() -> None:
    async def run() -> list[job.JobEvent]:
        told: list[job.JobEvent] = []
        agent = AgentMachineOf(told.append)
        agent.driver.post(StopAsked(signal.SIGTERM, 30.0))
        await agent.driver.ended
        agent.driver.post(JobBegan())
        return told

    first, last = asyncio.run(run())
    assert isinstance(first, job.JobStarted)
    assert isinstance(last, job.JobEnded)
    assert (last.ending, last.exit_code) == ("stopped", 143)
    assert first.at_ns > 1_700_000_000_000_000_000


def test_a_bug_of_ours_is_an_end_too() -> None:
    async def run() -> list[job.JobEvent]:
        told: list[job.JobEvent] = []
        agent = AgentMachineOf(told.append)
        agent.driver.post("what nobody listed")
        agent.driver.post("and more of it")
        await agent.driver.ended
        return told

    *_, last = told = asyncio.run(run())
    assert [type(one) for one in told] == [job.JobStarted, job.JobEnded]
    assert isinstance(last, job.JobEnded)
    assert last.exit_code == 70


def test_an_observer_that_fails_is_told_of_once_and_asked_no_more() -> None:
    calls = 0

    def refuse(_: object) -> None:
        nonlocal calls
        calls += 1
        raise LookupError("no place\nfor it")

    async def run() -> list[str]:
        agent = AgentMachineOf(refuse)
        agent.driver.post(StopAsked(signal.SIGTERM, 30.0))
        agent.observer.progressed(3)
        verdict = await agent.driver.ended
        assert verdict.exit_code == 143
        assert agent.driver.bug is None
        return [one for one in agent.said if "observer" in one]

    assert asyncio.run(run()) == [
        "the observer of this job failed and hears no more of it (LookupError: no place); the job goes on"
    ]
    assert calls == 1


def steps(told: list[job.JobEvent]) -> list[int]:
    return [one.step for one in told if isinstance(one, job.WorkerProgress)]


def test_steps_are_told_once_a_second_and_the_furthest_before_an_end() -> None:
    observing = observed()
    told: list[job.JobEvent] = []
    for number in range(1000):
        told += observing.progressed(number, number / 100, 1)
    assert steps(told) == [0, *range(100, 1000, 100)]
    told += observing.progressed(500, 9.995, 1)  # another worker is behind
    assert observing.progress_due == 9.0 + PROGRESS_EVERY_S
    assert steps(observing.progress_passed(9.9999, 1)) == []
    assert steps(observing.progress_passed(10.0, 1)) == [999]
    assert (observing.progress_due or 0.0) == 0.0
    observing.progressed(1001, 10.5, 1)
    assert steps(observing.over(AgentMachineOf.FAILED, 1)) == [1001]
    assert observing.progressed(1002, 20.0, 1) == []


def test_the_last_step_of_a_worker_that_then_hangs_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[job.JobEvent]:
        told: list[job.JobEvent] = []
        is_there = asyncio.Event()

        def take(one: job.JobEvent) -> None:
            told.append(one)
            if steps(told)[-1:] == [2]:
                # From now on nothing is due, however long this process pauses before the next step and the end.
                monkeypatch.setattr(observing_module, "PROGRESS_EVERY_S", 3600.0)
                is_there.set()

        agent = AgentMachineOf(take)
        agent.observer.progressed(1)
        agent.observer.progressed(2)
        async with asyncio.timeout(60):
            await is_there.wait()
        agent.observer.progressed(3)
        agent.observer.close()
        return told

    assert steps(asyncio.run(run())) == [1, 2]
