"""The plan of a binding: for every machine, mask and kind something that can be used, or a reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.multiprocessing.affinity import (
    KINDS,
    BindingError,
    Cpu,
    Topology,
    plan_binding,
    read_cpus,
    write_cpus,
)


@st.composite
def machines(draw: st.DrawFn) -> Topology:
    """Sockets of nodes of cores of threads, with caches inside of nodes, of which a part may be used."""
    threads = draw(st.integers(1, 2))
    cpus, number = [], 0
    for node in range(draw(st.integers(1, 4))):
        per_cache = draw(st.integers(1, 4))
        first = number
        for _ in range(draw(st.integers(1, 8))):
            core = number
            cache = first + (core - first) // (per_cache * threads) * (per_cache * threads)
            for _ in range(threads):
                cpus.append(Cpu(number, node, node // 2, core, cache))
                number += 1
    usable = draw(st.sets(st.sampled_from(range(number)), min_size=1))
    return Topology(tuple(cpu for cpu in cpus if cpu.number in usable), {})


@given(machines(), st.sampled_from(KINDS), st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12))
def test_a_plan_is_for_every_worker_and_has_only_cpus_that_may_be_used(
    machine: Topology, kind: str, nodes: list[int | None]
) -> None:
    try:
        plan = plan_binding(machine, kind, nodes)
    except BindingError:
        assert kind == "exclusive"
        return
    usable = {cpu.number for cpu in machine.cpus}
    assert list(plan.cpus) == list(range(len(nodes)))
    assert all(cpus and cpus <= usable for cpus in plan.cpus.values())


@given(machines(), st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=12))
def test_no_two_workers_share_a_core_when_cores_are_exclusive(
    machine: Topology, nodes: list[int | None]
) -> None:
    try:
        plan = plan_binding(machine, "exclusive", nodes)
    except BindingError as reason:
        assert "so no worker can have one for itself" in str(reason)  # noqa: PT017 # it may come or not
        return
    core = {cpu.number: (cpu.node, cpu.core) for cpu in machine.cpus}
    owned = [{core[number] for number in cpus} for cpus in plan.cpus.values()]
    assert sum(map(len, owned)) == len(set().union(*owned))


@given(machines(), st.integers(1, 16))
def test_without_devices_every_worker_gets_a_core_if_there_are_enough(machine: Topology, nproc: int) -> None:
    enough = nproc <= len({(cpu.node, cpu.core) for cpu in machine.cpus})
    try:
        plan_binding(machine, "exclusive", [None] * nproc)
    except BindingError:
        assert not enough
    else:
        assert enough


@given(machines(), st.integers(1, 16))
def test_without_devices_neighbours_are_on_one_node_or_on_the_next(machine: Topology, nproc: int) -> None:
    node = {cpu.number: cpu.node for cpu in machine.cpus}
    plan = plan_binding(machine, "node", [None] * nproc)
    homes = [{node[number] for number in cpus} for cpus in plan.cpus.values()]
    assert all(len(home) == 1 for home in homes)
    order = [home.pop() for home in homes]
    assert order == sorted(order)


@given(machines(), st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_a_socket_has_all_that_its_nodes_have(machine: Topology, nodes: list[int]) -> None:
    of_node = plan_binding(machine, "node", nodes).cpus
    of_socket = plan_binding(machine, "socket", nodes).cpus
    assert all(of_node[rank] <= of_socket[rank] for rank in of_node)


@given(st.frozensets(st.integers(0, 300)))
def test_a_list_of_cpus_reads_as_it_was_written(numbers: frozenset[int]) -> None:
    assert read_cpus(write_cpus(numbers)) == numbers


@pytest.mark.parametrize("text", ["5-3", "a", "-1", "0-99999999999", "1-2-3"])
def test_a_damaged_list_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # int() and we both say so
        read_cpus(text)


# Tables

FLAT = Topology(tuple(Cpu(n, n // 4, n // 8, n, n // 2 * 2) for n in range(16)), {})


def test_workers_without_devices_are_dealt_evenly() -> None:
    plan = plan_binding(FLAT, "node", [None] * 8)
    assert plan.sentence == (
        "numa node: local ranks 0-1 on node 0 (cpus 0-3), local ranks 2-3 on node 1 (cpus 4-7), "
        "local ranks 4-5 on node 2 (cpus 8-11), local ranks 6-7 on node 3 (cpus 12-15)"
    )


def test_two_workers_go_to_two_sockets() -> None:
    assert dict(plan_binding(FLAT, "socket", [None, None]).cpus) == {
        0: frozenset(range(8)),
        1: frozenset(range(8, 16)),
    }


def test_what_does_not_divide_goes_to_the_first() -> None:
    plan = plan_binding(FLAT, "exclusive", [0, 0, 0])
    assert plan.sentence == (
        "numa exclusive: local rank 0 on node 0 (cpus 0-1), local rank 1 on node 0 (cpus 2), "
        "local rank 2 on node 0 (cpus 3)"
    )


def test_more_workers_than_cores_cannot_have_one_each() -> None:
    with pytest.raises(BindingError, match=r"^node 0 has 4 cores for 5 workers, so no worker can have one"):
        plan_binding(FLAT, "exclusive", [0] * 5)


def test_complexes_are_used_in_turn_and_the_largest_first() -> None:
    cpus = [Cpu(n, 0, 0, n, 0 if n < 2 else 2) for n in range(5)]
    plan = plan_binding(Topology(tuple(cpus), {}), "core-complex", [0, 0, 0])
    assert [write_cpus(one) for one in plan.cpus.values()] == ["2-4", "0-1", "2-4"]


def test_a_machine_that_does_not_tell_of_caches_has_no_complexes() -> None:
    machine = Topology((Cpu(0, 0, 0, 0, None),), {})
    with pytest.raises(BindingError, match="does not tell which CPUs share a cache"):
        plan_binding(machine, "core-complex", [None])


def test_a_node_without_a_cpu_for_us_is_replaced_by_the_nearest_and_that_is_told() -> None:
    machine = Topology(FLAT.cpus[4:], {0: {0: 10, 1: 32, 2: 16, 3: 16}})
    plan = plan_binding(machine, "node", [0])
    assert plan.sentence == (
        "numa node: local rank 0 on node 2 (cpus 8-11), node 0 has no cpu that may be used, so node 2 stands in"
    )


def test_a_machine_that_tells_nothing_and_a_kind_that_is_none_are_refused() -> None:
    with pytest.raises(BindingError, match="does not tell which CPUs it has"):
        plan_binding(Topology((), {}), "node", [None])
    with pytest.raises(BindingError, match="'nodes' is no way to bind workers; there are node, socket"):
        plan_binding(FLAT, "nodes", [None])
