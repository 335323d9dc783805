"""phalanx chaos on jobs of several nodes: one agent is cut from its store, and nobody else."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.chaos import Start, planned_and_done, runs, state_of
from tests.system.launch import LIMIT_S, Script
from tests.system.machines import SHORT_LEASE, Agent, Agents, Host, Network, begin_together, meeting
from tests.system.test_machines_stores import TEN_SECONDS, Cluster, cluster, needs_etcd  # noqa: F401

from phalanx.chaos.plan import Schedule, Span, steps

MEMBER = "from meeting import attend; attend()"


def two_on(host: Host, agents: Agents, script: Script, *arguments: object) -> list[Agent]:
    """Two agents of one job in the network of one host; the first one's node is number 0, and serves the store."""
    train = script(MEMBER)
    first = agents(host, *arguments, train)
    first.begun(world=1)
    second = agents(host, *arguments, train, env={"BLACK_BOX_HOST": "second"})
    begin_together([first, second], world=2)
    return [first, second]


def hosted(address: str) -> tuple[object, ...]:
    return (*meeting("c10d", f"{address}:29400", "1:2", **SHORT_LEASE), "--max-restarts", 0)


def end(network: Network, *members: Agent) -> None:
    network.order("exit 0")
    assert [member.wait() for member in members] == [0] * len(members)


def tables(host: Host) -> str:
    listed = subprocess.run(
        [*host.entering(Path("/")), "nft", "list", "tables"], capture_output=True, text=True, check=True
    )
    return listed.stdout


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.0.1", "[::1]"])
def test_the_named_agent_alone_is_cut_and_comes_back(
    network: Network, agents: Agents, script: Script, chaos: Start, address: str
) -> None:
    """Chaos is in another network namespace than the agents, as it is beside containers."""
    host = network.host(1)
    first, second = two_on(host, agents, script, *hosted(address))
    before = max(first.rounds())

    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", 1, "--for", "15s", "--job", second.process.pid)
    cutter.said(
        rf"cut the agent of node 1 \(pid \d+, .*\) from its store at {re.escape(address)}:29400 for 15 s"
    )

    first.begun(after=cut_at, world=1)  # the other one goes on alone
    second.printed("the store has not answered")
    cutter.said("healed the cut of the agent of node 1")
    assert cutter.wait() == 0
    assert tables(host) == ""
    begin_together([first, second], world=2, newer_than=before)
    assert all(event.restart == 0 for event in (*first.events, *second.events) if event.name == "begun")
    end(network, first, second)


