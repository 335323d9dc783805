"""Who is here and who is missing, in one line for people: while waiting, and when that was in vain. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import Member
from phalanx.rendezvous.view import View

__all__ = ["END_NOT_TOLD", "WaitingLine", "listed", "names_of", "said_of", "serves_on", "span", "who_is_here"]

END_NOT_TOLD = (
    "the store did not take the end of the job: the other nodes, if there are any, were not told to stop"
)
NAMED_MAX = 8
FIRST_S = 5.0  # before that nobody needs to be told why nothing happens
AGAIN_S = 10.0  # every agent reads it: not too often


class WaitingLine:
    """When a line about what is waited for is due: not at once, not too often, and never the same twice."""

    def __init__(self) -> None:
        self._since = 0.0
        self._again_s = FIRST_S
        self._told = ""

    def begin(self, now: float) -> None:
        """Something new is waited for."""
        self._since, self._again_s, self._told = now, FIRST_S, ""

    def due_at(self, text: str) -> float | None:
        """When to tell this; None: it has been told."""
        return None if text == self._told else self._since + self._again_s

    def tell(self, text: str, now: float) -> None:
        """It is told now."""
        self._since, self._again_s, self._told = now, AGAIN_S, text


def who_is_here(
    settings: MembershipSettings, view: View, ready: Collection[str], blockers: Collection[str]
) -> str:
    """``ready`` and ``blockers`` are node ids: those that could start, and those that others must wait for."""
    low, high = settings.min_nodes, settings.max_nodes
    wanted = f"{low}" if low == high else f"{low} to {high}"
    here = [view.here[node_id].node.host for node_id in ready]
    text = f"{len(ready)} of {wanted} nodes are ready ({listed(here) or 'none'})"
    gone = [one for one in view.members if one.node_id not in ready and view.is_lost(one)]
    if gone:
        text += f"; gone: {names_of(gone, view.members)}"
    excluded = view.excluded(low)
    if excluded:
        text += f"; excluded: {listed(view.here[one].node.host for one in excluded)}"
    if blockers:
        text += f"; still stopping workers: {listed(view.here[one].node.host for one in blockers)}"
    lacking = low - len(ready)
    return f"{text}; {lacking} more needed" if lacking > 0 else text


def serves_on(others: Iterable[str], left_s: float) -> str:
    """The host of the store has left the job, and others still need the store."""
    return (
        f"this node has left the job; it serves the store to {listed(others)} until they end, for {left_s:.0f} s at "
        "most; another signal ends it at once, and the store with it"
    )


def names_of(members: Iterable[Member], among: Sequence[Member]) -> str:
    """The hosts of members; agents that share a host with others of the round have their group rank with it."""
    hosts = Counter(one.host for one in among)
    places = {one.node_id: place for place, one in enumerate(among)}
    return listed(
        one.host if hosts[one.host] < 2 else f"{one.host} (group rank {places[one.node_id]})"
        for one in members
    )


def said_of(members: Sequence[Member], among: Sequence[Member], one: str, several: str) -> str:
    """One of two sentences about members of a round, with their names in it."""
    return (one if len(members) == 1 else several).format(names_of(members, among))


def span(seconds: float) -> str:
    """A span of time for people: ``90 s``, ``5 min``, ``1 h``."""
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def listed(names: Iterable[str]) -> str:
    """Names in a line of bounded length; agents of one host are counted.

    >>> listed(["b", "a", "b"])
    'a, b (2 agents)'
    """
    counts = sorted(Counter(names).items())
    named = ", ".join(f"{name} ({count} agents)" if count > 1 else name for name, count in counts[:NAMED_MAX])
    left_out = sum(count for _, count in counts[NAMED_MAX:])
    return f"{named} and {left_out} more" if left_out else named
