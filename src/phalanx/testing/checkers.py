"""What must hold in every world, whatever happens in it. Each checker listens to the trace and knows nothing else."""

from __future__ import annotations

from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.rendezvous.round import Round
from phalanx.testing.checking import Checker, Limits, Violation, has_ended_alone
from phalanx.testing.exclusions import ExclusionIsKept
from phalanx.testing.lives import Lives
from phalanx.testing.restarts import BackoffIsKept, BudgetIsNotOverdrawn, ChargesAreDue, GivesUpInTime
from phalanx.testing.trace import (
    AgentCrashed,
    AgentEnded,
    AgentStarted,
    Fault,
    Observation,
    Resumed,
    RoundWritten,
    StopSignalled,
    StoreLost,
    Stuck,
    Suspended,
    VerdictWritten,
    WorkerEnded,
    WorkerStarted,
)

__all__ = [
    "EX_BUG",
    "CauseIsTheInjectedOne",
    "EveryRunEnds",
    "NoBug",
    "NothingBeginsAfterTheEnd",
    "NothingIsLeft",
    "OldWorkersAreGone",
    "OneMembershipPerRound",
    "RanksOnceEach",
    "SameVerdict",
    "WorkersKnowTheCount",
    "all_checkers",
]

EX_BUG = 70
# A machine that was suspended for longer than its fence runs on for a moment: the one limit that the docs name.
RESUMED_S = 0.1
HEARD_S = 5.0  # by an agent that is slow


class OneMembershipPerRound(Checker):
    """All members of a round know the same round: size, master, restart count, reason; a group rank is one node."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lives = Lives()
        self._rounds: dict[int, tuple[str, Round]] = {}
        self._places: dict[tuple[int, int], str] = {}

    def see(self, at: float, seen: Observation) -> None:
        """Compare each worker's round with the first one's."""
        if self._lives.see(seen):
            self._rounds.clear()
            self._places.clear()
        if not isinstance(seen, WorkerStarted):
            return
        number = seen.round.number
        agent, first = self._rounds.setdefault(number, (seen.agent, seen.round))
        same = ["group_world_size", "world_size", "master_addr", "master_port"]
        if not self._limits.has_single_restarts:  # else each worker has a count and a reason of its own
            same += ["restart_count", "reason"]
        for what in same:
            ours, theirs = getattr(seen.round, what), getattr(first, what)
            if ours != theirs:
                raise Violation(
                    f"round {number}: {what} is {ours!r} for {seen.agent} and {theirs!r} for {agent}"
                )
        size = seen.round.group_world_size
        if not self._limits.min_nodes <= size <= self._limits.max_nodes:
            low, high = self._limits.min_nodes, self._limits.max_nodes
            raise Violation(f"round {number} has {size} nodes, and {low} to {high} were asked for")
        holder = self._places.setdefault((number, seen.round.group_rank), seen.agent)
        if holder != seen.agent:
            place = seen.round.group_rank
            raise Violation(f"round {number}: {holder} and {seen.agent} both have group rank {place}")


class RanksOnceEach(Checker):
    """In a round each rank from 0 to n - 1 starts once at most, and no other rank.

    Where workers are restarted one by one it may start again when it has ended, as another restart on the same node.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lives = Lives()
        self._started: dict[tuple[int, int], WorkerStarted] = {}
        self._live: set[tuple[str, int]] = set()

    def see(self, at: float, seen: Observation) -> None:
        """Look at each worker that starts."""
        if self._lives.see(seen):
            self._started.clear()
        if isinstance(seen, WorkerEnded):
            self._live.discard((seen.agent, seen.pid))
        if not isinstance(seen, WorkerStarted):
            return
        self._live.add((seen.agent, seen.pid))
        rank, number = seen.round.rank(seen.local_rank), seen.round.number
        if not 0 <= rank < seen.round.world_size:
            raise Violation(f"round {number}: {seen.agent} started rank {rank} of {seen.round.world_size}")
        before = self._started.get((number, rank))
        if before is not None and not (self._limits.has_single_restarts and self._may_follow(before, seen)):
            raise Violation(f"round {number}: rank {rank} was started by {before.agent} and by {seen.agent}")
        self._started[number, rank] = seen

    def _may_follow(self, before: WorkerStarted, seen: WorkerStarted) -> bool:
        is_over = before.agent == seen.agent and (before.agent, before.pid) not in self._live
        return is_over and seen.round.restart_count >= before.round.restart_count


