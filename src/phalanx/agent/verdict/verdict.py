"""How a job ended, and which failure was first.

Evidence inside one node is its monotonic clock: the moment a worker's exception was *recorded* counts, not the moment
its process was gone (a rank can take seconds to exit while its victims die at once). What the launcher itself stopped
is collateral: it is shown, and never blamed. Exit codes are those of the table in ``docs/exit-codes.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from signal import SIGABRT, SIGPIPE

from phalanx.agent.verdict.symptoms import has_symptom, is_symptom
from phalanx.records import Struct

__all__ = [
    "EX_BUG",
    "EX_UNAVAILABLE",
    "EX_USAGE",
    "Ending",
    "Failure",
    "Verdict",
    "exit_status",
    "first_failure",
    "first_of_nodes",
    "is_tied",
    "judge",
    "listed",
    "others_told",
    "ranges_of",
]

# What a stop signal itself raises in a script, on the way through its handlers.
_OF_SIGNALS = frozenset({"CancelledError", "KeyboardInterrupt", "SignalException", "SystemExit"})

EX_USAGE = 2
EX_BUG = 70  # sysexits.h EX_SOFTWARE
EX_UNAVAILABLE = 75  # sysexits.h EX_TEMPFAIL: no round could be formed


class Ending(Enum):
    """The three ways a job ends."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class Failure(Struct, kw_only=True):
    """One worker that did not succeed, with the evidence about when and why."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    """As the process ended: negative is the number of the signal that killed it."""
    exited_at: float
    """When the agent learned of the exit, monotonic seconds."""
    signed_at: float | None = None
    """When the worker recorded its exception, monotonic seconds of the same machine; None if it recorded none."""
    stopped_at: float | None = None
    """When the agent asked this worker to stop; None if it never did."""
    own_exit_code: int | None = None
    """What the recorded exception would have made of the exit code; None if nothing was recorded."""
    summary: str = ""
    """One line for people: the exception, or what the signal means."""
    explanation: str = ""
    """Why a signal killed it, as far as its node could see: sentences, one a line, the likeliest first."""
    master_port_taken: bool = False
    """Rank 0 could not bind the port that it was given."""
    why_not_started: str = ""
    """The worker never began: the reason its command could not be executed."""
    cannot_heal: str = ""
    """What kind of error it was, in half a sentence, if the same program will meet it again (``causes``)."""
    host: str = ""
    """Where it ran, for people."""
    group_rank: int = 0
    """The node's place in the round."""
    group_world_size: int = 1
    """How many nodes the round had."""
    round: int = 0
    wall_at: float = 0.0
    """When it failed, seconds since the epoch by its host's clock; for people."""
    utc_offset_s: int = 0
    """Of its host's time zone."""
    exception: str = ""
    """The type of the recorded exception, with its module if it is not a built-in; empty: none was recorded."""
    message: str = ""
    """What the exception says, its type in front; without one what can be said of this end."""
    place: str = ""
    """``train.py:9``: where it was raised."""
    thread: str = ""
    """The name of the thread that raised it; empty: the main one."""
    traceback: str = ""
    crash: str = ""
    """The stack that a native crash has left."""
    stderr: str = ""
    """The end of its standard error."""
    error_file: str = ""
    """The path on its host; empty: it has written none."""
    extra: str = ""
    """What else is in that file's ``extraInfo``, as JSON; empty: nothing, or too much."""
    log_dir: str = ""
    """Where the logs of its node are, on its host."""
    is_straggler: bool = False
    """It still ran long after others had ended; that is its failure, whatever its end was when it was stopped."""
    is_known_symptom: bool = False
    """``is_secondary``, as somebody found who had all of its text."""

    @property
    def is_secondary(self) -> bool:
        """A symptom that the end of another process explains: the connection to it broke.

        The exception says so. The end of standard error is asked only where a library gave up without one.
        """
        if self.is_known_symptom:
            return True
        if self.exception or self.own_exit_code is not None or self.exit_code >= 0:
            kind = self.exception or self.summary.partition(":")[0]
            return is_symptom(kind, self.message or self.summary)
        return self.exit_code == -SIGPIPE or (self.exit_code == -SIGABRT and has_symptom(self.stderr))

    @property
    def first_sign_at(self) -> float:
        """The earliest moment at which something was wrong with this worker, as far as anyone knows."""
        if self.signed_at is None:
            return self.exited_at
        return min(self.signed_at, self.exited_at)

    @property
    def blamed_exit_code(self) -> int:
        """The code to pass through: the worker's own, also when our signal cut its way out short."""
        we_ended_it = self.stopped_at is not None and self.exit_code < 0 and not self.is_collateral
        return self.own_exit_code if we_ended_it and self.own_exit_code is not None else self.exit_code

    @property
    def is_collateral(self) -> bool:
        """The launcher caused this exit: nothing was wrong before the worker was asked to stop."""
        return self.stopped_at is not None and self.first_sign_at >= self.stopped_at

    @property
    def is_late_exception(self) -> bool:
        """It recorded an exception of its own after it was asked to stop: no cause, but it may explain a symptom."""
        kind = self.exception.rpartition(".")[2]
        return self.is_collateral and kind not in ("", *_OF_SIGNALS) and not self.is_secondary


