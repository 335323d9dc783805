"""Stories of whole jobs. Each began as a seed that showed a defect, or as a promise that people rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.agent.graces import Graces
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.records import changed
from phalanx.rendezvous.settings import Growth
from phalanx.testing import Scenario, World
from phalanx.testing.trace import AgentEnded, ExclusionAsked, Fault, Stuck, WorkerEnded, WorkerStarted
from phalanx.testing.workload import Habits, Worker

SIGTERM = 15
Move = Callable[[World], object]

# Workers that notice at once that a peer is gone, obey within a third of a second, and leave nothing behind.
KEEN = Habits(
    asked_s=(0.01, 0.3), deaf=0.0, leaves_child=0.0, breaks_s=(0.001, 0.01), hangs=0.0, ends_within_s=5.0
)
STEPPING = Habits(
    asked_s=(0.01, 0.3),
    deaf=0.0,
    leaves_child=0.0,
    breaks_s=(0.001, 0.01),
    hangs=0.0,
    step_s=2.0,
    steps_per_checkpoint=10,
)
STUBBORN = Habits(asked_s=(0.01, 0.3), deaf=0.0, leaves_child=0.0, hangs=1.0)


def scenario(
    nodes: int, least: int, most: int | None = None, *, max_restarts: int = 0, **changes: Any
) -> Scenario:
    fields: dict[str, Any] = {
        "nodes": nodes,
        "first_nodes": nodes,
        "first_within_s": 1.0,
        "all_return": False,
        "min_nodes": least,
        "max_nodes": nodes if most is None else most,
        "slots": (1, 1),
        "restarts": RestartPolicy(max_restarts=max_restarts),
        "ttl_s": 10.0,
        "last_call_s": 5.0,
        "faults": (),
        "faults_until_s": 150.0,
        "calm_until_s": 200.0,
        "clock_rates": (1.0, 1.0),
        "habits": KEEN,
    }
    return Scenario(**{**fields, **changes})


def play(what: Scenario, *moves: tuple[float, Move], seed: int = 1) -> World:
    world = World(seed, what)
    for at, move in moves:
        world.timeline.at(at, move, world)
    return world.run()


def agent_of(world: World, number: int) -> Any:
    agent = world.agent_on(world.nodes[number])
    assert agent is not None, "no agent runs there"
    return agent


def leave(number: int) -> Move:
    return lambda world: agent_of(world, number).stop(SIGTERM)


def worker_of(world: World, rank: int) -> Worker:
    return next(one for one in world.workload.live if one.rank == rank)


def start(number: int) -> Move:
    return lambda world: world.start_agent(world.nodes[number])


def kill(number: int) -> Move:
    return lambda world: agent_of(world, number).kill()


def freeze(number: int) -> Move:
    return lambda world: agent_of(world, number).freeze()


def thaw(number: int) -> Move:
    return lambda world: agent_of(world, number).thaw()


def lose_power(number: int) -> Move:
    return lambda world: world.lose_power(world.nodes[number])


def lose_rank(rank: int) -> Move:
    return lambda world: world.lose_power(worker_of(world, rank).process.node)


def power_on(number: int) -> Move:
    return lambda world: world.power_on(world.nodes[number])


def slow(number: int, seconds: float) -> Move:
    return lambda world: setattr(agent_of(world, number), "slowness_s", seconds)


def suspend(number: int) -> Move:
    return lambda world: world.suspend(world.nodes[number])


def resume(number: int) -> Move:
    return lambda world: world.resume(world.nodes[number])


def cut(number: int) -> Move:
    def both_ways(world: World) -> None:
        name, store = world.nodes[number].name, world.place.name
        world.network.cut(name, store)
        world.network.cut(store, name)

    return both_ways


def heal(number: int) -> Move:
    def both_ways(world: World) -> None:
        name, store = world.nodes[number].name, world.place.name
        world.network.heal(name, store)
        world.network.heal(store, name)

    return both_ways


def worker_fails(rank: int, **how: Any) -> Move:
    def fail(world: World) -> None:
        worker = worker_of(world, rank)
        world.trace.add(Fault("worker fails", worker.employer.agent, rank, worker.round.number))
        worker.fail(3, **how)

    return fail


def worker_of_node_fails(number: int) -> Move:
    def fail(world: World) -> None:
        name = world.nodes[number].name
        worker = next(one for one in world.workload.live if one.process.node.name == name)
        world.trace.add(Fault("worker fails", worker.employer.agent, worker.rank, worker.round.number))
        worker.fail(3)

    return fail


def ask_to_exclude(rank: int) -> Move:
    def ask(world: World) -> None:
        worker = worker_of(world, rank)
        world.trace.add(ExclusionAsked(worker.employer.agent))
        worker.employer.exclude(worker)

    return ask


def stick(rank: int) -> Move:
    def stop_in_the_kernel(world: World) -> None:
        worker = worker_of(world, rank)
        world.trace.add(Stuck(worker.employer.agent, worker.process.pid))
        worker.process.is_stuck = True

    return stop_in_the_kernel


def let_go(world: World) -> None:
    for worker in world.workload.live:
        worker.process.let_go()


def lose_module(world: World) -> None:
    world.workload.is_broken = True
    worker_of(world, 0).miss_module()


def rounds(world: World) -> dict[int, tuple[float, int, int]]:
    """Number → when its last worker started, how many nodes it has, and its restart count."""
    found: dict[int, tuple[float, int, int]] = {}
    for at, seen in world.trace.entries:
        if isinstance(seen, WorkerStarted):
            found[seen.round.number] = (at, seen.round.group_world_size, seen.round.restart_count)
    return found


def sizes(world: World) -> list[int]:
    return [size for _, size, _ in rounds(world).values()]


def exit_codes(world: World) -> dict[str, int]:
    return {seen.agent: seen.exit_code for _, seen in world.trace.entries if isinstance(seen, AgentEnded)}


def last_end_of(world: World, agent: str, *, after: float) -> float:
    return max(
        at
        for at, seen in world.trace.entries
        if isinstance(seen, WorkerEnded) and seen.agent == agent and at >= after and at < after + 30
    )


def test_a_node_leaves_and_the_others_form_anew_within_a_second_of_its_last_process() -> None:
    world = play(scenario(3, 2), (50.0, leave(1)))
    assert sizes(world) == [3, 2]
    assert rounds(world)[2][0] <= last_end_of(world, "n1.1", after=50.0) + 1.0
    assert exit_codes(world) == {"n0.1": 0, "n1.1": 143, "n2.1": 0}


def test_a_node_dies_and_the_others_form_anew_within_the_lease_and_a_second() -> None:
    world = play(scenario(3, 2), (50.0, lose_power(2)))
    assert sizes(world) == [3, 2]
    assert rounds(world)[2][0] <= 50.0 + 10.0 + 1.0


def test_an_agent_that_is_killed_takes_its_workers_along_and_comes_back_as_another() -> None:
    world = play(scenario(3, 2), (50.0, kill(2)), (70.0, start(2)))
    assert sizes(world) == [3, 2, 3]


def test_a_node_that_is_cut_off_stops_its_workers_in_time_and_joins_again_when_it_heals() -> None:
    world = play(scenario(3, 2), (50.0, cut(1)), (80.0, heal(1)))
    assert sizes(world) == [3, 2, 3]
    assert last_end_of(world, "n1.1", after=50.0) <= 50.0 + 0.8 * 10.0 + 0.1


def test_the_store_is_silent_for_a_moment_and_nothing_happens() -> None:
    world = play(scenario(3, 2), (50.0, cut(1)), (52.0, heal(1)))
    assert sizes(world) == [3]


def test_a_node_that_stopped_its_workers_in_a_silence_costs_the_job_nothing() -> None:
    """Its peers broke while its lease lived on: they failed of it, and were charged."""
    world = play(scenario(3, 2), (50.0, cut(1)), (57.0, heal(1)))
    assert {count for _, _, count in rounds(world).values()} == {0}
    assert set(exit_codes(world).values()) == {0}


def test_peers_of_a_leaver_break_before_they_are_told_and_nothing_is_charged() -> None:
    for seed in range(10):
        world = play(scenario(4, 2, slots=(2, 2)), (50.0, leave(3)), seed=seed)
        assert sizes(world) == [4, 3]


def test_peers_break_while_a_round_ends_for_a_newcomer_and_nothing_is_charged() -> None:
    for seed in range(10):
        world = play(
            scenario(4, 2, first_nodes=3, slots=(2, 2)),
            (50.0, start(3)),
            seed=seed,
        )
        assert sizes(world) == [3, 4]


def test_a_frozen_agent_runs_no_old_workers_beside_a_new_round_not_even_the_second_time() -> None:
    """After the first fall of its fence the keeper was gone, and nobody fenced the second freeze."""
    world = play(
        scenario(3, 2, habits=STUBBORN),
        (40.0, freeze(1)),
        (100.0, thaw(1)),
        (120.0, freeze(1)),
        (145.0, thaw(1)),
    )
    assert sizes(world) == [3, 2, 3, 2, 3]


@pytest.mark.parametrize("sleep_s", [3.0, 7.0])
def test_a_machine_that_sleeps_for_less_than_its_lease_costs_nothing(sleep_s: float) -> None:
    """Its agent did not notice that time had passed; the keeper did, and killed what the agent then called failed."""
    for seed in range(10):
        world = play(scenario(3, 2, ttl_s=15.0), (50.0, suspend(1)), (50.0 + sleep_s, resume(1)), seed=seed)
        assert sizes(world) == [3] or sleep_s > 15.0 * (0.6 - 1 / 3)
        assert {count for _, _, count in rounds(world).values()} == {0}
        assert set(exit_codes(world).values()) == {0}


def test_a_machine_that_sleeps_for_longer_comes_back_as_a_newcomer() -> None:
    world = play(scenario(3, 2), (50.0, suspend(1)), (90.0, resume(1)))
    assert sizes(world) == [3, 2, 3]
    assert {count for _, _, count in rounds(world).values()} == {0}


def test_two_spares_step_in_one_after_the_other() -> None:
    world = play(scenario(5, 3, 3), (40.0, lose_rank(0)), (80.0, lose_rank(1)))
    assert sizes(world) == [3, 3, 3]


def test_five_agents_with_room_for_four_leave_one_spare_that_ends_as_the_job_does() -> None:
    world = play(scenario(5, 2, 4))
    assert sizes(world) == [4]
    assert exit_codes(world) == {f"n{number}.1": 0 for number in range(5)}


def test_a_node_leaves_and_comes_back_ten_times() -> None:
    moves = [(40.0 + 20.0 * turn, leave(1)) for turn in range(10)]
    moves += [(45.0 + 20.0 * turn, start(1)) for turn in range(10)]
    world = play(scenario(3, 2, last_call_s=1.0, faults_until_s=260.0, calm_until_s=300.0), *moves)
    assert sizes(world) == [3, *(2, 3) * 10]
    assert {count for _, _, count in rounds(world).values()} == {0}


def test_a_spare_that_returns_to_a_store_without_data_is_no_member_that_returns() -> None:
    """The last member, still frozen with its workers, was counted as back because a spare was."""
    world = play(
        scenario(4, 2, 3, is_hosted=True, habits=STUBBORN),
        (49.9, freeze(1)),
        (50.0, kill(0)),
        (50.2, start(0)),
        (70.0, thaw(1)),
    )
    numbers = list(rounds(world))
    assert numbers == sorted(numbers)


def test_the_host_of_the_store_comes_back_and_the_count_of_restarts_with_it() -> None:
    world = play(
        scenario(3, 2, is_hosted=True, max_restarts=3),
        (40.0, worker_fails(1)),
        (60.0, kill(0)),
        (65.0, start(0)),
        (100.0, worker_fails(0)),
    )
    assert list(rounds(world)) == [1, 2, 3, 4] or list(rounds(world)) == [1, 2, 4, 5]
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 1, 2]


def test_workers_of_a_life_that_is_over_are_no_peers_of_those_of_a_new_one() -> None:
    """Both rounds were the first. When the old worker was stopped, the new one failed of it, and was charged."""
    for seed in range(10):
        world = play(
            scenario(2, 1, 1, is_hosted=True, first_nodes=0),
            (1.0, start(1)),
            (5.0, start(0)),
            (5.001, slow(0, 1.0)),
            (50.0, lose_power(0)),
            (50.5, freeze(1)),
            (51.0, power_on(0)),
            (51.0, start(0)),
            (53.0, thaw(1)),
            seed=seed,
        )
        began = [seen for _, seen in world.trace.entries if isinstance(seen, WorkerStarted)]
        assert [(one.agent, one.round.number) for one in began] == [("n1.1", 1), ("n0.2", 1)]
        assert set(exit_codes(world).values()) == {0}


def test_who_is_alone_with_a_store_without_data_and_cannot_start_is_blamed_in_round_one() -> None:
    """The checker knew of later rounds, of a life that nobody was left to remember."""
    world = play(
        scenario(2, 1, 1, is_hosted=True),
        (10.0, suspend(0)),
        (25.0, resume(0)),
        (44.0, kill(1)),
        (45.0, kill(0)),
        (50.0, lambda world: setattr(world.workload, "habits", Habits(cannot_start=1.0))),
        (51.0, start(0)),
    )
    assert max(rounds(world)) > 1
    assert exit_codes(world) == {"n0.2": 127}


def test_a_round_that_somebody_who_remembers_ends_is_no_job_that_has_come_to_work_again() -> None:
    """Workers that were deaf to their stop were taken for it while their grace ran."""
    world = play(
        scenario(
            2,
            1,
            1,
            is_hosted=True,
            all_return=True,
            max_restarts=1,
            graces=Graces.alike(30.0),
            habits=Habits(deaf=1.0, leaves_child=0.0),
        ),
        (20.0, worker_fails(0)),
        (130.0, cut(1)),
        (131.0, lose_power(0)),
    )
    began = [seen for _, seen in world.trace.entries if isinstance(seen, WorkerStarted)]
    assert [(one.agent, one.round.number) for one in began] == [
        ("n0.1", 1),
        ("n0.1", 2),
        ("n0.2", 1),
        ("n0.2", 3),
    ]


def test_a_store_that_newcomers_began_with_learns_of_survivors_what_is_spent() -> None:
    """It took their count of restarts, and its own newcomers' budget, which was whole."""
    world = play(
        scenario(2, 1, is_hosted=True, max_restarts=1),
        (20.0, worker_fails(1)),
        (40.0, kill(0)),
        (40.5, freeze(1)),
        (41.0, start(0)),
        (60.0, thaw(1)),
        (90.0, worker_fails(0)),
    )
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 1]
    assert set(exit_codes(world).values()) == {3}


