"""The job as the store has it, as far as this agent has heard: keys decoded as they change. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.records import Struct
from phalanx.rendezvous.keys import SINGLE, JobKeys
from phalanx.rendezvous.stored import (
    Answer,
    AskRecord,
    AskReport,
    BadRecord,
    Joined,
    Member,
    NodeRecord,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    SignalRecord,
    VerdictRecord,
    Waiting,
    decode,
)
from phalanx.store.port import Batch, Change, KeyValue

__all__ = ["Here", "JobView", "Nodes", "RoundTimes", "View"]


class Here(Struct):
    """A node that holds its lease."""

    registration: int
    node: NodeRecord


class RoundTimes:
    """When this agent saw the current round open, settle and end. By its own clock, which is compared with no other:
    who takes over as leader has seen the same.
    """

    def __init__(self) -> None:
        self._number = 0
        self.opened_at = 0.0
        self._settled_at: float | None = None
        self._ended_at: float | None = None
        self._restarts = (0, "")

    def see(self, record: RoundRecord | None, now: float) -> None:
        """The round as it is now."""
        if record is None:
            return
        if record.number != self._number:
            self._number, self.opened_at = record.number, now
            self._settled_at = self._ended_at = None
        elif (record.restart_count, record.policy_state) != self._restarts:  # by a single restart
            self.opened_at = self._settled_at = now
        self._restarts = (record.restart_count, record.policy_state)
        if record.phase is Phase.SETTLED and self._settled_at is None:
            self._settled_at = now
        if record.phase is Phase.COLLECTING and self._ended_at is None:
            self._ended_at = now

    def open_s(self, now: float) -> float:
        """For how long it has been open."""
        return now - self.opened_at

    def ran_s(self, now: float) -> float:
        """For how long it ran."""
        if self._settled_at is None:
            return 0.0
        return (now if self._ended_at is None else self._ended_at) - self._settled_at


class View(Struct, kw_only=True):
    """The job as the store has it, as far as this leader has heard."""

    round: RoundRecord | None
    here: Mapping[str, Here]
    joined: Mapping[str, Joined]
    """Of the current round."""
    reports: Mapping[str, Report]
    """Of the current round: outcomes by node."""
    signs: Mapping[str, int]
    """Of the current round: node → revision of its first sign."""
    failing: frozenset[str]
    """Of the current round: nodes that have seen a worker fail and are ending the others."""
    members: tuple[Member, ...]
    """Of the current round when it has settled, else of the one before."""
    checkpoints: int = 0
    """How many checkpoints members have reported."""
    open_s: float = 0.0
    """For how long the current round has been open, and for how long it has run; since the last restart in it."""
    ran_s: float = 0.0
    questions: Mapping[str, Mapping[int, Report]] = {}
    """Of the current round: for single restarts, by node and sequence."""
    answers: Mapping[str, Answer] = {}
    """The last answer to each node."""
    asks: Mapping[tuple[str, str], AskRecord] = {}
    """What is asked of all nodes, by kind and by who asks."""
    saved: Mapping[str, frozenset[str]] = {}
    """Of the current round: the asks for which each node has saved stacks."""
    straggling: frozenset[str] = frozenset()
    """Of the current round: nodes with workers that still ran long after others of the same node had ended."""

    def excluded(self, min_nodes: int) -> frozenset[str]:
        """Nodes that are not to be used: those that ask for it, but for as many as the job cannot do without."""
        asking = [node_id for node_id, one in self.here.items() if one.node.excluded]
        if not asking:
            return frozenset()
        others = sum(not (one.node.excluded or one.node.is_leaving) for one in self.here.values())
        places = {member.node_id: place for place, member in enumerate(self.members)}
        last = len(places)
        asking.sort(
            key=lambda node_id: (
                self.here[node_id].node.is_leaving,  # nobody can keep it
                places.get(node_id, last),
                self.here[node_id].registration,
            )
        )
        return frozenset(asking[max(0, min_nodes - others) :])

    def is_lost(self, member: Member) -> bool:
        """Its lease is gone, or it has registered anew: this life of the node is over."""
        here = self.here.get(member.node_id)
        return here is None or here.registration != member.registration

    def is_leaving(self, member: Member) -> bool:
        """It is present and has said that it goes."""
        return not self.is_lost(member) and self.here[member.node_id].node.is_leaving

    def has_failed(self, member: Member) -> bool:
        """A worker failed there, whether or not the others of that node have ended."""
        report = self.reports.get(member.node_id)
        return member.node_id in self.failing or (report is not None and report.outcome is Outcome.FAILED)


class JobView:
    """The keys under ``job/``, which every agent watches. ``refused``: sentences about keys that hold nonsense."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self.is_listed = False
        self.revision = 0
        self.leader: KeyValue | None = None
        self.round: RoundRecord | None = None
        self.round_revision = 0
        """The revision of the last change of ``round``; 0: there is none."""
        self.verdict: VerdictRecord | None = None
        self.waiting: Waiting | None = None
        self.answers: dict[str, Answer] = {}
        self.asks: dict[tuple[str, str], AskRecord] = {}
        """By kind and who asks; ``asked_at``: the revisions."""
        self.asked_at: dict[tuple[str, str], int] = {}
        self.signals: dict[int, tuple[int, str]] = {}
        """Number → the revision of the last one, and which node was sent it."""
        self.broken = ""
        """Why this job cannot be understood any more; empty: it can."""
        self.refused: list[str] = []
        self._signals: list[tuple[int, str]] = []  # since they were taken last
        self._told_waiting = ""

    @property
    def is_used(self) -> bool:
        """Whether any round of this job has settled, or it was ended before that, as far as this store knows."""
        record = self.round
        has_run = record is not None and (record.number > 1 or record.phase is not Phase.JOINING)
        return has_run or self.verdict is not None

    def new_signals(self, own: str) -> list[tuple[int, str]]:
        """The signals that other agents than ``own`` were sent, by number and agent; each is told once."""
        new = [one for one in self._signals if one[1] != own]
        self._signals.clear()
        return new

    def new_waiting(self) -> str:
        """What is waited for, once for each text; empty: nothing new."""
        text = "" if self.waiting is None else self.waiting.text
        is_new = bool(text) and text != self._told_waiting
        self._told_waiting = text or self._told_waiting
        return text if is_new else ""

    def listed(self, revision: int, items: Iterable[KeyValue]) -> None:
        """All keys, as of one revision: the first thing that a new view is told."""
        self.is_listed = True
        for kv in items:
            self._put(kv)
        self.revision = revision
        self._signals.clear()  # those are of the past

    def changed(self, batch: Batch) -> None:
        """Some of them."""
        for change in batch.changes:
            if change.is_delete:
                self._delete(change.kv.key)
            else:
                self._put(change.kv)
        self.revision = batch.revision

    def take_refused(self) -> list[str]:
        """What was refused since this was asked last."""
        taken, self.refused = self.refused, []
        return taken

    def _put(self, kv: KeyValue) -> None:
        try:
            if kv.key == self._keys.leader:
                self.leader = kv
            elif kv.key == self._keys.round:
                self.round, self.round_revision = decode(RoundRecord, kv.value), kv.mod_revision
            elif kv.key == self._keys.verdict:
                self.verdict = decode(VerdictRecord, kv.value)
            elif kv.key == self._keys.waiting:
                self.waiting = decode(Waiting, kv.value)
            elif kv.key.startswith(self._keys.all_answers):
                self.answers[kv.key.removeprefix(self._keys.all_answers)] = decode(Answer, kv.value)
            elif kv.key.startswith(self._keys.asks):
                self.asks[self._ask(kv.key)] = decode(AskRecord, kv.value)
                self.asked_at[self._ask(kv.key)] = kv.mod_revision
            elif kv.key.startswith(self._keys.signals):
                number = kv.key.removeprefix(self._keys.signals)
                node_id = decode(SignalRecord, kv.value).node_id
                if _is_number(number):
                    self._signals.append((int(number), node_id))
                    self.signals[int(number)] = (kv.mod_revision, node_id)
        except BadRecord as reason:
            self.refused.append(str(reason))
            if kv.key in (self._keys.round, self._keys.verdict):  # nobody can go on without these
                self.broken = (
                    f"{kv.key} cannot be read, so nobody knows what the job's nodes agreed on: {reason}"
                )

    def _delete(self, key: str) -> None:
        if key == self._keys.leader:
            self.leader = None
        elif key == self._keys.round:
            self.round, self.round_revision = None, 0
        elif key == self._keys.waiting:
            self.waiting = None
        elif key.startswith(self._keys.all_answers):
            self.answers.pop(key.removeprefix(self._keys.all_answers), None)
        elif key.startswith(self._keys.asks):
            self.asks.pop(self._ask(key), None)
            self.asked_at.pop(self._ask(key), None)

    def _ask(self, key: str) -> tuple[str, str]:
        """Kind, and who asks."""
        kind, _, who = key.removeprefix(self._keys.asks).partition("/")
        return kind, who


