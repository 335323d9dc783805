"""Who is in a round, and in which order: ranks from the nodes that are ready. Pure.

Old members keep their order, so that a rank moves as little as membership allows; newcomers follow by their order
hint, then their topology key, then the natural order of their addresses (node2 before node10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from phalanx.records import Struct
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stored import Member, NodeRecord, RoundRecord

__all__ = ["Candidate", "choose", "natural_order", "round_of"]

_LAST = 1 << 62


class Candidate(Struct):
    """A node that is ready for a round."""

    node_id: str
    registration: int
    node: NodeRecord
    previous_rank: int | None
    """Its group rank in the last round, if it was in it."""


def natural_order(text: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key in which numbers inside of names count as numbers: n2 before n10, 10.0.0.9 before 10.0.0.10."""
    parts = re.split(r"([0-9]{1,18})", text)  # whatever a node says of itself, no number is longer
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts if part)


def choose(candidates: Iterable[Candidate], max_nodes: int, *, is_static: bool = False) -> tuple[Member, ...]:
    """The members of a round among ``candidates``, in the order of their group ranks; the rest are spares.

    Members of the last round come first. Nodes with one topology key stay together where nothing else decides. In a
    static membership the order hint is the rank.
    """
    ordered = sorted(candidates, key=_by_hint if is_static else _by_age)
    return tuple(
        Member(
            node_id=one.node_id,
            registration=one.registration,
            host=one.node.host,
            slots=one.node.slots,
            role=one.node.role,
        )
        for one in ordered[:max_nodes]
    )


def _by_age(one: Candidate) -> tuple[object, ...]:
    previous = _LAST if one.previous_rank is None else one.previous_rank
    return (previous, *_by_hint(one))


def _by_hint(one: Candidate) -> tuple[object, ...]:
    hint = _LAST if one.node.order_hint is None else one.node.order_hint
    return (
        hint,
        natural_order(one.node.topology),
        natural_order(one.node.address),
        natural_order(one.node.host),
        one.registration,
        one.node_id,
    )


def round_of(
    record: RoundRecord, members: tuple[Member, ...], node_id: str, registration: int
) -> Round | None:
    """The round as one of its members sees it; None: this life of the node is not among them."""
    places: Mapping[tuple[str, int], int] = {
        (member.node_id, member.registration): place for place, member in enumerate(members)
    }
    place = places.get((node_id, registration))
    if place is None:
        return None
    role = members[place].role
    return Round(
        number=record.number,
        restart_count=record.restart_count,
        reason=record.reason,
        group_rank=place,
        group_world_size=len(members),
        first_rank=sum(member.slots for member in members[:place]),
        local_world_size=members[place].slots,
        world_size=sum(member.slots for member in members),
        master_addr=record.master_addr,
        master_port=record.master_port,
        delay_s=record.delay_s,
        role_first_rank=sum(member.slots for member in members[:place] if member.role == role),
        role_world_size=sum(member.slots for member in members if member.role == role),
    )
