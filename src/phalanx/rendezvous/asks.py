"""What the nodes of a round say to each other in passing: signals sent to one of them, and what is asked of all. Pure.

An ask is ``job/asks/<kind>/…``, which every agent watches. A node that has done what was asked for reports it under
``nodes/``, to the leader alone; the leader writes into the ask that all have. So the messages of an ask grow linearly
with the nodes, also when all of them ask at once. What is asked in a round is void in the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from phalanx.records import Struct, changed
from phalanx.rendezvous.events import SignalHeard, SignalSent
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.registration import Registration
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import AskRecord, AskReport, RoundRecord, SignalRecord, encode
from phalanx.rendezvous.view import JobView, View
from phalanx.store.port import Compare, Field, Operation, Put

__all__ = [
    "Ask",
    "AskAnswered",
    "AskDone",
    "AskHeard",
    "AskSent",
    "Asks",
    "answered",
    "checkpoint_wanted",
    "no_step",
]

# Purposes of transactions
ASK = "ask "  # and the kind of it
DONE = "done "
SIGNAL = "signal "  # and its number

OF_NODES = "nodes"  # who asks, in the key; the leader's own asks have no name there

REASON_MAX = 200  # characters: it is read by people
DONE_MAX = 64  # asks that a node reports as done: more are not open at a time


class Ask(Enum):
    """What can be asked of all nodes of a round."""

    STACKS = "stacks"
    """Save the stacks of your workers: some will be ended because they hang."""
    CHECKPOINT = "checkpoint"
    """Have your workers save a checkpoint soon: a change of the job's size waits for it."""
    NO_STEP = "no-step"
    """Have your workers, which are being stopped, agree on no step to stop at any more: a member was lost."""


class AskSent(Struct):
    """This node asks; it has begun to do the same itself."""

    what: Ask
    reason: str = ""


class AskDone(Struct):
    """This node has done what ``AskHeard`` named; without an id: what it asks for itself."""

    what: Ask
    id: str


class AskHeard(Struct):
    """Another node asks, or the leader of the job. ``id`` is the same on all nodes, and no other ask has it.

    Of its own ask a node hears only for a checkpoint: workers of all nodes are to know the request by the same id.
    """

    what: Ask
    id: str
    reason: str


class AskAnswered(Struct):
    """All members of the round have done what this node wants, or have ended; it may have been another that asked."""

    what: Ask