def test_a_verdict_that_is_lost_with_its_store_is_the_end_for_those_who_had_heard_it() -> None:
    """Newcomers cannot know of it; the world thought that their job, too, was over."""
    world = play(
        scenario(2, 1, 1, is_hosted=True),
        (49.0, freeze(1)),
        (50.0, worker_fails(0)),
        (51.0, kill(0)),
        (52.0, start(0)),
        (53.0, thaw(1)),
    )
    assert exit_codes(world) == {"n1.1": 3, "n0.2": 0}


def test_workers_that_come_further_each_time_are_restarted_more_often_than_the_budget_says() -> None:
    restarts = RestartPolicy(max_restarts=1, refill_on_progress=True)
    moves = [(at, worker_fails(0)) for at in (30.0, 60.0, 90.0, 120.0)]
    world = play(scenario(2, 2, restarts=restarts, habits=STEPPING), *moves)
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 2, 3, 4]
    assert set(exit_codes(world).values()) == {0}


def test_workers_that_come_no_further_use_up_the_budget_though_progress_refills_it() -> None:
    """The second and the third failure come before the step that was done before the first one."""
    restarts = RestartPolicy(max_restarts=2, refill_on_progress=True)
    moves = [(at, worker_fails(0)) for at in (40.0, 44.0, 48.0)]
    world = play(scenario(2, 2, restarts=restarts, habits=STEPPING), *moves)
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 2]
    assert set(exit_codes(world).values()) == {3}