class OldWorkersAreGone(Checker):
    """When a worker of a round starts, none of an older round is alive anywhere, and none of a newer one either.

    In a new life of the job (see ``lives``) those of the last one may live as long as their fence. Who is stuck in the
    kernel cannot be killed.
    """

    def __init__(self, limits: Limits) -> None:
        self._fenced_s = limits.ttl_s
        self._live: dict[tuple[str, int], int] = {}
        self._suspended: set[str] = set()
        self._resumed_at: dict[str, float] = {}
        self._stuck: set[tuple[str, int]] = set()
        self._latest = 0
        self._lives = Lives()
        self._lost_at = 0.0
        self._of_last_life: set[tuple[str, int]] = set()

    def see(self, at: float, seen: Observation) -> None:
        """Keep count of who is alive."""
        if self._resumed_at and not isinstance(seen, WorkerStarted):
            self._look(at)  # before an end is noted: who ends now lived until now
        if self._lives.see(seen):
            self._latest = 0
            self._of_last_life = set(self._live)
        match seen:
            case StoreLost():
                self._lost_at = at
            case Suspended(node):
                self._suspended.add(node)
            case Resumed(node):
                self._suspended.discard(node)
                self._resumed_at[node] = at
            case Stuck(agent, pid):
                self._stuck.add((agent, pid))
            case WorkerEnded(agent, pid):
                self._live.pop((agent, pid), None)
            case WorkerStarted(agent, pid, settled):
                self._live[agent, pid] = settled.number
                self._latest = max(self._latest, settled.number)
                self._look(at)

    def _look(self, at: float) -> None:
        for (agent, pid), number in self._live.items():
            if (agent, pid) in self._of_last_life and at < self._lost_at + self._fenced_s:
                continue
            if (agent, pid) in self._stuck:
                continue
            if number != self._latest and not self._is_excused(agent, at):
                raise Violation(
                    f"pid {pid} of {agent}, of round {number}, is alive beside a worker of round {self._latest}"
                )

    def _is_excused(self, agent: str, at: float) -> bool:
        node = agent.rpartition(".")[0]
        return node in self._suspended or at - self._resumed_at.get(node, -RESUMED_S) < RESUMED_S


class WorkersKnowTheCount(Checker):
    """What a worker sees as the restart count is what the store says of its round, and no more than workers failed."""

    def __init__(self) -> None:
        self._own_faults = 0
        self._counts: set[tuple[int, int]] = set()

    def see(self, at: float, seen: Observation) -> None:
        """Compare the count of each worker's round."""
        match seen:
            case Fault(rank=int()):
                self._own_faults += 1
            case RoundWritten(_, record):
                self._counts.add((record.number, record.restart_count))
            case WorkerStarted(agent, _, settled):
                number, count = settled.number, settled.restart_count
                if (number, count) not in self._counts:
                    raise Violation(
                        f"{agent} starts restart {count} of round {number}, of which the store knows nothing"
                    )
                if count > self._own_faults:
                    failed = f"workers failed {self._own_faults} times"
                    raise Violation(
                        f"round {number} is restart {count}, and {failed}: {settled.reason!r} was charged"
                    )


