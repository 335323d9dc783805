"""The leader's decisions: when a round opens, who is in it, and when the job is over. Pure.

It is level-triggered. It holds no history: given what the store says now it names one transaction, or none, and a new
leader that lists the same keys goes on where the old one was. What it remembers are only its own timers, which start
anew with it. Every write is guarded by its leadership and by the round it was decided on.

    joining ──all expected, or the last call is over──▶ settled ──a failure, a loss, a leave, a newcomer──▶ collecting
       ▲                                                   └──all succeeded──▶ verdict ◀──the policy gives up──┤
       └────────────────────────────────────── next round ◀────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.policy import EndJob, MemberReport, NextRound, Policy, RoundReports
from phalanx.rendezvous.ranks import Candidate, choose
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.stored import (
    Members,
    NodeRecord,
    Outcome,
    Phase,
    RoundRecord,
    VerdictRecord,
    Waiting,
    encode,
)
from phalanx.rendezvous.view import View
from phalanx.rendezvous.waiting import WaitingLine, listed, names_of, who_is_here
from phalanx.store.port import Delete, Operation, Put

__all__ = ["Leader"]


class Leader:
    """Decides for the job while this node leads. ``deadline`` is when to ask again if nothing changes."""

    def __init__(self, settings: MembershipSettings, keys: JobKeys, policy: Policy) -> None:
        self._settings = settings
        self._keys = keys
        self._policy = policy
        self.deadline: float | None = None
        self._timed: tuple[int, Phase] | None = None  # what the timers below are about
        self._began_at = 0.0
        self._last_call_at: float | None = None
        self._done_since: float | None = None
        self._newcomers_since: tuple[float, int] | None = None  # and how many checkpoints there were
        self._line = WaitingLine()
        self._survivors_since: float | None = None

    def decide(self, view: View, now: float) -> tuple[Operation, ...]:
        """The writes of one transaction, or nothing. The caller adds the guards."""
        self.deadline = None
        record = view.round
        if record is None:
            survived = any(one.node.last_round for one in view.here.values())
            return self._open(view, "the store was lost" if survived else "", restart_count=0)
        if (record.number, record.phase) != self._timed:
            self._timed = (record.number, record.phase)
            self._began_at = now
            self._last_call_at = self._newcomers_since = self._done_since = None
            self._line.begin(now)
        if record.phase is Phase.JOINING:
            return self._join(view, record, now)
        if not view.members:
            # Written together with the round: only somebody else's hand can have taken it away, or spoiled it.
            reason = f"the store does not say who is in round {record.number}"
            return (Put(self._keys.verdict, encode(VerdictRecord(text=self._policy.not_formed(reason)))),)
        if record.phase is Phase.SETTLED:
            return self._watch(view, record, now)
        return self._collect(view, record)

    # Joining

    def _open(
        self, view: View, reason: str, *, restart_count: int, policy_state: str = ""
    ) -> tuple[Operation, ...]:
        nodes = [one.node for one in view.here.values()]
        before = view.round
        settled = 0 if before is None else before.previous
        if before is not None and before.phase is not Phase.JOINING:
            settled = before.number
        record = RoundRecord(
            number=max([0 if before is None else before.number, *(node.last_round for node in nodes)]) + 1,
            phase=Phase.JOINING,
            previous=settled,
            reason=reason,
            restart_count=max([restart_count, *(node.last_restart_count for node in nodes)]),
            policy_state=policy_state,
        )
        opened: tuple[Operation, ...] = (Put(self._keys.round, encode(record)), Delete(self._keys.waiting))
        if before := view.round:  # its members are still needed; of the round before it nothing is
            opened += (Delete(self._keys.joined(before.number), is_prefix=True),)
            if before.phase is not Phase.JOINING and before.previous:
                opened += (
                    Delete(self._keys.reports(before.previous), is_prefix=True),
                    Delete(self._keys.members(before.previous)),
                    Delete(self._keys.values(before.previous), is_prefix=True),
                )
        return opened

    def _join(self, view: View, record: RoundRecord, now: float) -> tuple[Operation, ...]:
        if self._is_younger_than_its_nodes(view, record):
            return self._open(
                view, record.reason, restart_count=record.restart_count, policy_state=record.policy_state
            )
        settings = self._settings
        ready = self._ready(view)
        blockers = self._blockers(view)
        enough = len(ready) >= settings.min_nodes
        if not enough:
            self._last_call_at = None
        elif self._last_call_at is None:
            self._last_call_at = now + settings.last_call_s
        is_full = len(ready) >= settings.max_nodes or (enough and self._everyone_expected(view, ready))
        is_due = self._last_call_at is not None and now >= self._last_call_at
        held_until = self._survivors_held_until(view, now)
        if enough and not blockers and now >= held_until and (is_full or is_due):
            return self._settle(view, record, ready)
        gives_up_at = self._began_at + settings.join_timeout_s
        if not enough and now >= gives_up_at:
            who = who_is_here(settings, view, ready, blockers)
            text = self._policy.not_formed(f"{who}, after {settings.join_timeout_s:g} s (join_timeout)")
            return (Put(self._keys.verdict, encode(VerdictRecord(text=text))),)
        self._wake_at(now, gives_up_at if not enough else None, self._last_call_at, held_until)
        return self._tell_joining(view, ready, blockers, now)

    @staticmethod
    def _is_younger_than_its_nodes(view: View, record: RoundRecord) -> bool:
        """Survivors of a store that lost its data registered after the round was opened: theirs was later."""
        latest = max((one.node.last_round for one in view.here.values()), default=0)
        return latest > record.number or (latest == record.number and not record.previous)

    def _ready(self, view: View) -> dict[str, Candidate]:
        old_ranks = {(one.node_id, one.registration): place for place, one in enumerate(view.members)}
        latest_ran = max((one.node.last_ran for one in view.here.values()), default=0)
        ready = {}
        for node_id, joined in view.joined.items():
            here = view.here.get(node_id)
            if here is None or here.registration != joined.registration or here.node.is_leaving:
                continue
            previous = old_ranks.get((node_id, here.registration))
            if previous is None and not view.members and here.node.last_ran == latest_ran > 0:
                previous = here.node.last_group_rank
            ready[node_id] = Candidate(node_id, here.registration, here.node, previous)
        return ready

    def _blockers(self, view: View) -> list[str]:
        """Nodes that hold a lease and may still have workers of an earlier round: nobody starts beside them."""
        old = {(one.node_id, one.registration) for one in view.members}
        return [
            node_id
            for node_id, here in view.here.items()
            if (here.node.is_busy or (node_id, here.registration) in old)
            and (node_id not in view.joined or view.joined[node_id].registration != here.registration)
        ]

    def _everyone_expected(self, view: View, ready: Mapping[str, Candidate]) -> bool:
        """In a later round: all who could come are here. A first round waits for its last call, or for ``max``."""
        if not view.members and not self._survivors_are_complete(view):
            return False
        return all(node_id in ready for node_id, here in view.here.items() if not here.node.is_leaving)

    def _survivors_held_until(self, view: View, now: float) -> float:
        """After the store lost its data, workers on nodes that have not come back may live as long as their fence.

        All of the last members back: nobody needs to wait. Else a lease's time from when the first of them came.
        """
        if view.members or not any(one.node.last_round for one in view.here.values()):
            self._survivors_since = None
            return now
        if self._survivors_since is None:
            self._survivors_since = now
        return now if self._survivors_are_complete(view) else self._survivors_since + self._settings.ttl_s

    @staticmethod
    def _survivors_are_complete(view: View) -> bool:
        """All members of the last round that ran are back, and nobody has seen a later one begin."""
        nodes = [one.node for one in view.here.values()]
        ran = max((node.last_ran for node in nodes), default=0)
        if not ran or any(node.last_round > ran for node in nodes):
            return False
        back = [node for node in nodes if node.last_ran == ran]
        size = max(node.last_group_world_size for node in back)
        return len(back) >= size and set(range(size)) <= {node.last_group_rank for node in back}

    def _settle(
        self, view: View, record: RoundRecord, ready: Mapping[str, Candidate]
    ) -> tuple[Operation, ...]:
        settings = self._settings
        members = choose(ready.values(), settings.max_nodes, is_static=settings.is_static)
        first = members[0]
        address = settings.master_addr or _address_for_all([ready[one.node_id].node for one in members])
        if not address:
            reason = (
                f"{first.host} was reached at {ready[first.node_id].node.address}, which other machines cannot use; "
                "start it with --local-addr and an address that they can reach"
            )
            return (Put(self._keys.verdict, encode(VerdictRecord(text=self._policy.not_formed(reason)))),)
        settled = _changed(
            record,
            phase=Phase.SETTLED,
            master_addr=address,
            master_port=settings.master_port or view.joined[first.node_id].port,
        )
        return (
            Put(self._keys.members(record.number), encode(Members(members=members))),
            Put(self._keys.round, encode(settled)),
            Delete(self._keys.waiting),
        )

    # Settled

    def _watch(self, view: View, record: RoundRecord, now: float) -> tuple[Operation, ...]:
        outcomes = {one.node_id: view.reports.get(one.node_id) for one in view.members}
        done = {
            node_id
            for node_id, one in outcomes.items()
            if one is not None and one.outcome is Outcome.SUCCEEDED
        }
        if len(done) == len(view.members):
            return (Put(self._keys.verdict, encode(VerdictRecord(text=self._policy.succeeded()))),)
        unfinished = [one for one in view.members if one.node_id not in done]
        for told, what in (
            (failed := [one for one in unfinished if view.has_failed(one)], "a worker failed on {}"),
            ([one for one in unfinished if view.is_lost(one)], "node {} was lost"),
            ([one for one in unfinished if view.is_leaving(one)], "node {} leaves"),
            ([one for one in unfinished if outcomes[one.node_id] is not None], "node {} stopped its workers"),
        ):
            if told:
                return self._start_collecting(record, what.format(names_of(told)), is_failure=bool(failed))
        # The same number is no sign of that: a spare, or who has succeeded, may have lost its lease in this very round.
        if any(one.node.last_round > record.number for one in view.here.values()):
            return self._start_collecting(record, "a node came back that has seen later rounds of this job")
        if done and self._done_since is None:
            self._done_since = now
            self._line.begin(now)
        if done and self._settings.straggler_s is not None:
            assert self._done_since is not None, "set above"
            overdue_at = self._done_since + self._settings.straggler_s
            if now >= overdue_at:
                reason = f"still running on {names_of(unfinished)} long after others had ended"
                return self._start_collecting(record, reason, has_stragglers=True)
            self._wake_at(now, overdue_at)
        if done:  # newcomers park: the job is about to end
            still = f"workers still run on {names_of(unfinished)}"
            return self._tell_waiting(
                f"{len(done)} of {len(view.members)} nodes have succeeded; {still}", "", now
            )
        return self._grow(view, record, now)

    def _grow(self, view: View, record: RoundRecord, now: float) -> tuple[Operation, ...]:
        old = {(one.node_id, one.registration) for one in view.members}
        new = [
            here.node.host
            for node_id, here in view.here.items()
            if (node_id, here.registration) not in old and not here.node.is_leaving
        ]
        has_room = len(view.members) < self._settings.max_nodes
        if not (new and has_room) or self._settings.growth is Growth.NEVER:
            self._newcomers_since = None
            return ()
        if self._newcomers_since is None:
            self._newcomers_since = (now, view.checkpoints)
        since, checkpoints = self._newcomers_since
        window_ends_at = since + self._settings.last_call_s
        is_full = len(view.members) + len(new) >= self._settings.max_nodes
        if now < window_ends_at and not is_full:
            self._wake_at(now, window_ends_at)
            return ()
        if self._settings.growth is Growth.AT_CHECKPOINT and view.checkpoints == checkpoints:
            return ()
        many = f"{len(new)} nodes joined" if len(new) > 1 else "a node joined"
        return self._start_collecting(record, f"{many}: {listed(new)}")

    def _start_collecting(
        self, record: RoundRecord, reason: str, *, is_failure: bool = False, has_stragglers: bool = False
    ) -> tuple[Operation, ...]:
        collecting = _changed(
            record,
            phase=Phase.COLLECTING,
            reason=reason,
            is_failure=is_failure or has_stragglers,
            has_stragglers=has_stragglers,
        )
        return (Put(self._keys.round, encode(collecting)),)

    # Collecting

    def _collect(self, view: View, record: RoundRecord) -> tuple[Operation, ...]:
        reports = []
        first_rank = 0
        for place, member in enumerate(view.members):
            report = view.reports.get(member.node_id)
            is_lost, is_leaving = view.is_lost(member), view.is_leaving(member)
            leaves_in_peace = is_leaving and not view.has_failed(member)
            if report is None and not is_lost and not leaves_in_peace:
                return ()  # it will report, or lose its lease
            reports.append(
                MemberReport(
                    member=member,
                    group_rank=place,
                    first_rank=first_rank,
                    report=report,
                    signed_at=view.signs.get(member.node_id),
                    is_lost=is_lost and report is None,
                    is_leaving=is_leaving,
                )
            )
            first_rank += member.slots
        has_failed = any(one.report is not None and one.report.outcome is Outcome.FAILED for one in reports)
        if has_failed:
            decision = self._policy.decide(
                RoundReports(round=record, world_size=first_rank, members=tuple(reports))
            )
            if isinstance(decision, EndJob):
                return (Put(self._keys.verdict, encode(VerdictRecord(text=decision.text))),)
        elif all(one.report is not None and one.report.outcome is Outcome.SUCCEEDED for one in reports):
            return (Put(self._keys.verdict, encode(VerdictRecord(text=self._policy.succeeded()))),)
        elif self._settings.is_static and any(
            view.is_lost(one) or view.is_leaving(one) for one in view.members
        ):
            text = self._policy.not_formed(f"{record.reason}; in a static job nobody takes a node's place")
            return (Put(self._keys.verdict, encode(VerdictRecord(text=text))),)
        else:
            lost = [one.member for one in reports if one.is_lost]
            decision = NextRound(
                restart_count=record.restart_count,
                policy_state=record.policy_state,
                reason=f"node {names_of(lost)} was lost" if lost else record.reason,
            )
        return self._open(
            view,
            decision.reason,
            restart_count=decision.restart_count,
            policy_state=decision.policy_state,
        )

    # For people

    def _tell_joining(
        self, view: View, ready: Mapping[str, Candidate], blockers: list[str], now: float
    ) -> tuple[Operation, ...]:
        text = who_is_here(self._settings, view, ready, blockers)
        gives_up_at = self._began_at + self._settings.join_timeout_s
        if self._last_call_at is None:
            return self._tell_waiting(text, f"; gives up in {max(0.0, gives_up_at - now):.0f} s", now)
        return self._tell_waiting(text, f"; starts in {max(0.0, self._last_call_at - now):.0f} s", now)

    def _tell_waiting(self, text: str, when: str, now: float) -> tuple[Operation, ...]:
        due_at = self._line.due_at(text)
        if due_at is None or now < due_at:
            self._wake_at(now, due_at)
            return ()
        self._line.tell(text, now)
        return (Put(self._keys.waiting, encode(Waiting(text=text + when))),)

    def _wake_at(self, now: float, *times: float | None) -> None:
        """What has passed already waits for news, not for time."""
        for at in times:
            if at is not None and at > now and (self.deadline is None or at < self.deadline):
                self.deadline = at


def _address_for_all(nodes: list[NodeRecord]) -> str:
    """Where all of the nodes reach the first: a loopback address is one only where they share one machine."""
    first = nodes[0]
    is_loopback = first.address in ("::1", "localhost") or first.address.startswith("127.")
    if (
        not is_loopback
        or all(node.boot_id and node.boot_id == first.boot_id for node in nodes)
        or len(nodes) == 1
    ):
        return first.address
    return first.outside_address


def _changed(record: RoundRecord, **changes: Any) -> RoundRecord:
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return RoundRecord(**{**fields, **changes})
