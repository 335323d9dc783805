"""Cuts one agent from its store, as a network that lets nothing through: no packet, and no word that it was lost.

Rules of nftables in the agent's own network namespace. The agent's connections are matched by both ends. A new
connection has no known end yet, so each new one to the store's port is held back; the sender tries again after a
second, and by then one that is not the agent's has been let through. All of it is in sets whose elements end by
themselves: the kernel heals the cut in time, whatever becomes of this process. Neighbours in the namespace are not cut.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterable

from phalanx.chaos.faults import Wait
from phalanx.chaos.guard import Guard
from phalanx.chaos.jobs import Agent
from phalanx.chaos.sockets import ESTABLISHED, LISTENING, SYN_SENT, Connection, connections, sockets_of
from phalanx.records import Struct

__all__ = ["Cut", "Uncuttable", "cut", "is_cuttable", "store_connections", "why_no_cut"]

_CAP_NET_ADMIN = 12
_PREFIX = "phalanx_chaos_"
# New connections are looked at so often; a held back one is sent again after one second at the earliest (RFC 6298).
_LOOK_S = 0.05
_NFT_S = 20.0
_SLACK_S = 5.0


class Uncuttable(Exception):
    """Why this agent cannot be cut from its store: the rest of a sentence."""


class Cut(Struct):
    """What is cut: the store's ends as ``host:port``."""

    stores: tuple[str, ...]


def why_no_cut() -> str | None:
    """Why this process can cut nobody; None if it can."""
    if shutil.which("nft") is None:
        return "cut needs nft, which is not installed here (the package is called nftables)"
    if not _may_administer():
        return "cut needs root, or the capability NET_ADMIN: it makes rules of nftables"
    return None


def store_connections(agent: Agent) -> list[Connection]:
    """The agent's connections to its store. Raises ``Uncuttable`` when it has none."""
    rows = connections(agent.pid)
    try:
        own = sockets_of(agent.pid)
    except OSError as error:
        raise Uncuttable(f"the agent (pid {agent.pid}) cannot be looked at: {error.strerror}") from None
    ports = {row.local_port for row in rows if row.state == LISTENING and row.inode in own}
    found = [
        row
        for row in rows
        if row.inode in own and row.state in (ESTABLISHED, SYN_SENT) and row.local_port not in ports
    ]
    if not found:
        raise Uncuttable(
            f"node {agent.node} (agent pid {agent.pid}) has no connection to a store elsewhere: it serves the store "
            "itself, or has it in memory or in a folder; cut another node"
        )
    return found


def is_cuttable(agent: Agent) -> bool:
    """Whether the agent has a connection to its store."""
    try:
        return bool(store_connections(agent))
    except Uncuttable:
        return False


