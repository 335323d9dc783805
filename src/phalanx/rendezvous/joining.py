"""Who can be in the round that is being joined, and whom it must wait for. Pure: the leader's view in, names out."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.rendezvous.ranks import Candidate
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import NodeRecord, RoundRecord
from phalanx.rendezvous.view import View

__all__ = [
    "Survivors",
    "address_for_all",
    "blockers",
    "everyone_expected",
    "is_younger_than_its_nodes",
    "ready",
]


def is_younger_than_its_nodes(view: View, record: RoundRecord) -> bool:
    """Survivors of a store that lost its data registered after the round was opened: theirs was later."""
    latest = max((one.node.last_round for one in view.here.values()), default=0)
    return latest > record.number or (latest == record.number and not record.previous)


def ready(view: View, min_nodes: int) -> dict[str, Candidate]:
    """Nodes that have joined, and may be used."""
    old_ranks = {(one.node_id, one.registration): place for place, one in enumerate(view.members)}
    latest_ran = max((one.node.last_ran for one in view.here.values()), default=0)
    excluded = view.excluded(min_nodes)
    found = {}
    for node_id, joined in view.joined.items():
        here = view.here.get(node_id)
        if here is None or here.registration != joined.registration or here.node.is_leaving:
            continue
        if node_id in excluded:
            continue
        previous = old_ranks.get((node_id, here.registration))
        if previous is None and not view.members and here.node.last_ran == latest_ran > 0:
            previous = here.node.last_group_rank
        found[node_id] = Candidate(node_id, here.registration, here.node, previous)
    return found


def blockers(view: View) -> list[str]:
    """Nodes that hold a lease and may still have workers of an earlier round: nobody starts beside them."""
    old = {(one.node_id, one.registration) for one in view.members}
    return [
        node_id
        for node_id, here in view.here.items()
        if (here.node.is_busy or (node_id, here.registration) in old)
        and (node_id not in view.joined or view.joined[node_id].registration != here.registration)
    ]


def everyone_expected(view: View, candidates: Mapping[str, Candidate], min_nodes: int) -> bool:
    """In a later round: all who could come are here. A first round waits for its last call, or for ``max``."""
    if not view.members and not Survivors.are_complete(view):
        return False
    excluded = view.excluded(min_nodes)
    return all(
        node_id in candidates
        for node_id, here in view.here.items()
        if not here.node.is_leaving and node_id not in excluded
    )


class Survivors:
    """After the store lost its data, workers on nodes that have not come back may live as long as their fence."""

    def __init__(self, settings: MembershipSettings) -> None:
        self._ttl_s = settings.ttl_s
        self._since: float | None = None

    def held_until(self, view: View, now: float) -> float:
        """All of the last members back: nobody needs to wait. Else a lease's time from when the first of them came."""
        if view.members or not any(one.node.last_round for one in view.here.values()):
            self._since = None
            return now
        if self._since is None:
            self._since = now
        return now if self.are_complete(view) else self._since + self._ttl_s

    @staticmethod
    def are_complete(view: View) -> bool:
        """All members of the last round that ran are back, and nobody has seen a later one begin."""
        nodes = [one.node for one in view.here.values()]
        ran = max((node.last_ran for node in nodes), default=0)
        if not ran or any(node.last_round > ran for node in nodes):
            return False
        back = [node for node in nodes if node.last_ran == ran]
        size = max(node.last_group_world_size for node in back)
        return len(back) >= size and set(range(size)) <= {node.last_group_rank for node in back}


def address_for_all(nodes: list[NodeRecord]) -> str:
    """Where all of the nodes reach the first: a loopback address is one only where they share one machine."""
    first = nodes[0]
    is_loopback = first.address in ("::1", "localhost") or first.address.startswith("127.")
    if (
        not is_loopback
        or all(node.boot_id and node.boot_id == first.boot_id for node in nodes)
        or len(nodes) == 1
    ):
        return first.address
    return first.outside_address
