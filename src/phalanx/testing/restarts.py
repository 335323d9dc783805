"""What must hold of restarts, as far as it can be seen from outside: in the store, and by who failed when.

The policy counts by the clocks of leaders; these checkers count by true time. Where a clock that is wrong, or a leader
that came late, may see it otherwise, they ask for no more than holds in every case.
"""

from __future__ import annotations

import re
from collections import Counter

from phalanx.agent.restarts.policy import SHORT_ROUND_S, TRIES_OF_HOPELESS
from phalanx.agent.verdict.verdict import exit_status
from phalanx.records import Struct
from phalanx.rendezvous.stored import NodeRecord, Phase, RoundRecord
from phalanx.testing.checking import Checker, Limits, Violation
from phalanx.testing.trace import (
    Fault,
    NodeWritten,
    Observation,
    ReportWritten,
    RoundWritten,
    VerdictWritten,
    WorkerStarted,
)

__all__ = [
    "BackoffIsKept",
    "BudgetIsNotOverdrawn",
    "ChargesAreDue",
    "GivesUpInTime",
    "Opening",
    "OpeningChecker",
]

HAIR_S = 0.001
USED_UP = re.compile(r"restarts?( of the last .*)? (is|are) used")
LEAST_JITTER = 0.5  # of a backoff


class Opening(Struct, kw_only=True):
    """A round was opened after another one was over."""

    at: float
    record: RoundRecord
    ended: int
    """The number of the one that is over."""
    charged: int
    ran_s: float
    """From its settling until now; 0 if it never did."""
    faults: tuple[Fault, ...]
    """Of its own workers."""
    has_moved: bool
    """It came further than any before in this store, or survivors know better."""
    has_surely_moved: bool
    """It came further than any before in any store."""


class OpeningChecker(Checker):
    """Base: follows the rounds in the store. What another store begins with, or learns of survivors, is no opening."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.policy = limits.restarts
        self.slow, self.fast = limits.clock_rates
        self._incarnation = 0
        self._record: RoundRecord | None = None
        self._settled_at: float | None = None
        self._faults: dict[int, list[Fault]] = {}
        self._steps: dict[int, int] = {}
        self._furthest: int | None = None
        self.furthest_ever = -1
        self.number = 0
        """Of the last round in the store."""
        self._known: dict[str, int] = {}  # restarts that registered nodes have seen

    def see(self, at: float, seen: Observation) -> None:
        """Take what concerns rounds."""
        match seen:
            case Fault(rank=int(), round=int(number)):
                self._faults.setdefault(number, []).append(seen)
            case ReportWritten(_, number, report):
                steps = [one for one in (report.step, report.checkpoint) if one is not None]
                self._steps[number] = max([*steps, self._steps.get(number, -1)])
            case NodeWritten(agent, None):
                self._known.pop(agent, None)
            case NodeWritten(agent, NodeRecord(last_restart_count=count)):
                self._known[agent] = count
            case RoundWritten(incarnation, record):
                self._take(at, incarnation, record)

    def _take(self, at: float, incarnation: int, record: RoundRecord) -> None:
        before, self._record = self._record, record
        self.number = record.number
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._faults.clear()
            self._steps.clear()
            self._furthest = self._settled_at = None
            self.begins(at, record)
        elif record.phase is Phase.SETTLED:
            if before is not None and before.phase is Phase.SETTLED:
                self.single_restart(self._opening(at, before, record))
            self._settled_at = at
        elif record.phase is Phase.JOINING and before is not None:
            remembers = max(self._known.values(), default=0) > before.restart_count
            if before.phase is Phase.JOINING or remembers:
                self._settled_at = None
                self.begins(at, record)
            else:
                self.opens(self._opening(at, before, record))

    def numbers_before(self, number: int) -> list[int]:
        """Of the rounds in this store of which reports are known, before that one."""
        return [one for one in self._steps if one < number]

    def faults_of(self, number: int) -> tuple[Fault, ...]:
        """Of a round's own workers, so far."""
        return tuple(self._faults.get(number, ()))

    def step_of(self, number: int) -> int:
        """The furthest that a round has come; -1: nobody has told."""
        return self._steps.get(number, -1)

    def _opening(self, at: float, before: RoundRecord, record: RoundRecord) -> Opening:
        step = self.step_of(before.number)
        has_moved = step >= 0 and (self._furthest is None or step > self._furthest)
        has_surely_moved = step > self.furthest_ever
        if has_moved:
            self._furthest = step
        self.furthest_ever = max(step, self.furthest_ever)
        ran_s = 0.0 if self._settled_at is None else at - self._settled_at
        self._settled_at = None
        return Opening(
            at=at,
            record=record,
            ended=before.number,
            charged=record.restart_count - before.restart_count,
            ran_s=ran_s,
            faults=self.faults_of(before.number),
            has_moved=has_moved,
            has_surely_moved=has_surely_moved,
        )

    def begins(self, at: float, record: RoundRecord) -> None:
        """Another store, or somebody who remembers more than it does."""

    def opens(self, opening: Opening) -> None:
        """A round was opened. Raises ``Violation``."""

    def single_restart(self, opening: Opening) -> None:
        """Failures of single workers were answered, while their round runs on. Raises ``Violation``."""


