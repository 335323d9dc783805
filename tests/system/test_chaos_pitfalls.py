"""The pitfalls of docs/chaos.md that can be made here: what is done wrong, and that phalanx says what the page says.

Losses and mixed logs are in the page's own commands, which tests/chaos/test_recipe.py types.
"""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path

from tests.system.chaos import Start
from tests.system.launch import Launch, Script
from tests.system.machines import SHORT_LEASE, Agent, Agents, Network, begin_together, c10d, meeting

PAGE = (Path(__file__).parents[2] / "docs/chaos.md").read_text()
MEMBER = "from meeting import attend; attend()"
# The first collective of any library begins so: rank 0 listens where the round says, and the others go there.
MEET_ALONE = """
    import os, socket
    from meeting import begin
    begin()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        socket.create_server(address).accept()
    else:
        socket.create_connection(address, timeout=5)
"""


def shown(beginning: str) -> str:
    """The one line that the page shows with this beginning."""
    (line,) = {line for line in PAGE.splitlines() if line.startswith(beginning)}
    return line


def like(line: str, number: str = r"\d+") -> re.Pattern[str]:
    """The page's line with whatever numbers and hosts there are."""
    return re.compile(
        re.sub(r"\d+", lambda _: number, re.sub(r"\bn1\b", "HOST", re.escape(line))).replace("HOST", r"\S+")
    )


def test_waiting_for_nodes_says_who_is_there(network: Network, agents: Agents, script: Script) -> None:
    alone = agents(network.host(1), *meeting("c10d", "10.1.0.1:29400", "2", join_timeout=8), script(MEMBER))

    assert alone.wait() != 0
    assert like(shown("phalanx: waiting: 1 of 2")).search(alone.stderr.decode())


def test_an_endpoint_at_which_something_else_listens_is_named(launch: Launch, script: Script) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        endpoint = f"127.0.0.1:{other.getsockname()[1]}"
        job = launch(*meeting("c10d", endpoint, "2", join_timeout=8), script(MEMBER))

        assert job.wait() != 0
    assert like(shown("phalanx: waiting for the store: What listens")).search(job.stderr.decode())
    assert f"What listens at {endpoint} does not answer as a store of ours does" in job.stderr.decode()


def test_an_address_of_the_wrong_interface_is_the_workers_error_and_not_a_node_that_is_missing(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(1), network.host(2)]
    train, members = script(MEET_ALONE), []
    for number, host in enumerate(hosts, 1):  # a card of each that leads to nobody
        host.run("ip", "link", "add", "wrong", "type", "veth", "peer", "name", "nowhere")
        host.run("ip", "address", "add", f"10.66.0.{number}/24", "dev", "wrong")
        for card in ("wrong", "nowhere"):
            host.run("ip", "link", "set", card, "up")
        words = ("--max-restarts", 0, "--local-addr", f"10.66.0.{number}", train)
        members.append(agents(host, *c10d(hosts[0], "2"), *words))

    assert 0 not in [member.wait() for member in members]
    for member in members:
        said = member.stderr.decode()
        assert "round 1 has 2 nodes, 2 workers" in said
        assert re.search(
            r"train\.py failed: rank 1[^:]*: (OSError: .* No route to host|TimeoutError: timed out)", said
        )


def test_ranks_are_others_when_a_node_was_lost_and_came_back(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    """The page's command for it, with a job that is named."""
    host, train = network.host(1), script(MEMBER)
    arguments = (*meeting("c10d", "127.0.0.1:29400", "1:3", **SHORT_LEASE), train)
    members = [agents(host, *arguments)]
    before = 0
    for world in (1, 2, 3):  # one after the other, so it is known who has which rank
        before = begin_together(members, world=world, newer_than=before)
        if world < 3:
            members.append(agents(host, *arguments, env={"BLACK_BOX_HOST": f"member {world}"}))
    first, second, third = members
    assert ranks(members, before) == [0, 1, 2]
    assert "phalanx chaos kill --job any --agent --node 1" in PAGE

    killer = chaos("kill", "--agent", "--node", 1, "--job", second.process.pid)
    assert killer.wait() == 0
    before = begin_together([first, third], world=2, newer_than=before)
    assert ranks([first, third], before) == [0, 1]
    again = agents(host, *arguments, env={"BLACK_BOX_HOST": "again"})
    before = begin_together([first, third, again], world=3, newer_than=before)

    assert ranks([first, third, again], before) == [0, 1, 2]
    third.printed(f": round {before} has 3 nodes, 3 workers; rank 1 is here")
    network.order("exit 0")
    assert [one.wait() for one in (first, third, again)] == [0, 0, 0]


def ranks(members: list[Agent], round_number: int) -> list[int | None]:
    """The rank of the worker of each in this round."""
    return [one.until("begun", round=round_number).rank for one in members]
