"""The training with DistributedDataParallel, disturbed in many ways: it comes to where it would have come anyway.

With two workers to the last bit: a sum of two numbers has one order only. With four, gloo adds in another order, in
float32; see `assert_close`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.examples.training import DDP, Training, events, held, wait_asked, wait_event
from tests.system.launch import TORCHRUN
from tests.system.machines import FIRM_LEASE, Network, c10d

Make = Callable[..., Training]

STEPS = 120
ALL = ("--epochs", STEPS // 20, "--log-every", 1)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # importing torch in four workers takes a minute where much else runs
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch"),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    """Two workers, from the first step to the last without a failure."""
    one = Training(tmp_path_factory.mktemp("undisturbed"), DDP, ALL)
    one.run("--nproc-per-node", 2)
    yield one
    one.close()


def weights(training: Training) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(training.checkpoints / "latest/model.pt", weights_only=True)
    return found


def assert_same(found: Training, wanted: Training) -> None:
    assert found.losses() == wanted.losses()
    mine, other = weights(found), weights(wanted)
    assert mine.keys() == other.keys()
    assert all(mine[name].equal(other[name]) for name in mine)


def assert_close(found: Training, wanted: Training) -> None:
    """The same but for rounding: float32 has 1e-7 of it in each step, and 120 steps make 1e-4 of that in the loss, and
    1e-3 in single weights.

    A batch that is lost or taken twice moves the loss by 1e-1; weights in the end by no more than rounding does, if it
    was a late one.
    """
    mine, other = found.losses(within=5e-3), wanted.losses()
    assert mine.keys() == other.keys()
    assert max(abs(mine[step] - other[step]) for step in mine) < 5e-3
    ours, theirs = weights(found), weights(wanted)
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-2


def test_under_torchrun_it_is_stopped_and_goes_on(training: Make, undisturbed: Training) -> None:
    """Stopped, and not only restarted: in its next attempt gloo may find the addresses of the one before in torchrun's
    store, and wait for them for ever."""
    job = training(DDP, *ALL, gates=(70,))
    agent = job.start("--nproc-per-node", 2, launcher=TORCHRUN)
    agent.told("held", 2)
    agent.send(signal.SIGTERM)
    assert job.end_of(agent) != 0
    agent.wait_nobody()
    job.open(70)
    again = job.start("--nproc-per-node", 2, launcher=TORCHRUN)
    assert job.end_of(again) == 0, again.so_far()
    assert job.resumed_at() == [60]
    assert_same(job, undisturbed)


def test_a_worker_is_killed_and_later_the_agent(training: Make, undisturbed: Training) -> None:
    job = training(DDP, *ALL, gates=(50, 90))
    agent = job.start("--nproc-per-node", 2, "--max-restarts", 1)
    agent.told("held", 2)
    os.kill(held(agent, 50, 0), signal.SIGKILL)
    wait_event(agent, "restart_decided")
    job.open(50)
    agent.told("held", 4)
    agent.send(signal.SIGKILL)
    agent.wait()
    agent.wait_nobody()
    job.open(90)
    job.run("--nproc-per-node", 2)
    assert job.resumed_at() == [40, 80]
    assert_same(job, undisturbed)


def test_nodes_come_and_go_and_die_and_return(
    training: Make, undisturbed: Training, network: Network
) -> None:
    n1, n2 = network.host(1), network.host(2)
    job = training(DDP, *ALL, gates=(30, 70, 90, 110))
    options = (
        *c10d(n1, "1:2", **FIRM_LEASE),
        *("--nproc-per-node", 2, "--max-restarts", 1, "--warn-before", "300s", "--shutdown-timeout", 5),
    )
    first = job.start_on(n1, network, *options)
    first.until("held", step=30, world=2)

    second = job.start_on(n2, network, *options)  # from two workers to four
    wait_asked(first, 30, 0, 1)
    job.open(30)

    os.kill(held(second, 70, 3), signal.SIGKILL)  # a worker of the second node
    wait_event(first, "restart_decided", count=2)
    job.open(70)

    first.until("held", step=90, world=4)
    n2.lose_power()
    second.wait()
    wait_event(first, "round_settled", world_size=2, count=2)
    job.open(90)

    first.until("held", step=110, world=2)
    n2.plug_cable()
    again = job.start_on(n2, network, *options)
    wait_asked(first, 110, 0, 1)
    job.open(110)

    assert job.end_of(first) == 0, first.so_far()
    assert job.end_of(again) == 0, again.so_far()
    assert [event["world_size"] for event in events(first, "round_settled")] == [2, 4, 4, 2, 4]
    assert job.resumed_at() == [60, 80]  # after the two failures; who is asked in time does no step twice
    assert_close(job, undisturbed)
