"""Case 8: a node leaves, or dies, and the others go on without it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest
from tests.system.launch import LIMIT_S, Script
from tests.system.machines import LEASE_S, SHORT_LEASE, TOGETHER, Agent, Agents, Network, c10d, meeting

MEMBER = "from meeting import attend; attend()"

WAYS_TO_GO: dict[str, Callable[[Agent], None]] = {
    "is told to": lambda agent: agent.send(signal.SIGTERM),
    "its agent is killed": lambda agent: agent.send(signal.SIGKILL),
    "all its processes are killed": lambda agent: agent.host.kill_all(),
    "it loses its power": lambda agent: agent.host.lose_power(),
    "it loses its cable": lambda agent: agent.host.pull_cable(),
}


@pytest.mark.parametrize("go", WAYS_TO_GO.values(), ids=WAYS_TO_GO)
def test_the_node_that_stays_starts_anew_alone(
    network: Network, agents: Agents, script: Script, go: Callable[[Agent], None]
) -> None:
    """No timer but that of the lease is waited for: the others are longer than the limit of the test."""
    a, b = network.host(1), network.host(2)
    timers = {"last_call_timeout": 2 * LIMIT_S, "store_timeout": 2 * LIMIT_S, "join_timeout": 2 * LIMIT_S}
    arguments = (*c10d(a, "1:2", **SHORT_LEASE, **timers), "--max-restarts", 0, script(MEMBER))
    staying, going = agents(a, *arguments), agents(b, *arguments)
    together = staying.begun(world=2)
    going.begun(world=2)

    gone_at = time.monotonic()
    go(going)

    alone = staying.begun(world=1, after=gone_at)
    # Most of it is room for a slow machine. It is less than what must not be waited for: the 25 s after which TCP
    # gives a silent peer up, the grace of 30 s, and the timers above.
    assert alone.at - gone_at < LEASE_S + 20
    assert alone["round"] > together["round"]
    assert alone.restart == 0, "a changed membership costs nothing"
    network.order("exit 0", a)
    assert staying.wait() == 0


def test_a_node_that_is_told_to_leave_ends_with_the_signals_code_and_leaves_nobody(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2", **TOGETHER), script(MEMBER))
    staying, leaving = agents(a, *arguments), agents(b, *arguments)
    staying.begun(world=2)
    leaving.begun(world=2)

    leaving.send(signal.SIGTERM)

    assert leaving.wait() == 143
    assert not leaving.survivors()
    staying.begun(world=1)
    network.order("exit 0")
    assert staying.wait() == 0


def test_the_next_round_waits_for_the_leavers_last_process_and_for_nothing_else(
    network: Network, agents: Agents, script: Script
) -> None:
    train = script(
        """
        import os, signal, sys, time
        from meeting import attend, begin
        from telling import tell

        def save(*_):
            if os.environ["BLACK_BOX_HOST"] == "n2":
                tell("saving")
                while not os.path.exists(os.environ["BLACK_BOX_SHARED"] + "/saved"):
                    time.sleep(0.05)
                tell("saved")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        attend()
        """
    )
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2", **TOGETHER, keep_alive_interval=30, keep_alive_max_attempt=4), train)
    staying, leaving = agents(a, *arguments), agents(b, *arguments)
    staying.begun(world=2)
    leaving.begun(world=2)
    leaving.send(signal.SIGTERM)
    leaving.told("saving")

    (network.shared / "saved").touch()

    assert leaving.wait() == 143
    (saved,) = leaving.told("saved")
    assert 0 < staying.begun(world=1).at - saved.at < 60, "the lease of two minutes is not waited for"
    network.order("exit 0")
    assert staying.wait() == 0


def test_the_agent_that_serves_the_store_is_the_last_to_go(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2"), script(MEMBER))
    host = agents(a, *arguments)
    host.begun()
    other = agents(b, *arguments)
    host.begun(world=2)
    other.begun(world=2)

    host.send(signal.SIGTERM)

    other.begun(world=1)
    assert host.process.poll() is None, "it serves the store to those who are left"
    network.order("exit 0")
    assert other.wait() == 0
    assert host.wait() == 143


@pytest.mark.slow
def test_a_node_can_leave_and_come_again_ten_times(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2", last_call_timeout=0.5), "--max-restarts", 0, script(MEMBER))
    staying = agents(a, *arguments)
    number = staying.begun(world=1)["round"]
    for _ in range(10):
        guest = agents(b, *arguments)
        together = guest.begun(world=2)
        assert together["round"] > number
        assert staying.begun(round=together["round"])["master"] == together["master"]
        guest.send(signal.SIGTERM)
        assert guest.wait() == 143
        number = staying.until("begun", world=1, after=together.at)["round"]
    assert all(not event["older"] and event.restart == 0 for event in staying.events if event.name == "begun")
    network.order("exit 0")
    assert staying.wait() == 0


def test_below_the_minimum_a_replacement_is_waited_for_and_taken(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b, c = (network.host(number) for number in (1, 2, 3))
    arguments = (*c10d(a, "2"), "--max-restarts", 0, script(MEMBER))
    staying, leaving = agents(a, *arguments), agents(b, *arguments)
    first = staying.begun(world=2)
    leaving.begun(world=2)
    leaving.send(signal.SIGTERM)
    assert leaving.wait() == 143

    replacement = agents(c, *arguments)

    second = replacement.begun(world=2)
    assert second["round"] > first["round"]
    assert staying.begun(round=second["round"])["master"] == second["master"]
    network.order("exit 0")
    assert (staying.wait(), replacement.wait()) == (0, 0)


def test_without_a_replacement_the_job_ends_and_says_who_is_missing(
    network: Network, agents: Agents, script: Script
) -> None:
    """The first round has the time of the node that leads it, which is the one that leaves."""
    a, b = network.host(1), network.host(2)
    folder, train = network.shared / "store", script(MEMBER)
    leaving = agents(b, *meeting("file", folder, "2"), train)
    leaving.printed("waiting: ")  # so it leads
    staying = agents(a, *meeting("file", folder, "2", join_timeout=4), train)
    staying.begun(world=2)
    leaving.begun(world=2)

    leaving.send(signal.SIGTERM)

    assert leaving.wait() == 143
    assert staying.wait() == 75
    assert b"1 of 2" in staying.stderr or b"2 nodes" in staying.stderr
    assert b"n1" in staying.stderr
