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


class RoundReports(Struct, kw_only=True):
    """What the policy decides on."""

    round: RoundRecord
    world_size: int
    members: tuple[MemberReport, ...]


class NextRound(Struct, kw_only=True):
    """The policy's answer: go on with another round."""

    restart_count: int
    policy_state: str
    reason: str


class EndJob(Struct):
    """The policy's answer: the job is over; ``text`` tells every agent how."""

    text: str


class Policy(Struct):
    """How failures are answered; the agent's affair, the leader only asks. Each is a pure function."""

    decide: Callable[[RoundReports], NextRound | EndJob]
    """After a round in which some member failed."""
    succeeded: Callable[[], str]
    """The verdict when every member has succeeded."""
    not_formed: Callable[[str], str]
    """The verdict when no round could be formed, for this reason."""
