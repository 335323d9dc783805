"""This node's part in the job: what it has registered, joined, runs and reports, and what the store asks of it. Pure.

It names the transactions of an ordinary member. Each is guarded by the node's own registration: a life of the node
that the others count as lost writes nothing any more.
"""

from __future__ import annotations

from typing import Any

from phalanx.rendezvous.asks import AskDone, Asks, AskSent
from phalanx.rendezvous.events import (
    BarrierPassed,
    CheckpointDone,
    ConfirmLease,
    EndAsked,
    Fence,
    FirstSignSeen,
    HoldPort,
    KeyRead,
    LeaveAsked,
    PortHeld,
    Read,
    ReleasePort,
    RoundFormed,
    SignalSent,
    SingleFailed,
    StopRound,
    Told,
    Transacted,
    WorkerFailed,
)
from phalanx.rendezvous.exclusion import Exclusion
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.ranks import round_of
from phalanx.rendezvous.registration import Registration
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.single_restarts import Questions
from phalanx.rendezvous.stop_cause import StopCause, cause_of
from phalanx.rendezvous.stored import (
    BadRecord,
    Joined,
    Members,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    VerdictRecord,
    decode,
    encode,
)
from phalanx.rendezvous.view import JobView
from phalanx.store.port import Compare, Delete, Field, Put

__all__ = ["Part"]

# Purposes of transactions
CAMPAIGN = "campaign"
JOIN = "join"
LEAVE = "leave"
EXCLUDE = "exclude"
CHECKPOINT = "checkpoint"
END = "end"
REPORT = "report "  # and the round and the kind of it: an answer may come when another round runs


