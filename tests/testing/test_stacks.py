"""Workers whose timers are over, in jobs of several nodes: all stacks are saved before anybody is ended."""

from __future__ import annotations

from typing import Any

import pytest
from tests.testing.test_stories import Move, agent_of, cut, exit_codes, freeze, play, scenario, thaw

from phalanx.agent.stacks import LIMIT_S
from phalanx.testing import World
from phalanx.testing.trace import Line, WorkerEnded

AT = 60.0


def too_slow(number: int) -> Move:
    return lambda world: agent_of(world, number)._processes.is_too_slow(0, "forward")


def saved(world: World) -> dict[str, float]:
    """Agent → when it began to save stacks."""
    return {
        seen.agent: at
        for at, seen in world.trace.entries
        if isinstance(seen, Line) and seen.text.startswith("stacks saved: ")
    }


def first_end(world: World) -> tuple[float, Any]:
    return next((at, seen) for at, seen in world.trace.entries if isinstance(seen, WorkerEnded))


@pytest.mark.parametrize("seed", range(10))
def test_all_nodes_have_saved_before_the_slow_worker_is_ended_and_the_job_goes_on(seed: int) -> None:
    world = play(scenario(3, 3, max_restarts=1), (AT, too_slow(1)), seed=seed)
    ended_at, ended = first_end(world)
    assert set(saved(world)) == {"n0.1", "n1.1", "n2.1"}
    assert all(at < ended_at < AT + LIMIT_S for at in saved(world).values())
    assert (ended.agent, ended.exit_code) == ("n1.1", -9)
    assert set(exit_codes(world).values()) == {0}


@pytest.mark.parametrize("seed", range(10))
def test_when_all_ranks_hang_together_nobody_waits_for_the_other(seed: int) -> None:
    moves = [(AT + 0.01 * number, too_slow(number)) for number in range(3)]
    world = play(scenario(3, 3), *moves, seed=seed)
    ended_at, _ = first_end(world)
    assert all(at < ended_at < AT + LIMIT_S for at in saved(world).values())
    assert len(saved(world)) == 3
    assert set(exit_codes(world).values()) == {137}


def test_a_node_that_cannot_answer_delays_the_end_by_seconds() -> None:
    world = play(
        scenario(3, 2, max_restarts=1, ttl_s=40.0),
        (AT - 0.5, freeze(2)),
        (AT, too_slow(1)),
        (AT + 8.0, thaw(2)),
    )
    ended_at, ended = first_end(world)
    assert ended.agent == "n1.1"
    assert AT + LIMIT_S <= ended_at < AT + LIMIT_S + 0.5


def test_a_node_that_is_cut_off_saves_its_own_and_ends_its_own() -> None:
    world = play(scenario(3, 2, max_restarts=1), (AT - 0.5, cut(1)), (AT, too_slow(1)))
    assert set(saved(world)) == {"n1.1"}
    assert first_end(world)[1].agent == "n1.1"