def test_another_leader_counts_on_where_the_first_one_was() -> None:
    restarts = RestartPolicy(max_restarts=1, window_s=1000.0)
    world = play(
        scenario(3, 2, restarts=restarts),
        (40.0, worker_fails(1)),
        (60.0, kill(0)),
        (75.0, start(0)),
        (80.0, kill(1)),
        (95.0, start(1)),
        (120.0, worker_fails(0)),
    )
    assert max(count for _, _, count in rounds(world).values()) == 1
    assert set(exit_codes(world).values()) == {3}


def test_a_restart_of_long_ago_is_out_of_the_window() -> None:
    restarts = RestartPolicy(max_restarts=1, window_s=60.0)
    world = play(
        scenario(2, 2, restarts=restarts),
        (20.0, worker_fails(1)),
        (100.0, worker_fails(0)),
        (120.0, worker_fails(1)),
    )
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 2]
    assert set(exit_codes(world).values()) == {3}


def test_a_module_that_is_missing_everywhere_is_looked_for_twice() -> None:
    world = play(
        scenario(3, 2, restarts=RestartPolicy(max_restarts=9, tries_hopeless_once=True)),
        (50.0, lose_module),
    )
    assert sizes(world) == [3, 3]
    (reason,) = {agent.verdict.reason for agent in world.agents if agent.verdict}
    assert reason == "a module that cannot be imported, twice in a row: another try would not help"


