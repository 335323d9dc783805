"""What agents tell who looks on, against what really happened in their world, and against itself.

A world has these when it is made with ``observes=True``: looking on makes agents wake a little more often, so that a
seed is another world then.
"""

from __future__ import annotations

from phalanx.events import job
from phalanx.events.status import JobStatus
from phalanx.testing.checking import Checker, Violation
from phalanx.testing.trace import (
    AgentCrashed,
    AgentEnded,
    Happened,
    Line,
    Observation,
    WorkerEnded,
    WorkerStarted,
)

__all__ = ["JobEventsAreCoherent"]


class JobEventsAreCoherent(Checker):
    """Of each agent: one beginning, one end, every round opened, every worker's start and end once and as it was."""

    def __init__(self) -> None:
        self._agents: dict[str, _Told] = {}
        self._began: dict[str, dict[int, int]] = {}
        self._ended: dict[str, dict[int, int]] = {}

    def see(self, at: float, seen: Observation) -> None:
        """Compare each job event with those before it, and an agent's end with what it told."""
        match seen:
            case WorkerStarted(agent, pid, _, local_rank):
                self._began.setdefault(agent, {})[pid] = local_rank
            case WorkerEnded(agent, pid, exit_code):
                self._ended.setdefault(agent, {})[pid] = exit_code
            case Line(agent, text) if text.startswith("the observer of this job failed"):
                raise Violation(f"{agent}: {text}")
            case Happened(agent, job_event):
                self._agents.setdefault(agent, _Told(agent)).take(job_event)
            case AgentCrashed(agent):
                self._agents.setdefault(agent, _Told(agent)).is_crashed = True
            case AgentEnded(agent, exit_code):
                self._agents.setdefault(agent, _Told(agent)).finish(
                    exit_code, self._began.get(agent, {}), self._ended.get(agent, {})
                )

    def finish(self) -> None:
        """Whoever did not crash has told its end; the world's own checkers demand that it came to one."""


class _Told:
    """What one agent has told so far."""

    def __init__(self, agent: str) -> None:
        self.is_crashed = False
        self._agent = agent
        self._status = JobStatus()
        self._last: job.JobEvent | None = None
        self._round: job.RoundSettled | None = None
        self._is_round_over = True
        self._expected: set[int] = set()
        self._running: dict[int, int] = {}
        self._pids: dict[int, int] = {}
        self._codes: dict[int, int] = {}

    def take(self, it: job.JobEvent) -> None:
        """Take the next one. Raises ``Violation``."""
        self._demand(not self.is_crashed, it, "was told by the dead")
        self._demand(not isinstance(self._last, job.JobEnded), it, "came after the end")
        self._demand(
            (self._last is None) == isinstance(it, job.JobStarted), it, "is no beginning, or a second one"
        )
        self._demand(self._last is None or it.at_ns >= self._last.at_ns, it, "is earlier than the one before")
        self._last = it
        before = self._status
        self._status = self._status.after(it)
        match it:
            case job.RoundOpened(round=number) | job.RestartDecided(round=number, local_rank=None):
                self._expected.add(number)
            case job.RoundSettled():
                is_known = (
                    self._round is None or it.restart_count == before.restarts
                )  # a newcomer hears it now
                self._demand(is_known, it, f"came after {before.restarts} restarts")
                self._settled(it)
            case job.WorkersStarted():
                self._started(it)
            case job.WorkerEnded():
                self._worker_ended(it)
            case job.WorkerFailed(local_rank=local_rank):
                self._demand(local_rank not in self._running, it, "fails while it runs")
            case job.RoundEnded(round=number):
                self._demand(
                    self._round is not None and self._round.round == number, it, "is of another round"
                )
                self._demand(not self._running and not self._is_round_over, it, f"leaves {self._running}")
                self._is_round_over = True
            case job.JobEnded():
                self._demand(not self._running and self._is_round_over, it, f"leaves {self._running}")
        running = {one.local_rank for one in self._status.workers if one.state == "running"}
        self._demand(
            running == set(self._running), it, f"the status says that {running} run, not {self._running}"
        )
        self._demand(
            (self._status.phase == "ended") == isinstance(it, job.JobEnded),
            it,
            f"the phase is {self._status.phase}",
        )

    def _settled(self, it: job.RoundSettled) -> None:
        self._demand(self._is_round_over and not self._running, it, "settled in a round")
        self._demand(it.round in self._expected, it, "is a round that was not announced")
        self._demand(self._round is None or it.round > self._round.round, it, "is no later round")
        self._round, self._is_round_over = it, False

    def _started(self, it: job.WorkersStarted) -> None:
        settled = self._round
        self._demand(
            settled is not None and settled.round == it.round and not self._is_round_over, it, "has no round"
        )
        self._demand(not set(it.pids) & set(self._running), it, "starts what runs")
        self._demand(not set(it.pids.values()) & set(self._pids), it, "has process ids that were told before")
        self._running |= it.pids
        self._pids |= {pid: local_rank for local_rank, pid in it.pids.items()}

    def _worker_ended(self, it: job.WorkerEnded) -> None:
        settled = self._round
        self._demand(settled is not None and it.rank == settled.ranks[it.local_rank], it, "has another rank")
        if it.pid:
            self._demand(self._running.pop(it.local_rank, None) == it.pid, it, "ends what does not run")
            self._codes[it.pid] = it.exit_code
        else:
            self._demand(it.local_rank not in self._running, it, "was not started, and runs")

    def finish(self, exit_code: int, began: dict[int, int], ended: dict[int, int]) -> None:
        """The agent has ended by itself: what it told is what happened. Raises ``Violation``."""
        last = self._last
        told = isinstance(last, job.JobEnded) and last.exit_code == exit_code
        self._demand(told, last, f"is the last one, and the agent ended with {exit_code}")
        if exit_code == EX_BUG:
            return
        self._demand(self._pids == began, last, f"pids told: {self._pids}, and there were {began}")
        given_up = {pid for pid in self._codes if pid not in ended}  # the kernel holds them
        wrong = {pid: code for pid, code in self._codes.items() if pid not in given_up and ended[pid] != code}
        self._demand(not wrong, last, f"ends told: {wrong}, and they were {ended}")

    def _demand(self, holds: bool, it: job.JobEvent | None, what: str) -> None:
        if not holds:
            raise Violation(f"{self._agent} tells {it!r}, which {what}")


EX_BUG = 70  # what it knew by then may be half of a step
