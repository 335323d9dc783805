"""Case 9: nodes join, before and after the others in the order of addresses; there may be more than are needed."""

from __future__ import annotations

import importlib.util
import signal
from collections.abc import Mapping

import pytest
from tests.system.launch import Script
from tests.system.machines import SHORT_LEASE, TOGETHER, Agent, Agents, Network, begin_together, c10d

MEMBER = "from meeting import attend; attend()"
REDUCES = "from meeting import reduce_for_ever; reduce_for_ever()"

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize(("first", "second"), [(2, 1), (2, 10)], ids=["before", "after"])
def test_a_node_that_joins_is_in_the_next_round_and_a_barrier_passes(
    network: Network, agents: Agents, script: Script, first: int, second: int
) -> None:
    a, b = network.host(first), network.host(second)
    arguments = (*c10d(a, "1:2"), "--max-restarts", 0, script(REDUCES))
    host = agents(a, *arguments)
    host.until("reduced", total=1.0)

    guest = agents(b, *arguments)

    assert host.until("reduced", total=2.0)["round"] == guest.until("reduced", total=2.0)["round"]
    ours, theirs = host.begun(world=2), guest.begun(world=2)
    assert ours["master"] == theirs["master"]
    assert (ours["group"], theirs["group"]) == (0, 1), "who was there before keeps its rank"
    assert {ours.restart, theirs.restart} == {0}
    network.order("exit 0")
    assert (host.wait(), guest.wait()) == (0, 0)


def test_ranks_of_a_first_round_follow_the_natural_order_of_addresses(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (10, 2, 9)]
    arguments = (*c10d(hosts[0], "3"), "--nproc-per-node", 2, script(MEMBER))
    members = [agents(host, *arguments) for host in hosts]

    places = {member.host.name: member.begun(world=6)["group"] for member in members}

    assert places == {"n2": 0, "n9": 1, "n10": 2}
    ranks = sorted(event.rank for member in members for event in member.told("begun", 2))
    assert ranks == list(range(6))
    assert len({event["master"] for member in members for event in member.events}) == 1
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0, 0]


def test_a_node_rank_goes_before_the_order_of_addresses(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2, 3)]
    members = [
        agents(host, *c10d(hosts[0], "3"), "--node-rank", 2 - place, script(MEMBER))
        for place, host in enumerate(hosts)
    ]

    places = {member.host.name: member.begun(world=3)["group"] for member in members}

    assert places == {"n3": 0, "n2": 1, "n1": 2}
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0, 0]


def start_full_job(
    network: Network,
    agents: Agents,
    script: Script,
    *,
    spares: int,
    members_are: int = 4,
    lease: Mapping[str, object] | None = None,
) -> tuple[list[Agent], list[Agent]]:
    """A job of four at most, all of whose places are taken, and nodes beyond them."""
    hosts = [network.host(number) for number in range(1, members_are + spares + 1)]
    meets = c10d(hosts[0], f"2:{members_are}", **TOGETHER, **(lease or {}))
    arguments = (*meets, "--max-restarts", 0, script(MEMBER))
    members = [agents(host, *arguments) for host in hosts[:members_are]]
    for member in members:
        member.begun(world=members_are)
    return members, [agents(host, *arguments) for host in hosts[members_are:]]


def test_a_fifth_agent_of_four_is_a_spare_and_ends_with_the_jobs_exit_code(
    network: Network, agents: Agents, script: Script
) -> None:
    members, (spare,) = start_full_job(network, agents, script, spares=1)
    spare.printed("this one waits for another round")

    network.order("exit 0")

    assert [agent.wait() for agent in (*members, spare)] == [0] * 5
    assert not spare.events, "it has run no worker"
    assert all(len(member.told("begun")) == 1 for member in members), "and has disturbed nobody"


def test_a_spare_ends_with_the_jobs_failure_too(network: Network, agents: Agents, script: Script) -> None:
    members, (spare,) = start_full_job(network, agents, script, spares=1, members_are=2)
    spare.printed("this one waits for another round")

    network.order("exit 9", members[1].host)

    assert [agent.wait() for agent in (*members, spare)] == [9, 9, 9]


def test_two_spares_step_in_for_two_nodes_that_are_lost_at_once(
    network: Network, agents: Agents, script: Script
) -> None:
    members, spares = start_full_job(network, agents, script, spares=2, lease=SHORT_LEASE)
    for spare in spares:
        spare.printed("this one waits for another round")

    for member in members[2:]:
        member.host.lose_power()

    begin_together([*members[:2], *spares], world=4)
    assert all(event.restart == 0 for event in members[0].told("begun"))
    network.order("exit 0")
    assert [agent.wait() for agent in (*members[:2], *spares)] == [0] * 4


def test_nodes_that_come_within_one_last_call_share_one_round(
    network: Network, agents: Agents, script: Script
) -> None:
    """The first one is alone because the others have left: nobody waits for the end of a last call of half a minute."""
    a, b, c = (network.host(number) for number in (1, 2, 3))
    arguments = (*c10d(a, "1:3", **TOGETHER), script(MEMBER))
    first, *leavers = (agents(host, *arguments) for host in (a, b, c))
    begin_together([first, *leavers], world=3)
    for leaver in leavers:
        leaver.send(signal.SIGTERM)
    assert [leaver.wait() for leaver in leavers] == [143, 143]
    alone = first.begun(world=1)

    guests = [agents(host, *arguments) for host in (b, c)]

    for guest in guests:
        assert guest.begun()["world"] == 3
    assert first.until("begun", after=alone.at)["world"] == 3
    network.order("exit 0")
    assert [agent.wait() for agent in (first, *guests)] == [0, 0, 0]


def test_with_join_policy_never_a_newcomer_waits_for_a_loss(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b, c = (network.host(number) for number in (1, 2, 3))
    arguments = (*c10d(a, "2:3", join_policy="never"), script(MEMBER))
    members = [agents(host, *arguments) for host in (a, b)]
    begun = [member.begun(world=2) for member in members]
    newcomer = agents(c, *arguments)
    newcomer.printed("this one waits for another round")
    newcomer.look()
    assert not newcomer.events

    members[1].send(signal.SIGTERM)

    newcomer.begun(world=2)
    members[0].until("begun", world=2, after=begun[0].at)
    assert members[1].wait() == 143
    network.order("exit 0")
    assert [agent.wait() for agent in (members[0], newcomer)] == [0, 0]
