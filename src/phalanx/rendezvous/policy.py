"""What the leader asks of the restart policy when a round is over, and the answers it understands. Pure records.

The policy itself is the agent's affair (``agent.policy``); the leader knows when to ask, and with what at hand.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.records import Struct
from phalanx.rendezvous.stored import Member, Report, RoundRecord

__all__ = ["EndJob", "MemberReport", "NextRound", "Policy", "RoundReports"]


class MemberReport(Struct, kw_only=True):
    """All that is known of one member's part in a round that is being collected."""

    member: Member
    group_rank: int
    first_rank: int
    report: Report | None
    """None: it never told how its part ended."""
    signed_at: int | None
    """The store revision at which its first sign of a failure was written."""
    is_lost: bool
    is_leaving: bool
    is_running: bool = False
    """Its workers run, and would be stopped if the job ended: a single worker of another member has failed."""
    is_excluded: bool = False
    """It should not be used for a while, and the others can run the job without it."""


class RoundReports(Struct, kw_only=True):
    """What the policy decides on."""

    round: RoundRecord
    world_size: int
    members: tuple[MemberReport, ...]
    open_s: float = 0.0
    """Since the round was opened, by the clock of who leads."""
    ran_s: float = 0.0
    """From its settling to its end."""
    jitter: float = 0.5
    """From 0 to 1: another one for each job, node and round."""


class NextRound(Struct, kw_only=True):
    """The policy's answer: go on with another round."""

    restart_count: int
    policy_state: str
    reason: str
    delay_s: float = 0.0
    """How long it waits before it settles."""


class EndJob(Struct):
    """The policy's answer: the job is over; ``text`` tells every agent how."""

    text: str


class Policy(Struct):
    """How failures are answered; the agent's affair, the leader only asks. Each is a pure function."""

    decide: Callable[[RoundReports], NextRound | EndJob]
    """After a round in which some member failed."""
    passed: Callable[[RoundReports], str]
    """After a round that ended for another reason: what the policy remembers of it."""
    succeeded: Callable[[RoundRecord | None], str]
    """The verdict when every member has succeeded; the round is the last one."""
    not_formed: Callable[[str, RoundRecord | None], str]
    """The verdict when no round could be formed, for this reason; the round is the last one, if there was any."""
