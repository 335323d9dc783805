"""The numpy job, disturbed in many ways: it comes to where it would have come anyway.

To the last bit where a job has as many workers as the undisturbed one, because the same numbers are added up in the
same order; see `assert_close` for the others.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.examples.conftest import STEPS
from tests.examples.training import (
    NUMPY,
    Training,
    assert_close,
    assert_same,
    events,
    held,
    wait_asked,
    wait_event,
)
from tests.system.launch import two_free_ports
from tests.system.machines import FIRM_LEASE, TOGETHER, Network, c10d, meeting

Make = Callable[..., Training]
Undisturbed = Callable[[int], Training]

ALL = ("--steps", STEPS)


def test_it_learns_to_read(undisturbed: Undisturbed) -> None:
    losses = undisturbed(2).losses()
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[1] > 2.0  # ln 10 is 2.3: it guesses
    assert max(losses[step] for step in range(STEPS - 10, STEPS + 1)) < 0.4


@pytest.mark.parametrize("workers", [1, 3, 4])
def test_the_curve_does_not_depend_on_the_number_of_workers(workers: int, undisturbed: Undisturbed) -> None:
    assert_close(undisturbed(workers), undisturbed(2))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_worker_is_killed(rank: int, training: Make, undisturbed: Undisturbed) -> None:
    job = training(NUMPY, *ALL, gates=(50,))
    agent = job.start("--nproc-per-node", 3, "--max-restarts", 1)
    agent.told("held", 3)
    os.kill(held(agent, 50, rank), signal.SIGKILL)
    wait_event(agent, "restart_decided")
    job.open(50)
    assert agent.wait() == 0, agent.so_far()
    ended = [event for event in events(agent, "worker_failed") if not event["is_collateral"]]
    assert [event["rank"] for event in ended] == [rank]
    assert job.resumed_at() == [40]
    assert job.done_twice() == list(range(41, 51))
    assert_same(job, undisturbed(3))


def test_a_number_of_workers_that_cannot_share_a_batch_is_a_mistake_and_not_tried_again(
    training: Make,
) -> None:
    job = training(NUMPY, *ALL)
    agent = job.start("--nproc-per-node", 5, "--max-restarts", 3, "--no-restart-on", "2,64-78")
    assert agent.wait() == 2, agent.so_far()
    assert not events(agent, "restart_decided")
    assert "a batch of 48 cannot be shared equally by 5 workers" in agent.so_far()


def test_a_worker_is_lost_in_the_middle_of_a_step(training: Make, undisturbed: Undisturbed) -> None:
    job = training(NUMPY, *ALL, "--lose-rank", 1, "--at-step", 73)
    job.run("--nproc-per-node", 2, "--max-restarts", 1)
    assert job.resumed_at() == [60]
    assert_same(job, undisturbed(2))


def test_workers_are_killed_again_and_again(training: Make, undisturbed: Undisturbed) -> None:
    gates = (10, 25, 33, 34, 79, 119)
    job = training(NUMPY, *ALL, gates=gates)
    agent = job.start("--nproc-per-node", 2, "--max-restarts", len(gates))
    for number, gate in enumerate(gates):
        os.kill(held(agent, gate, number % 2), signal.SIGKILL)
        wait_event(agent, "restart_decided", count=number + 1)
        job.open(gate)
    assert agent.wait() == 0, agent.so_far()
    assert job.resumed_at() == [0, 20, 20, 20, 60, 100]
    assert_same(job, undisturbed(2))


def test_the_agent_is_killed_and_started_again(training: Make, undisturbed: Undisturbed) -> None:
    job = training(NUMPY, *ALL, gates=(70,))
    agent = job.start("--nproc-per-node", 2)
    agent.told("held", 2)
    agent.send(signal.SIGKILL)
    agent.wait()
    agent.wait_nobody()
    job.open(70)
    job.run("--nproc-per-node", 2)
    assert job.resumed_at() == [60]
    assert_same(job, undisturbed(2))


def test_a_job_that_is_told_to_stop_saves_and_leaves_and_does_no_step_twice(
    training: Make, undisturbed: Undisturbed
) -> None:
    job = training(NUMPY, *ALL, gates=(50,))
    agent = job.start("--nproc-per-node", 2, "--warn-before", "60s")
    agent.told("held", 2)
    agent.send(signal.SIGTERM)
    wait_asked(agent, 50, 0, 1)
    job.open(50)
    assert agent.wait() == 128 + signal.SIGTERM, agent.so_far()
    saved = events(agent, "checkpoint_saved")[-1]["step"]
    assert 50 <= saved < 60  # not one of those that are saved anyway
    job.run("--nproc-per-node", 2)
    assert job.done_twice() == []
    assert_same(job, undisturbed(2))


def test_who_sends_sigusr1_gets_a_checkpoint_and_training_goes_on(
    training: Make, undisturbed: Undisturbed
) -> None:
    job = training(NUMPY, *ALL, gates=(50, 58))
    agent = job.start("--nproc-per-node", 2)
    agent.told("held", 2)
    agent.send(signal.SIGUSR1)
    wait_event(agent, "signal_passed_on", signal=signal.SIGUSR1)
    wait_asked(agent, 50, 0, 1)
    job.open(50)
    agent.told("held", 4)
    assert 50 <= wait_event(agent, "checkpoint_saved", count=3)["step"] < 58
    job.open(58)
    assert agent.wait() == 0, agent.so_far()
    assert job.done_twice() == []
    assert_same(job, undisturbed(2))


def test_the_newest_checkpoint_is_damaged_and_the_one_before_is_taken(
    training: Make, undisturbed: Undisturbed
) -> None:
    job = training(NUMPY, *ALL, gates=(70,))
    agent = job.start("--nproc-per-node", 2)
    agent.told("held", 2)
    agent.send(signal.SIGKILL)
    agent.wait()
    agent.wait_nobody()
    damaged = max(job.checkpoints.glob("step-*"))
    largest = max(
        (path for path in damaged.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    job.open(70)
    job.run("--nproc-per-node", 2)
    assert job.resumed_at() == [40]
    assert_same(job, undisturbed(2))


# Two nodes


def _loopback(nnodes: str, **conf: object) -> tuple[object, ...]:
    return (*meeting("c10d", f"127.0.0.1:{two_free_ports()}", nnodes, **conf), "--nproc-per-node", 2)


def test_a_worker_of_the_second_node_is_killed(training: Make, undisturbed: Undisturbed) -> None:
    job = training(NUMPY, *ALL, gates=(50,))
    options = (*_loopback("2"), "--max-restarts", 1)
    nodes = [job.start(*options, "--node-rank", rank) for rank in (0, 1)]
    for node in nodes:
        node.told("held", 2)
    (last,) = [event for node in nodes for event in node.told("held") if event.rank == 3]
    os.kill(last.pid, signal.SIGKILL)
    for node in nodes:
        wait_event(node, "restart_decided")
    job.open(50)
    for node in nodes:
        assert node.wait() == 0, node.so_far()
    assert job.resumed_at() == [40]
    assert_same(job, undisturbed(4))


def test_a_node_joins_and_another_leaves_and_no_step_is_done_twice(
    training: Make, undisturbed: Undisturbed
) -> None:
    job = training(NUMPY, *ALL, gates=(30, 70))
    options = (*_loopback("1:2"), "--warn-before", "60s")
    first = job.start(*options)
    first.told("held", 2)
    second = job.start(*options)
    wait_asked(first, 30, 0, 1)
    job.open(30)
    first.until("held", step=70, world=4)
    second.send(signal.SIGTERM)
    wait_asked(first, 70, 0, 1)
    wait_asked(second, 70, 2, 3)
    job.open(70)
    assert second.wait() == 128 + signal.SIGTERM, second.so_far()
    assert first.wait() == 0, first.so_far()
    sizes = [event["world_size"] for event in events(first, "round_settled")]
    assert sizes == [2, 4, 2]
    assert job.done_twice() == []
    assert_close(job, undisturbed(2))


@pytest.mark.slow
def test_a_node_loses_its_power_and_comes_back(
    training: Make, undisturbed: Undisturbed, network: Network
) -> None:
    n1, n2 = network.host(1), network.host(2)
    job = training(NUMPY, *ALL, gates=(50, 90))
    options = (
        *c10d(n1, "1:2", **TOGETHER, **FIRM_LEASE),
        "--nproc-per-node",
        2,
        "--warn-before",
        "60s",
    )
    first = job.start_on(n1, network, *options)
    lost = job.start_on(n2, network, *options)
    first.until("held", step=50, world=4)
    n2.lose_power()
    lost.wait()
    wait_event(first, "round_settled", world_size=2)
    job.open(50)
    first.until("held", step=90, world=2)
    n2.plug_cable()
    again = job.start_on(n2, network, *options)
    wait_asked(first, 90, 0, 1)
    job.open(90)
    assert first.wait() == 0, first.so_far()
    assert again.wait() == 0, again.so_far()
    assert [event["world_size"] for event in events(first, "round_settled")] == [4, 2, 4]
    assert job.resumed_at() == [40]
    assert_close(job, undisturbed(4))