class ChargesAreDue(OpeningChecker):
    """A restart is charged after a round in which a worker failed by its own fault, and then it is one.

    Where workers are restarted one by one each fault of a round may be charged.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._charged_in: Counter[int] = Counter()

    def begins(self, at: float, record: RoundRecord) -> None:
        """Numbers may come again."""
        self._charged_in.clear()

    def single_restart(self, opening: Opening) -> None:
        """Compare with the faults so far."""
        number = opening.record.number
        self._charged_in[number] += opening.charged
        if opening.charged < 0 or self._charged_in[number] > len(opening.faults):
            charged = f"{opening.charged:+} to {self._charged_in[number]} charges"
            raise Violation(f"round {number}: {charged}, and its workers failed {len(opening.faults)} times")

    def opens(self, opening: Opening) -> None:
        """Compare it with the faults of the round that is over."""
        number, reason = opening.record.number, opening.record.reason
        if opening.charged not in (0, 1):
            raise Violation(f"round {number} is {opening.charged:+} restarts from the last one: {reason!r}")
        if opening.charged and not opening.faults:
            raise Violation(
                f"round {number} was charged, and no worker of round {opening.ended} had failed by itself: {reason!r}"
            )


class BudgetIsNotOverdrawn(OpeningChecker):
    """No more restarts are charged than the policy allows: in its window, and since it may have been refilled last.

    A job that ends because all are used has used them, at least, since it came further than ever before.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._charged_at: list[float] = []
        self._used: int | None = 0  # at most so many since a refill by progress; None: survivors know more
        self._healthy_s = 0.0

    def see(self, at: float, seen: Observation) -> None:
        """Look at the end, too."""
        super().see(at, seen)
        if (
            isinstance(seen, VerdictWritten)
            and USED_UP.search(seen.verdict.reason)
            and self._used is not None
        ):
            has_moved = self.step_of(self.number) > self.furthest_ever
            used = 0 if self.policy.refill_on_progress and has_moved else self._used
            if (
                self.limits.has_single_restarts
            ):  # of those that are answered at once the last ends the job for all
                used += len(self.faults_of(self.number))
            if used < self.policy.max_restarts:
                raise Violation(f"the job ended after {used} restarts: {seen.verdict.reason}")

    def begins(self, at: float, record: RoundRecord) -> None:
        """What those who remember have spent cannot be seen here: the plain count holds on."""
        self._used = record.restart_count if record.restart_count == 0 else None
        self._charged_at = []
        self._healthy_s = 0.0
        self._look_at_count(record)

    def opens(self, opening: Opening) -> None:
        """Count."""
        policy = self.policy
        self._healthy_s += opening.ran_s * self.fast + 1.0
        by_time = policy.refill_after_s is not None and self._healthy_s >= policy.refill_after_s
        if by_time or (policy.refill_on_progress and opening.has_moved):
            self._charged_at.clear()
        if policy.refill_on_progress and opening.has_surely_moved:
            self._used = 0
        if self._used is not None:
            self._used += opening.charged
        for _ in range(opening.charged):
            self._charge(opening)

    def single_restart(self, opening: Opening) -> None:
        """Count these, too."""
        self.opens(opening)

    def _charge(self, opening: Opening) -> None:
        policy, at = self.policy, opening.at
        self._healthy_s = 0.0
        if policy.window_s is not None:
            self._charged_at = [one for one in self._charged_at if (at - one) * self.fast < policy.window_s]
        if len(self._charged_at) >= policy.max_restarts:
            ago = ", ".join(f"{at - one:.1f} s" for one in self._charged_at)
            raise Violation(
                f"round {opening.record.number} is charged beyond {policy.max_restarts} restarts; others were {ago} ago"
            )
        self._charged_at.append(at)
        self._look_at_count(opening.record)

    def _look_at_count(self, record: RoundRecord) -> None:
        policy = self.policy
        is_plain = policy.window_s is None and policy.refill_after_s is None and not policy.refill_on_progress
        if is_plain and record.restart_count > policy.max_restarts:
            raise Violation(f"round {record.number}: restart {record.restart_count} of {policy.max_restarts}")