def test_a_job_that_fails_again_and_again_waits_longer_each_time() -> None:
    restarts = RestartPolicy(max_restarts=9, backoff_s=2.0, backoff_max_s=6.0)
    moves = [(at, worker_fails(0)) for at in (30.0, 35.0, 45.0, 60.0, 75.0)]
    world = play(scenario(2, 2, restarts=restarts), *moves)
    began = [at for at, _, _ in rounds(world).values()]
    waits = [at - failed for at, (failed, _) in zip(began[1:], moves, strict=True)]
    assert waits[0] < 1.0
    for wait, most in zip(waits[1:], (2.0, 4.0, 6.0, 6.0), strict=True):
        assert most / 2 <= wait < most + 1.0


def test_an_excluded_node_comes_back_when_its_time_is_over_and_nothing_is_charged() -> None:
    world = play(scenario(3, 2, exclude_for_s=40.0), (50.0, ask_to_exclude(1)))
    assert sizes(world) == [3, 2, 3]
    second, third = (rounds(world)[number][0] for number in (2, 3))
    assert second < 52.0
    assert 50.0 + 0.9 * 40.0 <= third <= 50.0 + 40.0 + 10.0
    assert {count for _, _, count in rounds(world).values()} == {0}


def test_an_excluded_node_is_used_where_the_others_are_too_few() -> None:
    world = play(
        scenario(3, 2, exclude_for_s=40.0), (30.0, kill(0)), (50.0, ask_to_exclude(1)), (60.0, start(0))
    )
    assert sizes(world) == [
        3,
        2,
        2,
        3,
    ]  # without the killed one; then it is back, and the excluded one can rest


