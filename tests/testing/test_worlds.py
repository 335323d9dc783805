"""Whole jobs in virtual time, each with a seed of its own: what a checker says about one of them is a defect of ours.

A longer run is ``python -m phalanx.testing --seeds 1000:5000``.
"""

from __future__ import annotations

import pytest

from phalanx.testing import Scenario, Violation, World
from phalanx.testing.__main__ import main

SEEDS = 150
PER_TEST = 15  # xdist shares the tests


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, PER_TEST))
def test_sixteen_nodes_come_through_ten_bad_minutes(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        World(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_small_jobs_do_too(nodes: int) -> None:
    for seed in range(1000, 1020):
        World(seed, Scenario.drawn(seed, nodes=nodes)).run()


@pytest.mark.parametrize("seed", range(5))
def test_a_world_without_faults_succeeds_in_one_round(seed: int) -> None:
    world = World(seed, Scenario(nodes=4, first_nodes=4, min_nodes=4, max_nodes=4, faults=())).run()
    assert {agent.verdict.exit_code for agent in world.agents if agent.verdict} == {0}
    assert {worker.round.number for worker in world.workload.started} == {1}


def test_one_seed_gives_one_world() -> None:
    first, again = (World(11, Scenario.drawn(11, nodes=5)).run() for _ in range(2))
    assert first.trace.text() == again.trace.text()
    assert first.messages == again.messages


def test_without_keepers_the_checkers_find_old_workers_beside_new_ones() -> None:
    scenario = Scenario(
        nodes=4,
        first_nodes=4,
        min_nodes=2,
        max_nodes=4,
        ttl_s=5.0,
        has_keepers=False,
        faults=(("agent is frozen", 1.0),),
        store_timeout_s=60.0,
    )
    found = 0
    for seed in range(10):
        try:
            World(seed, scenario).run()
        except Violation as violation:
            found += f"seed {seed}" in str(violation) and "is alive beside" in str(violation)
    assert found > 5


def test_the_command_prints_how_many_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:2", "--nodes", "2"]) == 0
    assert "2 worlds of 2 nodes" in capsys.readouterr().out
