"""Nodes that are cut off, frozen, or lose the host of the store: they come back, and no two rounds ever run at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.system.launch import WORKER_SIDE, Script
from tests.system.machines import (
    LEASE_S,
    LONG_LEASE,
    SHORT_LEASE,
    TOGETHER,
    Agent,
    Agents,
    Network,
    begin_together,
    c10d,
)

MEMBER = "from meeting import attend; attend()"
LISTENER = """
    import signal
    from meeting import attend
    from telling import tell

    signal.signal(signal.SIGUSR1, lambda *_: tell("warned"))
    attend()
"""


def start(
    network: Network, agents: Agents, script: Script, nnodes: str, count: int, **conf: object
) -> list[Agent]:
    """Agents of one job on hosts of which the first serves the store; in one round. The lease is short unless told."""
    hosts = [network.host(number) for number in range(1, count + 1)]
    meets = c10d(hosts[0], nnodes, **{**SHORT_LEASE, **TOGETHER, **conf})
    arguments = (*meets, "--max-restarts", 0, script(MEMBER))
    members = [agents(host, *arguments) for host in hosts]
    begin_together(members, world=count)
    return members


def end(network: Network, members: list[Agent]) -> None:
    """Let all workers end: the job has succeeded, and nothing of what happened was charged."""
    network.order("exit 0")
    assert [member.wait() for member in members] == [0] * len(members)
    assert all(event.restart == 0 for member in members for event in member.events if event.name == "begun")


def test_a_node_whose_cable_is_cut_is_missed_and_joins_again_when_it_heals(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "2:3", 3)
    before = max(members[0].rounds())

    cut_at = time.monotonic()
    members[2].host.pull_cable()
    for member in members[:2]:
        member.begun(world=2, after=cut_at)
    members[2].host.plug_cable()

    begin_together(members, world=3, newer_than=before)
    end(network, members)


def test_a_node_that_hears_the_store_and_is_not_heard_is_cut_off_too(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "1:2", 2)
    before = max(members[0].rounds())

    cut_at = time.monotonic()
    members[0].host.drop("ip", "saddr", members[1].host.address)
    members[0].begun(world=1, after=cut_at)
    members[0].host.hear()

    begin_together(members, world=2, newer_than=before)
    end(network, members)


def test_the_host_of_the_store_is_cut_off_and_comes_back(
    network: Network, agents: Agents, script: Script
) -> None:
    """Its own lease stands, and two are needed: it waits for the others, and they for the store."""
    members = start(network, agents, script, "2:3", 3)
    before = max(members[0].rounds())

    members[0].host.pull_cable()
    time.sleep(2 * LEASE_S)
    members[0].host.plug_cable()

    begin_together(members, world=3, newer_than=before)
    end(network, members)


def test_a_short_cut_disturbs_nobody(network: Network, agents: Agents, script: Script) -> None:
    """What is told on one side of it meanwhile is heard on the other when it is over.

    The default lease of 15 s is too short for that on a slow machine. A renewal, which is due 5 s after the last one,
    may be lost to the cut. TCP sends it again after 3.0 s, then after 6.2 s, and at 9 s the workers are stopped: nobody
    may be late by a second.
    """
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2", **LONG_LEASE), script(LISTENER))
    members = [agents(host, *arguments) for host in (a, b)]
    for member in members:
        member.begun(world=2)

    b.pull_cable()
    members[0].send(signal.SIGUSR1)
    members[0].told("warned")
    time.sleep(2)
    b.plug_cable()
    members[1].told("warned")

    end(network, members)
    assert all(len(member.told("begun")) == 1 for member in members)


def test_old_workers_of_a_frozen_agent_are_gone_before_the_others_begin_without_it(
    network: Network, agents: Agents, script: Script
) -> None:
    """`begun` looks for workers of older rounds, wherever they ran.

    Between the fence and the end of the lease lies a fifth of it, and the keeper, which nobody helps here, may be late
    by a second on a slow machine.
    """
    members = start(network, agents, script, "1:2", 2, keep_alive_interval=2)
    before = max(members[0].rounds())

    frozen_at = time.monotonic()
    members[1].freeze()
    members[0].begun(world=1, after=frozen_at)  # so the lease has ended
    members[1].thaw()

    begin_together(members, world=2, newer_than=before)
    end(network, members)


def test_the_agent_that_serves_the_store_is_frozen_for_longer_than_a_lease(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "2", 2)
    before = max(members[0].rounds())

    members[0].freeze()
    time.sleep(2 * LEASE_S)
    members[0].thaw()

    begin_together(members, world=2, newer_than=before)
    end(network, members)


def test_a_killed_host_of_the_store_is_waited_for_and_all_begin_a_new_round(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "2:3", 3)
    before = max(members[1].rounds())
    members[0].send(signal.SIGKILL)
    assert members[0].wait() == -signal.SIGKILL

    arguments = (
        *c10d(members[0].host, "2:3", **SHORT_LEASE, **TOGETHER),
        "--max-restarts",
        0,
        script(MEMBER),
    )
    again = agents(members[0].host, *arguments)

    begin_together([again, *members[1:]], world=3, newer_than=before)
    end(network, [again, *members[1:]])


def test_a_host_of_the_store_that_does_not_come_back_ends_the_job_and_is_named(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "1:2", 2, store_timeout=4)

    members[0].host.lose_power()

    assert members[1].wait() == 75
    assert f"{members[0].host.address}:29400".encode() in members[1].stderr


WRONG_CLOCK = """
import time
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + 3600
time.time_ns = lambda: _time_ns() + 3600 * 10**9
"""


@pytest.mark.parametrize("wrong", [0, 1], ids=["of the store's host", "of the other"])
def test_a_clock_that_is_an_hour_wrong_changes_nothing(
    network: Network, agents: Agents, script: Script, tmp_path: Path, wrong: int
) -> None:
    """Linux has no namespace for the wall clock: in one node's interpreters the functions that read it are replaced."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock/sitecustomize.py").write_text(WRONG_CLOCK)
    path = [str(tmp_path / "clock"), str(WORKER_SIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    train = script("import time; from meeting import attend, begin; begin(wall=time.time()); attend()")
    a, b = network.host(1), network.host(2)
    members = [
        agents(
            host,
            *(*c10d(a, "1:2", **TOGETHER), "--max-restarts", 0, train),
            env={"PYTHONPATH": os.pathsep.join(path)} if number == wrong else {},
        )
        for number, host in enumerate((a, b))
    ]
    walls = [member.begun(world=2)["wall"] for member in members]
    assert walls[wrong] - walls[1 - wrong] > 3000, "the clock is really wrong"

    time.sleep(8)

    end(network, members)
    assert all(len(member.rounds()) == 1 for member in members)