def test_a_worker_that_fails_alone_is_started_again_and_the_others_run_on() -> None:
    world = play(
        scenario(2, 2, has_single_restarts=True, slots=(2, 2), max_restarts=2, habits=STUBBORN),
        (50.0, worker_fails(1)),
        (60.0, worker_fails(2, message="ValueError: bad batch", exit_after_s=2.0)),
    )
    began = [(one.rank, one.round.number, one.round.restart_count) for one in world.workload.started]
    assert sorted(began[:4]) == [(rank, 1, 0) for rank in range(4)]
    assert began[4:] == [(1, 1, 1), (2, 1, 2)]
    assert set(exit_codes(world).values()) == {0}


def test_a_worker_that_was_started_again_after_a_wait_has_not_failed_when_it_is_stopped() -> None:
    """The sign of its life before was kept, and looked as if something had been wrong before the stop."""
    restarts = RestartPolicy(max_restarts=3, backoff_s=2.0)
    world = play(
        scenario(3, 2, has_single_restarts=True, restarts=restarts, habits=STUBBORN),
        (50.0, worker_fails(1, message="ValueError: bad batch")),
        (53.0, worker_fails(1, message="ValueError: bad batch")),
        (70.0, leave(0)),
    )
    assert [one.round.restart_count for one in world.workload.started] == [0, 0, 0, 1, 2, 2, 2]
    assert sizes(world) == [3, 2]


