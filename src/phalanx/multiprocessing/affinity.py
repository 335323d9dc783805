"""Which CPUs each worker of this machine is bound to. Pure: the machine is a record, and the answer is a plan.

The four kinds are torch's. A worker belongs to the NUMA node of its device; where no device tells one, workers are
dealt over the nodes in proportion to their cores, neighbours together. CPUs that this process may not use are not in
the record, so no plan has them. Errors:

    ValueError
      BindingError    there is no such plan on this machine; the message is one sentence for the user
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from phalanx.records import Struct

__all__ = ["KINDS", "BindingError", "Cpu", "Plan", "Topology", "plan_binding", "read_cpus", "write_cpus"]

KINDS = ("node", "socket", "exclusive", "core-complex")
CPUS_MAX = 1 << 20  # far above every kernel's NR_CPUS; a list that names more is damaged


class BindingError(ValueError):
    """Workers cannot be bound in the way that was asked for."""


class Cpu(Struct):
    """A CPU that may be used: its number, and what it shares with others, each told by one number."""

    number: int
    node: int
    socket: int
    core: int
    """The lowest CPU of the same physical core."""
    cache: int | None
    """The lowest CPU that shares the last level of cache; None: the machine does not tell."""


class Topology(Struct):
    """The CPUs that may be used, in order, and how far nodes are from each other (``distances[a][b]``, if known)."""

    cpus: tuple[Cpu, ...]
    distances: Mapping[int, Mapping[int, int]]


class Plan(Struct):
    """The CPUs of each local rank, and the same in words."""

    cpus: Mapping[int, frozenset[int]]
    sentence: str


def plan_binding(topology: Topology, kind: str, nodes: Sequence[int | None]) -> Plan:
    """Decide the CPUs of ``len(nodes)`` workers; ``nodes`` has the node of each local rank's device, None: unknown.

    ``node``: all CPUs of the node. ``socket``: those of all nodes of the node's socket. ``exclusive``: a share of the
    node's physical cores, with all their threads, that no other worker has. ``core-complex``: the CPUs of the node
    that share one last-level cache; the least used one, among those the largest. A node without CPUs that may be used
    is replaced by the nearest one that has some. Raises ``BindingError``.
    """
    if kind not in KINDS:
        raise BindingError(f"{kind!r} is no way to bind workers; there are {', '.join(KINDS)}")
    if not topology.cpus:
        raise BindingError("this machine does not tell which CPUs it has (/sys/devices/system/cpu)")
    dealt = _deal(topology, len(nodes))
    homes = [dealt[i] if node is None else _nearest(topology, node) for i, node in enumerate(nodes)]
    if kind == "exclusive":
        chosen = _exclusive(topology, homes)
    elif kind == "core-complex":
        chosen = _core_complexes(topology, homes)
    else:
        of_home = {
            home: frozenset(
                cpu.number
                for cpu in topology.cpus
                if cpu.node in (_socket_nodes(topology, home) if kind == "socket" else {home})
            )
            for home in set(homes)
        }
        chosen = [of_home[home] for home in homes]
    cpus = dict(enumerate(chosen))
    return Plan(cpus, _sentence(kind, homes, chosen, _moved(nodes, homes)))


def _deal(topology: Topology, nproc: int) -> list[int]:
    """The i-th of n workers goes where the core is that lies i/n of the way through all cores, node by node.

    So equal nodes get equally many workers, and a node has at least as many cores as workers if the machine has.
    """
    cores = sorted({(cpu.node, cpu.core) for cpu in topology.cpus})
    return [cores[i * len(cores) // nproc][0] for i in range(nproc)]


def _nearest(topology: Topology, node: int) -> int:
    known = {cpu.node for cpu in topology.cpus}
    if node in known:
        return node
    far = max((one for row in topology.distances.values() for one in row.values()), default=0) + 1
    row = topology.distances.get(node, {})
    return min(known, key=lambda other: (row.get(other, far), other))


def _socket_nodes(topology: Topology, node: int) -> set[int]:
    sockets = {cpu.socket for cpu in topology.cpus if cpu.node == node}
    return {cpu.node for cpu in topology.cpus if cpu.socket in sockets}


def _exclusive(topology: Topology, homes: Sequence[int]) -> list[frozenset[int]]:
    chosen: list[frozenset[int]] = [frozenset()] * len(homes)
    for node in set(homes):
        workers = [local_rank for local_rank, home in enumerate(homes) if home == node]
        cores = sorted({cpu.core for cpu in topology.cpus if cpu.node == node})
        if len(workers) > len(cores):
            raise BindingError(
                f"node {node} has {_count(len(cores), 'core')} for {len(workers)} workers, so no worker can have one "
                "for itself; start fewer, or bind by node"
            )
        for i, local_rank in enumerate(workers):
            # The first ones take what does not divide.
            share, rest = divmod(len(cores), len(workers))
            start = i * share + min(i, rest)
            mine = set(cores[start : start + share + (i < rest)])
            chosen[local_rank] = frozenset(
                cpu.number for cpu in topology.cpus if cpu.node == node and cpu.core in mine
            )
    return chosen


def _core_complexes(topology: Topology, homes: Sequence[int]) -> list[frozenset[int]]:
    complexes: dict[tuple[int, int], set[int]] = {}
    for cpu in topology.cpus:
        if cpu.node in homes:
            if cpu.cache is None:
                raise BindingError(
                    "this machine does not tell which CPUs share a cache (/sys/devices/system/cpu/cpu*/cache); bind "
                    "by node or exclusive"
                )
            complexes.setdefault((cpu.node, cpu.cache), set()).add(cpu.number)
    users = dict.fromkeys(complexes, 0)
    chosen = []
    for home in homes:
        mine = min(
            (one for one in complexes if one[0] == home),
            key=lambda one: (users[one], -len(complexes[one]), one),
        )
        users[mine] += 1
        chosen.append(frozenset(complexes[mine]))
    return chosen


def _moved(nodes: Sequence[int | None], homes: Sequence[int]) -> dict[int, int]:
    """Nodes of devices that have no CPU for us, and what took their place."""
    return {
        node: home
        for node, home in zip(nodes, homes, strict=True)
        if node is not None and node != home  # in the order of local ranks
    }


def _sentence(
    kind: str, homes: Sequence[int], chosen: Sequence[frozenset[int]], moved: Mapping[int, int]
) -> str:
    groups: list[tuple[int, frozenset[int], list[int]]] = []
    for local_rank, (home, cpus) in enumerate(zip(homes, chosen, strict=True)):
        if groups and groups[-1][:2] == (home, cpus):
            groups[-1][2].append(local_rank)
        else:
            groups.append((home, cpus, [local_rank]))
    told = [
        f"local rank{'s' * (len(ranks) > 1)} {write_cpus(ranks)} on node {home} (cpus {write_cpus(cpus)})"
        for home, cpus, ranks in groups
    ]
    told += [
        f"node {node} has no cpu that may be used, so node {home} stands in" for node, home in moved.items()
    ]
    return f"numa {kind}: {', '.join(told)}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def read_cpus(text: str) -> frozenset[int]:
    """Read a list of the kernel's, such as ``0-3,8``; the empty one is no CPU. Raises ``ValueError``.

    >>> sorted(read_cpus("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for item in filter(None, text.strip().split(",")):
        first, dash, last = item.partition("-")
        lowest, highest = int(first), int(last if dash else first)
        if not 0 <= lowest <= highest < CPUS_MAX:
            raise ValueError(f"{item!r} in {text!r} is no range of CPUs")
        found.update(range(lowest, highest + 1))
    return frozenset(found)


def write_cpus(numbers: Iterable[int] | Collection[int]) -> str:
    """Write numbers as the kernel does.

    >>> write_cpus({0, 1, 2, 8})
    '0-2,8'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