class Part:
    """See the module's docstring. ``running`` is the round whose workers may be alive here."""

    def __init__(
        self, settings: MembershipSettings, keys: JobKeys, pending: Pending, here: Registration
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._pending = pending
        self._here = here
        self.is_leaving = False
        self.exclusion = Exclusion(settings)
        self._told_exclusion: str | None = ""  # None: an answer will say, or did not come
        self._has_told_leaving = False
        self._gives_up_leading = False
        self._campaigned_at = 0
        # The round
        self._port: PortHeld | None = None
        self._port_asked = 0
        self._joined = 0
        self._join_tried = 0  # an attempt without an answer may have been written all the same
        self._read = 0  # the round whose members were asked for
        self._mine: Round | None = None  # the round that settled with this node in it, in this life
        self._is_confirmed = False
        self._confirming = 0  # the round for which the lease is being confirmed
        self.running: Round | None = None
        self._running_registration = 0
        self._is_stopping = False
        self._last: Round | None = None
        self._seen: RoundRecord | None = None  # the last round that has settled
        self._latest: RoundRecord | None = None  # or is still being joined: what is charged shows there first
        # What is to be told about the round ``_mine``
        self._reports: dict[str, bytes] = {}
        self._questions = Questions(settings.node_id, self._reports)
        self.asks = Asks(settings, keys, here)
        self._told: set[str] = set()
        self.has_untold = False  # how the last round ended here: its lease ended before that was written
        self._checkpoint: int | None = None
        self.barrier_at: float | None = None
        # What is to be told about the job
        self._verdict: str | None = None
        self._has_told_end = False

    def unregistered(self) -> None:
        """The lease is over, and all that was written under it."""
        self.has_untold |= "outcome" in self._reports and "outcome" not in self._told
        self._here.remember(self._seen, self._latest, self._last)
        self._here.ended()
        self._told_exclusion = self._here.excluded = self.exclusion.reason
        self._has_told_leaving = self._has_told_end = False
        self._campaigned_at = 0
        self._joined = self._join_tried = self._read = self._confirming = 0
        self._mine = None
        self._is_confirmed = False
        self._reports.clear()
        self._told.clear()
        self.barrier_at = None

    # Leading

    def is_leading(self, job: JobView) -> bool:
        """Whether the leader's key is this life's."""
        leader = job.leader
        return leader is not None and leader.lease == self._here.lease and leader.value == self._here.name

    def campaign(self, job: JobView) -> list[Any]:
        """Become leader if nobody is."""
        if job.leader is not None or self.is_leaving or job.revision < self._campaigned_at:
            return []
        absent = Compare(self._keys.leader, Field.CREATE_REVISION, 0)
        return self._here.attempt(
            CAMPAIGN, (absent,), (Put(self._keys.leader, self._here.name, self._here.lease),)
        )

    # The round

    def follow(self, job: JobView) -> list[Any]:
        """What the current round asks of this node."""
        record = job.round
        if record is None:
            return []
        if record.phase is not Phase.JOINING:
            self._seen = record
        self._latest = record
        if self.running is not None and (
            record.number != self.running.number or record.phase is not Phase.SETTLED
        ):
            is_overdue = record.has_stragglers and record.number == self.running.number
            return self.stop(record.reason, cause_of(record), are_stragglers=is_overdue)
        if record.phase is Phase.JOINING:
            return self._join(job, record)
        is_curious = self._join_tried == record.number or record.phase is Phase.SETTLED
        if is_curious and self.running is None and self._read != record.number:
            self._read = record.number
            return [Read(self._keys.members(record.number))]
        if not self._is_idle_member(record):
            return []
        if record.phase is Phase.SETTLED and self._confirming != record.number:
            self._confirming = record.number
            return [ConfirmLease(record.number)]
        if record.phase is Phase.COLLECTING:
            # It was over before our workers began.
            self._is_confirmed = True
            self.report("outcome", encode(Report(outcome=Outcome.STOPPED)))
            return self.tell(job)
        return []

    def _is_idle_member(self, record: RoundRecord) -> bool:
        is_mine = self._mine is not None and self._mine.number == record.number
        return is_mine and not self._is_confirmed and self.running is None

    def _join(self, job: JobView, record: RoundRecord) -> list[Any]:
        if self.running is not None or self.is_leaving or self._joined == record.number:
            return []
        if self._port is None or self._port.number != record.number:
            if self._port_asked == record.number:
                return []
            self._port_asked = record.number
            wait = f"{record.reason}; round {record.number} waits {record.delay_s:.1f} s before it starts"
            return [HoldPort(record.number), *([Told(wait)] if record.delay_s else [])]
        key = self._keys.joined(record.number, self._settings.node_id)
        still = Compare(self._keys.round, Field.MOD_REVISION, job.round_revision)
        value = encode(Joined(registration=self._here.revision, port=self._port.port))
        sent = self._here.attempt(JOIN, (still,), (Put(key, value, self._here.lease),))
        if sent:
            self._join_tried = record.number
        return list(sent)

    def read(self, event: KeyRead, job: JobView) -> list[Any]:
        """Who is in the round."""
        record = job.round
        if record is None or event.key != self._keys.members(record.number) or self._read != record.number:
            return []
        if record.phase is Phase.JOINING or (self._mine is not None and self._mine.number == record.number):
            return []
        members: tuple[Any, ...] = ()
        if event.kv is not None:
            try:
                members = decode(Members, event.kv.value).members
            except BadRecord as reason:
                return [Told(f"round {record.number} cannot be read: {reason}")]
        settled = round_of(record, members, self._settings.node_id, self._here.revision)
        if settled is None:
            nodes = f"{len(members)} node{'s' if len(members) != 1 else ''}"
            spare = f"round {record.number} has its {nodes}; this one waits for another round"
            return [ReleasePort(), *([Told(spare)] if record.phase is Phase.SETTLED else [])]
        self._mine, self._is_confirmed = settled, False
        self._reports.clear()
        self._told.clear()
        self.barrier_at = None
        return self.follow(job)

    def not_confirmed(self) -> None:
        """An answer came too late to show anything: the lease is to be confirmed anew."""
        self._confirming = 0

    def lease_confirmed(self, number: int, job: JobView, fenced_at: float | None) -> list[Any]:
        """The lease was alive after the round was seen settled: start, if it still is."""
        record = job.round
        if record is None or record.number != number or record.phase is not Phase.SETTLED:
            return []
        if self._mine is None or self._mine.number != number or self._is_confirmed:
            return []
        self._is_confirmed = True
        self.has_untold = False
        self.running = self._last = self._mine
        self._running_registration = self._here.revision
        self._is_stopping = False
        return [Fence(fenced_at), RoundFormed(self._mine)]

    def fence(self, fenced_at: float | None) -> list[Any]:
        """After a renewal. Workers of an earlier life are not this lease's: their fence stays where it is."""
        if self.running is None or self._running_registration != self._here.revision or fenced_at is None:
            return []
        return [Fence(fenced_at)]

    def stop(
        self,
        reason: str,
        cause: StopCause,
        *,
        grace_s: float | None = None,
        are_stragglers: bool = False,
        is_own: bool = False,
    ) -> list[Any]:
        """Stop the workers, if there are any and they were not told; with a grace of its own also if they were."""
        if self.running is None or (self._is_stopping and grace_s is None):
            return []
        self._is_stopping = True
        self._questions.drop()
        return [StopRound(reason, grace_s, are_stragglers, is_own, cause)]

    def workers_gone(self, report: Report, now: float) -> list[Any]:
        """Nothing of the running round is left; ``report`` is told if this life of the node is still the same."""
        if self.running is None:
            return []
        self.has_untold = self._running_registration != self._here.revision
        if not self.has_untold:
            self.report("outcome", encode(report))
            if report.outcome is Outcome.SUCCEEDED and self._settings.exit_barrier_s is not None:
                self.barrier_at = now + self._settings.exit_barrier_s
        self.running = None
        return [Fence(None)]

    def barrier(self, now: float) -> list[Any]:
        """Whether this node has waited for the others for as long as it was told to; said once."""
        if self.barrier_at is None or now < self.barrier_at:
            return []
        self.barrier_at = None
        return [BarrierPassed()]

    # Telling

    def note(self, event: object) -> None:
        """Something has happened on this node, which the next comparison with the store takes into account."""
        match event:
            case PortHeld():
                self._port = event
            case FirstSignSeen(text):
                self.report("first_sign", text.encode(errors="replace"))
            case WorkerFailed(is_straggler):
                self.report("straggling" if is_straggler else "failing", b"{}")
            case SingleFailed():
                self._questions.add(event)
            case CheckpointDone(step):
                # Newcomers may be waiting for this moment; nobody else asks.
                if self._mine is not None and self._settings.growth is Growth.AT_CHECKPOINT:
                    self._checkpoint = step
            case SignalSent() | AskSent() | AskDone():
                self.asks.note(event, self.running)
            case LeaveAsked():
                self.is_leaving = True
                self._questions.drop()
            case EndAsked(text):
                self._verdict = text

    def report(self, kind: str, value: bytes) -> None:
        """Something about this node's part in the round it runs, or just ran; the first of a kind counts."""
        if self._mine is not None:
            self._reports.setdefault(kind, value)

    def has_to_tell(self, job: JobView) -> bool:
        """Whether the others should still hear something of this node before it goes."""
        # Its own verdict is heard like any other: where the store is ours, the others are to hear it before we close.
        is_told = self._verdict is None and (not self.is_leaving or self._has_told_leaving)
        return bool(self._open_reports(job)) or not is_told or self._pending.is_under_way()

    def tell(self, job: JobView) -> list[Any]:
        """Reports of the current round, that this node leaves, and that the job is to end."""
        if self.exclusion.reason != self._told_exclusion:
            # First of all: who reads how the round ended must know whom to leave out of the next one.
            if not self._pending.may_send(EXCLUDE):
                return []
            self._here.excluded, self._told_exclusion = self.exclusion.reason, None
            self._here.excluded_in = 0 if self.running is None else self.running.number
            is_busy = self.running is not None
            return list(self._here.rewrite(EXCLUDE, is_leaving=self.is_leaving, is_busy=is_busy))
        commands: list[Any] = self._questions.follow(job, self.running)
        if self._verdict is not None and not self._has_told_end:
            unspoken = Compare(self._keys.verdict, Field.CREATE_REVISION, 0)
            put = Put(self._keys.verdict, encode(VerdictRecord(text=self._verdict)))
            commands += self._here.attempt(END, (unspoken,), (put,))
        for kind in self._open_reports(job):
            assert self._mine is not None
            key = self._keys.report(self._mine.number, self._settings.node_id, kind)
            unsaid = Compare(key, Field.CREATE_REVISION, 0)
            purpose = f"{REPORT}{self._mine.number} {kind}"
            commands += self._here.attempt(purpose, (unsaid,), (Put(key, self._reports[kind]),))
        if self._checkpoint is not None and self._mine is not None:
            key = self._keys.report(self._mine.number, self._settings.node_id, CHECKPOINT)
            commands += self._here.attempt(CHECKPOINT, (), (Put(key, str(self._checkpoint).encode()),))
        commands += self.asks.tell(job, self.running)
        # A campaign that was under way may be won after this was told, and nobody would lead.
        is_elected = self.is_leading(job) and job.revision >= self._campaigned_at
        if self.is_leaving and (not self._has_told_leaving or is_elected):
            here = self._here.put(is_leaving=True, is_busy=self.running is not None)
            leader = (Delete(self._keys.leader),) if is_elected else ()
            if sent := self._here.attempt(LEAVE, (), (here, *leader)):
                self._gives_up_leading = is_elected
                commands += sent
        return commands

    @property
    def has_untold_end(self) -> bool:
        """The job was to end everywhere, and the store does not have it."""
        return self._verdict is not None and not self._has_told_end

    def _open_reports(self, job: JobView) -> list[str]:
        if self._mine is None or job.round is None or job.round.number != self._mine.number:
            return []
        return [kind for kind in self._reports if kind not in self._told]

    def succeeded(self, event: Transacted) -> None:
        """One of the transactions above was applied."""
        if event.purpose == JOIN:
            self._joined = self._join_tried  # the round of today may be another one
        elif event.purpose == LEAVE:
            self._here.was_written(event)
            self._has_told_leaving = True
            if self._gives_up_leading:
                self._campaigned_at = event.revision  # nothing to give up until this was heard
        elif event.purpose == CAMPAIGN:
            self._campaigned_at = event.revision
        elif event.purpose == EXCLUDE:
            self._here.was_written(event)
            self._told_exclusion = self._here.excluded
        elif event.purpose == CHECKPOINT:
            self._checkpoint = None
        elif event.purpose == END:
            self._has_told_end = True
        elif event.purpose.startswith(REPORT):
            self._was_told(event)
        else:
            self.asks.was_told(event.purpose)

    def failed(self, event: Transacted) -> None:
        """A guard failed, and not that of the registration."""
        if event.purpose.startswith(REPORT):  # an attempt that seemed to have failed has written it
            self._was_told(event)
        elif event.purpose == EXCLUDE:
            self._here.was_written(event)
        elif event.purpose == END:  # the job has a verdict already
            self._has_told_end = True

    def _was_told(self, event: Transacted) -> None:
        number, kind = event.purpose.removeprefix(REPORT).split(" ")
        if self._mine is not None and self._mine.number == int(number):
            self._told.add(kind)
