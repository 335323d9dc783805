"""The lives of a job whose store lost its data: which rounds of the same number are not the same round.

Checkers that remember rounds forget them when a new life begins.
"""

from __future__ import annotations

from phalanx.rendezvous.round import Round
from phalanx.testing.trace import AgentCrashed, AgentEnded, Observation, StoreLost, WorkerStarted

__all__ = ["Lives"]


class Lives:
    """Who remembers which round. A store that lost its data may begin with round 1 again, in a new life of the job:
    if nobody is left who remembers, or if newcomers have formed a round before anybody came who does.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[int, str, int], set[str]] = {}  # by number and master
        self._over: set[str] = set()
        self._is_lost = False

    def see(self, seen: Observation) -> bool:
        """Take an observation; return whether a worker begins a new life."""
        match seen:
            case AgentEnded(agent) | AgentCrashed(agent):
                self._over.add(agent)
            case StoreLost():
                self._is_lost = True
            case WorkerStarted(agent, _, settled):
                return self._begins_anew(agent, settled)
        return False

    def _begins_anew(self, agent: str, settled: Round) -> bool:
        meeting = (settled.number, settled.master_addr, settled.master_port)
        if self._members.get(meeting, set()) - self._over:  # a newcomer among those who remember
            self._members[meeting].add(agent)
            return False
        later = [members for other, members in self._members.items() if other[0] >= settled.number]
        nobody_is_left = bool(later) and all(members <= self._over for members in later)
        is_newcomer = not any(agent in members for members in self._members.values())
        is_new = nobody_is_left or (bool(later) and self._is_lost and is_newcomer)
        if is_new:
            self._members.clear()
            self._is_lost = False
        self._members[meeting] = {agent}
        return is_new
