"""The simulated network: between two places a message takes a while, keeps its order on its connection, or is held.

It behaves as TCP does for its users: nothing is lost or doubled on a connection that lives; what is sent into a cut
waits for the end of the cut, also when the sender has given up and gone, so that a write may arrive late.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from phalanx.testing.timeline import Timeline

__all__ = ["Network", "Wire"]

LATENCY_S = (0.0002, 0.004)
RETRANSMITTED = 0.003  # of the messages; each then takes at least one retransmission time-out of Linux
RETRANSMISSION_S = (0.2, 1.2)
ARRIVES_THOUGH_GIVEN_UP = 0.5


class Network:
    """Directions between named places, and which of them are cut."""

    def __init__(self, timeline: Timeline, rng: Random) -> None:
        self.timeline = timeline
        self.rng = rng
        self.messages = 0
        """How many were sent."""
        self._cuts: set[tuple[str, str]] = set()
        self._slow: dict[str, float] = {}
        self._loses = True
        self._waiting: list[Wire] = []

    def cut(self, source: str, target: str) -> None:
        """Nothing gets from ``source`` to ``target`` until ``heal``."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        """End a cut. What waited for it arrives within a retransmission's time."""
        self._cuts.discard((source, target))
        waiting, self._waiting = self._waiting, []
        for wire in waiting:
            wire.resume()

    def heal_all(self) -> None:
        """End all cuts; nothing is slow or lost any more."""
        self._loses = False
        self._slow.clear()
        for source, target in sorted(self._cuts):
            self.heal(source, target)

    def is_cut(self, source: str, target: str) -> bool:
        """Whether that direction is cut."""
        return (source, target) in self._cuts

    def slow_down(self, place: str, extra_s: float) -> None:
        """Let every message from or to a place take up to ``extra_s`` longer; 0: no more."""
        self._slow[place] = extra_s

    def latency_s(self, source: str, target: str) -> float:
        """How long the next message takes."""
        rng = self.rng
        latency_s = rng.uniform(*LATENCY_S)
        if self._loses and rng.random() < RETRANSMITTED:
            latency_s += rng.uniform(*RETRANSMISSION_S)
        if self._slow and (extra_s := self._slow.get(source, 0.0) + self._slow.get(target, 0.0)):
            latency_s += rng.uniform(0.0, extra_s)
        return latency_s

    def wait_for_heal(self, wire: Wire) -> None:
        """Resume the wire when a cut ends."""
        self._waiting.append(wire)


class Wire:
    """One direction of one connection: first in, first out."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._last_arrival = 0.0
        self._held: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._is_closed = False
        self._is_broken = False

    def send(self, deliver: Callable[..., object], *args: Any) -> None:
        """Have ``deliver(*args)`` called at the other end, after everything that was sent before."""
        if self._is_closed or self._is_broken:
            return
        self._network.messages += 1
        if self._held or self._network.is_cut(self._source, self._target):
            self._hold(deliver, args)
        else:
            self._carry(deliver, args, self._network.latency_s(self._source, self._target))

    def close(self) -> None:
        """Send no more; what was sent may still arrive."""
        self._is_closed = True

    def break_off(self) -> None:
        """Stop delivering: the other end is gone."""
        self._is_broken = True
        self._held.clear()

    def resume(self) -> None:
        """Go on after a cut; for the network."""
        if self._network.is_cut(self._source, self._target):
            self._network.wait_for_heal(self)
            return
        held, self._held = self._held, []
        if self._is_closed and self._network.rng.random() >= ARRIVES_THOUGH_GIVEN_UP:
            return  # the kernel of the sender has given up too
        delay_s = self._network.rng.uniform(*RETRANSMISSION_S)
        for deliver, args in held:
            self._carry(deliver, args, delay_s)

    def _hold(self, deliver: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self._held:
            self._network.wait_for_heal(self)
        self._held.append((deliver, args))

    def _carry(self, deliver: Callable[..., object], args: tuple[Any, ...], delay_s: float) -> None:
        timeline = self._network.timeline
        self._last_arrival = max(self._last_arrival, timeline.now + delay_s)
        timeline.at(self._last_arrival, self._arrive, deliver, args)

    def _arrive(self, deliver: Callable[..., object], args: tuple[Any, ...]) -> None:
        if self._is_broken:
            return
        if self._held or self._network.is_cut(self._source, self._target):
            self._hold(deliver, args)
        else:
            deliver(*args)