def test_an_agent_whose_store_has_another_address_on_the_wire_is_cut(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    """As with a port that a container engine publishes, or a service of Kubernetes: addresses are translated."""
    host = network.host(1)
    host.run("nft", "add", "table", "ip", "nat")
    try:
        host.run("nft", "add chain ip nat out { type nat hook output priority -100; }")
    except subprocess.CalledProcessError:
        pytest.skip("the kernel's nftables cannot translate addresses here")
    host.run("nft", "add rule ip nat out ip daddr 10.9.0.1 tcp dport 2379 dnat to 10.1.0.1:29400")
    train = script(MEMBER)
    first = agents(host, *hosted("10.1.0.1"), train)
    first.begun(world=1)
    there = (*meeting("c10d", "10.9.0.1:2379", "1:2", **SHORT_LEASE), "--max-restarts", 0)
    second = agents(host, *there, train, env={"BLACK_BOX_HOST": "second"})
    before = begin_together([first, second], world=2)

    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", 1, "--for", "15s", "--job", second.process.pid)
    cutter.said(r"cut the agent of node 1 \(.*\) from its store at 10\.9\.0\.1:2379 for 15 s")

    first.begun(after=cut_at, world=1)
    cutter.said("healed the cut of the agent of node 1")
    assert cutter.wait() == 0
    begin_together([first, second], world=2, newer_than=before)
    end(network, first, second)


def test_a_cut_that_is_being_made_when_chaos_is_killed_is_healed(
    network: Network, agents: Agents, script: Script, chaos: Start, tmp_path: Path
) -> None:
    host = network.host(1)
    first, second = two_on(host, agents, script, *hosted("127.0.0.1"))
    # An nft that makes the rules when it is told to.
    nft = tmp_path / "bin/nft"
    nft.parent.mkdir()
    nft.write_text(
        "#!/bin/sh\n"
        "script=$(cat)\n"
        'case "$script" in *"chain out"*)\n'
        f"  touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.02; done ;;\n"
        "esac\n"
        f'printf \'%s\\n\' "$script" | {shutil.which("nft")} "$@"\n'
        f'case "$script" in *"chain out"*) touch {tmp_path}/made ;; esac\n'
    )
    nft.chmod(0o755)
    slow = ("env", f"PATH={nft.parent}:{os.environ['PATH']}")
    cutter = chaos("cut", "--node", 1, "--for", "1000s", "--job", second.process.pid, wrapper=slow)
    wait_until((tmp_path / "begun").exists)

    cutter.process.kill()
    cutter.wait()
    time.sleep(0.5)  # for a guard that heals too early
    (tmp_path / "go").touch()

    wait_until((tmp_path / "made").exists)
    wait_until(lambda: tables(host) == "")
    end(network, first, second)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what nobody tells of."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cut_that_lasts_is_left_alone_by_the_next_one_wherever_that_runs(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    """In another pid namespace the first chaos cannot be seen, as from another container on the same network."""
    host = network.host(1)
    first, second = two_on(host, agents, script, *hosted("127.0.0.1"))
    theirs = "table inet phalanx_chaos_1 { set ports { type inet_service; flags timeout; }; }"
    over = theirs.replace("chaos_1", "chaos_2")
    lasting = "add element inet phalanx_chaos_1 ports { 9 timeout 1000s }"
    subprocess.run(
        [*host.entering(Path("/")), "nft", "-f", "-"],
        input=f"{theirs}\n{over}\n{lasting}\n",
        text=True,
        check=True,
    )

    cutter = chaos("cut", "--node", 1, "--for", "0.1s", "--job", second.process.pid)
    cutter.said("healed")
    assert cutter.wait() == 0

    assert tables(host) == "table inet phalanx_chaos_1\n"
    end(network, first, second)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda one: one.name)
def test_a_cut_heals_whatever_ends_chaos(
    network: Network, agents: Agents, script: Script, chaos: Start, number: signal.Signals
) -> None:
    host = network.host(1)
    first, second = two_on(host, agents, script, *hosted("127.0.0.1"))
    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", 1, "--for", "1000s", "--job", second.process.pid)
    cutter.said(r"cut the agent of node 1 \(pid")
    before = max(first.rounds())
    first.begun(after=cut_at, world=1)

    cutter.process.send_signal(number)

    assert cutter.wait() == (-number if number == signal.SIGKILL else 128 + number)
    begin_together([first, second], world=2, newer_than=before)
    assert tables(host) == ""
    end(network, first, second)


def test_the_kernel_heals_a_cut_of_which_nobody_is_left(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    host = network.host(1)
    first, second = two_on(host, agents, script, *hosted("127.0.0.1"))
    before = max(first.rounds())
    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", 1, "--for", "12s", "--job", second.process.pid)
    cutter.said(r"cut the agent of node 1 \(pid")

    (guard,) = children_of(cutter.process.pid, named="phalanx-chaos-g")
    os.kill(guard, signal.SIGKILL)
    cutter.process.kill()
    cutter.wait()

    assert "phalanx_chaos_" in tables(host)
    first.begun(after=cut_at, world=1)
    begin_together([first, second], world=2, newer_than=before)
    # What is left of it has no elements, stops nobody, and goes when something is cut again.
    again = chaos("cut", "--node", 1, "--for", "0.1s", "--job", second.process.pid)
    again.said("healed")
    again.wait()
    assert tables(host) == ""
    end(network, first, second)


def children_of(pid: int, *, named: str) -> list[int]:
    """Those of a process that have this name; waits until there are some."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        found = []
        for one in map(int, text.split()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if Path(f"/proc/{one}/comm").read_text().strip() == named:
                    found.append(one)
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{pid} has no child {named}")


def test_new_connections_of_others_to_the_same_port_get_through(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    """A third node joins through the very network in which the second one is cut."""
    host = network.host(1)
    arguments = (*meeting("c10d", "127.0.0.1:29400", "1:3", **SHORT_LEASE), "--max-restarts", 0)
    first, second = two_on(host, agents, script, *arguments)
    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", 1, "--for", "1000s", "--job", second.process.pid)
    cutter.said(r"cut the agent of node 1 \(pid")
    first.begun(after=cut_at, world=1)
    before = max(first.rounds())

    third = agents(host, *arguments, script(MEMBER), env={"BLACK_BOX_HOST": "third"})
    begin_together([first, third], world=2, newer_than=before)

    cutter.process.terminate()
    cutter.wait()
    begin_together([first, second, third], world=3)
    end(network, first, second, third)


@needs_etcd
@pytest.mark.slow
def test_an_agent_is_cut_from_an_etcd_of_three_members(
    network: Network,
    agents: Agents,
    script: Script,
    chaos: Start,
    cluster: Cluster,  # noqa: F811
) -> None:
    """Also from those members that it has no connection to, for it tries them all."""
    arguments = (*meeting("etcd", cluster.endpoints, "1:2", **TEN_SECONDS), "--max-restarts", 0)
    first, second = two_on(network.host(1), agents, script, *arguments)
    before = max(first.rounds())

    node = second.begun(world=2)["group"]
    cut_at = time.monotonic()
    cutter = chaos("cut", "--node", node, "--for", "30s", "--job", second.process.pid)
    cutter.said(rf"cut the agent of node {node} \(.* from its store at 10\.1\.0\.1\d:2379")

    first.begun(after=cut_at, world=1)
    second.printed("the store has not answered")
    cutter.said("healed")
    assert cutter.wait() == 0
    begin_together([first, second], world=2, newer_than=before)
    end(network, first, second)


def test_who_serves_the_store_cannot_be_cut_from_it(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    first, second = two_on(network.host(1), agents, script, *hosted("127.0.0.1"))

    refused = chaos("cut", "--node", 0, "--job", first.process.pid)

    assert refused.wait() == 2
    (line,) = refused.lines
    assert line == (
        f"chaos: error: node 0 (agent pid {first.process.pid}) has no connection to a store elsewhere: it serves "
        "the store itself, or has it in memory or in a folder; cut another node; this machine also has node 1"
    )
    unnamed = chaos("cut", "--job", first.process.pid)
    assert unnamed.wait() == 2
    assert unnamed.lines == [
        "chaos: error: which node? This machine has nodes 0 and 1 of the job; say --node N or random"
    ]
    for seed in seeds_that_draw(0, 1):
        cutter = chaos("cut", "--node", "random", "--seed", seed, "--for", "0.1s", "--job", first.process.pid)
        cutter.said(r"cut the agent of node 1 ")
        assert cutter.wait() == 0
    end(network, first, second)


def seeds_that_draw(*rests: int) -> list[str]:
    """A seed for each of these, of which the first draw leaves this when divided by two."""
    once = Schedule(after=Span(0.0, 0.0), every=Span(0.0, 0.0), times=1)
    draws = {seed: next(steps(once, seed)).draw % 2 for seed in map(str, range(20))}
    return [next(seed for seed, rest in draws.items() if rest == wanted) for wanted in rests]


def test_a_node_that_joins_later_is_waited_for(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    host, train = network.host(1), script(MEMBER)
    first = agents(host, *hosted("127.0.0.1"), train)
    first.begun(world=1)
    stopper = chaos("stop", "--node", 1, "--for", "0.1s", "--wait", "600s", "--job", first.process.pid)
    time.sleep(2.0)  # for one that gives up too early

    second = agents(host, *hosted("127.0.0.1"), train, env={"BLACK_BOX_HOST": "second"})
    stopper.said(r"stopped rank 1 \(")

    assert stopper.wait() == 0
    begin_together([first, second], world=2)
    end(network, first, second)


def test_the_ranks_of_one_node_of_two_on_this_machine(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    arguments = (*meeting("c10d", "127.0.0.1:29400", "1:2", **SHORT_LEASE), "--max-restarts", 1)
    first, second = two_on(network.host(1), agents, script, *arguments)
    spared = first.begun(world=2).pid

    stopper = chaos("stop", "--node", 1, "--for", "1000s", "--job", first.process.pid)
    stopper.said(r"stopped rank 1 \(")

    assert runs(state_of(spared))
    assert state_of(second.begun(world=2).pid) == "T"
    stopper.process.terminate()
    stopper.wait()
    end(network, first, second)


def test_a_seed_is_kept_where_two_agents_of_a_job_have_their_workers_one_after_the_other(
    network: Network, agents: Agents, script: Script, chaos: Start
) -> None:
    arguments = (*meeting("c10d", "127.0.0.1:29400", "2"), "--nproc-per-node", 2, "--max-restarts", 3)
    host, train = network.host(1), script(MEMBER)
    members = [agents(host, *arguments, train, env={"BLACK_BOX_HOST": name}) for name in ("first", "second")]
    begin_together(members, world=4)
    words = ("kill", "--every", 0, "--times", 3, "--seed", "a word", "--job", members[0].process.pid)

    planned, done = planned_and_done(chaos, *words)

    assert planned == done
    assert len(done) == 3
    end(network, *members)


def test_cut_needs_root_and_nft(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "phalanx", "chaos", "cut"]
    without = subprocess.run(words, env={**os.environ, "PATH": str(tmp_path)}, capture_output=True, text=True)
    assert (without.returncode, without.stderr) == (
        2,
        "chaos: error: cut needs nft, which is not installed here (the package is called nftables)\n",
    )
    if os.geteuid() == 0 and shutil.which("setpriv") and shutil.which("nft"):
        nobody = subprocess.run(
            ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", *words],
            capture_output=True,
            text=True,
        )
        assert (nobody.returncode, nobody.stderr) == (
            2,
            "chaos: error: cut needs root, or the capability NET_ADMIN: it makes rules of nftables\n",
        )
