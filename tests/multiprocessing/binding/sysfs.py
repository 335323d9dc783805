"""Trees of sysfs and procfs as kernels write them, for machines that nobody has at hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from phalanx.multiprocessing.affinity import write_cpus


class Machine:
    """Writes below ``root`` what the kernel would tell; each part may be left out, as some machines do."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def cpus(self, online: Collection[int]) -> None:
        self.write("sys/devices/system/cpu/online", write_cpus(online))

    def cpu(self, number: int, *, socket: int, siblings: Collection[int], l3: Collection[int] | None) -> None:
        folder = f"sys/devices/system/cpu/cpu{number}"
        self.write(f"{folder}/topology/physical_package_id", str(socket))
        self.write(f"{folder}/topology/thread_siblings_list", write_cpus(siblings))
        if l3 is None:
            return
        caches = [
            (1, "Data", siblings),
            (1, "Instruction", siblings),
            (2, "Unified", siblings),
            (3, "Unified", l3),
        ]
        for index, (level, kind, shared) in enumerate(caches):
            self.write(f"{folder}/cache/index{index}/type", kind)
            self.write(f"{folder}/cache/index{index}/level", str(level))
            self.write(f"{folder}/cache/index{index}/shared_cpu_list", write_cpus(shared))

    def nodes(self, cpus: Mapping[int, Collection[int]], distances: Sequence[Sequence[int]]) -> None:
        for which in ("online", "possible"):
            self.write(f"sys/devices/system/node/{which}", write_cpus(cpus))
        for (node, mine), row in zip(cpus.items(), distances, strict=True):
            self.write(f"sys/devices/system/node/node{node}/cpulist", write_cpus(mine))
            self.write(f"sys/devices/system/node/node{node}/distance", " ".join(map(str, row)))

    def gpu(self, bus: str, *, node: int, minor: int, uuid: str) -> None:
        self.write(f"sys/bus/pci/devices/{bus}/numa_node", str(node))
        self.write(
            f"proc/driver/nvidia/gpus/{bus}/information",
            f"Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 16\nGPU UUID: \t {uuid}\nVideo BIOS: \t 92.00.19\n"
            f"Bus Type: \t PCIe\nDMA Size: \t 47 bits\nBus Location: \t {bus}\nDevice Minor: \t {minor}\n"
            "GPU Excluded:\t No",
        )


SNC_DISTANCES = ((10, 12, 20, 20), (12, 10, 20, 20), (20, 20, 10, 12), (20, 20, 12, 10))


def two_sockets_of_two_nodes(root: Path) -> Machine:
    """2 sockets x 2 nodes (sub-NUMA clustering) x 4 cores x 2 threads; the second threads are numbered from 16 on."""
    machine = Machine(root)
    machine.cpus(range(32))
    machine.nodes(
        {node: [*range(4 * node, 4 * node + 4), *range(16 + 4 * node, 20 + 4 * node)] for node in range(4)},
        SNC_DISTANCES,
    )
    for number in range(32):
        socket, core = number % 16 // 8, number % 16
        l3 = [*range(8 * socket, 8 * socket + 8), *range(16 + 8 * socket, 24 + 8 * socket)]
        machine.cpu(number, socket=socket, siblings={core, core + 16}, l3=l3)
    for minor, (bus, node) in enumerate([("0000:07:00.0", 1), ("0000:0f:00.0", 1), ("0000:87:00.0", 3)]):
        machine.gpu(bus, node=node, minor=minor, uuid=f"GPU-{minor}{minor}aa11bb-0000-0000-0000-000000000000")
    return machine


def one_socket_of_many_caches(root: Path) -> Machine:
    """AMD: one socket, one node, 4 complexes of 4 cores x 2 threads that share a cache each; threads from 16 on."""
    machine = Machine(root)
    machine.cpus(range(32))
    machine.nodes({0: range(32)}, [[10]])
    for number in range(32):
        core = number % 16
        first = core // 4 * 4
        l3 = [*range(first, first + 4), *range(16 + first, 20 + first)]
        machine.cpu(number, socket=0, siblings={core, core + 16}, l3=l3)
    for minor in range(3):
        machine.gpu(f"0000:0{minor + 1}:00.0", node=0, minor=minor, uuid=f"GPU-{minor}")
    return machine


def memory_beside_cpus(root: Path) -> Machine:
    """Node 0 has CPUs 0-7 without threads, 6 and 7 are offline; node 1 is memory alone, node 2 is far away."""
    machine = Machine(root)
    machine.cpus(range(6))
    machine.nodes(
        {0: range(6), 1: (), 2: ()}, [(10, 20, 40), (20, 10, 40), (40, 40, 10)]
    )  # offline CPUs are in no list of a node
    for number in range(6):
        machine.cpu(number, socket=0, siblings={number}, l3=None)
    for number in (6, 7):  # an offline CPU has a folder, and no topology in it
        machine.write(f"sys/devices/system/cpu/cpu{number}/online", "0")
    machine.gpu("0000:01:00.0", node=1, minor=0, uuid="GPU-aaaa0000-0000-0000-0000-000000000000")
    machine.gpu("0000:02:00.0", node=-1, minor=1, uuid="GPU-bbbb0000-0000-0000-0000-000000000000")
    return machine
