"""`should_stop(step)` and `should_checkpoint(step)`: all ranks of a job save, and leave, at the same step."""

from __future__ import annotations

import importlib.util
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.system.launch import Job, Launch, Script, two_free_ports
from tests.system.machines import TOGETHER, Agents, Network, begin_together, c10d

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

STEPS = "from stepping import train; train()"
GRACE_S = 80
LONG_BEFORE_HALF_OF_THE_GRACE_S = 30.0
GRACE = ("--shutdown-timeout", GRACE_S, "--resize-timeout", GRACE_S, "--restart-timeout", GRACE_S)


class Pair:
    """Two launchers of one job on this machine."""

    def __init__(self, launch: Launch, script: Path, *arguments: object, nnodes: str = "1:2") -> None:
        self._launch = launch
        endpoint = f"127.0.0.1:{two_free_ports()}"
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job")
        self._arguments = (*meeting, "--nnodes", nnodes, "--nproc-per-node", 2, *GRACE, *arguments, script)

    def start(self) -> Job:
        return self._launch(*self._arguments)


def all_are_ready(jobs: Sequence[Job], *, world: int) -> None:
    """Two ranks of each job are in a world of this size."""
    for job in jobs:
        for local_rank in (0, 1):
            job.until("ready", world=world, local_rank=local_rank)


def steps(jobs: Sequence[Job], name: str, count: int, *, world: int) -> list[int]:
    """At which steps ranks told it, each job's own `count` of them."""
    found: list[int] = []
    for job in jobs:
        total = count  # of all worlds
        while len(told := [one["step"] for one in job.told(name, total) if one["world"] == world]) < count:
            total = len([one for one in job.events if one.name == name]) + 1
        found += told
    return found


def saved_by_rank(jobs: Sequence[Job]) -> dict[int, list[int]]:
    """The steps of all checkpoints."""
    saved: dict[int, list[int]] = {}
    for event in (event for job in jobs for event in job.told("saved")):
        saved.setdefault(event.rank, []).append(event["step"])
    return saved


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_who_is_told_to_stop_leaves_with_a_checkpoint_of_the_step_at_which_all_leave(
    launch: Launch, script: Script, ranks: int
) -> None:
    job = launch("--standalone", "--nproc-per-node", ranks, *GRACE, script(STEPS))
    job.told("ready", ranks)

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at < LONG_BEFORE_HALF_OF_THE_GRACE_S, "they agreed, and time was not over"
    left = steps([job], "left", ranks, world=ranks)
    assert left == [left[0]] * ranks
    assert steps([job], "saved", ranks, world=ranks) == left


@needs_torch
@pytest.mark.torch
def test_ranks_of_a_process_group_leave_at_the_same_step_too(launch: Launch, script: Script) -> None:
    train = script(
        """
        import torch
        import torch.distributed as dist
        from stepping import train

        dist.init_process_group("gloo")
        train(lambda step: dist.all_reduce(torch.ones(1)), pause_s=0.001)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, *GRACE, train)
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    left = steps([job], "left", 2, world=2)
    assert left == [left[0]] * 2 == steps([job], "saved", 2, world=2)


def test_all_ranks_of_two_nodes_leave_at_the_same_step_when_one_node_is_told_to(
    launch: Launch, script: Script
) -> None:
    pair = Pair(launch, script(STEPS))
    staying = pair.start()
    staying.printed("waiting: 1 of 1 to 2 nodes")  # it has the store: who leaves with that serves it on
    leaving = pair.start()
    all_are_ready((staying, leaving), world=4)

    asked_at = time.monotonic()
    leaving.send(signal.SIGTERM)

    assert leaving.wait() == 143
    again, _ = (staying.until("ready", after=asked_at, world=2, local_rank=one) for one in (0, 1))
    said = f"{staying.so_far()}\n{leaving.so_far()}"
    assert again.at - asked_at < LONG_BEFORE_HALF_OF_THE_GRACE_S, said
    left = steps([staying, leaving], "left", 2, world=4)
    assert left == [left[0]] * 4
    assert steps([staying, leaving], "saved", 2, world=4) == left
    staying.send(signal.SIGTERM)
    assert staying.wait() == 143


@pytest.mark.parametrize(
    ("sent_to", "numbers"),
    [
        ("one launcher", (signal.SIGUSR1, signal.SIGUSR1)),
        # For a while, the same signal to another launcher counts as the one before; another signal does not.
        ("both launchers", (signal.SIGUSR1, signal.SIGUSR2)),
    ],
    ids=["one launcher", "both launchers"],
)
def test_all_ranks_of_two_nodes_save_once_at_the_same_step_after_a_signal_and_go_on(
    launch: Launch, script: Script, sent_to: str, numbers: tuple[signal.Signals, ...]
) -> None:
    pair = Pair(launch, script(STEPS))
    jobs = [pair.start(), pair.start()]
    all_are_ready(jobs, world=4)

    for turn, number in enumerate(numbers, start=1):
        if sent_to == "both launchers":
            jobs[1].send(number)
        jobs[0].send(number)
        for job in jobs:
            job.told("going", 2 * turn)
        saved = saved_by_rank(jobs)
        assert len(saved) == 4
        # Two seconds after the first one the signal to the other launcher is a second one: then some ranks may have
        # told of one checkpoint more by now.
        together = list(zip(*saved.values(), strict=sent_to == "one launcher"))
        assert all(len(set(step)) == 1 for step in together), saved
        assert len(together) == turn if sent_to == "one launcher" else len(together) >= turn

    for job in jobs:
        assert b"not passed" not in job.stderr
        job.send(signal.SIGTERM)
    assert [job.wait() for job in jobs] == [143, 143]


def test_who_joins_waits_for_a_checkpoint_for_which_all_ranks_are_asked(
    launch: Launch, script: Script
) -> None:
    pair = Pair(launch, script(STEPS), "--rdzv-conf", "join_policy=at-checkpoint,last_call_timeout=1")
    first = pair.start()
    first.until("ready", world=2)

    second = pair.start()

    all_are_ready((first, second), world=4)
    saved = [event for event in first.told("saved", 2) if event["world"] == 2]
    asked = [event["step"] for event in saved][:2]
    assert asked == [asked[0]] * 2
    left = steps([first], "left", 2, world=2)
    assert left == [left[0]] * 2, "the resize is a stop that all agree on, too"
    assert left[0] > asked[0]
    for job in (first, second):
        job.send(signal.SIGTERM)
    assert [job.wait() for job in (first, second)] == [143, 143]


def test_nobody_waits_for_a_rank_that_dies_while_the_others_agree(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, sys, time
        import phalanx
        from telling import tell

        signal.signal(signal.SIGTERM, lambda *_: None)
        phalanx.should_stop()
        phalanx.values().set(f"here/{os.environ['RANK']}", b"")
        tell("ready")
        step = 0
        while os.environ["RANK"] == "1":
            if phalanx.should_stop() and os.path.exists("die"):
                os._exit(3)
            time.sleep(0.01)
        while not phalanx.should_stop(step):
            step += 1
            if phalanx.should_stop() and step % 10 == 0:
                tell("waits")
            time.sleep(0.02)
        tell("left")
        """
    )
    job = launch("--standalone", "--nproc-per-node", 3, *GRACE, train)
    job.told("ready", 3)
    job.send(signal.SIGTERM)
    job.told("waits", 4)
    assert not [event for event in job.events if event.name == "left"]

    died_at = time.monotonic()
    (job.folder / "die").touch()

    assert job.wait() == 143
    assert len(job.told("left", 2)) == 2
    assert time.monotonic() - died_at < LONG_BEFORE_HALF_OF_THE_GRACE_S


