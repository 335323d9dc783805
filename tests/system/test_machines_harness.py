"""The hosts of these tests have what real ones have, and the harness would notice what it is there to notice."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Script
from tests.system.machines import Agents, Host, Network

SERVE = """
import socket
server = socket.create_server(("10.1.0.1", 5000))
print("serving", flush=True)
while True:
    link, _ = server.accept()
    link.sendall(link.recv(100))
"""
ASK = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])) as link:
    link.sendall(socket.gethostname().encode())
    print(link.recv(100).decode())
"""


@pytest.fixture
def server(network: Network, tmp_path: Path) -> Iterator[Host]:
    host = network.host(1)
    with subprocess.Popen(
        [*host.entering(tmp_path), "python3", "-c", SERVE], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        yield host
        process.kill()


def ask(host: Host, folder: Path, *, server: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [*host.entering(folder), "python3", "-c", ASK, server, str(timeout_s)]
    return subprocess.run(command, capture_output=True, text=True)


def test_hosts_reach_each_other_by_name_and_address_and_have_names(
    network: Network, server: Host, tmp_path: Path
) -> None:
    other = network.host(2)
    for name in server.address, server.name:
        assert ask(other, tmp_path, server=name, timeout_s=LIMIT_S).stdout == "n2\n"


def test_a_pulled_cable_is_silent_and_can_be_plugged_in_again(
    network: Network, server: Host, tmp_path: Path
) -> None:
    other = network.host(2)
    other.pull_cable()
    assert "timed out" in ask(other, tmp_path, server=server.address, timeout_s=1).stderr
    other.plug_cable()
    assert ask(other, tmp_path, server=server.address, timeout_s=LIMIT_S).stdout == "n2\n"


def test_packets_can_be_dropped_one_way(network: Network, server: Host, tmp_path: Path) -> None:
    other, third = network.host(2), network.host(3)
    server.drop("ip", "saddr", other.address)
    assert "timed out" in ask(other, tmp_path, server=server.address, timeout_s=1).stderr
    assert ask(third, tmp_path, server=server.address, timeout_s=LIMIT_S).stdout == "n3\n"
    server.hear()
    assert ask(other, tmp_path, server=server.address, timeout_s=LIMIT_S).stdout == "n2\n"


def test_a_host_without_power_has_no_process(network: Network, agents: Agents, script: Script) -> None:
    agent = agents(network.host(1), "--standalone", script("from meeting import attend; attend()"))
    agent.begun(world=1)

    agent.host.lose_power()

    assert agent.wait() < 0
    assert not agent.survivors()


def test_a_worker_of_an_older_round_would_be_noticed(
    network: Network, agents: Agents, script: Script
) -> None:
    agent = agents(network.host(1), "--standalone", script("from meeting import attend; attend()"))
    with open(network.shared / "alive/0-n7-0", "w") as older:
        fcntl.flock(older, fcntl.LOCK_EX)
        restarted = agents(network.host(2), "--standalone", script("from meeting import attend; attend()"))
        with pytest.raises(AssertionError, match="workers of an older round were alive"):
            restarted.begun(world=1)
    agent.until("begun")
    network.order("exit 0")
    assert agent.wait() == 0
