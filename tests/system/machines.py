"""Hosts with addresses, names and cables of their own, made of Linux namespaces, each running real launchers.

A host is a process that sleeps in a network, UTS and mount namespace of its own; a switch is one with a bridge. They
die with the test process (parent-death signal), and the kernel takes namespaces and cables away with them: nothing has
a name outside, nothing is left, and any number of networks exist side by side.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.system.launch import LIMIT_S, Event, Job, launcher_under_test

__all__ = [
    "FIRM_LEASE",
    "LEASE_S",
    "LONG_LEASE",
    "SHORT_LEASE",
    "TOGETHER",
    "Agent",
    "Agents",
    "Host",
    "Network",
    "begin_together",
    "c10d",
    "why_no_hosts",
]

TOOLS = ("ip", "nft", "nsenter", "setpriv", "unshare")
SUBNET = "10.1.0"
_BOOT = """
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/resolv.conf" /etc/resolv.conf
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
mount -t tmpfs none /var/tmp
ip link set lo up
"""
_UNSHARE = ("unshare", "--net", "--uts", "--mount")


def why_no_hosts() -> str | None:
    """Why no host can be made here; None if one can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(
        [*_UNSHARE, "ip", "link", "add", "here", "type", "veth", "peer", "name", "there"],
        capture_output=True,
        text=True,
    )
    return tried.stderr.strip() or "this kernel has no veth" if tried.returncode else None


class _Namespace:
    """Namespaces that a sleeping process of ours holds."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", *_UNSHARE, "sh", "-ec"),
                f"{script}\necho made\nexec sleep infinity >/dev/null",
                *("sh", *arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            if said.readline() != b"made\n":
                self.close()
                raise AssertionError("a namespace could not be made")
        self.pid = self._process.pid

    def entering(self, *options: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), *(options or ("--net", "--uts", "--mount")), "--"]

    def run(self, *command: str) -> None:
        subprocess.run([*self.entering("--net"), *command], check=True, capture_output=True)

    def processes(self) -> list[int]:
        """All that run in this network namespace, but its holder."""
        own = os.stat(f"/proc/{self.pid}/ns/net").st_ino
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.pid:
                with contextlib.suppress(OSError):  # it ended while we looked
                    if (entry / "ns/net").stat().st_ino == own:
                        found.append(int(entry.name))
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT_S)


class Host:
    """One machine on the network; its card is `eth0`."""

    def __init__(self, name: str, address: str, *, space: _Namespace, switch: _Namespace) -> None:
        self.name = name
        self.address = address
        self._space = space
        self._switch = switch

    def entering(self, folder: Path) -> tuple[str, ...]:
        """A command prefix that runs the rest on this host, in `folder`."""
        return (*self._space.entering(), "env", f"--chdir={folder}")

    def run(self, *command: str) -> None:
        """Run a command in this host's network to its end."""
        self._space.run(*command)

    def pull_cable(self) -> None:
        """No packet comes or goes any more, and nobody is told."""
        self._switch.run("ip", "link", "set", self.name, "down")

    def plug_cable(self) -> None:
        self._switch.run("ip", "link", "set", self.name, "up")

    def drop(self, *rule: str) -> None:
        """Drop packets silently, by a rule of nft's on what comes in (`ip saddr 10.1.0.2`); until `hear`."""
        self.run("nft", "add", "table", "ip", "test")
        self.run("nft", "add chain ip test in { type filter hook input priority 0; }")
        self.run("nft", "add", "rule", "ip", "test", "in", *rule, "drop")

    def hear(self) -> None:
        """End what `drop` began."""
        self.run("nft", "delete", "table", "ip", "test")

    def lose_power(self) -> None:
        """Everything on it dies in the same moment, and no last packet leaves it."""
        self.pull_cable()
        self.kill_all()

    def kill_all(self) -> None:
        """Kill every process on it; its kernel goes on, and tells the others of broken connections."""
        while alive := [pid for pid in self._space.processes() if not _is_dead(pid)]:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        self._space.close()


