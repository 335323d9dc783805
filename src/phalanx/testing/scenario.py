"""What a world is made of and what is done to it: all of it drawn from one seed, and none of it looked up later."""

from __future__ import annotations

from random import Random
from signal import SIGUSR1
from typing import ClassVar

from phalanx.agent.graces import Graces
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.records import Struct
from phalanx.rendezvous.settings import Growth
from phalanx.testing.checking import Limits
from phalanx.testing.workload import Habits

__all__ = ["FAULTS", "Scenario"]

FAULTS: dict[str, float] = {
    "worker fails": 3.0,
    "agent is killed": 1.0,
    "node loses power": 1.0,
    "agent is frozen": 1.0,
    "node is suspended": 0.7,
    "node is cut off": 1.5,
    "requests are lost": 0.7,
    "answers are lost": 0.7,
    "node is slow": 0.7,
    "store is killed": 0.5,
    "store is frozen": 0.3,
    "node leaves": 1.0,
    "node joins": 1.0,
    "module is missing": 0.3,
    "port is taken": 0.3,
    "process is stuck": 0.4,
    "node is to be excluded": 0.5,
}
"""Kind → how often, relative to the others."""


class Scenario(Struct, kw_only=True):
    """A job and the harm that is done to it. Times in seconds of true time.

    >>> from phalanx.testing import Scenario
    >>> Scenario(nodes=4, min_nodes=2, max_nodes=4).first_nodes
    16
    """

    nodes: int = 16
    first_nodes: int = 16
    """How many are there from the start."""
    first_within_s: float = 10.0
    """How far apart these come."""
    all_return: bool = True
    """When all is healed an agent starts on every node that has none."""
    min_nodes: int = 8
    max_nodes: int = 16
    slots: tuple[int, int] = (1, 2)
    """The least and the greatest number of workers of a node."""
    restarts: RestartPolicy = RestartPolicy(max_restarts=3)
    exclude_for_s: float = 60.0
    ttl_s: float = 15.0
    last_call_s: float = 30.0
    store_timeout_s: float = 60.0
    graces: Graces = Graces.alike(10.0)
    growth: Growth = Growth.NOW
    is_hosted: bool = False
    """The store lives in the agent of the first node, and loses its data with it."""
    faults: tuple[tuple[str, float], ...] = tuple(FAULTS.items())
    faults_from_s: float = 40.0
    faults_until_s: float = 420.0
    calm_until_s: float = 560.0
    """After the faults, and after progress was seen, nothing happens until then: no new round either."""
    fault_every_s: float = 25.0
    same_exit_code: int | None = None
    """With which workers fail whenever it is their own fault; None: in one way or another."""
    is_stopped: bool = False
    """It does not come to its normal end: every agent is sent SIGINT at once, as by a Ctrl-C that reaches all."""
    stops_all: bool = False
    """A stop signal to one agent is meant for all of them."""
    has_single_restarts: bool = False
    """Restarts are single; none of them notices that another one is gone."""
    has_keepers: bool = True
    """False: to see that the checkers see."""
    clock_rates: tuple[float, float] = (0.9, 1.1)
    habits: Habits = Habits()

    membership_only: ClassVar[tuple[tuple[str, float], ...]] = tuple(
        (kind, weight)
        for kind, weight in FAULTS.items()
        if kind not in ("worker fails", "module is missing", "port is taken")
    )
    """For ``faults``: nothing that a worker could be blamed for."""

    @property
    def limits(self) -> Limits:
        """What bounds each round."""
        return Limits(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            restarts=self.restarts,
            exclude_for_s=self.exclude_for_s,
            ttl_s=self.ttl_s,
            grace_s=self.longest_grace_s,
            clock_rates=self.clock_rates,
            has_single_restarts=self.has_single_restarts,
        )

    @property
    def longest_grace_s(self) -> float:
        """From the first word to workers to their end by force."""
        graces = self.graces
        return max(graces.stop_s, graces.restart_s, graces.resize_s) + graces.warn_s

    @property
    def patience_s(self) -> float:
        """How long a healed job may take until all who are there work together."""
        forming_s = 4 * self.ttl_s + 2 * self.last_call_s + self.store_timeout_s + 20.0
        forming_s += 3 * self.longest_grace_s
        backoff_s = self.restarts.backoff_max_s if self.restarts.backoff_s else 0.0
        checkpoint_s = 0.0
        if self.growth is Growth.AT_CHECKPOINT and self.habits.step_s is not None:
            checkpoint_s = self.habits.step_s * self.habits.steps_per_checkpoint
        return forming_s + (2 * backoff_s + 2 * checkpoint_s) / self.clock_rates[0]

    @classmethod
    def drawn(cls, seed: int, *, nodes: int = 16) -> Scenario:
        """A scenario of its own for each seed."""
        rng = Random(f"scenario {seed}")
        has_single_restarts = rng.random() < 0.15
        step_s = rng.choice((None, 2.0, 20.0))
        restarts = _drawn_policy(rng)
        growths = (
            Growth.NOW,
            Growth.NOW,
            Growth.NOW,
            Growth.NEVER,
            *[Growth.AT_CHECKPOINT] * (step_s is not None),
        )
        min_nodes = rng.randint(max(1, nodes // 4), max(1, nodes * 3 // 4))
        kinds = {kind: weight * rng.choice((0.0, 1.0, 1.0, 3.0)) for kind, weight in FAULTS.items()}
        return cls(
            nodes=nodes,
            first_nodes=rng.randint(min_nodes, nodes),
            min_nodes=min_nodes,
            max_nodes=rng.randint(min_nodes, nodes),
            restarts=restarts,
            exclude_for_s=rng.choice((5.0, 20.0, 60.0)),
            ttl_s=rng.choice((6.0, 15.0, 15.0, 30.0)),
            last_call_s=rng.choice((1.0, 8.0, 30.0)),
            graces=_drawn_graces(rng),
            is_hosted=rng.random() < 0.5,
            growth=rng.choice(growths),
            faults=tuple(kinds.items()) if any(kinds.values()) else tuple(FAULTS.items()),
            fault_every_s=rng.choice((10.0, 25.0, 60.0)),
            same_exit_code=rng.choice((None, 7) if restarts.give_up_after else (None, None, None, 7)),
            is_stopped=rng.random() < 0.2,
            stops_all=rng.random() < 0.15,
            has_single_restarts=has_single_restarts,
            habits=Habits(
                cannot_start=rng.choice((0.0, 0.0, 0.02)),
                deaf=rng.choice((0.0, 0.05, 0.3)),
                hangs=1.0 if has_single_restarts else rng.choice((0.0, 0.3, 0.9)),
                step_s=step_s,
            ),
        )


def _drawn_graces(rng: Random) -> Graces:
    if rng.random() < 0.5:
        return Graces.alike(rng.choice((1.0, 5.0, 30.0)))
    stop_s, restart_s, resize_s = (rng.choice((1.0, 5.0, 30.0)) for _ in range(3))
    return Graces(stop_s, restart_s, resize_s, *rng.choice(((), (3.0, SIGUSR1), (20.0, SIGUSR1))))


def _drawn_policy(rng: Random) -> RestartPolicy:
    """Torchelastic's plain count as often as not; else a bit of everything."""
    max_restarts = rng.choice((0, 1, 3, 10))
    if rng.random() < 0.5:
        return RestartPolicy(max_restarts=max_restarts)
    return RestartPolicy(
        max_restarts=max_restarts,
        window_s=rng.choice((None, None, 60.0, 200.0)),
        refill_after_s=rng.choice((None, None, 40.0)),
        refill_on_progress=rng.random() < 0.4,
        backoff_s=rng.choice((0.0, 1.0, 5.0)),
        backoff_max_s=rng.choice((5.0, 30.0)),
        give_up_after=rng.choice((None, None, 3, 5)),
        restart_on=rng.choice(((), (), (), (1, 134, 137, 139, *range(2, 60)))),
        no_restart_on=rng.choice(((), (), tuple(range(20, 40)))),
        exclude_on=rng.choice(((), (), (134, 139))),
        tries_hopeless_once=rng.random() < 0.5,
    )
