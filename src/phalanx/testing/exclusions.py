"""What must hold of nodes that should not be used for a while: compared are registrations in the store and workers."""

from __future__ import annotations

from phalanx.rendezvous.stored import NodeRecord, Phase
from phalanx.testing.checking import Checker, Limits, Violation
from phalanx.testing.trace import (
    ExclusionAsked,
    Fault,
    NodeWritten,
    Observation,
    RoundWritten,
    StoreLost,
    Suspended,
    WorkerEnded,
    WorkerStarted,
)

__all__ = ["ExclusionIsKept"]

KNOWN_AFTER_S = 5.0  # a leader that is slow has taken it in by then
# What a leader decided on may be as old as its lease; a store that was gone or frozen grants every lease anew.
DISTURBED_TTLS = 4.0
LEAST_CHANCE = 0.9  # of the time of an exclusion


class ExclusionIsKept(Checker):
    """An excluded node runs no worker while there are enough others that could run the job without it.

    Not, that is, in the round in which it came to be excluded, and in none that settles later. One that was needed when
    it settled goes on as it is until others form another one.
    A node whose worker asked for it is excluded, or was, before it runs workers again; unless the job has one node.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        slow = limits.clock_rates[0]
        self._known_s = limits.ttl_s / slow + KNOWN_AFTER_S
        self._stopped_s = self._known_s + (2 * limits.ttl_s + limits.grace_s) / slow + KNOWN_AFTER_S
        self._calm_s = self._known_s + DISTURBED_TTLS * limits.ttl_s / slow
        self._lasts_s = limits.exclude_for_s * LEAST_CHANCE / limits.clock_rates[1]
        self._disturbed_at = -self._calm_s
        self._usable: dict[str, float] = {}  # since when
        self._excluded: dict[str, float] = {}
        self._excluded_in: dict[str, int] = {}
        self._barred: dict[int, set[str]] = {}
        self._live: dict[tuple[str, int], int] = {}
        self._asked_at: dict[str, float] = {}

    def see(self, at: float, seen: Observation) -> None:
        """Keep count of who may be used, and look at who works."""
        match seen:
            case Fault(kind=kind) if "store" in kind:
                self._disturbed_at = at
            case Suspended():
                self._disturbed_at = at
            case StoreLost():
                self._disturbed_at = at
                self._usable.clear()
                self._excluded.clear()
            case ExclusionAsked(agent) if agent not in self._excluded and self._limits.max_nodes > 1:
                self._asked_at.setdefault(agent, at)
            case NodeWritten(agent, record):
                self._note(at, agent, record)
            case RoundWritten(_, record) if record.phase is Phase.SETTLED:
                self._barred[record.number] = set(self._not_to_be_used(at, self._known_s))
            case WorkerEnded(agent, pid):
                self._live.pop((agent, pid), None)
            case WorkerStarted():
                self._look_at_start(at, seen)
        if self._excluded and self._live:
            for agent in self._not_to_be_used(at, self._stopped_s):
                number = self._excluded_in[agent]
                if any(owner == agent and one == number for (owner, _), one in self._live.items()):
                    self._complain(at, agent, "still runs")

    def _look_at_start(self, at: float, seen: WorkerStarted) -> None:
        agent, number = seen.agent, seen.round.number
        self._live[agent, seen.pid] = number
        if agent in self._barred.get(number, ()):
            self._complain(at, agent, f"was started in round {number}")
        since_s = at - self._asked_at.get(agent, at)
        if KNOWN_AFTER_S <= since_s < self._lasts_s:  # it may be over before the store could hear of it
            raise Violation(
                f"a worker of {agent} asked {since_s:.1f} s ago to have its node excluded, and it is used"
            )

    def _note(self, at: float, agent: str, record: NodeRecord | None) -> None:
        is_excluded = record is not None and bool(record.excluded)
        if record is not None and record.excluded:
            self._excluded_in[agent] = record.excluded_in
            self._asked_at.pop(agent, None)
        is_usable = record is not None and not is_excluded and not record.is_leaving
        for is_so, since in ((is_usable, self._usable), (is_excluded, self._excluded)):
            if not is_so:
                since.pop(agent, None)
            else:
                since.setdefault(agent, at)

    def _not_to_be_used(self, at: float, known_s: float) -> list[str]:
        """Excluded for so long that whoever leads knows it, as it knows of enough others."""
        if at < self._disturbed_at + self._calm_s:
            return []
        usable = sum(at >= since + known_s for since in self._usable.values())
        if usable < self._limits.min_nodes:
            return []
        return [agent for agent, since in self._excluded.items() if at >= since + known_s]

    def _complain(self, at: float, agent: str, what: str) -> None:
        since = f"{agent} has been excluded for {at - self._excluded[agent]:.1f} s"
        raise Violation(f"{since}, {sorted(self._usable)} could do without it, and a worker of it {what}")