class Network:
    """Hosts n1, n2, … on one switch; the address of n7 is 10.1.0.7. They know each other's names unless told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        for name in ("alive", "orders"):
            (self.shared / name).mkdir(parents=True)
        self._switch = _Namespace("ip link add bridge type bridge\nip link set bridge up")
        self._hosts: dict[int, Host] = {}

    def host(
        self, number: int, *, hostname: str = "", hosts: str | None = None, resolv_conf: str | None = None
    ) -> Host:
        """Add the host with this number; `hosts` and `resolv_conf`: the text of these two files in its /etc."""
        name = f"n{number}"
        etc = self.folder / f"etc-{name}"
        etc.mkdir()
        known = "".join(f"{SUBNET}.{one}\tn{one}\n" for one in range(1, 21))
        (etc / "hosts").write_text(f"127.0.0.1\tlocalhost\n{known}" if hosts is None else hosts)
        (etc / "resolv.conf").write_text("" if resolv_conf is None else resolv_conf)
        (etc / "boot_id").write_text(f"{uuid.uuid4()}\n")  # one kernel, but no two machines have the same
        space = _Namespace(_BOOT, hostname or name, str(etc))
        cable = ("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(space.pid))
        self._switch.run("ip", *cable)
        self._switch.run("ip", "link", "set", name, "master", "bridge", "up")
        space.run("ip", "address", "add", f"{SUBNET}.{number}/24", "dev", "eth0")
        space.run("ip", "link", "set", "eth0", "up")
        space.run("ip", "route", "add", "default", "via", f"{SUBNET}.254")  # where nobody is
        self._hosts[number] = Host(name, f"{SUBNET}.{number}", space=space, switch=self._switch)
        return self._hosts[number]

    def order(self, text: str, host: Host | None = None) -> None:
        """Have the workers (of one host, one of them) carry out `text`; see `worker_side/meeting.py`."""
        name = "all" if host is None else host.name
        path = self.shared / "orders" / name
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)  # whole from its first moment

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()
        self._switch.close()


class Agent(Job):
    """A launcher on a host."""

    def __init__(
        self,
        host: Host,
        network: Network,
        arguments: tuple[str, ...],
        *,
        env: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.host = host
        own = {"BLACK_BOX_HOST": host.name, "BLACK_BOX_SHARED": str(network.shared)}
        super().__init__(
            launcher_under_test(), arguments, folder=folder, env={**own, **env}, wrapper=host.entering(folder)
        )

    def begun(self, *, after: float = 0.0, **facts: object) -> Event:
        """Wait until a worker of this host began in such a round; the first one that did.

        Wherever it is: no worker of an older round was alive then.
        """
        event = self.until("begun", after=after, **facts)
        assert not event["older"], f"workers of an older round were alive: {event}"
        return event

    def rounds(self, world: int | None = None, restart: int | None = None) -> set[int]:
        """The rounds (of this size, with this count) in which workers of this host have begun so far.

        No older ones were alive then.
        """
        begun = [event for event in self.events if event.name == "begun"]
        assert not any(event["older"] for event in begun), (
            f"workers of an older round were alive\n{self.so_far()}"
        )
        return {
            event["round"]
            for event in begun
            if world in (None, event["world"]) and restart in (None, event.restart)
        }

    def freeze(self) -> None:
        """Stop the agent's process (SIGSTOP), and nothing else of the job."""
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)


def begin_together(
    agents: Sequence[Agent], *, world: int, newer_than: int = 0, restart: int | None = None
) -> int:
    """Wait until workers of all of these have begun in one and the same round of this size; return its number.

    `restart`: the count that it has, where a round may come between that is nobody's failure: a short lease can be lost
    to the load of a slow machine.
    """
    deadline = time.monotonic() + LIMIT_S
    while not (
        common := set.intersection(*(agent.rounds(world, restart) for agent in agents))
        - {*range(newer_than + 1)}
    ):
        descriptors = [fd for agent in agents for fd in agent.descriptors]
        assert select.select(descriptors, [], [], max(0.0, deadline - time.monotonic()))[0], "\n".join(
            [f"waited in vain for one round of {world}", *(agent.so_far() for agent in agents)]
        )
        for agent in agents:
            agent.look()
            assert agent.process.poll() is None, f"{agent.host.name} ended meanwhile\n{agent.so_far()}"
    return max(common)


def meeting(backend: str, endpoint: object, nnodes: str, **conf: object) -> tuple[object, ...]:
    """The arguments of an agent of a job that meets there; `conf` is for --rdzv-conf, and stands above ours.

    Leases are the 15 s of the default, unless a test waits for the end of one: a shorter one can be lost to the load of
    a slow machine.
    """
    pairs = {"last_call_timeout": 1, "join_timeout": 120, **conf}
    return (
        *("--nnodes", nnodes, "--rdzv-backend", backend, "--rdzv-endpoint", endpoint),
        *("--rdzv-id", "job", "--rdzv-conf", ",".join(f"{key}={value}" for key, value in pairs.items())),
    )


def c10d(store: Host, nnodes: str, **conf: object) -> tuple[object, ...]:
    """The same for a job whose store is served by the agent of one of its hosts."""
    return meeting("c10d", f"{store.address}:29400", nnodes, **conf)


# For tests that wait for the end of one: three seconds, as in the cases that users expect to work. An agent that stands
# still for a second may lose it, and then there is a round more, with the same count: no test may mind.
SHORT_LEASE = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3}
LEASE_S = 3.0

# For tests that wait for the end of one, and do mind: nobody loses it who stands still for a second or two.
FIRM_LEASE = {"keep_alive_interval": 3, "keep_alive_max_attempt": 3}

# For tests in which nobody may lose one.
LONG_LEASE = {"keep_alive_interval": 20, "keep_alive_max_attempt": 3}

# For tests that start agents at once and count on all of them in the first round. It is full then, and nobody waits;
# with the short last call of other tests, an agent that is a second late would be missing.
TOGETHER = {"last_call_timeout": 30}


class Agents(Protocol):
    """The fixture `agents`: start a launcher with these arguments on a host; it is cleaned up with the test."""

    def __call__(self, host: Host, *arguments: object, env: Mapping[str, str] | None = None) -> Agent: ...


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
