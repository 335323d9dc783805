"""A round that is over: who is still to tell how its part of it ended, and what is known of each member. Pure."""

from __future__ import annotations

from collections.abc import Collection

from phalanx.rendezvous.policy import MemberReport
from phalanx.rendezvous.stored import Member
from phalanx.rendezvous.view import View

__all__ = ["member_reports", "untold"]


def untold(view: View) -> list[Member]:
    """Members that are still to report, or to lose their lease."""

    def leaves_in_peace(one: Member) -> bool:
        has_signed = view.has_failed(one) or one.node_id in view.signs
        return view.is_leaving(one) and not has_signed

    return [
        one
        for one in view.members
        if one.node_id not in view.reports and not view.is_lost(one) and not leaves_in_peace(one)
    ]


def member_reports(view: View, excluded: Collection[str]) -> tuple[MemberReport, ...]:
    """What each member has told, or how it is gone; ``excluded`` are node ids."""
    found = []
    first_rank = 0
    for place, member in enumerate(view.members):
        report = view.reports.get(member.node_id)
        found.append(
            MemberReport(
                member=member,
                group_rank=place,
                first_rank=first_rank,
                report=report,
                signed_at=view.signs.get(member.node_id),
                is_lost=view.is_lost(member) and report is None,
                is_leaving=view.is_leaving(member),
                is_excluded=member.node_id in excluded,
            )
        )
        first_rank += member.slots
    return tuple(found)