def test_a_worker_that_fails_alone_once_too_often_ends_the_job() -> None:
    world = play(
        scenario(2, 2, has_single_restarts=True, max_restarts=1, habits=STUBBORN),
        (50.0, worker_fails(1)),
        (60.0, worker_fails(0)),
    )
    assert len(world.workload.started) == 3
    assert set(exit_codes(world).values()) == {3}


def test_a_node_with_a_process_that_nobody_can_kill_gives_up_its_place_and_blames_nobody() -> None:
    """It had workers that broke with a peer of another node; they were taken for the failure of its own."""
    for seed in range(5):
        world = play(
            scenario(3, 2, slots=(2, 2), max_restarts=1),
            (50.0, stick(2)),
            (51.0, worker_fails(0)),
            (90.0, let_go),
            seed=seed,
        )
        assert sizes(world) == [3, 2]
        assert exit_codes(world) == {"n0.1": 0, "n1.1": 75, "n2.1": 0}


def test_a_node_that_loses_the_store_for_good_ends_with_its_own_failure_but_not_with_a_symptom() -> None:
    for number, code in ((1, 3), (0, 75)):
        world = play(scenario(2, 1, max_restarts=1), (50.0, cut(1)), (51.0, worker_of_node_fails(number)))
        assert exit_codes(world) == {"n0.1": 0, "n1.1": code}


def test_one_agent_is_told_to_stop_and_all_of_them_end_by_that_signal() -> None:
    world = play(scenario(3, 2, stops_all=True), (50.0, leave(1)))
    assert exit_codes(world) == {"n0.1": 143, "n1.1": 143, "n2.1": 143}
    assert max(last_end_of(world, f"n{one}.1", after=50.0) for one in range(3)) < 51.0


def test_a_worker_asks_to_exclude_its_node_and_fails_and_a_spare_steps_in() -> None:
    """What it had asked was read when it was gone, and forgotten."""
    for seed in range(10):
        world = play(
            scenario(3, 2, 2, max_restarts=1, exclude_for_s=600.0, faults_until_s=100.0),
            (50.0, ask_to_exclude(0)),
            (50.0, worker_fails(0)),
            seed=seed,
        )
        hosts = [
            {one.process.node.name for one in world.workload.started if one.round.number == n} for n in (1, 2)
        ]
        assert len(hosts[0] & hosts[1]) == 1


def test_who_comes_when_the_job_and_its_store_are_gone_gives_up_in_its_own_time() -> None:
    """The world waited for it to work, and then for its end, for as long as a healed job may take."""
    world = play(
        scenario(2, 1, is_hosted=True, first_nodes=1),
        (49.0, cut(1)),
        (49.5, start(1)),
        (50.0, worker_fails(0)),
        (60.0, heal(1)),
    )
    assert exit_codes(world) == {"n0.1": 3, "n1.1": 75}


def test_a_failure_anywhere_is_one_new_round_for_all_and_charged_once() -> None:
    world = play(scenario(4, 4, max_restarts=3), (50.0, worker_fails(2, message="ValueError: bad batch")))
    assert sizes(world) == [4, 4]
    assert rounds(world)[2][2] == 1