class Nodes:
    """The keys under ``nodes/``, kept decoded. ``refused`` collects sentences about keys that hold nonsense."""

    def __init__(self, keys: JobKeys, *, is_leased: bool = False) -> None:
        self._keys = keys
        self._is_leased = is_leased
        self.here: dict[str, Here] = {}
        self.refused: list[str] = []
        self._joined: dict[int, dict[str, Joined]] = {}
        self._outcomes: dict[int, dict[str, Report]] = {}
        self._signs: dict[int, dict[str, int]] = {}
        self._failing: dict[int, set[str]] = {}
        self._straggling: dict[int, set[str]] = {}
        self._questions: dict[int, dict[str, dict[int, Report]]] = {}
        self._saved: dict[int, dict[str, frozenset[str]]] = {}
        self._checkpoints = 0

    def view(
        self,
        record: RoundRecord | None,
        members: tuple[Member, ...],
        *,
        open_s: float = 0.0,
        ran_s: float = 0.0,
        answers: Mapping[str, Answer] | None = None,
        asks: Mapping[tuple[str, str], AskRecord] | None = None,
    ) -> View:
        """What the leader decides on. ``members``: of the current round when it has settled, else of the one before."""
        number = 0 if record is None else record.number
        return View(
            round=record,
            here=self.here,
            joined=self._joined.get(number, {}),
            reports=self._outcomes.get(number, {}),
            signs=self._signs.get(number, {}),
            failing=frozenset(self._failing.get(number, ())),
            straggling=frozenset(self._straggling.get(number, ())),
            members=members,
            checkpoints=self._checkpoints,
            open_s=open_s,
            ran_s=ran_s,
            questions=self._questions.get(number, {}),
            answers={} if answers is None else answers,
            asks={} if asks is None else asks,
            saved=self._saved.get(number, {}),
        )

    def put(self, items: Iterable[KeyValue]) -> None:
        """Keys that are there."""
        for kv in items:
            try:
                self._put(kv)
            except BadRecord as reason:
                self.refused.append(str(reason))

    def change(self, changes: Iterable[Change]) -> None:
        """Keys that were written or deleted."""
        for change in changes:
            if change.is_delete:
                self._delete(change.kv.key)
            else:
                self.put((change.kv,))

    def _put(self, kv: KeyValue) -> None:
        kind, number, node_id, what = self._parts(kv.key)
        if kind == "here" and self._is_leased and not kv.lease:
            raise BadRecord(f"{kv.key} has no lease: whoever it is would be here for ever")
        if kind == "here":
            self.here[node_id] = Here(kv.create_revision, decode(NodeRecord, kv.value))
        elif kind == "joined":
            self._joined.setdefault(number, {})[node_id] = decode(Joined, kv.value)
        elif what == "outcome":
            self._outcomes.setdefault(number, {})[node_id] = decode(Report, kv.value)
        elif what == "first_sign":
            self._sign(number, node_id, kv.create_revision)
        elif what == "failing":
            self._sign(number, node_id, kv.create_revision)
            self._failing.setdefault(number, set()).add(node_id)
        elif what == "straggling":
            self._sign(number, node_id, kv.create_revision)
            self._straggling.setdefault(number, set()).add(node_id)
        elif what == "checkpoint":
            self._checkpoints += 1
        elif what == "stacks":
            saved = self._saved.setdefault(number, {})
            saved[node_id] = frozenset(decode(AskReport, kv.value).ids.split("\n"))
        elif what.startswith(SINGLE) and _is_number(what.removeprefix(SINGLE)):
            questions = self._questions.setdefault(number, {}).setdefault(node_id, {})
            questions[int(what.removeprefix(SINGLE))] = decode(Report, kv.value)

    def _sign(self, number: int, node_id: str, revision: int) -> None:
        """Keep the earliest, in whatever order they are told: a new leader lists by name."""
        signs = self._signs.setdefault(number, {})
        signs[node_id] = min(revision, signs.get(node_id, revision))

    def _delete(self, key: str) -> None:
        kind, number, node_id, what = self._parts(key)
        if kind == "here":
            self.here.pop(node_id, None)
        elif kind == "joined":
            self._joined.get(number, {}).pop(node_id, None)
        elif what == "outcome":
            self._outcomes.get(number, {}).pop(node_id, None)
        elif what in ("first_sign", "failing", "straggling"):
            self._failing.get(number, set()).discard(node_id)
            self._straggling.get(number, set()).discard(node_id)
            self._signs.get(number, {}).pop(node_id, None)
        elif what.startswith(SINGLE) and _is_number(what.removeprefix(SINGLE)):
            self._questions.get(number, {}).get(node_id, {}).pop(int(what.removeprefix(SINGLE)), None)

    def _parts(self, key: str) -> tuple[str, int, str, str]:
        """(kind, round, node id, what) of a key under ``nodes/``; a key that is none of ours has the kind "".

        ``here/<id>``, ``joined/<round>/<id>``, ``reports/<round>/<id>/<what>``.
        """
        kind, _, rest = key.removeprefix(self._keys.nodes).partition("/")
        if kind == "here":
            return kind, 0, rest, ""
        digits, _, rest = rest.partition("/")
        if not _is_number(digits):
            return "", 0, "", ""
        node_id, _, what = rest.partition("/")
        return kind, int(digits), node_id, what if kind == "reports" else ""


def _is_number(text: str) -> bool:
    """Whether it is a number of ours: no round, and no signal, has more digits."""
    return text.isdecimal() and len(text) <= 18
