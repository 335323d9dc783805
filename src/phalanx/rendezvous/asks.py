"""What the nodes of a round say to each other in passing: signals sent to one of them, and what is asked of all. Pure.

An ask is ``job/asks/<kind>/<who asks>``, which every agent watches. A node that has done what was asked for reports it
under ``nodes/``, to the leader alone; the leader writes into the ask that all have. So the messages of an ask grow
linearly with the nodes. What is asked in a round is void in the next one.
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
from phalanx.rendezvous.stored import AskRecord, RoundRecord, SignalRecord, encode
from phalanx.rendezvous.view import JobView, View
from phalanx.store.port import Operation, Put

__all__ = ["Ask", "AskAnswered", "AskDone", "AskHeard", "AskSent", "Asks", "answered", "checkpoint_wanted"]

# Purposes of transactions
ASK = "ask "  # and the kind of it
DONE = "done "
SIGNAL = "signal "  # and its number

REASON_MAX = 200  # characters: it is read by people


class Ask(Enum):
    """What can be asked of all nodes of a round."""

    STACKS = "stacks"
    """Save the stacks of your workers: some will be ended because they hang."""
    CHECKPOINT = "checkpoint"
    """Have your workers save a checkpoint soon: a change of the job's size waits for it."""


class AskSent(Struct):
    """This node asks; it has begun to do the same itself."""

    what: Ask
    reason: str = ""


class AskDone(Struct):
    """This node has done what ``AskHeard`` named."""

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
    """All members of the round have done what this node asked for, or have ended."""

    what: Ask


class Asks:
    """One node's part in it: what it has to tell, and what it was told."""

    def __init__(self, settings: MembershipSettings, keys: JobKeys, here: Registration) -> None:
        self._node_id = settings.node_id
        self._keys = keys
        self._here = here
        self._signals: set[int] = set()
        self._number = 0  # of the round that all of the following is about
        self._sequence = 0
        self._asked: dict[Ask, AskRecord] = {}  # and not written yet
        self._done: dict[Ask, str] = {}
        self._heard: set[str] = set()
        self._answered: set[str] = set()

    def note(self, event: SignalSent | AskSent | AskDone, running: Round | None) -> None:
        """Something is to be told. Of an ask, only in a round."""
        self._follow(running)
        if isinstance(event, SignalSent):
            self._signals.add(event.number)
        elif running is None:
            return
        elif isinstance(event, AskDone):
            self._done[event.what] = event.id
        else:
            self._sequence += 1
            self._asked[event.what] = AskRecord(
                id=f"{self._node_id}.{self._number}.{self._sequence}",
                node_id=self._node_id,
                round=self._number,
                reason=event.reason[:REASON_MAX],
            )

    def tell(self, running: Round | None) -> list[Any]:
        """The transactions for what was not written yet."""
        self._follow(running)
        commands: list[Any] = []
        for number in sorted(self._signals):
            put = Put(f"{self._keys.signals}{number}", encode(SignalRecord(node_id=self._node_id)))
            commands += self._here.attempt(f"{SIGNAL}{number}", (), (put,))
        for what, record in self._asked.items():
            put = Put(self._keys.ask(what.value, self._node_id), encode(record))
            commands += self._here.attempt(f"{ASK}{what.value}", (), (put,))
        for what, identity in self._done.items():
            key = self._keys.report(self._number, self._node_id, what.value)
            commands += self._here.attempt(f"{DONE}{what.value}", (), (Put(key, identity.encode()),))
        return commands

    def was_told(self, purpose: str) -> bool:
        """Whether this was the purpose of one of the transactions above, which was applied."""
        kind, _, what = purpose.partition(" ")
        if kind + " " == SIGNAL:
            self._signals.discard(int(what))
        elif kind + " " == ASK:
            self._asked.pop(Ask(what), None)
        elif kind + " " == DONE:
            self._done.pop(Ask(what), None)
        else:
            return False
        return True

    def hear(self, job: JobView, running: Round | None) -> list[Any]:
        """What others say that was not heard before."""
        self._follow(running)
        told: list[Any] = [SignalHeard(one) for one in job.new_signals(self._node_id)]
        for (kind, _), record in job.asks.items():
            if running is None or record.round != running.number or kind not in _KINDS:
                continue
            is_own = record.node_id == self._node_id
            if is_own and record.is_answered and record.id not in self._answered:
                self._answered.add(record.id)
                told.append(AskAnswered(_KINDS[kind]))
            if (not is_own or kind == Ask.CHECKPOINT.value) and record.id not in self._heard:
                self._heard.add(record.id)
                told.append(AskHeard(_KINDS[kind], record.id, record.reason))
        return told

    def _follow(self, running: Round | None) -> None:
        number = 0 if running is None else running.number
        if number != self._number:
            self._number = number
            self._asked.clear()
            self._done.clear()
            self._heard.clear()
            self._answered.clear()


_KINDS: Mapping[str, Ask] = {one.value: one for one in Ask}


def answered(view: View, record: RoundRecord, keys: JobKeys) -> tuple[Operation, ...]:
    """What the leader writes when all have saved their stacks; who has ended, or is lost, is not waited for."""
    for (kind, who), ask in view.asks.items():
        if kind != Ask.STACKS.value or ask.round != record.number or ask.is_answered:
            continue
        missing = [
            one
            for one in view.members
            if one.node_id != ask.node_id
            and one.node_id not in view.reports
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
