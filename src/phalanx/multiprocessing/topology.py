"""What this machine tells of its CPUs, its NUMA nodes and its GPUs, read from sysfs and procfs.

``root`` is where ``sys`` and ``proc`` are, for tests. What cannot be read is left out: the planner of ``affinity.py``
says what it lacks. Offline CPUs and CPUs outside of ``allowed`` are not in the record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

from phalanx.multiprocessing.affinity import Cpu, Topology, read_cpus

__all__ = ["allowed_cpus", "device_nodes", "nvidia_gpus", "read_topology"]

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_GPUS = "proc/driver/nvidia/gpus"
_PCI = "sys/bus/pci/devices"
# NVML pads the domain to eight digits; sysfs and procfs have four. A domain beyond those is written with all it has.
_BUS_ID = re.compile(r"0*([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-9a-f])", re.IGNORECASE)


def allowed_cpus() -> frozenset[int]:
    """The CPUs that the calling thread may use; none where the system does not tell, as on macOS."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def read_topology(allowed: Iterable[int], *, root: str = "/") -> Topology:
    """Read the CPUs among ``allowed`` that are online, and the distances of nodes.

    A kernel without NUMA has no folder of nodes: all its CPUs are on node 0. Empty if not even the CPUs can be read.
    """
    online = _cpus_in(os.path.join(root, _CPUS, "online"))
    usable = online & frozenset(allowed)
    node_of: dict[int, int] = {}
    distances: dict[int, Mapping[int, int]] = {}
    nodes = sorted(_numbered(os.path.join(root, _NODES), "node"))
    for node in nodes:
        folder = os.path.join(root, _NODES, f"node{node}")
        node_of.update(dict.fromkeys(_cpus_in(os.path.join(folder, "cpulist")), node))
        row = _text(os.path.join(folder, "distance")).split()
        if len(row) == len(nodes) and all(one.isdecimal() for one in row):
            distances[node] = dict(zip(nodes, map(int, row), strict=True))
    return Topology(
        tuple(_read_cpu(root, number, node_of.get(number, 0), online) for number in sorted(usable)), distances
    )


def _read_cpu(root: str, number: int, node: int, online: frozenset[int]) -> Cpu:
    folder = os.path.join(root, _CPUS, f"cpu{number}")
    topology = os.path.join(folder, "topology")
    socket = _text(os.path.join(topology, "physical_package_id"))
    siblings = _cpus_in(os.path.join(topology, "thread_siblings_list")) & online
    return Cpu(
        number,
        node,
        int(socket) if socket.removeprefix("-").isdecimal() else 0,
        min(siblings | {number}),
        _last_cache(os.path.join(folder, "cache"), number, online),
    )


def _last_cache(folder: str, number: int, online: frozenset[int]) -> int | None:
    """The lowest CPU that shares the highest level of cache. That is level 3 on what has one, 2 on some others."""
    levels = {}
    for index in _numbered(folder, "index"):
        level = _text(os.path.join(folder, f"index{index}", "level"))
        shared = _cpus_in(os.path.join(folder, f"index{index}", "shared_cpu_list"))
        if level.isdecimal() and number in shared:
            levels[int(level)] = min(shared & online)
    return levels[max(levels)] if levels else None


def device_nodes(seen: Iterable[tuple[str | None, int]], *, root: str = "/") -> list[int | None]:
    """The NUMA node of each worker's GPU; None where there is none, or nobody tells.

    ``seen`` has, for each worker, the ``CUDA_VISIBLE_DEVICES`` that it finds (None: not set) and the number of its
    device among those. More workers than devices share them in turn. Numbers count as with ``CUDA_DEVICE_ORDER=
    PCI_BUS_ID``; CUDA's own default is another order only where GPUs of different kinds are in one machine.
    """
    gpus = nvidia_gpus(root=root)
    found = []
    for visible, index in seen:
        mine = [one[0] for one in gpus] if visible is None else list(_visible(visible, gpus))
        found.append(_node_of_device(root, mine[index % len(mine)]) if mine else None)
    return found


def _visible(listed: str, gpus: list[tuple[str, str]]) -> Iterator[str]:
    """PCI ids of the listed devices, up to the first that is none, as CUDA reads the list."""
    for item in listed.split(","):
        name = item.strip()
        if name.isdecimal() and int(name) < len(gpus):
            yield gpus[int(name)][0]
            continue
        # MIG-GPU-<uuid>/1/0 is a part of that GPU. A beginning of a UUID is enough if it is one GPU's alone.
        whole = name.removeprefix("MIG-").partition("/")[0]
        matching = [
            bus for bus, uuid in gpus if whole.startswith("GPU-") and uuid.lower().startswith(whole.lower())
        ]
        if len(matching) != 1:
            return
        yield matching[0]


def _node_of_device(root: str, bus: str) -> int | None:
    text = _text(os.path.join(root, _PCI, bus, "numa_node"))
    return int(text) if text.isdecimal() else None  # -1: the firmware does not say


def nvidia_gpus(*, root: str = "/") -> list[tuple[str, str]]:
    """PCI id and UUID of each NVIDIA GPU, in the order of PCI ids, from NVML if it is installed, else from procfs.

    In a container procfs may list GPUs of the host that are not given to it; NVML knows better.
    """
    if root == "/" and (known := _nvml_gpus()) is not None:
        return known
    found = []
    folder = os.path.join(root, _GPUS)
    for name in _names(folder):
        text = _text(os.path.join(folder, name, "information"))
        facts = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", text, re.MULTILINE))
        if bus := _bus_id(facts.get("Bus Location", name)):
            found.append((bus, facts.get("GPU UUID", "")))
    return sorted(found)


def _nvml_gpus() -> list[tuple[str, str]] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None  # no driver, or none that answers
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [
            (
                _bus_id(_as_text(pynvml.nvmlDeviceGetPciInfo(one).busId)),
                _as_text(pynvml.nvmlDeviceGetUUID(one)),
            )
            for one in handles
        ]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _as_text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # it depends on the version


def _bus_id(text: str) -> str:
    """The id as sysfs writes it; empty if it is none."""
    match = _BUS_ID.fullmatch(text.strip())
    return "" if match is None else "{}:{}:{}.{}".format(*match.groups()).lower()


def _numbered(folder: str, prefix: str) -> list[int]:
    return [
        int(rest)
        for name in _names(folder)
        if name.startswith(prefix) and (rest := name.removeprefix(prefix)).isdecimal()
    ]


def _cpus_in(path: str) -> frozenset[int]:
    try:
        return read_cpus(_text(path))
    except ValueError:
        return frozenset()


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
