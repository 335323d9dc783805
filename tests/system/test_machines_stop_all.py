"""`--stop-all`: a stop signal to any agent ends the job on all nodes, by the same signal and with the same code."""

from __future__ import annotations

import signal

import pytest
from tests.system.launch import Script
from tests.system.machines import TOGETHER, Agent, Agents, Network, begin_together, c10d

MEMBER = """
    import signal, sys
    from meeting import attend
    from telling import tell

    def stop(number, _):
        tell("asked", number=number)
        sys.exit(0)

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    attend()
"""


def who_was_told(host: str, number: signal.Signals) -> bytes:
    return f"{host} was told to stop by {number.name} (--stop-all)".encode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("told", [0, 1, 2], ids=["host of the store", "second", "third"])
def test_the_job_ends_everywhere(
    network: Network, agents: Agents, script: Script, told: int, number: signal.Signals
) -> None:
    hosts = [network.host(one) for one in (1, 2, 3)]
    members = [agents(host, *c10d(hosts[0], "3"), "--stop-all", script(MEMBER)) for host in hosts]
    begin_together(members, world=3)

    members[told].send(number)

    assert [member.wait() for member in members] == [128 + number] * 3
    for member in members:
        assert [event["number"] for event in member.told("asked")] == [number]
        lines = [line for line in member.stderr.splitlines() if b"--stop-all" in line]
        expected = [] if member is members[told] else [who_was_told(hosts[told].name, number)]
        assert [line.removeprefix(b"phalanx: ").partition(b": ")[0] for line in lines] == expected
        assert b"FAILED" not in member.stderr


def test_without_it_the_others_go_on(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2", **TOGETHER), script(MEMBER))
    staying, leaving = (agents(host, *arguments) for host in (a, b))
    begin_together([staying, leaving], world=2)

    leaving.send(signal.SIGTERM)

    assert leaving.wait() == 143
    staying.begun(world=1)
    network.order("exit 0", a)
    assert staying.wait() == 0


def test_a_spare_can_end_the_job_and_ends_with_it(network: Network, agents: Agents, script: Script) -> None:
    hosts = [network.host(one) for one in (1, 2, 3)]
    arguments = (*c10d(hosts[0], "2"), "--stop-all", script(MEMBER))
    members = [agents(host, *arguments) for host in hosts[:2]]
    begin_together(members, world=2)
    spares = [agents(hosts[2], *arguments) for _ in range(2)]
    for spare in spares:
        spare.printed("waits for another round")

    spares[0].send(signal.SIGTERM)

    assert [one.wait() for one in (*members, *spares)] == [143] * 4
    assert who_was_told("n3", signal.SIGTERM) in spares[1].stderr


@pytest.mark.parametrize("told", [0, 1], ids=["host of the store", "another"])
def test_who_still_waits_for_the_first_round_can_end_it_for_all(
    network: Network, agents: Agents, script: Script, told: int
) -> None:
    hosts = [network.host(one) for one in (1, 2)]
    members = [agents(host, *c10d(hosts[0], "3"), "--stop-all", script(MEMBER)) for host in hosts]
    for member in members:
        member.printed("waiting: ")

    members[told].send(signal.SIGINT)

    assert [member.wait() for member in members] == [130, 130]
    assert who_was_told(hosts[told].name, signal.SIGINT) in members[1 - told].stderr


def test_when_the_store_does_not_answer_the_node_ends_alone_and_says_so(
    network: Network, agents: Agents, script: Script
) -> None:
    a, b = network.host(1), network.host(2)
    conf = {**TOGETHER, "keep_alive_interval": 2, "keep_alive_max_attempt": 3}
    members: list[Agent] = [
        agents(host, *c10d(a, "1:2", **conf), "--stop-all", script(MEMBER)) for host in (a, b)
    ]
    begin_together(members, world=2)
    a.pull_cable()

    members[1].send(signal.SIGTERM)

    assert members[1].wait() == 143
    assert b"were not told to stop" in members[1].stderr
    members[0].begun(world=1)
    network.order("exit 0", a)
    assert members[0].wait() == 0


def test_an_agent_that_has_not_reached_the_store_says_that_nobody_was_told(
    network: Network, agents: Agents, script: Script
) -> None:
    a = network.host(1)
    conf = {"is_host": "false"}
    alone = agents(a, *c10d(a, "2", **conf), "--stop-all", script(MEMBER))
    alone.printed("waiting")

    alone.send(signal.SIGTERM)

    assert alone.wait() == 143
    assert b"were not told to stop" in alone.stderr