def test_who_failed_first_is_blamed_and_not_the_victims_that_exit_faster() -> None:
    for seed in range(10):
        world = play(
            scenario(4, 4),
            (50.0, worker_fails(2, message="ValueError: bad batch", exit_after_s=3.0)),
            seed=seed,
        )
        causes = {
            (seen.exit_code, seen.verdict.cause.rank, seen.verdict.cause.summary)  # type: ignore[attr-defined]
            for _, seen in world.trace.entries
            if isinstance(seen, AgentEnded)
        }
        assert causes == {(3, 2, "ValueError: bad batch")}


def test_a_late_agent_blames_the_cause_and_not_the_symptom_that_wrote_down_its_time() -> None:
    """Both exits came in one look: a death without a record has no time but that of the look."""
    for seed in range(10):
        world = play(
            scenario(2, 2, slots=(2, 2)),
            (49.0, slow(0, 1.0)),
            (50.0, worker_of_node_fails(0)),
            seed=seed,
        )
        assert set(exit_codes(world).values()) == {3}


def test_a_node_that_is_told_to_leave_does_not_blame_its_own_victim() -> None:
    """Its worker had broken with a peer of another node before the agent came to stop it."""
    for seed in range(10):
        world = play(
            scenario(3, 2, max_restarts=0),
            (48.0, suspend(2)),
            (49.0, leave(2)),
            (50.0, worker_fails(1, exit_after_s=0.0)),
            (51.0, resume(2)),
            seed=seed,
        )
        assert exit_codes(world)["n2.1"] == 143


def test_the_others_wait_for_the_evidence_of_a_leaver_that_has_told_of_a_failure() -> None:
    """Its worker was on its way out when it was told to leave: it ended with that failure, and they went on."""
    for seed in range(10):
        world = play(
            scenario(2, 1),
            (49.0, slow(1, 0.3)),
            (50.0, worker_fails(1, message="ValueError: bad batch", exit_after_s=3.0)),
            (52.0, leave(1)),
            seed=seed,
        )
        assert sizes(world) == [2]
        assert set(exit_codes(world).values()) == {3}


def test_the_budget_is_the_jobs_and_not_each_nodes() -> None:
    world = play(
        scenario(4, 2, max_restarts=1), (50.0, worker_fails(0)), (70.0, kill(3)), (100.0, worker_fails(1))
    )
    assert [count for _, _, count in rounds(world).values()] == [0, 1, 1]
    assert set(exit_codes(world).values()) == {3}


def test_whoever_has_succeeded_waits_for_the_others() -> None:
    world = play(scenario(3, 2))
    ends = [at for at, seen in world.trace.entries if isinstance(seen, WorkerEnded)]
    leaves = [at for at, seen in world.trace.entries if isinstance(seen, AgentEnded)]
    assert max(ends) - min(ends) > 0.2
    assert min(leaves) >= max(ends)


@pytest.mark.parametrize("rates", [(0.9, 0.9), (1.1, 1.1), (0.9, 1.1)])
def test_clocks_that_are_wrong_change_nothing(rates: tuple[float, float]) -> None:
    world = play(scenario(3, 2, clock_rates=rates), (50.0, lose_power(2)), (90.0, leave(1)), (95.0, start(1)))
    assert sizes(world)[:2] == [3, 2]
    assert {count for _, _, count in rounds(world).values()} == {0}


@pytest.mark.parametrize("obeys", [True, False])
def test_a_job_that_grows_at_checkpoints_asks_for_one_and_its_workers_need_no_interval(obeys: bool) -> None:
    """They save by themselves after 200 seconds only, and a newcomer comes after 50."""
    habits = changed(STEPPING, steps_per_checkpoint=100, saves_when_asked=obeys)
    what = scenario(3, 2, first_nodes=2, growth=Growth.AT_CHECKPOINT, habits=habits, calm_until_s=300.0)
    sizes_then: list[int] = []

    def look(world: World) -> None:
        sizes_then.append(max(one.round.world_size for one in world.workload.live))

    world = play(what, (50.0, start(2)), (120.0, look))
    assert sizes_then == [3 if obeys else 2]
    assert sizes(world) == [2, 3]
