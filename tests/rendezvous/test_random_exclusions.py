"""Jobs to which anything happens, exclusions above all: whatever it was, in the end the nodes that are there run."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.rendezvous.fleet import Agent, Fleet
from tests.rendezvous.test_exclusion import BROKEN

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.rendezvous.settings import Growth
from phalanx.rendezvous.stored import NodeRecord, decode

MOST = 60  # restarts: more than failures
CALM_S = 400.0  # longer than any exclusion here, and than a store is waited for
PURPOSES = ("exclude", "leave", "report outcome", "join", "lead")


class Story:
    """One job, from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.low = chance.choice([1, 2, 2, 3])
        self.high = self.low + chance.choice([0, 1, 2])
        restarts = RestartPolicy(
            max_restarts=MOST,
            exclude_on=(BROKEN,),
            backoff_s=chance.choice([0, 0, 2.0]),
            refill_on_progress=chance.random() < 0.3,
            window_s=chance.choice([None, None, 30.0]),
        )
        self.fleet = Fleet(
            max_restarts=MOST,
            restarts=restarts,
            min_nodes=self.low,
            max_nodes=self.high,
            last_call_s=2.0,
            exclude_for_s=chance.choice([3.0, 20.0, 100.0]),
            join_timeout_s=5000.0,
            growth=chance.choice(list(Growth)),
        )

    @property
    def alive(self) -> list[Agent]:
        return [one for one in self.fleet.agents.values() if not one.is_over]

    @property
    def working(self) -> list[Agent]:
        return [one for one in self.alive if one.alive and not one.is_stopping and not one.is_frozen]

    def start(self) -> None:
        self.fleet.start(f"n{len(self.fleet.agents) + 1}")

    def something_happens(self) -> None:
        fleet, chance = self.fleet, self.chance
        anybody = chance.choice(self.alive).name if self.alive else ""
        worker = chance.choice(self.working).name if self.working else ""
        may_go = anybody and len(self.alive) > self.low
        things: dict[str, tuple[object, Callable[[], object]]] = {
            "f": (worker, lambda: fleet.fail(worker)),
            "x": (worker, lambda: fleet.fail(worker, code=BROKEN)),
            "a": (worker, lambda: fleet.ask_exclusion(worker)),
            "p": (worker, lambda: fleet.progress(worker, chance.randint(1, 100))),
            "l": (may_go, lambda: fleet.leave(anybody)),
            "k": (may_go, lambda: fleet.kill(anybody)),
            "c": (anybody, lambda: fleet.cut(anybody)),
            "z": (anybody, lambda: fleet.freeze(anybody)),
            "h": (True, fleet.heal),
            "t": (True, fleet.thaw),
            "s": (len(self.alive) < self.high + 3, self.start),
        }
        may_happen, do = things[chance.choice("fffxxxaaaplkczhts")]
        if may_happen:
            do()
        for one in self.alive:
            if chance.random() < 0.1:
                one.link.lose_answer(chance.choice(PURPOSES), is_applied=chance.random() < 0.5)

    def calm_down(self) -> None:
        """Nothing happens any more, but that nodes come while there are too few."""
        self.fleet.thaw()
        self.fleet.heal()
        for _ in range(20):
            while len(self.alive) < self.low and not self.is_decided:
                self.start()
            self.fleet.run(CALM_S / 20)

    @property
    def is_decided(self) -> bool:
        return self.fleet.read(self.fleet.keys.verdict) is not None

    def is_steady(self) -> bool:
        numbers = [one.round.number for one in self.working if one.round is not None]
        return len(numbers) >= self.low and len(set(numbers)) == 1

    def is_said(self, one: Agent) -> bool:
        """Whether the others know of this node what it knows itself."""
        found = self.fleet.read(self.fleet.keys.here(one.name))
        return found is not None and not decode(NodeRecord, found.value).excluded


@pytest.mark.parametrize("seed", range(40))
def test_when_all_is_calm_the_nodes_run_and_none_is_excluded(seed: int) -> None:
    story = Story(seed)
    for _ in range(story.low + story.chance.randint(0, 2)):
        story.start()
    for _ in range(story.chance.randint(5, 40)):
        story.fleet.run(story.chance.choice([0, 0, 0.1, 1, 5, 20]))
        story.something_happens()
    story.calm_down()
    if story.is_decided or not story.alive:
        return  # all were told to leave, or had succeeded
    story.fleet.run_until(story.is_steady)
    story.fleet.run(CALM_S)
    assert story.is_steady(), story.fleet.story()
    assert all(story.is_said(one) for one in story.alive), story.fleet.story()
    while story.working:
        story.fleet.finish(*(one.name for one in story.working))
        story.fleet.run(5.0)
    story.fleet.run_until_over(within_s=100.0)
