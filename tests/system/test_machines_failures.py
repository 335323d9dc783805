"""A worker fails on one node: one new round for all, charged once; what is no worker's failure is not charged."""

from __future__ import annotations

import importlib.util
import signal

import pytest
from tests.system.launch import Script
from tests.system.machines import SHORT_LEASE, TOGETHER, Agent, Agents, Network, begin_together, c10d

MEMBER = "from meeting import attend; attend()"
REDUCES = "from meeting import reduce_for_ever; reduce_for_ever()"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def start(
    network: Network,
    agents: Agents,
    script: Script,
    source: str,
    *,
    count: int,
    max_restarts: int,
    **conf: object,
) -> list[Agent]:
    """Agents of one job in one round; the first host serves the store."""
    hosts = [network.host(number) for number in range(1, count + 1)]
    meets = c10d(hosts[0], f"1:{count}", **TOGETHER, **conf)
    arguments = (*meets, "--max-restarts", max_restarts, script(source))
    members = [agents(host, *arguments) for host in hosts]
    begin_together(members, world=count)
    return members


@pytest.mark.parametrize("failing", [0, 1], ids=["on the store's host", "on the other"])
def test_a_failure_on_one_node_is_one_new_round_with_the_same_count_and_reason_on_all(
    network: Network, agents: Agents, script: Script, failing: int
) -> None:
    members = start(network, agents, script, MEMBER, count=2, max_restarts=3)
    before = max(members[0].rounds())

    network.order("raise out of memory", members[failing].host)

    number = begin_together(members, world=2, newer_than=before)
    begun = [member.begun(round=number) for member in members]
    assert {event.restart for event in begun} == {1}
    assert len({event["reason"] for event in begun}) == 1
    assert "failed" in begun[0]["reason"]
    assert len({event["master"] for event in begun}) == 1
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]


def test_when_the_restarts_of_the_job_are_used_up_all_nodes_report_the_same_failure(
    network: Network, agents: Agents, script: Script
) -> None:
    """One budget for the job: the first failure is on one node, the second on another."""
    members = start(network, agents, script, MEMBER, count=3, max_restarts=1)
    before = max(members[0].rounds())
    network.order("exit 5", members[2].host)
    begin_together(members, world=3, newer_than=before)

    network.order("exit 7", members[1].host)

    assert [member.wait() for member in members] == [7, 7, 7]
    for member in members:
        assert "exitcode  : 7" in member.summary
        assert "n2" in member.summary, "the report says where it was"
        assert all(event.restart <= 1 for event in member.events if event.name == "begun")


def test_a_failure_on_another_node_is_in_the_report_with_its_exception(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, MEMBER, count=2, max_restarts=0)

    network.order("raise bad batch 17", members[1].host)

    assert [member.wait() for member in members] == [1, 1]
    for member in members:
        assert "RuntimeError" in member.summary
        assert "bad batch 17" in member.summary


@pytest.mark.torch
@needs_torch
def test_a_collective_that_breaks_because_a_node_died_is_nobodys_failure(
    network: Network, agents: Agents, script: Script
) -> None:
    """Its workers die with the agent, and the others' all-reduce fails long before the lease has ended."""
    members = start(network, agents, script, REDUCES, count=3, max_restarts=0, **SHORT_LEASE)
    for member in members:
        member.until("reduced", total=3.0)
    before = max(members[0].rounds())

    members[2].send(signal.SIGKILL)

    begin_together(members[:2], world=2, newer_than=before)
    for member in members[:2]:
        assert member.until("reduced", total=2.0).restart == 0
    network.order("exit 0")
    assert [member.wait() for member in members[:2]] == [0, 0]


@pytest.mark.torch
@needs_torch
def test_a_collective_that_breaks_because_a_node_leaves_is_nobodys_failure(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, REDUCES, count=3, max_restarts=0)
    for member in members:
        member.until("reduced", total=3.0)

    members[1].send(signal.SIGTERM)

    for member in (members[0], members[2]):
        assert member.until("reduced", total=2.0).restart == 0
    assert members[1].wait() == 143
    network.order("exit 0")
    assert [members[number].wait() for number in (0, 2)] == [0, 0]


@pytest.mark.torch
@needs_torch
def test_a_failure_that_breaks_the_others_collective_is_the_one_that_counts(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, REDUCES, count=2, max_restarts=1)
    for member in members:
        member.until("reduced", total=2.0)
    before = max(members[0].rounds())

    network.order("exit 3", members[0].host)

    number = begin_together(members, world=2, newer_than=before)
    for member in members:
        again = member.until("reduced", round=number)
        assert (again["total"], again.restart) == (2.0, 1)
        assert "3" in member.begun(round=number)["reason"]
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]
