"""Case 7 on two hosts, and other habits of host names: what is given is used, and nobody asks a name server."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Script
from tests.system.machines import Agents, Host, Network, c10d

NOBODY_KNOWS_ANYBODY = "127.0.0.1\tlocalhost\n"

MEET = """
    import os, socket
    from meeting import begin
    from telling import tell

    begin()
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with socket.create_server(address) as server:
            server.accept()[0].sendall(b"hello")
    else:
        while True:
            try:
                with socket.create_connection(address) as link:
                    tell("met", said=link.recv(5).decode())
                    break
            except ConnectionRefusedError:
                pass
"""


@pytest.fixture
def silent_server(network: Network) -> Host:
    """A name server that answers nothing; it counts the questions."""
    host = network.host(20)
    host.drop("udp", "dport", "53", "counter")
    return host


def questions(server: Host, folder: Path) -> int:
    """How many have come so far."""
    table = [*server.entering(folder), "nft", "list", "table", "ip", "test"]
    listed = subprocess.run(table, check=True, capture_output=True, text=True).stdout
    (count,) = re.findall(r"counter packets (\d+)", listed)
    return int(count)


def test_two_hosts_whose_names_mean_nothing_meet_through_the_first_ones_address(
    network: Network, agents: Agents, script: Script, silent_server: Host, tmp_path: Path
) -> None:
    resolv_conf = f"nameserver {silent_server.address}\noptions timeout:1 attempts:1\n"
    a, b = (
        network.host(
            number, hostname=f"odd-name-{number}", hosts=NOBODY_KNOWS_ANYBODY, resolv_conf=resolv_conf
        )
        for number in (1, 2)
    )
    arguments = (*c10d(a, "2"), script(MEET))
    members = [agents(host, *arguments) for host in (a, b)]

    begun = [member.begun(world=2) for member in members]
    (master,) = {event["master"].partition(":")[0] for event in begun}
    assert master in (a.address, b.address)
    assert [member.wait() for member in members] == [0, 0]
    assert [event["said"] for member in members for event in member.events if event.name == "met"] == [
        "hello"
    ]
    assert questions(silent_server, tmp_path) == 0
    subprocess.run([*a.entering(tmp_path), "getent", "hosts", "nobody"], capture_output=True)
    deadline = time.monotonic() + LIMIT_S
    while not questions(silent_server, tmp_path):
        assert time.monotonic() < deadline, "it does not hear what is asked"


def test_an_endpoint_that_is_a_loopback_name_on_its_own_host_is_reached_by_the_others(
    network: Network, agents: Agents, script: Script
) -> None:
    """Debian's /etc/hosts says so of every host: 127.0.1.1 and its own name."""
    a = network.host(1, hosts=f"{NOBODY_KNOWS_ANYBODY}127.0.1.1\tn1\n10.1.0.2\tn2\n")
    b = network.host(2, hosts=f"{NOBODY_KNOWS_ANYBODY}127.0.1.1\tn2\n10.1.0.1\tn1\n")
    arguments = [word if word != "10.1.0.1:29400" else "n1:29400" for word in c10d(a, "2")]
    members = [agents(host, *arguments, script(MEET)) for host in (a, b)]

    begun = [member.begun(world=2) for member in members]
    assert begun[0]["master"] == begun[1]["master"]
    assert [member.wait() for member in members] == [0, 0]


def test_a_local_addr_is_what_the_others_are_told(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    for host, second in ((a, "10.2.0.1/24"), (b, "10.2.0.2/24")):
        host.run("ip", "address", "add", second, "dev", "eth0")
    members = [
        agents(host, *c10d(a, "2"), "--local-addr", local, script(MEET))
        for host, local in ((a, "10.2.0.1"), (b, "10.2.0.2"))
    ]

    for member in members:
        assert member.begun(world=2)["master"].startswith("10.2.0.")
    assert [member.wait() for member in members] == [0, 0]


def test_hosts_meet_over_ipv6(network: Network, agents: Agents, script: Script) -> None:
    a, b = network.host(1), network.host(2)
    for host, second in ((a, "fd00::1/64"), (b, "fd00::2/64")):
        host.run("ip", "address", "add", second, "dev", "eth0", "nodad")
    train = script(
        MEET.replace("socket.create_server(address)", "socket.create_server(address, family=socket.AF_INET6)")
    )
    arguments = [word if word != "10.1.0.1:29400" else "[fd00::1]:29400" for word in c10d(a, "2")]
    members = [agents(host, *arguments, train) for host in (a, b)]

    for member in members:
        assert member.begun(world=2)["master"].startswith("fd00::")
    assert [member.wait() for member in members] == [0, 0]


def test_two_jobs_meet_at_one_endpoint_and_do_not_mix(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2, 3, 4)]
    first = c10d(hosts[0], "2")
    second = [word if word != "job" else "another" for word in first]
    train = script("from meeting import attend; attend()")
    ours = [agents(host, *first, train) for host in hosts[:2]]
    for agent in ours:
        agent.begun(world=2)
    theirs = [agents(host, *second, train) for host in hosts[2:]]

    for agent in theirs:
        assert agent.begun(world=2)["run_id"] == "another"
    assert {agent.begun()["run_id"] for agent in ours} == {"job"}
    for host in hosts[2:]:
        network.order("exit 0", host)
    assert [agent.wait() for agent in theirs] == [0, 0]
    network.order("exit 0")
    assert [agent.wait() for agent in ours] == [0, 0]


def test_agents_without_an_id_adopt_the_hosts_and_another_command_is_refused(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2, 3)]
    nameless = [word for word in c10d(hosts[0], "2") if word not in ("--rdzv-id", "job")]
    train = script("from meeting import attend; attend()")
    members = [agents(host, *nameless, train) for host in hosts[:2]]
    begun = [member.begun(world=2) for member in members]
    assert len({event["run_id"] for event in begun}) == 1
    assert begun[0]["run_id"] != "none"

    stranger = agents(hosts[2], *nameless, train, "--another", "argument")

    assert stranger.wait() == 2, stranger.stderr
    assert len(stranger.stderr.splitlines()) <= 3, "a sentence"
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]


def test_a_node_with_another_secret_is_kept_out(network: Network, agents: Agents, script: Script) -> None:
    hosts = [network.host(number) for number in (1, 2, 3)]
    train = script("from meeting import attend; attend()")
    arguments = (*c10d(hosts[0], "2:3", join_timeout=20), train)
    members = [agents(host, *arguments, env={"PHALANX_SECRET": "s3cret"}) for host in hosts[:2]]
    begun = [member.begun(world=2) for member in members]

    stranger = agents(hosts[2], *arguments, env={"PHALANX_SECRET": "guess"})

    assert stranger.wait() == 2, stranger.stderr
    assert b"secret" in stranger.stderr
    assert all(len(member.told("begun")) == 1 for member in members), begun
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]
