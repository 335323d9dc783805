"""The same machines through torch's own binding: it plans, on our trees, what we plan."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from tests.multiprocessing.binding.sysfs import Machine, one_socket_of_many_caches, two_sockets_of_two_nodes

from phalanx.multiprocessing.affinity import KINDS, plan_binding
from phalanx.multiprocessing.topology import device_nodes, nvidia_gpus, read_topology

# torch looks at /sys and asks CUDA for the devices. This process is the oracle's alone: it is shown the tree and GPUs
# that are not there, and torch itself does the rest. Each node has a CPU that may be used: torch fails without.
ORACLE = """
import builtins, json, os, sys
import torch
from torch.numa import binding
from types import SimpleNamespace

root, choices, buses = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
real_open, real_listdir = builtins.open, os.listdir

def moved(path):
    return root + path if isinstance(path, str) and path.startswith("/sys/") else path

def properties(index):
    domain, bus, device = buses[index].partition(".")[0].split(":")
    return SimpleNamespace(
        pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(device, 16)
    )

builtins.open = lambda path, *more, **named: real_open(moved(path), *more, **named)
os.listdir = lambda path=".": real_listdir(moved(path))
os.sched_getaffinity = lambda pid: set(allowed)
torch.cuda.get_device_properties = properties
torch.cuda.device_count = lambda: len(buses)
torch.cuda.is_available = lambda: True
for allowed in choices:
    print(json.dumps({
        mode.value: [
            sorted(binding._get_logical_cpus_to_bind_to(gpu_index=i, numa_options=binding.NumaOptions(mode)))
            for i in range(len(buses))
        ]
        for mode in binding.AffinityMode
    }))
"""
ALLOWED = {
    "all": [*range(32)],
    "some": [0, 5, 6, 21, 8, 9, 12, 13],
    "few": [1, 3, 4, 20, 22, 27, 28, 29],
}


@pytest.mark.torch
@pytest.mark.system
@pytest.mark.parametrize("write", [two_sockets_of_two_nodes, one_socket_of_many_caches])
@pytest.mark.compat(
    "flag --numa-binding",
    "better",
    "bound at birth without numactl, on machines without GPUs too, and told in one line",
)
def test_every_kind_plans_what_torch_plans(tmp_path: Path, write: Callable[[Path], Machine]) -> None:
    write(tmp_path)
    gpus = [bus for bus, _ in nvidia_gpus(root=str(tmp_path))]
    nodes = device_nodes([(None, i) for i in range(len(gpus))], root=str(tmp_path))

    def plans(allowed: Collection[int]) -> dict[str, list[list[int]]]:
        topology = read_topology(allowed, root=str(tmp_path))
        return {
            kind: [sorted(cpus) for cpus in plan_binding(topology, kind, nodes).cpus.values()]
            for kind in KINDS
        }

    done = subprocess.run(
        [sys.executable, "-c", ORACLE, str(tmp_path), json.dumps([*ALLOWED.values()]), json.dumps(gpus)],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    theirs = [json.loads(line) for line in done.stdout.splitlines()]
    assert {name: plans(allowed) for name, allowed in ALLOWED.items()} == dict(
        zip(ALLOWED, theirs, strict=True)
    )
