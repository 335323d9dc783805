"""The static backend, torchrun's default: fixed, numbered nodes; no smaller round, no guesses, no waiting in vain."""

from __future__ import annotations

import signal

import pytest
from tests.system.launch import Script
from tests.system.machines import Agent, Agents, Host, Network

MEMBER = "from meeting import attend; attend()"


def static(first: Host, *, nodes: int, rank: int, conf: str = "") -> tuple[object, ...]:
    """The words that people type for torchrun."""
    return (
        *("--nnodes", nodes, "--node-rank", rank, "--master-addr", first.address, "--master-port", 29511),
        *(("--rdzv-conf", conf) if conf else ()),
    )


def start(
    network: Network, agents: Agents, script: Script, *numbers: int, words: tuple[object, ...] = ()
) -> list[Agent]:
    """Node rank 0 is the first number's host, and so on."""
    hosts = [network.host(number) for number in numbers]
    train = script(MEMBER)
    members = [
        agents(host, *static(hosts[0], nodes=len(hosts), rank=rank), *words, train)
        for rank, host in enumerate(hosts)
    ]
    for member in members:
        member.begun(world=len(hosts))
    return members


def test_group_ranks_are_node_ranks_and_the_master_is_as_given(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, 3, 1, 2)

    begun = [member.begun() for member in members]
    assert [event["group"] for event in begun] == [0, 1, 2]
    assert {event["master"] for event in begun} == {"10.1.0.3:29511"}
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0, 0]


def test_nodes_may_start_in_any_order(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    train = script(MEMBER)
    second = agents(b, *static(a, nodes=2, rank=1), train)
    second.printed("10.1.0.1")  # it says whom it waits for

    first = agents(a, *static(a, nodes=2, rank=0), train)

    assert first.begun(world=2)["group"] == 0
    assert second.begun(world=2)["group"] == 1
    network.order("exit 0")
    assert [first.wait(), second.wait()] == [0, 0]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_on_one_node_ends_the_others_and_the_report_names_the_first(
    network: Network, agents: Agents, script: Script, failing: int
) -> None:
    members = start(network, agents, script, 1, 2, 3)

    network.order("exit 9", members[failing].host)

    assert [member.wait() for member in members] == [9, 9, 9]
    for member in members:
        assert f"rank      : {failing} (local_rank: 0)" in member.summary
        assert members[failing].host.name in member.summary


def test_a_restart_is_one_new_round_for_all(network: Network, agents: Agents, script: Script) -> None:
    members = start(network, agents, script, 1, 2, words=("--max-restarts", 1))

    network.order("exit 9", members[1].host)

    for member in members:
        assert member.begun(restart=1)["master"] == "10.1.0.1:29511"
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]


@pytest.mark.parametrize("rank", [0, 1], ids=["node 0", "node 1"])
def test_ctrl_c_ends_a_node_that_waits_for_others_at_once(
    network: Network, agents: Agents, script: Script, rank: int
) -> None:
    a, b = network.host(1), network.host(2)
    waiting = agents((a, b)[rank], *static(a, nodes=2, rank=rank), script(MEMBER))
    waiting.printed("10.1.0.1" if rank else "1 of 2")

    waiting.send_to_group(signal.SIGINT)

    assert waiting.wait() == 130


@pytest.mark.parametrize("leaving", [0, 1], ids=["node 0", "node 1"])
def test_a_node_that_is_told_to_stop_ends_the_job_on_the_others(
    network: Network, agents: Agents, script: Script, leaving: int
) -> None:
    members = start(network, agents, script, 1, 2)

    members[leaving].send_to_group(signal.SIGINT)

    assert members[leaving].wait() == 130
    assert members[1 - leaving].wait() != 0
    assert members[leaving].host.name.encode() in members[1 - leaving].stderr


def test_a_node_that_dies_ends_the_job_on_the_others_and_is_named(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    train = script(MEMBER)
    conf = "keep_alive_interval=1,keep_alive_max_attempt=3"
    members = [
        agents(host, *static(hosts[0], nodes=2, rank=rank, conf=conf), train)
        for rank, host in enumerate(hosts)
    ]
    for member in members:
        member.begun(world=2)

    hosts[1].lose_power()

    assert members[0].wait() != 0
    assert b"n2" in members[0].stderr