class BackoffIsKept(OpeningChecker):
    """Workers of a round start when it has waited as long as it says, and it says what the policy asks for."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._opened: dict[int, tuple[float, float]] = {}
        self._short = 0  # at least so many rounds in a row that failed soon
        self._was_charged = False

    def see(self, at: float, seen: Observation) -> None:
        """Look at the first workers, too."""
        super().see(at, seen)
        if isinstance(seen, WorkerStarted) and seen.round.number in self._opened:
            opened_at, delay_s = self._opened[seen.round.number]
            if at < opened_at + delay_s / self.fast - HAIR_S:
                waited = f"{seen.agent} started after {at - opened_at:.2f} s"
                raise Violation(f"round {seen.round.number} waits {delay_s:.2f} s, and {waited}")

    def begins(self, at: float, record: RoundRecord) -> None:
        """Nothing is known of the rounds before; those who remember may make it wait."""
        self._was_charged |= bool(self._opened)
        self._opened = {record.number: (at, record.delay_s)}
        self._short = 0

    def opens(self, opening: Opening) -> None:
        """Count short rounds."""
        record, policy = opening.record, self.policy
        self._opened[record.number] = (opening.at, record.delay_s)
        if opening.has_moved:
            self._short = 0
        if self.limits.has_single_restarts:
            return  # which worker waits for what is not written in the round
        if not opening.charged:
            if record.delay_s:
                raise Violation(
                    f"round {record.number} waits {record.delay_s:.2f} s, and nothing was charged"
                )
            return
        is_short = opening.ran_s * self.fast < SHORT_ROUND_S and not opening.has_moved
        self._short = self._short + 1 if is_short else 0
        is_first, self._was_charged = not self._was_charged, True
        if is_first and record.delay_s:
            raise Violation(f"round {record.number} waits {record.delay_s:.2f} s, and is the first restart")
        least_s = 0.0
        if self._short > 1:
            longest_s = min(policy.backoff_max_s, policy.backoff_s * 2.0 ** (self._short - 2))
            least_s = LEAST_JITTER * longest_s
        if record.delay_s < least_s - HAIR_S or record.delay_s > policy.backoff_max_s + HAIR_S:
            raise Violation(
                f"round {record.number} waits {record.delay_s:.2f} s after {self._short} short rounds, and should wait "
                f"{least_s:g} to {policy.backoff_max_s:g} s"
            )


class GivesUpInTime(OpeningChecker):
    """What cannot heal is tried twice in a row at most; codes that end the job end it; so does the same for ever, and
    what comes no further in a job that tells of progress.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._hopeless = 0
        # The exit code, and how many rounds in a row ended with it
        self._same: tuple[int | None, int] = (None, 0)
        self._tells_of_progress = False
        # Charged rounds in a row without progress, once the job has told of it in this store
        self._still = 0

    def see(self, at: float, seen: Observation) -> None:
        """Look for progress, too."""
        if isinstance(seen, ReportWritten) and (seen.report.step, seen.report.checkpoint) != (None, None):
            self._tells_of_progress = True
        super().see(at, seen)

    def begins(self, at: float, record: RoundRecord) -> None:
        """Rounds in a row begin anew."""
        self._hopeless = self._still = 0
        self._same = (None, 0)

    def opens(self, opening: Opening) -> None:
        """Look at what was tried again."""
        if opening.has_moved:
            self._hopeless = self._still = 0
            self._same = (None, 0)
        if not opening.charged or not opening.faults or self.limits.has_single_restarts:
            return
        self._look_at_progress(opening)
        self._look_at_hope(opening)
        codes = {None if one.exit_code is None else exit_status(one.exit_code) for one in opening.faults}
        self._look_at_codes(opening, codes)
        self._look_at_sameness(opening, codes)

    def _look_at_progress(self, opening: Opening) -> None:
        has_told = any(self.step_of(number) >= 0 for number in self.numbers_before(opening.ended))
        self._still += has_told and not opening.has_moved
        limit = self.policy.give_up_after
        if limit is not None and self._still >= limit:
            raise Violation(f"round {opening.record.number} follows {self._still} that came no further")

    def _look_at_hope(self, opening: Opening) -> None:
        self._hopeless = self._hopeless + 1 if all(one.is_hopeless for one in opening.faults) else 0
        may_retry = not self.policy.tries_hopeless_once or bool(self.policy.restart_on)
        if self._hopeless >= TRIES_OF_HOPELESS and not may_retry:
            raise Violation(
                f"round {opening.record.number} tries again what failed {self._hopeless} times for good: "
                f"{opening.record.reason!r}"
            )

    def _look_at_codes(self, opening: Opening, codes: set[int | None]) -> None:
        policy = self.policy
        if None in codes:
            return
        if codes <= set(policy.no_restart_on) or (policy.restart_on and codes.isdisjoint(policy.restart_on)):
            raise Violation(f"round {opening.record.number} is a restart after exit codes {codes}")

    def _look_at_sameness(self, opening: Opening, codes: set[int | None]) -> None:
        code = codes.pop() if len(codes) == 1 and len(opening.faults) == 1 else None
        before, count = self._same
        self._same = (code, count + 1 if code is not None and code == before else int(code is not None))
        limit = self.policy.give_up_after
        if limit is not None and not self._tells_of_progress and self._same[1] >= limit:
            raise Violation(
                f"round {opening.record.number} tries again what failed with exit code {code} {limit} times"
            )
