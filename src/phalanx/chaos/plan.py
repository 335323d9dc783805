"""What is done to a job, to whom, and when: a pure function of what was asked for and a seed.

A step has a wait before it and a number drawn for it. Whom a random step meets is the number modulo those who are there
when it is due, so a seed repeats a run as long as the job has the same size. Draws are digits of SHA-256 of the seed,
the step and what is drawn: they are the same on every machine, and for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from enum import Enum
from hashlib import sha256

from phalanx.records import Struct

__all__ = [
    "Act",
    "Aim",
    "NotHere",
    "Place",
    "Schedule",
    "Span",
    "Step",
    "names",
    "node_for",
    "ranks_for",
    "steps",
]

_DRAW_BYTES = 8


class Act(Enum):
    """What can be done to a job; the words of the command line.

    >>> Act("stop")
    <Act.STOP: 'stop'>
    """

    KILL = "kill"
    STOP = "stop"
    FREEZE = "freeze"
    CUT = "cut"
    SLOW = "slow"


class Span(Struct):
    """A time between two bounds, in seconds; the same twice is a fixed one.

    >>> Span(30.0, 60.0).at(0.5)
    45.0
    """

    low_s: float
    high_s: float

    def at(self, part: float) -> float:
        """The time at this part of the way from ``low_s`` (0) to ``high_s`` (1), in whole milliseconds."""
        return round(self.low_s + (self.high_s - self.low_s) * part, 3)


class Schedule(Struct):
    """When: ``after`` before the first step, ``every`` between the end of one and the next; ``times`` None: for ever.

    >>> Schedule(after=Span(5.0, 5.0), every=Span(30.0, 60.0), times=3).times
    3
    """

    after: Span
    every: Span
    times: int | None


class Step(Struct):
    """One act: its number from 1 on, how long to wait before it, and the number that picks a random target.

    >>> Step(number=1, wait_s=5.0, draw=7).wait_s
    5.0
    """

    number: int
    wait_s: float
    draw: int


class Aim(Struct):
    """At whom. One random worker, unless ``ranks``, ``local_ranks`` or ``all_ranks`` say otherwise.

    ``node``: on the node of this number alone (its GROUP_RANK); ``random_node``: on one of those of this machine.

    >>> Aim(ranks=(3,)).node is None
    True
    """

    ranks: tuple[int, ...] = ()
    local_ranks: tuple[int, ...] = ()
    all_ranks: bool = False
    node: int | None = None
    random_node: bool = False


class Place(Struct):
    """Where a worker of the job is: its rank, its local rank, and the number of its node.

    >>> Place(rank=3, local_rank=1, node=1).node
    1
    """

    rank: int
    local_rank: int
    node: int


class NotHere(Exception):
    """Whom the aim names is not on this machine; the text is the rest of a sentence that says who is.

    >>> ranks_for(Aim(ranks=(7,)), 0, [Place(0, 0, 0), Place(1, 1, 0)])
    Traceback (most recent call last):
    phalanx.chaos.plan.NotHere: rank 7 is not on this machine, which has ranks 0 and 1 of the job
    """


def steps(schedule: Schedule, seed: str) -> Iterator[Step]:
    """The steps of a plan, in order; without end where the schedule has none.

    >>> every = Span(30.0, 60.0)
    >>> [step.wait_s for step in steps(Schedule(after=Span(5.0, 5.0), every=every, times=3), "7")]
    [5.0, 45.362, 35.454]
    """
    numbers = itertools.count(1) if schedule.times is None else range(1, schedule.times + 1)
    for number in numbers:
        span = schedule.after if number == 1 else schedule.every
        part = _draw(seed, number, "wait") / 256**_DRAW_BYTES
        yield Step(number=number, wait_s=span.at(part), draw=_draw(seed, number, "target"))


def node_for(aim: Aim, draw: int, nodes: Collection[int]) -> int:
    """The node of which the agent is meant. Raises ``NotHere``, also when there are several and none is named.

    >>> node_for(Aim(), 0, [4])
    4
    """
    here = sorted(set(nodes))
    if aim.random_node and here:
        return here[draw % len(here)]
    if aim.node is None:
        if len(here) == 1:
            return here[0]
        raise NotHere(
            f"which node? This machine has {names('node', here)} of the job; say --node N or random"
        )
    if aim.node not in here:
        raise NotHere(f"node {aim.node} is not on this machine, which has {names('node', here)} of the job")
    return aim.node


def ranks_for(aim: Aim, draw: int, here: Collection[Place]) -> tuple[int, ...]:
    """The ranks that are meant, ascending, of those on this machine. Raises ``NotHere``.

    >>> ranks_for(Aim(all_ranks=True), 0, [Place(0, 0, 0), Place(1, 1, 0)])
    (0, 1)
    """
    nodes = {one.node for one in here}
    if aim.random_node:  # one of those that have these local ranks
        wanted = set(aim.local_ranks)
        nodes = {n for n in nodes if wanted <= {one.local_rank for one in here if one.node == n}} or nodes
    if aim.random_node or aim.node is not None:
        node = node_for(aim, draw, nodes)
        here = [one for one in here if one.node == node]
    ranks = sorted(one.rank for one in here)
    if missing := sorted(set(aim.ranks) - set(ranks)):
        verb = "is" if len(missing) == 1 else "are"
        raise NotHere(
            f"{names('rank', missing)} {verb} not on this machine, which has {names('rank', ranks)} of the job"
        )
    if aim.ranks:
        return tuple(sorted(set(aim.ranks)))
    if aim.local_ranks:
        return _of_local_ranks(aim.local_ranks, here)
    if not ranks:
        raise NotHere("no worker of the job is on this machine")
    if aim.all_ranks:
        return tuple(ranks)
    # Another digit of the draw than the one that has picked the node, or the two would go together.
    return (ranks[draw // 65536 % len(ranks)],)


def _of_local_ranks(local_ranks: tuple[int, ...], here: Collection[Place]) -> tuple[int, ...]:
    if len({one.node for one in here}) > 1:
        nodes = names("node", sorted({one.node for one in here}))
        raise NotHere(f"which node's local rank? This machine has {nodes} of the job; say --node N or random")
    by_local_rank = {one.local_rank: one.rank for one in here}
    if missing := sorted(set(local_ranks) - by_local_rank.keys()):
        verb = "is" if len(missing) == 1 else "are"
        raise NotHere(
            f"{names('local rank', missing)} {verb} not on this machine, which has "
            f"{names('local rank', sorted(by_local_rank))} of the job"
        )
    return tuple(sorted(by_local_rank[one] for one in set(local_ranks)))


def names(noun: str, numbers: Collection[object]) -> str:
    """Numbers with their noun.

    >>> names("rank", [3]), names("rank", [0, 1, 3]), names("rank", [])
    ('rank 3', 'ranks 0, 1 and 3', 'no rank')
    """
    words = [str(one) for one in numbers]
    if len(words) < 2:
        return f"{noun} {words[0]}" if words else f"no {noun}"
    return f"{noun}s {', '.join(words[:-1])} and {words[-1]}"


def _draw(seed: str, number: int, what: str) -> int:
    text = f"{seed}/{number}/{what}".encode(errors="surrogateescape")
    return int.from_bytes(sha256(text).digest()[:_DRAW_BYTES], "big")
