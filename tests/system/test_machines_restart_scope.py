"""``--restart-scope worker`` on several hosts: one count for the job, and a change of membership restarts all."""

from __future__ import annotations

from tests.system.launch import Script
from tests.system.machines import SHORT_LEASE, Agent, Agents, Network, begin_together, c10d, meeting

MEMBER = "from meeting import attend; attend()"


def words(script: Script, *meets: object, max_restarts: int = 9) -> tuple[object, ...]:
    return (
        *meets,
        *("--nproc-per-node", 2, "--max-restarts", max_restarts),
        *("--restart-scope", "worker", "--restart-backoff", 0, script(MEMBER)),
    )


def start(
    network: Network, agents: Agents, script: Script, nnodes: str, *, max_restarts: int = 9
) -> list[Agent]:
    """Two agents in one round; the first host serves the store."""
    hosts = [network.host(number) for number in (1, 2)]
    arguments = words(script, *c10d(hosts[0], nnodes), max_restarts=max_restarts)
    members = [agents(host, *arguments) for host in hosts]
    begin_together(members, world=4)
    for member in members:
        member.told("begun", 2)
    return members


def test_a_failure_on_each_node_is_charged_to_the_job_and_nobody_else_notices(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "2")
    number = max(members[0].rounds())
    for count, member in enumerate((members[1], members[0], members[1]), start=1):
        network.order("raise no server", member.host)
        again = member.until("begun", restart=count)
        assert (again["round"], again["world"]) == (number, 4)
        assert f"(restart {count} of 9)" in again["reason"]
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]
    assert [len(member.told("begun")) for member in members] == [3, 4]
    for member in members:
        assert {event["master"] for event in member.told("begun")} == {members[0].told("begun")[0]["master"]}


def test_the_last_restart_of_the_job_may_be_used_elsewhere_and_both_report_the_failure(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "2", max_restarts=1)
    network.order("exit 5", members[0].host)
    members[0].until("begun", restart=1)

    network.order("exit 7", members[1].host)

    assert [member.wait() for member in members] == [7, 7]
    for member in members:
        assert "exitcode  : 7" in member.summary
        assert "n2" in member.summary


def test_the_leaders_host_dies_while_the_others_restart_single_workers(
    network: Network, agents: Agents, script: Script
) -> None:
    """Its death changes the membership: all begin anew, with the count of what was charged."""
    hosts = [network.host(number) for number in (1, 2, 3)]
    meets = meeting("file", network.shared / "store", "2:3", **SHORT_LEASE)
    members = [agents(hosts[0], *words(script, *meets))]
    members[0].printed("waiting: ")  # so it leads
    members += [agents(host, *words(script, *meets)) for host in hosts[1:]]
    before = begin_together(members, world=6)
    for count in (1, 2):
        network.order("exit 3", members[1].host)
        members[1].until("begun", restart=count)
    network.order("exit 3", members[2].host)

    members[0].host.lose_power()

    rest = members[1:]
    number = begin_together(rest, world=4, newer_than=before)
    begun = [member.begun(round=number) for member in rest]
    assert len({event.restart for event in begun}) == 1
    assert begun[0].restart in (2, 3), "the third was charged if it was answered in time"
    count = begun[0].restart
    network.order("exit 4", members[2].host)
    again = members[2].until("begun", restart=count + 1)
    begun_before = {event["round"] for event in members[2].told("begun") if event.restart == count}
    assert again["round"] in begun_before, "a single restart"
    network.order("exit 0")
    assert [member.wait() for member in rest] == [0, 0]


def test_a_node_that_joins_restarts_all_with_the_count_of_the_job(
    network: Network, agents: Agents, script: Script
) -> None:
    members = start(network, agents, script, "1:3")
    before = max(members[0].rounds())
    network.order("exit 3", members[1].host)
    members[1].until("begun", restart=1)

    late = agents(network.host(3), *words(script, *c10d(members[0].host, "1:3")))

    everybody = [*members, late]
    number = begin_together(everybody, world=6, newer_than=before)
    assert {member.begun(round=number).restart for member in everybody} == {1}
    network.order("exit 3", late.host)
    assert late.until("begun", restart=2)["round"] == number
    network.order("exit 0")
    assert [member.wait() for member in everybody] == [0, 0, 0]