class NothingIsLeft(Checker):
    """An agent that has ended in order has no process left; at the end of the world nobody has."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, int], float] = {}

    def see(self, at: float, seen: Observation) -> None:
        """Keep count of who is alive."""
        match seen:
            case WorkerStarted(agent, pid):
                self._live[agent, pid] = at
            case WorkerEnded(agent, pid):
                self._live.pop((agent, pid), None)
            case AgentEnded(agent, is_orderly=True):
                if left := [pid for owner, pid in self._live if owner == agent]:
                    raise Violation(f"{agent} has ended and left {left}")

    def finish(self) -> None:
        """Nobody is alive."""
        if self._live:
            raise Violation(f"the world has ended, and these are alive: {sorted(self._live)}")


class EveryRunEnds(Checker):
    """Every agent that started comes to an end."""

    def __init__(self) -> None:
        self._running: set[str] = set()

    def see(self, at: float, seen: Observation) -> None:
        """Keep count of the agents."""
        match seen:
            case AgentStarted(agent):
                self._running.add(agent)
            case AgentEnded(agent) | AgentCrashed(agent):
                self._running.discard(agent)

    def finish(self) -> None:
        """None runs."""
        if self._running:
            raise Violation(f"these agents never ended: {', '.join(sorted(self._running))}")


class NoBug(Checker):
    """No agent ends with the exit code of a bug of ours."""

    def see(self, at: float, seen: Observation) -> None:
        """Look at each end."""
        is_worker_s = getattr(getattr(seen, "verdict", None), "cause", None) is not None
        if isinstance(seen, AgentEnded) and seen.exit_code == EX_BUG and not is_worker_s:
            last = seen.last_words.strip().rpartition("\n")[2]
            raise Violation(f"{seen.agent} ended with a bug of ours: {last}\n{seen.last_words}")


class NothingBeginsAfterTheEnd(Checker):
    """Once the store says how the job has ended, no worker starts; who has not heard of it is not sure of its lease."""

    def __init__(self, limits: Limits) -> None:
        self._known_s = limits.ttl_s / limits.clock_rates[0] + HEARD_S
        self._ended_at: float | None = None

    def see(self, at: float, seen: Observation) -> None:
        """Look at each worker that starts."""
        match seen:
            case VerdictWritten():
                self._ended_at = at
            case StoreLost():
                self._ended_at = None
            case WorkerStarted(agent, _, settled) if self._ended_at is not None:
                since_s = at - self._ended_at
                if since_s > self._known_s:
                    raise Violation(
                        f"{agent} starts workers of round {settled.number} {since_s:.1f} s after the end"
                    )


class SameVerdict(Checker):
    """All agents that nobody told to leave end with one exit code and one verdict, one that the store had.

    Who lost the store for longer than the job waits for one ends alone, and says so; so do who came so late that there
    was none any more, and who cannot kill a process. A store that was lost with its verdict may be followed by another
    one, for newcomers.
    """

    def __init__(self) -> None:
        self._leaving: set[str] = set()
        self._spoken: list[tuple[object, ...]] = []

    def see(self, at: float, seen: Observation) -> None:
        """Compare each end with what was written."""
        match seen:
            case StopSignalled(agent):
                self._leaving.add(agent)
            case VerdictWritten(_, verdict):
                self._spoken.append(_spoken(verdict.exit_code, verdict))
            case AgentEnded(agent, exit_code, verdict) if agent not in self._leaving:
                is_alone = has_ended_alone(verdict) and exit_code != 0
                if not is_alone and _spoken(exit_code, verdict) not in self._spoken:
                    said = f"{agent} ended with {_spoken(exit_code, verdict)}"
                    raise Violation(f"{said}, and the store has, or had, {self._spoken}")


def _spoken(exit_code: int, verdict: object) -> tuple[object, ...]:
    cause = getattr(verdict, "cause", None)
    rank, summary = getattr(cause, "rank", None), getattr(cause, "summary", None)
    return exit_code, getattr(verdict, "ending", None), rank, summary


class CauseIsTheInjectedOne(Checker):
    """Who is blamed failed by an own fault, in the last round that the store knows; a job without one has not failed.

    Who was told to leave and could not tell the others of its failure may blame its own workers. If its agent was
    frozen it found all of them dead after it had come to stop them: then who had written down its time seems first.
    """

    def __init__(self) -> None:
        self._incarnation = 0
        self._latest = 0
        self._faults: set[tuple[int, int]] = set()
        self._own: dict[str, set[tuple[int, int]]] = {}
        self._judged: set[tuple[int, int]] = set()
        self._frozen: set[str] = set()

    def see(self, at: float, seen: Observation) -> None:
        """Remember who failed, and look at each verdict."""
        match seen:
            case RoundWritten(incarnation, record):
                if incarnation != self._incarnation:
                    self._incarnation = incarnation
                    self._faults.clear()
                self._latest = record.number
            case Fault(kind="agent is frozen", target=agent):
                self._frozen.add(agent)
            case Fault(target=agent, rank=int(rank), round=int(number)):
                self._faults.add((number, rank))
                self._own.setdefault(agent, set()).add((number, rank))
            case VerdictWritten(_, verdict) if verdict.cause is not None:
                blamed = verdict.cause.round, verdict.cause.rank
                self._judged.add(blamed)
                if blamed not in self._faults or blamed[0] != self._latest:
                    self._complain("the store", verdict, f"{self._faults}, the round was {self._latest}")
            case AgentEnded(agent, verdict=Verdict(cause=Failure(round=number, rank=rank)) as verdict):
                own = self._own.get(agent, set())
                is_late = agent in self._frozen and any(one == number for one, _ in own)
                if (number, rank) not in self._judged | own and not is_late:
                    self._complain(agent, verdict, f"{own}")

    @staticmethod
    def _complain(who: str, verdict: Verdict, faults: str) -> None:
        cause = verdict.cause
        assert cause is not None, "somebody is blamed"
        blamed = f"rank {cause.rank} of round {cause.round} ({cause.summary!r})"
        raise Violation(f"{who} blames {blamed}, and (round, rank) of own faults: {faults}")


def all_checkers(limits: Limits) -> list[Checker]:
    """One of each."""
    return [
        OneMembershipPerRound(limits),
        RanksOnceEach(limits),
        OldWorkersAreGone(limits),
        WorkersKnowTheCount(),
        ChargesAreDue(limits),
        BudgetIsNotOverdrawn(limits),
        BackoffIsKept(limits),
        GivesUpInTime(limits),
        ExclusionIsKept(limits),
        NothingIsLeft(),
        EveryRunEnds(),
        NoBug(),
        NothingBeginsAfterTheEnd(limits),
        SameVerdict(),
        CauseIsTheInjectedOne(),
    ]