class Verdict(Struct, kw_only=True):
    """The end of a job. ``cause`` is the first failure when the job failed."""

    ending: Ending
    exit_code: int
    cause: Failure | None = None
    failures: tuple[Failure, ...] = ()
    reason: str = ""
    """Why it ended here and was not tried again, in words for people."""
    failed: tuple[tuple[int, int], ...] = ()
    """Ranks that failed by themselves, as ranges (first, last): ``failures`` may have only some of them."""
    tied: tuple[tuple[int, int], ...] = ()
    """Those that failed at the same moment as the cause, the cause's own among them; empty: it was alone."""
    stopped: tuple[tuple[int, int], ...] = ()
    """Ranks that were stopped because of it, on all nodes."""
    has_run: bool = False
    """Some round had settled: a node that was in none tells the same."""
    restart_count: int = 0
    """Charged restarts before the end."""
    restarts: tuple[str, ...] = ()
    """Why the last of them were, one sentence each, the latest last."""


def exit_status(exit_code: int) -> int:
    """The launcher's exit code for a worker's: its own, or 128 + N when signal N killed it."""
    return 128 - exit_code if exit_code < 0 else exit_code


def ranges_of(ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Numbers as ranges (first, last), in order."""
    found: list[tuple[int, int]] = []
    for rank in sorted(set(ranks)):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return tuple(found)


def listed(ranges: Iterable[tuple[int, int]]) -> str:
    """``rank 3``, ``ranks 0, 2-7``."""
    ranges = tuple(ranges)
    text = ", ".join(_range(*one) for one in ranges)
    return f"rank{'s' if len(ranges) > 1 or ranges[0][0] != ranges[0][1] else ''} {text}"


def _range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first}-{last}" if last > first + 1 else f"{first}, {last}"


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The failure of one node to blame: the earliest sign among those that the launcher did not cause.

    A symptom of a broken connection yields to any of these that is none, whichever was seen first. When everything is
    collateral (a worker that failed only after it was told to stop) the earliest of them stands in: a failed job has a
    cause. A tie goes to the lowest rank, so that the same evidence gives the same answer.
    """
    return min(failures, key=_order, default=None)


def _order(one: Failure) -> tuple[bool, bool, float, int]:
    return one.is_collateral, one.is_secondary, one.first_sign_at, one.rank


def first_of_nodes(nodes: Iterable[tuple[Sequence[Failure], int | None]]) -> Failure | None:
    """The failure to blame among those of several nodes: ``(its failures, revision of its first sign)`` each.

    Clocks of two nodes are never compared: between nodes the store's revisions decide. A symptom of a broken
    connection yields to any failure that is none, whichever was seen first; and where the first sign of a node was such
    a symptom, somebody had failed before: of two failures that are none, the other node's is taken.
    """
    firsts = [
        (one, revision, _comes_after_symptom(one, failures))
        for failures, revision in nodes
        if (one := first_failure(failures)) is not None
    ]
    found = min(
        firsts,
        key=lambda it: (
            it[0].is_collateral,
            it[0].is_secondary,
            it[2],
            it[1] is None,
            it[1] or 0,
            it[0].rank,
        ),
        default=None,
    )
    return None if found is None else found[0]


def _comes_after_symptom(first: Failure, failures: Sequence[Failure]) -> bool:
    return not first.is_secondary and any(
        one.is_secondary and not one.is_collateral and one.first_sign_at < first.first_sign_at
        for one in failures
    )


def judge(
    failures: Iterable[Failure],
    *,
    reason: str,
    cause: Failure | None = None,
    failed: Iterable[int] = (),
    tied: Iterable[int] = (),
    stopped: Iterable[int] = (),
) -> Verdict:
    """The verdict on a job that failed and will not be tried again; ``cause`` is found if it is not given.

    Ranks beside those among the failures: ``failed`` by themselves, ``tied`` with the cause, ``stopped`` when asked to.
    """
    everyone = tuple(failures)
    cause = cause or first_failure(everyone)
    if cause is None:
        raise AssertionError("a failed job has at least one failure")
    own = {*failed, *(one.rank for one in everyone if not one.is_collateral), cause.rank}
    with_cause = {*tied, *(one.rank for one in everyone if is_tied(one, cause))}
    return Verdict(
        ending=Ending.FAILED,
        exit_code=exit_status(cause.blamed_exit_code),
        cause=cause,
        failures=everyone,
        reason=reason,
        failed=ranges_of(own),
        tied=ranges_of(with_cause) if len(with_cause) > 1 else (),
        stopped=ranges_of({*stopped, *(one.rank for one in everyone)} - own),
    )


def others_told(verdict: Verdict) -> list[Failure]:
    """The failures to tell beside the cause; if that is but a symptom, exceptions that came too late are among them."""
    cause = verdict.cause
    has_symptom_only = cause is not None and cause.is_secondary
    return [
        one
        for one in verdict.failures
        if one is not cause and (not one.is_collateral or (has_symptom_only and one.is_late_exception))
    ]


def is_tied(one: Failure, cause: Failure) -> bool:
    """Found in the same look on one node, and neither has told when it went wrong: nobody knows who was first.

    So are all workers that ran on too long, on whichever nodes.
    """
    if cause.is_straggler:
        return one.is_straggler
    return (
        (one.host, one.group_rank) == (cause.host, cause.group_rank)
        and one.signed_at is None
        and cause.signed_at is None
        and _order(one)[:3] == _order(cause)[:3]
    )
