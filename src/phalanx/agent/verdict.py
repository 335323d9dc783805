"""How a job ended, and which failure was first.

Evidence inside one node is its monotonic clock: the moment a worker's exception was *recorded* counts, not the moment
its process was gone (a rank can take seconds to exit while its victims die at once). What the launcher itself stopped
is collateral: it is shown, and never blamed. Exit codes are those of the table in ``docs/exit-codes.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from signal import SIGABRT

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
    "judge",
]

# What Python, gloo, NCCL and torch say when the other end of a connection is gone.
PEER_GONE_WORDS = (
    "connection reset by peer",
    "connection closed by peer",
    "connection was closed",
    "connection aborted",
    "broken pipe",
    "brokenpipeerror",
    "connectionreseterror",
    "connectionabortederror",
    "no route to host",
    "connection timed out",
    "peer closed",
    "remote peer",
    "nccl",
    "distbackenderror",
    "distnetworkerror",
    "gloo",
)

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
    details: str = ""
    """The part of the report about this worker, as its own node wrote it; only of the first failure of a node."""

    @property
    def is_secondary(self) -> bool:
        """A symptom that the death of another node explains: the connection to it broke.

        The exception says so. The end of standard error is asked only where a library gave up without one.
        """
        text = self.summary.lower()
        if self.exit_code == -SIGABRT:
            text += self.details.lower()
        return any(words in text for words in PEER_GONE_WORDS)

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


class Verdict(Struct, kw_only=True):
    """The end of a job. ``cause`` is the first failure when the job failed."""

    ending: Ending
    exit_code: int
    cause: Failure | None = None
    failures: tuple[Failure, ...] = ()
    reason: str = ""
    """Why it ended here and was not tried again, in words for people."""
    restart_count: int = 0
    """Charged restarts before the end."""
    restarts: tuple[str, ...] = ()
    """Why the last of them were, one sentence each, the latest last."""


def exit_status(exit_code: int) -> int:
    """The launcher's exit code for a worker's: its own, or 128 + N when signal N killed it."""
    return 128 - exit_code if exit_code < 0 else exit_code


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The failure to blame: the earliest sign among those that the launcher did not cause.

    When everything is collateral (a worker that failed only after it was told to stop) the earliest of them stands
    in: a failed job has a cause. A tie goes to the lowest rank, so that the same evidence gives the same answer.
    """
    everyone = sorted(failures, key=lambda one: (one.is_collateral, one.first_sign_at, one.rank))
    return everyone[0] if everyone else None


def first_of_nodes(nodes: Iterable[tuple[Sequence[Failure], int | None]]) -> Failure | None:
    """The failure to blame among those of several nodes: ``(its failures, revision of its first sign)`` each.

    Clocks of two nodes are never compared: between nodes the store's revisions decide. A symptom of a broken
    connection yields to any failure that is none, whichever was seen first.
    """
    firsts = [(one, revision) for failures, revision in nodes if (one := first_failure(failures)) is not None]
    ordered = sorted(
        firsts,
        key=lambda pair: (
            pair[0].is_collateral,
            pair[0].is_secondary,
            pair[1] is None,
            pair[1] or 0,
            pair[0].rank,
        ),
    )
    return ordered[0][0] if ordered else None


def judge(failures: Iterable[Failure], *, reason: str, cause: Failure | None = None) -> Verdict:
    """The verdict on a job that failed and will not be tried again; ``cause`` is found if it is not given."""
    everyone = tuple(failures)
    cause = cause or first_failure(everyone)
    if cause is None:
        raise AssertionError("a failed job has at least one failure")
    return Verdict(
        ending=Ending.FAILED,
        exit_code=exit_status(cause.blamed_exit_code),
        cause=cause,
        failures=everyone,
        reason=reason,
    )
