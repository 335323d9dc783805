"""The restart policy of a job on several hosts: nodes that are excluded, one budget for all, one count and reason."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

import pytest
from tests.system.launch import Event, Script
from tests.system.machines import SHORT_LEASE, Agent, Agents, Network, begin_together, c10d, meeting

MEMBER = """
    import time
    import phalanx
    from meeting import begin, obey, order
    from telling import tell

    begin()
    while True:
        text = order()
        verb, _, rest = text.partition(" ")
        if verb == "exclude":
            phalanx.exclude_node(rest)
            tell("asked")
        elif verb == "progress":
            phalanx.progress(int(rest))
            tell("came", step=int(rest))
        elif text:
            obey(text)
        time.sleep(0.02)
"""
AT_ONCE = ("--restart-backoff", 0)


def last_begun(members: Sequence[Agent], number: int) -> list[Event]:
    """What the workers of these members told when they began in this round: one count, one reason."""
    events = [
        event
        for member in members
        for event in member.events
        if event.name == "begun" and event["round"] == number
    ]
    assert len({(event.restart, event["reason"], event["master"]) for event in events}) == 1, events
    return events


def own_lines(agent: Agent) -> list[str]:
    return [line for line in agent.stderr.decode().splitlines() if line.startswith("phalanx: ")]


def with_spare(
    network: Network, agents: Agents, script: Script, *options: object
) -> tuple[Agent, Agent, Agent]:
    """Two members, the first of which serves the store, and a spare."""
    hosts = [network.host(number) for number in (1, 2, 3)]
    arguments = (*c10d(hosts[0], "2"), *AT_ONCE, *options, script(MEMBER))
    first, second = agents(hosts[0], *arguments), agents(hosts[1], *arguments)
    begin_together((first, second), world=2)
    spare = agents(hosts[2], *arguments)
    spare.printed("this one waits for another round")
    return first, second, spare


@pytest.mark.parametrize("bad", [0, 1], ids=["the store's host", "another"])
@pytest.mark.parametrize("how", ["exit 42", "exclude GPU 3"])
def test_a_spare_takes_the_place_of_an_excluded_node_which_is_a_spare_when_its_time_is_over(
    network: Network, agents: Agents, script: Script, how: str, bad: int
) -> None:
    members = with_spare(
        *(network, agents, script),
        *("--max-restarts", 0, "--exclude-on", "42", "--exclude-for", "10s"),
    )
    excluded, good, spare = members[bad], members[1 - bad], members[2]

    network.order(how, excluded.host)

    number = begin_together((good, spare), world=2, newer_than=1)
    for event in last_begun((good, spare), number):
        assert event.restart == 0
        assert "exclude" in event["reason"]
    excluded.printed("is excluded for")
    why = "exit code 42 (--exclude-on)" if how.startswith("exit") else "GPU 3"
    (line,) = [line for line in own_lines(excluded) if "is excluded for" in line]
    assert why in line
    excluded.printed("this node may be used again")
    excluded.look()
    assert excluded.rounds() == {1}, "it has started nothing meanwhile"
    before = max(good.rounds())

    spare.send(signal.SIGTERM)

    begin_together((good, excluded), world=2, newer_than=before)
    assert spare.wait() == 143
    network.order("exit 0")
    assert [member.wait() for member in (good, excluded)] == [0, 0]


def test_an_excluded_node_joins_again_when_there_is_room(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    arguments = (
        *c10d(hosts[0], "1:2"),
        *("--max-restarts", 0, "--exclude-on", "SIGKILL", "--exclude-for", "10s", script(MEMBER)),
    )
    good, bad = (agents(host, *arguments) for host in hosts)
    first = begin_together((good, bad), world=2)
    worker = bad.begun(round=first).pid

    bad.host.run("kill", "-KILL", str(worker))

    alone = good.begun(round=first + 1)
    assert (alone["world"], alone.restart) == (1, 0)
    again = begin_together((good, bad), world=2, newer_than=alone["round"])
    (event, _) = last_begun((good, bad), again)
    assert (event.restart, event["reason"]) == (0, "a node joined: n2")
    network.order("exit 0")
    assert [good.wait(), bad.wait()] == [0, 0]


def test_without_a_spare_the_node_is_used_on_and_its_failures_are_charged(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    arguments = (*c10d(hosts[0], "2"), *AT_ONCE, "--max-restarts", 1, "--exclude-on", "42", script(MEMBER))
    members = [agents(host, *arguments) for host in hosts]
    begin_together(members, world=2)

    network.order("exit 42", hosts[1])

    number = begin_together(members, world=2, newer_than=1)
    assert {event.restart for event in last_begun(members, number)} == {1}
    newcomer = agents(network.host(3), *arguments)
    replaced = begin_together((members[0], newcomer), world=2, newer_than=number)
    assert {event.restart for event in last_begun((members[0], newcomer), replaced)} == {1}
    network.order("exit 0")
    assert [one.wait() for one in (*members, newcomer)] == [0, 0, 0]


@pytest.mark.compat(
    "flag --max-restarts", "better", "one budget for the job, where each node counts alone there"
)
def test_failures_that_alternate_between_two_nodes_use_up_one_budget(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    options = ("--nproc-per-node", 2, "--max-restarts", 2)
    members = [agents(host, *c10d(hosts[0], "2"), *AT_ONCE, *options, script(MEMBER)) for host in hosts]
    begin_together(members, world=4)
    for restart, code in enumerate((3, 4), start=1):
        before = max(members[0].rounds())
        network.order(f"exit {code}", hosts[restart % 2])
        number = begin_together(members, world=4, newer_than=before)
        for member in members:
            first = 2 * member.begun(round=number)["group"]
            for rank in (first, first + 1):
                member.until("begun", round=number, rank=rank)
        events = last_begun(members, number)
        assert len(events) == 4
        assert events[0].restart == restart
        assert re.fullmatch(
            rf"rank \d failed: exit code {code} \(restart {restart} of 2\)", events[0]["reason"]
        )

    network.order("exit 5", hosts[1])

    assert [member.wait() for member in members] == [5, 5]
    for member in members:
        said = own_lines(member)
        assert said.count("phalanx: not restarted: all 2 restarts are used") == 1
        for restart, code in ((1, 3), (2, 4)):
            (line,) = [line for line in said if f"(restart {restart} of 2)" in line]
            assert f"exit code {code}" in line
        assert [
            re.sub(r"rank \d", "rank", line) for line in said if line.startswith("phalanx:   round ")
        ] == [
            "phalanx:   round 1: rank failed: exit code 3",
            "phalanx:   round 2: rank failed: exit code 4",
        ]


def test_progress_on_one_node_makes_the_budget_whole_for_failures_on_another(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    arguments = (
        *c10d(hosts[0], "2"),
        *(*AT_ONCE, "--max-restarts", 1, "--restart-refill", "progress", script(MEMBER)),
    )
    members = [agents(host, *arguments) for host in hosts]
    begin_together(members, world=2)
    for restart in (1, 2, 3):
        before = max(members[0].rounds())
        network.order(f"progress {100 * restart}", hosts[1])
        members[1].until("came", step=100 * restart)
        network.order("exit 3", hosts[0])
        number = begin_together(members, world=2, newer_than=before)
        assert {event.restart for event in last_begun(members, number)} == {restart}
    network.order("progress 250", hosts[1])  # it came as far before
    members[1].until("came", step=250)

    network.order("exit 6", hosts[0])

    assert [member.wait() for member in members] == [6, 6]
    for member in members:
        assert "phalanx: not restarted: the one restart is used" in own_lines(member)


def test_the_budget_goes_on_when_the_leaders_node_dies_between_two_failures(
    network: Network, agents: Agents, script: Script
) -> None:
    """The store is a folder, so it outlives every node."""
    hosts = [network.host(number) for number in (1, 2, 3)]
    arguments = (
        *meeting("file", network.shared / "store", "1:3", **SHORT_LEASE),
        *(*AT_ONCE, "--max-restarts", 2, script(MEMBER)),
    )
    leader = agents(hosts[0], *arguments)
    leader.begun(world=1)  # who is alone leads
    members = [leader, *(agents(host, *arguments) for host in hosts[1:])]
    before = begin_together(members, world=3)
    network.order("exit 3", hosts[1])
    before = begin_together(members, world=3, newer_than=before, restart=1)

    leader.host.lose_power()

    left = members[1:]
    before = begin_together(left, world=2, newer_than=before)
    assert last_begun(left, before)[0].restart == 1, "a lost node costs nothing"
    network.order("exit 4", hosts[2])
    begin_together(left, world=2, newer_than=before, restart=2)
    network.order("exit 5", hosts[1])
    assert [member.wait() for member in left] == [5, 5]
    for member in left:
        assert "phalanx: not restarted: all 2 restarts are used" in own_lines(member)


def test_all_nodes_wait_and_say_why_and_a_stop_signal_ends_the_wait_of_one(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2, 3)]
    arguments = (
        *c10d(hosts[0], "2:3"),
        *("--max-restarts", 9, "--restart-backoff", "10", script(MEMBER)),
    )
    members = [agents(host, *arguments) for host in hosts]
    before = begin_together(members, world=3)
    network.order("exit 3", hosts[1])
    before = begin_together(members, world=3, newer_than=before)

    network.order("exit 4", hosts[1])

    for member in members:
        member.printed("before it starts")
        (line,) = [line for line in own_lines(member) if "before it starts" in line]
        assert re.fullmatch(
            r"phalanx: rank \d failed: exit code 4 \(restart 2 of 9\); 2 rounds in a row failed within 1 min; "
            rf"round {before + 1} waits \d+\.\d s before it starts",
            line,
        )
    members[2].send(signal.SIGTERM)
    assert members[2].wait() == 143
    left = members[:2]
    begin_together(left, world=2, newer_than=before)
    for event in last_begun(left, before + 1):
        assert event.restart == 2
    network.order("exit 0")
    assert [member.wait() for member in left] == [0, 0]
