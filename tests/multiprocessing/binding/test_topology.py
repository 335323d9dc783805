"""What sysfs and procfs tell, read from trees of machines that are larger than this one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.multiprocessing.binding.sysfs import (
    Machine,
    memory_beside_cpus,
    one_socket_of_many_caches,
    two_sockets_of_two_nodes,
)

from phalanx.multiprocessing.affinity import BindingError, plan_binding, write_cpus
from phalanx.multiprocessing.topology import allowed_cpus, device_nodes, nvidia_gpus, read_topology

EVERY_CPU = range(4096)


def planned(root: Path, kind: str, *nodes: int | None, allowed: range | set[int] = EVERY_CPU) -> list[str]:
    plan = plan_binding(read_topology(allowed, root=str(root)), kind, nodes)
    return [write_cpus(cpus) for cpus in plan.cpus.values()]


def test_two_sockets_of_two_nodes_with_threads(tmp_path: Path) -> None:
    two_sockets_of_two_nodes(tmp_path)
    assert planned(tmp_path, "node", 1, 3) == ["4-7,20-23", "12-15,28-31"]
    assert planned(tmp_path, "socket", 1, 3) == ["0-7,16-23", "8-15,24-31"]
    assert planned(tmp_path, "exclusive", 1, 1, 3) == ["4-5,20-21", "6-7,22-23", "12-15,28-31"]
    assert planned(tmp_path, "core-complex", 1, 3) == ["4-7,20-23", "12-15,28-31"]
    assert planned(tmp_path, "node", None, None) == ["0-3,16-19", "8-11,24-27"]


def test_a_container_with_a_part_of_the_cpus(tmp_path: Path) -> None:
    two_sockets_of_two_nodes(tmp_path)
    mask = {5, 6, 21, 8, 9}
    assert planned(tmp_path, "node", 1, 2, allowed=mask) == ["5-6,21", "8-9"]
    assert planned(tmp_path, "exclusive", 1, 1, allowed=mask) == ["5,21", "6"]
    assert planned(tmp_path, "node", 0, allowed=mask) == ["5-6,21"], "its neighbour on the socket is nearest"


def test_complexes_of_a_socket(tmp_path: Path) -> None:
    one_socket_of_many_caches(tmp_path)
    assert planned(tmp_path, "core-complex", None, None, None, None) == [
        "0-3,16-19",
        "4-7,20-23",
        "8-11,24-27",
        "12-15,28-31",
    ]
    assert planned(tmp_path, "core-complex", 0, allowed={1, 4, 5, 20}) == ["4-5,20"]


def test_offline_cpus_and_nodes_of_memory_alone(tmp_path: Path) -> None:
    memory_beside_cpus(tmp_path)
    assert planned(tmp_path, "node", 1, 2, None) == ["0-5"] * 3
    with pytest.raises(BindingError, match="share a cache"):
        planned(tmp_path, "core-complex", 0)


def test_a_kernel_without_numa_has_one_node(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus(range(4))
    assert planned(tmp_path, "node", None) == ["0-3"]
    assert planned(tmp_path, "exclusive", None, None) == ["0-1", "2-3"]


def test_sockets_that_firmware_does_not_number_are_one(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.cpus(range(2))
    for number in (0, 1):
        machine.cpu(number, socket=-1, siblings={number}, l3=None)
    assert planned(tmp_path, "socket", 0) == ["0-1"]


def test_nothing_is_read_from_nothing(tmp_path: Path) -> None:
    assert read_topology(EVERY_CPU, root=str(tmp_path)).cpus == ()
    assert device_nodes([(None, 0)], root=str(tmp_path)) == [None]


def test_this_machine_has_the_cpus_that_we_may_use() -> None:
    topology = read_topology(allowed_cpus())
    assert {cpu.number for cpu in topology.cpus} == allowed_cpus()


# Devices


def test_gpus_are_in_the_order_of_their_buses(tmp_path: Path) -> None:
    two_sockets_of_two_nodes(tmp_path)
    assert [bus for bus, _ in nvidia_gpus(root=str(tmp_path))] == [
        "0000:07:00.0",
        "0000:0f:00.0",
        "0000:87:00.0",
    ]


@pytest.mark.parametrize(
    ("visible", "nodes"),
    [
        (None, [1, 1, 3]),
        ("2,0", [3, 1, 3]),
        ("GPU-22", [3, 3, 3]),
        ("GPU-22aa11bb-0000-0000-0000-000000000000, 1", [3, 1, 3]),
        ("MIG-GPU-22aa11bb-0000-0000-0000-000000000000/1/0", [3, 3, 3]),
        ("GPU-", [None, None, None]),
        ("", [None, None, None]),
        ("2,-1,0", [3, 3, 3]),
        ("7", [None, None, None]),
    ],
)
def test_a_worker_has_the_device_of_its_number_among_the_visible_ones(
    tmp_path: Path, visible: str | None, nodes: list[int | None]
) -> None:
    two_sockets_of_two_nodes(tmp_path)
    assert device_nodes([(visible, index) for index in range(3)], root=str(tmp_path)) == nodes


def test_a_device_whose_firmware_names_no_node_has_none(tmp_path: Path) -> None:
    memory_beside_cpus(tmp_path)
    assert device_nodes([(None, 0), (None, 1)], root=str(tmp_path)) == [1, None]


def test_a_domain_of_more_digits_is_the_one_that_sysfs_has(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.gpu("10000:01:00.0", node=1, minor=0, uuid="GPU-a")
    machine.write("proc/driver/nvidia/gpus/broken/information", "Model: none")
    assert device_nodes([(None, 0)], root=str(tmp_path)) == [1]
