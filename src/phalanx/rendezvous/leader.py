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

from phalanx.records import changed
from phalanx.rendezvous import asks, joining
from phalanx.rendezvous.collecting import member_reports, untold
from phalanx.rendezvous.jitter import jitter
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.policy import EndJob, NextRound, Policy, RoundReports
from phalanx.rendezvous.ranks import Candidate, choose
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.single_restarts import answers
from phalanx.rendezvous.stored import (
    Members,
    Outcome,
    Phase,
    RoundRecord,
    VerdictRecord,
    Waiting,
    encode,
)
from phalanx.rendezvous.view import View
from phalanx.rendezvous.waiting import WaitingLine, listed, names_of, said_of, who_is_here
from phalanx.store.port import Delete, Operation, Put

__all__ = ["Leader"]

LOST = "node {} was lost", "nodes {} were lost"
LEASE_ENDS = ", or for the end of its lease"


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
        self._survivors = joining.Survivors(settings)

    def decide(self, view: View, now: float) -> tuple[Operation, ...]:
        """The writes of one transaction, or nothing. The caller adds the guards."""
        self.deadline = None
        record = view.round
        if record is None:
            return self._open_first(view)
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
            return self._not_formed(reason, record)
        if record.phase is Phase.SETTLED:
            return self._watch(view, record, now)
        return self._collect(view, record, now)

    # Joining

    def _open_first(self, view: View) -> tuple[Operation, ...]:
        """The first round of the job, or of a store that has lost its data: then survivors know what is spent."""
        survivors = [one.node for one in view.here.values() if one.node.last_round]
        if not survivors:
            return self._open(view, NextRound(restart_count=0, policy_state="", reason=""))
        knows_most = max(survivors, key=lambda node: (node.last_restart_count, node.last_round))
        known = NextRound(
            restart_count=knows_most.last_restart_count,
            policy_state=knows_most.last_policy_state,
            reason="the store was lost",
        )
        return self._open(view, known)

    def _open(self, view: View, following: NextRound) -> tuple[Operation, ...]:
        nodes = [one.node for one in view.here.values()]
        before = view.round
        settled = 0 if before is None else before.previous
        if before is not None and before.phase is not Phase.JOINING:
            settled = before.number
        # A store that newcomers began with after its data was lost: whoever comes back knows what is spent.
        knows_most = max(nodes, key=lambda node: node.last_restart_count, default=None)
        if knows_most is not None and knows_most.last_restart_count > following.restart_count:
            restart_count, policy_state = knows_most.last_restart_count, knows_most.last_policy_state
        else:
            restart_count, policy_state = following.restart_count, following.policy_state
        record = RoundRecord(
            number=max([0 if before is None else before.number, *(node.last_round for node in nodes)]) + 1,
            phase=Phase.JOINING,
            previous=settled,
            reason=following.reason,
            restart_count=restart_count,
            policy_state=policy_state,
            delay_s=following.delay_s,
        )
        opened: tuple[Operation, ...] = (
            Put(self._keys.round, encode(record)),
            Delete(self._keys.waiting),
            Delete(self._keys.all_answers, is_prefix=True),
            Delete(self._keys.asks, is_prefix=True),
        )
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
        if joining.is_younger_than_its_nodes(view, record):
            same = NextRound(
                restart_count=record.restart_count,
                policy_state=record.policy_state,
                reason=record.reason,
                delay_s=record.delay_s,
            )
            return self._open(view, same)
        settings = self._settings
        ready = joining.ready(view, settings.min_nodes)
        blockers = joining.blockers(view)
        enough = len(ready) >= settings.min_nodes
        if not enough:
            self._last_call_at = None
        elif self._last_call_at is None:
            self._last_call_at = now + settings.last_call_s
        is_full = len(ready) >= settings.max_nodes or (
            enough and joining.everyone_expected(view, ready, settings.min_nodes)
        )
        is_due = self._last_call_at is not None and now >= self._last_call_at
        opened_at = now - view.open_s
        held_until = max(self._survivors.held_until(view, now), opened_at + record.delay_s)
        if enough and not blockers and now >= held_until and (is_full or is_due):
            return self._settle(view, record, ready)
        gives_up_at = self._began_at + settings.join_timeout_s
        if not enough and now >= gives_up_at:
            who = who_is_here(settings, view, ready, blockers)
            return self._not_formed(f"{who}, after {settings.join_timeout_s:g} s (join_timeout)", record)
        self._wake_at(now, gives_up_at if not enough else None, self._last_call_at, held_until)
        who = who_is_here(settings, view, ready, blockers)
        if not enough:
            return self._tell_waiting(who, f"; gives up in {gives_up_at - now:.0f} s", now)
        assert self._last_call_at is not None, "it began when they were enough"
        starts_at = held_until if is_full else max(self._last_call_at, held_until)
        return self._tell_waiting(who, f"; starts in {max(0.0, starts_at - now):.0f} s", now)

    def _settle(
        self, view: View, record: RoundRecord, ready: Mapping[str, Candidate]
    ) -> tuple[Operation, ...]:
        settings = self._settings
        members = choose(ready.values(), settings.max_nodes, is_static=settings.is_static)
        first = members[0]
        address = settings.master_addr or joining.address_for_all(
            [ready[one.node_id].node for one in members]
        )
        if not address:
            reason = (
                f"{first.host} was reached at {ready[first.node_id].node.address}, which other machines cannot use; "
                "start it with --local-addr and an address that they can reach"
            )
            return self._not_formed(reason, record)
        settled = changed(
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
            return self._verdict(self._policy.succeeded(record))
        unfinished = [one for one in view.members if one.node_id not in done]
        ended = [one for one in unfinished if outcomes[one.node_id] is not None]
        for told, *what in (
            (
                failed := list(filter(view.has_failed, unfinished)),
                "a worker failed on {}",
                "workers failed on {}",
            ),
            (list(filter(view.is_lost, unfinished)), *LOST),
            (list(filter(view.is_leaving, unfinished)), "node {} leaves", "nodes {} leave"),
            (ended, "node {} stopped its workers", "nodes {} stopped their workers"),
        ):
            if told:
                return self._start_collecting(
                    record,
                    said_of(told, view.members, *what),
                    is_failure=bool(failed),
                    is_planned=not failed and view.is_leaving(told[0]),
                )
        excluded = view.excluded(self._settings.min_nodes)
        for one in unfinished:
            node = view.here[one.node_id].node
            if one.node_id in excluded and node.excluded_in == record.number:
                return self._start_collecting(record, f"node {one.host} is excluded: {node.excluded}")
        # The same number is no sign of that: a spare, or who has succeeded, may have lost its lease in this very round.
        if any(one.node.last_round > record.number for one in view.here.values()):
            return self._start_collecting(record, "a node came back that has seen later rounds of this job")
        if written := (
            answers(view, record, self._settings, self._policy, self._keys)
            or asks.answered(view, record, self._keys)
        ):
            return written
        if done and self._done_since is None:
            self._done_since = now
            self._line.begin(now)
        is_late = any(one.node_id in view.straggling for one in unfinished)
        if done and self._settings.straggler_s is not None:
            assert self._done_since is not None, "set above"
            overdue_at = self._done_since + self._settings.straggler_s
            is_late |= now >= overdue_at
            self._wake_at(now, overdue_at)
        if is_late:
            reason = f"still running on {names_of(unfinished, view.members)} long after others had ended"
            return self._start_collecting(record, reason, has_stragglers=True)
        if done:  # newcomers park: the job is about to end
            still = f"workers still run on {names_of(unfinished, view.members)}"
            return self._tell_waiting(
                f"{len(done)} of {len(view.members)} nodes have succeeded; {still}", "", now
            )
        return self._grow(view, record, now)

    def _grow(self, view: View, record: RoundRecord, now: float) -> tuple[Operation, ...]:
        old = {(one.node_id, one.registration) for one in view.members}
        excluded = view.excluded(self._settings.min_nodes)
        new = [
            here.node.host
            for node_id, here in view.here.items()
            if (node_id, here.registration) not in old
            and not here.node.is_leaving
            and node_id not in excluded
        ]
        # Who is in it though it was excluded before, because it was needed, makes room for others like a free place.
        taken = sum(one.node_id not in excluded for one in view.members)
        has_room = taken < self._settings.max_nodes
        if not (new and has_room) or self._settings.growth is Growth.NEVER:
            self._newcomers_since = None
            return ()
        if self._newcomers_since is None:
            self._newcomers_since = (now, view.checkpoints)
        since, checkpoints = self._newcomers_since
        window_ends_at = since + self._settings.last_call_s
        is_full = taken + len(new) >= self._settings.max_nodes
        if now < window_ends_at and not is_full:
            self._wake_at(now, window_ends_at)
            return ()
        many = f"{len(new)} nodes joined" if len(new) > 1 else "a node joined"
        reason = f"{many}: {listed(new)}"
        if self._settings.growth is Growth.AT_CHECKPOINT and view.checkpoints == checkpoints:
            leader = self._settings.node_id
            return asks.checkpoint_wanted(
                view, record, self._keys, reason=reason, leader=leader, counted=checkpoints
            )
        return self._start_collecting(record, reason, is_planned=True)

    def _start_collecting(
        self,
        record: RoundRecord,
        reason: str,
        *,
        is_failure: bool = False,
        is_planned: bool = False,
        has_stragglers: bool = False,
    ) -> tuple[Operation, ...]:
        collecting = changed(
            record,
            phase=Phase.COLLECTING,
            reason=reason,
            is_failure=is_failure or has_stragglers,
            is_planned=is_planned,
            has_stragglers=has_stragglers,
        )
        return (Put(self._keys.round, encode(collecting)),)

    # Collecting

    def _collect(self, view: View, record: RoundRecord, now: float) -> tuple[Operation, ...]:
        if silent := untold(view):
            if written := asks.no_step(view, record, self._keys, self._settings.node_id):
                return written
            ends = "{} to tell how its workers ended", "{} to tell how their workers ended"
            return self._tell_waiting(said_of(silent, view.members, *ends), LEASE_ENDS, now)
        members = member_reports(view, view.excluded(self._settings.min_nodes))
        reports = RoundReports(
            round=record,
            world_size=sum(one.slots for one in view.members),
            members=members,
            open_s=view.open_s,
            ran_s=view.ran_s,
            jitter=jitter(f"{self._settings.node_id} {record.number}"),
        )
        outcomes = {None if one.report is None else one.report.outcome for one in members}
        if Outcome.FAILED in outcomes:
            decision = self._policy.decide(reports)
            return (
                self._verdict(decision.text) if isinstance(decision, EndJob) else self._open(view, decision)
            )
        if outcomes == {Outcome.SUCCEEDED}:
            return self._verdict(self._policy.succeeded(record))
        if self._settings.is_static and any(
            view.is_lost(one) or view.is_leaving(one) for one in view.members
        ):
            return self._not_formed(f"{record.reason}; in a static job nobody takes a node's place", record)
        lost = [one.member for one in members if one.is_lost]
        unharmed = NextRound(
            restart_count=record.restart_count,
            policy_state=self._policy.passed(reports),
            reason=said_of(lost, view.members, *LOST) if lost else record.reason,
        )
        return self._open(view, unharmed)

    def _verdict(self, text: str) -> tuple[Operation, ...]:
        return (Put(self._keys.verdict, encode(VerdictRecord(text=text))),)

    def _not_formed(self, reason: str, record: RoundRecord) -> tuple[Operation, ...]:
        return self._verdict(self._policy.not_formed(reason, record))

    # For people

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
