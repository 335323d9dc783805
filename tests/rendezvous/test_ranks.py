"""Ranks from nodes that are ready."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx.rendezvous.ranks import Candidate, choose, natural_order, round_of
from phalanx.rendezvous.stored import Member, NodeRecord, Phase, RoundRecord


def node(
    name: str,
    *,
    previous: int | None = None,
    hint: int | None = None,
    address: str = "10.0.0.1",
    topology: str = "",
    slots: int = 1,
    host: str = "",
    registration: int = 5,
) -> Candidate:
    record = NodeRecord(host=host or name, address=address, slots=slots, order_hint=hint, topology=topology)
    return Candidate(name, registration, record, previous)


def order(*candidates: Candidate, max_nodes: int = 99, is_static: bool = False) -> list[str]:
    return [one.node_id for one in choose(candidates, max_nodes, is_static=is_static)]


def test_numbers_inside_of_names_count_as_numbers() -> None:
    names = ["node10", "node2", "node1", "gpu-1-10", "gpu-1-9", "10.0.0.10", "10.0.0.9", "n", ""]
    assert sorted(names, key=natural_order) == [
        "",
        "gpu-1-9",
        "gpu-1-10",
        "n",
        "node1",
        "node2",
        "node10",
        "10.0.0.9",
        "10.0.0.10",
    ]


@given(st.lists(st.text(alphabet="ab01.²٣-", max_size=8)))
def test_any_names_can_be_compared(names: list[str]) -> None:
    assert len(sorted(names, key=natural_order)) == len(names)


def test_old_members_come_first_in_their_old_order_and_newcomers_follow() -> None:
    assert order(
        node("new", hint=0), node("old 2", previous=2, hint=1), node("old 0", previous=0, address="10.9.9.9")
    ) == ["old 0", "old 2", "new"]


def test_hint_then_topology_then_address_then_host() -> None:
    assert order(
        node("e", address="10.0.0.9", host="h2"),
        node("d", address="10.0.0.9", host="h1"),
        node("f", address="10.0.0.10"),
        node("g", topology="rack 2", address="10.0.0.1"),
        node("h", topology="rack 10", address="10.0.0.1"),
        node("a", hint=0, topology="rack 99"),
    ) == ["a", "d", "e", "f", "g", "h"]


def test_in_a_static_membership_the_hint_is_the_rank() -> None:
    assert order(node("a", hint=1, previous=0), node("b", hint=0, previous=1), is_static=True) == ["b", "a"]


def test_who_is_too_many_is_a_spare() -> None:
    assert order(node("new"), node("old", previous=0), max_nodes=1) == ["old"]


@given(
    st.permutations(
        [node(name, hint=hint) for name, hint in zip("abcdef", [3, 1, None, 1, None, 0], strict=True)]
    )
)
def test_the_order_of_the_candidates_does_not_matter(candidates: list[Candidate]) -> None:
    assert order(*candidates) == ["f", "b", "d", "a", "c", "e"]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=9))
def test_global_ranks_are_0_to_n_minus_1_once_each(slots: list[int]) -> None:
    members = tuple(
        Member(node_id=f"n{i}", registration=i, host="h", slots=many) for i, many in enumerate(slots)
    )
    record = RoundRecord(
        number=4,
        phase=Phase.SETTLED,
        restart_count=2,
        reason="why",
        master_addr="10.0.0.1",
        master_port=7,
    )
    ranks = []
    for place, member in enumerate(members):
        seen = round_of(record, members, member.node_id, member.registration)
        assert seen is not None
        assert (seen.number, seen.restart_count, seen.reason) == (4, 2, "why")
        assert (seen.group_rank, seen.group_world_size) == (place, len(slots))
        assert (seen.master_addr, seen.master_port) == ("10.0.0.1", 7)
        ranks += [seen.rank(one) for one in range(seen.local_world_size)]
    assert ranks == list(range(sum(slots)))


def test_another_life_of_a_node_is_not_in_the_round() -> None:
    members = (Member(node_id="a", registration=5, host="h", slots=1),)
    record = RoundRecord(number=1, phase=Phase.SETTLED)
    assert round_of(record, members, "a", 6) is None
    assert round_of(record, members, "b", 5) is None
    assert round_of(record, members, "a", 5) is not None
