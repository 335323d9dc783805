"""What agents tell who looks on is what happened, whatever is done to them; and a checker that would notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from phalanx.events import job
from phalanx.records import changed
from phalanx.testing import Scenario, Violation, World
from phalanx.testing.job_events import JobEventsAreCoherent
from phalanx.testing.trace import AgentEnded, Happened, Observation, WorkerEnded, WorkerStarted


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 12))
def test_agents_tell_what_happens_in_bad_minutes(first: int) -> None:
    for seed in range(first, first + 12):
        World(seed, Scenario.drawn(seed, nodes=4), observes=True).run()


def drawn_with_single_restarts(seed: int) -> Scenario:
    return Scenario.drawn(
        next(one for one in range(seed * 1000, seed * 1000 + 500) if is_single(one)), nodes=3
    )


def is_single(seed: int) -> bool:
    return Scenario.drawn(seed, nodes=3).has_single_restarts


@pytest.mark.slow
def test_agents_with_single_restarts_do_too() -> None:
    lives = 0
    for seed in range(15):
        world = World(seed, drawn_with_single_restarts(seed), observes=True).run()
        lives += sum(
            isinstance(seen, Happened)
            and isinstance(seen.job_event, job.RestartDecided)
            and seen.job_event.local_rank is not None
            for _, seen in world.trace.entries
        )
    assert lives > 10


def quiet_world() -> list[Observation]:
    scenario = Scenario(nodes=2, first_nodes=2, min_nodes=2, max_nodes=2, faults=())
    world = World(3, scenario, observes=True).run()
    return [seen for _, seen in world.trace.entries]


def told(kind: type[job.JobEvent]) -> Callable[[Observation], bool]:
    return lambda seen: isinstance(seen, Happened) and isinstance(seen.job_event, kind)


def check(observations: list[Observation]) -> None:
    checker = JobEventsAreCoherent()
    for seen in observations:
        checker.see(0.0, seen)


@pytest.mark.parametrize(
    "kind",
    [
        job.JobStarted,
        job.RoundOpened,
        job.RoundSettled,
        job.WorkersStarted,
        job.WorkerEnded,
        job.RoundEnded,
        job.JobEnded,
    ],
)
def test_a_job_event_that_is_missing_or_told_twice_is_noticed(kind: type[job.JobEvent]) -> None:
    seen = quiet_world()
    check(seen)
    first = next(place for place, one in enumerate(seen) if told(kind)(one))
    with pytest.raises(Violation):
        check([*seen[:first], *seen[first + 1 :]])
    if kind is not job.RoundOpened:
        with pytest.raises(Violation):
            check([*seen[: first + 1], seen[first], *seen[first + 1 :]])


def test_another_pid_or_exit_code_than_the_real_one_is_noticed() -> None:
    seen = quiet_world()
    for kind, change in (
        (WorkerStarted, {"pid": 9999}),
        (WorkerEnded, {"exit_code": 3}),
        (AgentEnded, {"exit_code": 3}),
    ):
        place = next(place for place, one in enumerate(seen) if isinstance(one, kind))
        with pytest.raises(Violation):
            check([*seen[:place], changed(seen[place], **change), *seen[place + 1 :]])