class Asks:
    """One node's part in it: what it has to tell, and what it was told.

    When many want the same at the same moment (a scheduler signals every launcher; all ranks hang in one collective),
    the first word in the store is everybody's: each write is guarded by what was there when it was wanted.
    """

    def __init__(self, settings: MembershipSettings, keys: JobKeys, here: Registration) -> None:
        self._node_id = settings.node_id
        self._keys = keys
        self._here = here
        self._signals: dict[int, int | None] = {}  # → the revision at which it was sent to us, once known
        self._number = 0  # of the round that all of the following is about
        self._sequence = 0
        self._wanted: dict[Ask, _Wanted] = {}  # and neither written nor asked by another node
        self._written: dict[Ask, AskRecord] = {}
        self._awaited: dict[Ask, str] = {}  # the ask whose answer is waited for
        self._done: dict[Ask, dict[str, None]] = {}
        self._has_untold: set[Ask] = set()
        self._heard: set[str] = set()

    def note(self, event: SignalSent | AskSent | AskDone, running: Round | None) -> None:
        """Something is to be told. Of an ask, only in a round."""
        self._follow(running)
        if isinstance(event, SignalSent):
            self._signals[event.number] = None
        elif running is None:
            return
        elif isinstance(event, AskDone):
            self._done.setdefault(event.what, {})[event.id or self._own_id(event.what)] = None
            self._has_untold.add(event.what)
        else:
            self._sequence += 1
            record = AskRecord(
                id=f"{self._node_id}.{self._number}.{self._sequence}",
                node_id=self._node_id,
                round=self._number,
                reason=event.reason[:REASON_MAX],
            )
            self._wanted[event.what] = _Wanted(record, None)

    def tell(self, job: JobView, running: Round | None) -> list[Any]:
        """The transactions for what was not written yet."""
        self._follow(running)
        commands: list[Any] = []
        for number in sorted(self._signals):
            commands += self._tell_signal(number, job)
        for what in list(self._wanted):
            commands += self._ask(what, job)
        for what in self._has_untold:
            key = self._keys.report(self._number, self._node_id, what.value)
            ids = list(self._done[what])[-DONE_MAX:]
            commands += self._here.attempt(
                f"{DONE}{what.value} {len(self._done[what])}",
                (),
                (Put(key, encode(AskReport(ids="\n".join(ids)))),),
            )
        return commands

    def was_told(self, purpose: str) -> bool:
        """Whether this was the purpose of one of the transactions above, which was applied."""
        kind, _, what = purpose.partition(" ")
        if kind + " " == SIGNAL:
            self._signals.pop(int(what), None)
        elif kind + " " == ASK:
            self._was_asked(Ask(what))
        elif kind + " " == DONE:
            name, _, count = what.partition(" ")
            if len(self._done.get(Ask(name), ())) == int(count):
                self._has_untold.discard(Ask(name))
        else:
            return False
        return True

    def hear(self, job: JobView, running: Round | None) -> list[Any]:
        """What others say that was not heard before."""
        self._follow(running)
        told: list[Any] = [SignalHeard(number, who) for number, who in job.new_signals(self._node_id)]
        for (kind, _), record in job.asks.items():
            if running is None or record.round != running.number or kind not in _KINDS:
                continue
            what = _KINDS[kind]
            is_news = record.node_id != self._node_id or what is Ask.CHECKPOINT
            if is_news and record.id not in self._heard:
                self._heard.add(record.id)
                told.append(AskHeard(what, record.id, record.reason))
            if record.is_answered and self._awaited.get(what) == record.id:
                del self._awaited[what]
                told.append(AskAnswered(what))
        return told

    def _tell_signal(self, number: int, job: JobView) -> list[Any]:
        since = self._signals[number]
        if since is None:
            since = self._signals[number] = job.revision
        at, who = job.signals.get(number, (0, self._node_id))
        if at > since and who != self._node_id:
            del self._signals[number]  # another agent was sent it, too, and all have it from there
            return []
        put = Put(self._keys.signal(number), encode(SignalRecord(node_id=self._node_id)))
        unchanged = Compare(self._keys.signal(number), Field.MOD_REVISION, at)
        return self._here.attempt(f"{SIGNAL}{number}", (unchanged,), (put,))

    def _ask(self, what: Ask, job: JobView) -> list[Any]:
        wanted = self._wanted[what]
        if wanted.since is None:
            wanted = self._wanted[what] = _Wanted(wanted.record, job.revision)
        place = (what.value, OF_NODES)
        known, at = job.asks.get(place), job.asked_at.get(place, 0)
        is_open = known is not None and known.round == self._number and not known.is_answered
        # Stacks that others are saving now are those that we want; an older wish for a checkpoint may be fulfilled.
        if known is not None and is_open and (what is Ask.STACKS or at > (wanted.since or 0)):
            del self._wanted[what]
            self._awaited[what] = known.id
            return []
        key = self._keys.ask(*place)
        sent = self._here.attempt(
            f"{ASK}{what.value}",
            (Compare(key, Field.MOD_REVISION, at),),
            (Put(key, encode(wanted.record)),),
        )
        if sent:
            self._written[what] = wanted.record
        return list(sent)

    def _was_asked(self, what: Ask) -> None:
        record = self._written.pop(what, None)
        if record is None:
            return  # of a round that is over
        self._awaited[what] = record.id
        if what in self._wanted and self._wanted[what].record == record:  # and not a later wish
            del self._wanted[what]

    def _own_id(self, what: Ask) -> str:
        if what in self._wanted:
            return self._wanted[what].record.id
        return self._awaited.get(what, "")

    def _follow(self, running: Round | None) -> None:
        number = 0 if running is None else running.number
        if number != self._number:
            self._number = number
            for kept in (self._wanted, self._written, self._awaited, self._done):
                kept.clear()
            self._has_untold.clear()
            self._heard.clear()


class _Wanted(Struct):
    record: AskRecord
    since: int | None
    """The store's revision when it was wanted; None: not known yet."""


_KINDS: Mapping[str, Ask] = {one.value: one for one in Ask}


def answered(view: View, record: RoundRecord, keys: JobKeys) -> tuple[Operation, ...]:
    """What the leader writes when all have saved their stacks; who has ended, or is lost, is not waited for."""
    for (kind, who), ask in view.asks.items():
        if kind != Ask.STACKS.value or ask.round != record.number or ask.is_answered:
            continue
        missing = [
            one
            for one in view.members
            if one.node_id not in view.reports
            and not view.is_lost(one)
            and ask.id not in view.saved.get(one.node_id, ())
        ]
        if not missing:
            return (Put(keys.ask(kind, who), encode(changed(ask, is_answered=True))),)
    return ()


def checkpoint_wanted(
    view: View, record: RoundRecord, keys: JobKeys, *, reason: str, leader: str, counted: int
) -> tuple[Operation, ...]:
    """What the leader writes to have the workers save, unless it did; ``counted`` checkpoints are too old."""
    # Another leader has counted others: it asks again, and one checkpoint more does no harm.
    identity = f"{leader}.{record.number}.{counted}"
    known = view.asks.get((Ask.CHECKPOINT.value, ""))
    if known is not None and known.id == identity:
        return ()
    ask = AskRecord(id=identity, node_id="", round=record.number, reason=reason[:REASON_MAX])
    return (Put(keys.ask(Ask.CHECKPOINT.value, ""), encode(ask)),)


def no_step(view: View, record: RoundRecord, keys: JobKeys, leader: str) -> tuple[Operation, ...]:
    """What the leader writes when a member is lost while others stop as planned, unless somebody did.

    The record of the round says why it ends, and stays. But workers that have time would wait for the lost ones.
    """
    is_late = any(view.is_lost(one) and one.node_id not in view.reports for one in view.members)
    known = view.asks.get((Ask.NO_STEP.value, ""))
    if not (record.is_planned and is_late) or (known is not None and known.round == record.number):
        return ()
    ask = AskRecord(id=f"{leader}.{record.number}.lost", node_id="", round=record.number, reason="")
    return (Put(keys.ask(Ask.NO_STEP.value, ""), encode(ask)),)