def test_after_half_of_the_grace_each_rank_leaves_by_itself(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, sys, time
        import phalanx
        from telling import tell

        signal.signal(signal.SIGTERM, lambda *_: None)
        phalanx.should_stop()
        phalanx.values().set(f"here/{os.environ['RANK']}", b"")
        tell("ready")
        while os.environ["RANK"] == "1":  # it never comes to the end of a step
            if os.path.exists("left"):
                sys.exit(0)
            time.sleep(0.05)
        step = 0
        while not phalanx.should_stop(step):
            step += 1
            time.sleep(0.02)
        tell("left")
        open("left", "w").close()
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 12, train)
    job.told("ready", 2)
    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    (left,) = job.told("left")
    assert left.at - asked_at >= 5.9


def test_a_failure_is_nothing_to_agree_about(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, sys, time
        import phalanx
        from telling import tell

        signal.signal(signal.SIGTERM, lambda *_: None)
        phalanx.should_stop()
        phalanx.values().set(f"here/{os.environ['RANK']}", b"")
        tell("ready")
        while os.environ["RANK"] == "1":
            if os.path.exists("fail"):
                sys.exit(3)
            time.sleep(0.01)
        step = 0
        while not phalanx.should_stop(step):
            step += 1
            time.sleep(0.01)
        tell("left")
        """
    )
    job = launch("--standalone", "--nproc-per-node", 3, *GRACE, train)
    job.told("ready", 3)
    failed_at = time.monotonic()
    (job.folder / "fail").touch()

    assert job.wait() == 3
    assert len(job.told("left", 2)) == 2
    assert time.monotonic() - failed_at < LONG_BEFORE_HALF_OF_THE_GRACE_S


def test_hosts_agree_over_the_network(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    train = script("from meeting import begin; begin(); from stepping import train; train()")
    arguments = (*c10d(a, "1:2", **TOGETHER), "--nproc-per-node", 2, *GRACE, train)
    jobs = [agents(a, *arguments), agents(b, *arguments)]
    begin_together(jobs, world=4)
    all_are_ready(jobs, world=4)

    jobs[1].send(signal.SIGUSR2)
    for job in jobs:
        job.told("going", 2)
    saved = steps(jobs, "saved", 2, world=4)
    assert saved == [saved[0]] * 4
    jobs[1].send(signal.SIGTERM)

    assert jobs[1].wait() == 143
    jobs[0].until("ready", world=2)
    left = steps(jobs, "left", 2, world=4)
    assert left == [left[0]] * 4
    jobs[0].send(signal.SIGTERM)
    assert jobs[0].wait() == 143