def cut(agent: Agent, for_s: float, wait: Wait, *, begun: Callable[[Cut], None]) -> None:
    """Cut the agent from its store for so long; ``begun`` is called when nothing passes any more.

    Raises ``Uncuttable``, and ``OSError`` when nft refuses; nothing is cut then.
    """
    rows = store_connections(agent)
    with contextlib.ExitStack() as stack:
        # The agent's network, held: its number may mean another process when the rules are removed.
        network = os.open(f"/proc/{agent.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, network)
        table = _Table(network, agent.pid, {row.remote_port for row in rows})
        stack.callback(table.remove)  # once more, if somebody has killed the guard
        # The kernel heals by itself; the guard does so at our death, and leaves no empty table.
        guard = stack.enter_context(Guard(for_s + _SLACK_S, last=table.remove, keep=(network,)))
        until = time.monotonic() + for_s
        table.make(rows, until, guard.link)
        begun(Cut(tuple(sorted({_end(row) for row in rows}))))
        while time.monotonic() < until:
            table.follow(until)
            if not wait(min(until, time.monotonic() + _LOOK_S)):
                return


class _Table:
    """The rules of one cut."""

    def __init__(self, network: int, pid: int, ports: Collection[int]) -> None:
        self._network = network
        self._pid = pid
        self._ports = set(ports)
        # Not the pid: containers that share this network number their processes each for itself.
        self._name = f"{_PREFIX}{secrets.token_hex(8)}"
        self._cut: set[tuple[str, int, str, int]] = set()
        self._others: set[tuple[str, int]] = set()
        own = os.stat("/proc/self/ns/net")
        theirs = os.fstat(network)
        self._is_elsewhere = (own.st_dev, own.st_ino) != (theirs.st_dev, theirs.st_ino)

    def make(self, rows: Iterable[Connection], until: float, link: int) -> None:
        """Cut these connections, and new ones to their ports. Raises ``OSError`` with nft's words.

        nft has the guard's link open: if we are killed meanwhile, the guard hears of it when the rules are there to be
        removed, and not before.
        """
        ports = ", ".join(f"{port} timeout {_left(until)}" for port in sorted(self._ports))
        self._run(
            f"{self._old()}{_RULES.replace('TABLE', self._name)}"
            f"add element inet {self._name} ports {{ {ports} }}\n{self._elements(rows, (), until)}",
            link,
        )

    def follow(self, until: float) -> None:
        """Cut what the agent has opened meanwhile, and let through what others have."""
        # First the rows and then the agent's sockets: what it has opened is among these as long as the row is.
        rows = [row for row in connections(self._pid) if row.remote_port in self._ports]
        try:
            own = sockets_of(self._pid)
        except OSError:
            return
        mine = [
            row
            for row in rows
            if row.inode in own and row.state in (ESTABLISHED, SYN_SENT) and _ends(row) not in self._cut
        ]
        others = {
            (row.local, row.local_port)
            for row in rows
            if row.state == SYN_SENT and row.inode and row.inode not in own
        } - self._others
        if mine or others:
            self._run(self._elements(mine, others, until))

    def remove(self) -> None:
        """Let everything through again."""
        with contextlib.suppress(OSError):
            self._run(_without(self._name))

    def _elements(self, mine: Iterable[Connection], others: Iterable[tuple[str, int]], until: float) -> str:
        lines = []
        for row in mine:
            self._cut.add(_ends(row))
            ends = " . ".join(map(str, _ends(row)))
            lines.append(_element(self._name, f"cut{6 if row.is_ipv6 else 4}", ends, until))
        for address, port in others:
            self._others.add((address, port))
            lines.append(
                _element(self._name, f"others{6 if ':' in address else 4}", f"{address} . {port}", until)
            )
        return "".join(lines)

    def _old(self) -> str:
        """Words that remove what chaos left that was killed, and its guard with it: tables whose time is over.

        A cut that lasts has a port in its set, from the moment when its table is there. Whose it is, is not asked.
        """
        words = ""
        with contextlib.suppress(
            OSError
        ):  # one has been removed meanwhile: all are harmless, and go the next time
            for line in self._run("list tables inet\n").splitlines():
                name = line.split()[-1] if line.startswith("table inet") else ""
                if name.startswith(_PREFIX) and "elements" not in self._run(f"list set inet {name} ports\n"):
                    words += _without(name)
        return words

    def _run(self, script: str, *inherited: int) -> str:
        where = ["nsenter", f"--net=/proc/self/fd/{self._network}", "--"] if self._is_elsewhere else []
        try:
            done = subprocess.run(
                [*where, "nft", "-f", "-"],
                input=script,
                text=True,
                capture_output=True,
                pass_fds=(self._network, *inherited),
                timeout=_NFT_S,
                check=False,
            )
        except FileNotFoundError as missing:
            raise OSError(f"{missing.filename} is not installed here") from None
        except subprocess.TimeoutExpired:
            raise OSError("nft does not end") from None
        if done.returncode:
            raise OSError(f"nft refused: {(done.stderr.strip().splitlines() or ['without a word'])[0]}")
        return done.stdout


# Priorities: before addresses are translated on the way out (-100), after that is undone on the way in (100). Between
# the two a packet may have other ends than those that /proc shows.
_RULES = """\
table inet TABLE {
  set ports { type inet_service; flags timeout; }
  set cut4 { type ipv4_addr . inet_service . ipv4_addr . inet_service; flags timeout; }
  set cut6 { type ipv6_addr . inet_service . ipv6_addr . inet_service; flags timeout; }
  set others4 { type ipv4_addr . inet_service; flags timeout; }
  set others6 { type ipv6_addr . inet_service; flags timeout; }
  chain out {
    type filter hook output priority -150; policy accept;
    ip saddr . tcp sport . ip daddr . tcp dport @cut4 drop
    ip6 saddr . tcp sport . ip6 daddr . tcp dport @cut6 drop
    tcp flags & (syn | ack) == syn tcp dport @ports ip saddr . tcp sport != @others4 drop
    tcp flags & (syn | ack) == syn tcp dport @ports ip6 saddr . tcp sport != @others6 drop
  }
  chain in {
    type filter hook input priority 150; policy accept;
    ip daddr . tcp dport . ip saddr . tcp sport @cut4 drop
    ip6 daddr . tcp dport . ip6 saddr . tcp sport @cut6 drop
  }
}
"""


def _without(table: str) -> str:
    """Also if somebody has removed it a moment ago: nft refuses to delete what is not there."""
    return f"add table inet {table}\ndelete table inet {table}\n"


def _element(table: str, name: str, value: str, until: float) -> str:
    return f"add element inet {table} {name} {{ {value} timeout {_left(until)} }}\n"


def _left(until: float) -> str:
    return f"{max(1, round((until - time.monotonic()) * 1000))}ms"


def _ends(row: Connection) -> tuple[str, int, str, int]:
    return row.local, row.local_port, row.remote, row.remote_port


def _end(row: Connection) -> str:
    return f"[{row.remote}]:{row.remote_port}" if row.is_ipv6 else f"{row.remote}:{row.remote_port}"


def _may_administer() -> bool:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_NET_ADMIN & 1)
    return os.geteuid() == 0
