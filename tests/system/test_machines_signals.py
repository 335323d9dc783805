"""Warnings that one launcher gets reach each worker of the job once; so do those that every launcher gets."""

from __future__ import annotations

import signal

from tests.system.launch import Script
from tests.system.machines import Agent, Agents, Network, begin_together, c10d

LISTENER = """
    import signal
    from meeting import attend
    from telling import tell

    signal.signal(signal.SIGUSR1, lambda *_: tell("warned"))
    attend()
"""


def start(network: Network, agents: Agents, script: Script) -> list[Agent]:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "2"), "--nproc-per-node", 2, script(LISTENER))
    members = [agents(host, *arguments) for host in (a, b)]
    begin_together(members, world=4)
    for member in members:
        member.told("begun", 2)
    return members


def end(network: Network, members: list[Agent]) -> None:
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]
    for member in members:
        assert sorted(event.rank for event in member.told("warned")) == sorted(
            event.rank for event in member.told("begun")
        )


def test_a_warning_to_one_launcher_reaches_every_worker_of_the_job_once(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script)

    members[1].send(signal.SIGUSR1)

    for member in members:
        member.told("warned", 2)
    end(network, members)


def test_a_warning_to_every_launcher_as_from_slurm_reaches_every_worker_once(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script)

    for member in members:
        member.send(signal.SIGUSR1)

    for member in members:
        member.told("warned", 2)
    end(network, members)
