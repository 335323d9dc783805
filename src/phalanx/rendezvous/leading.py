"""Leading, on the agent that leads: the leader's view is kept, its decisions become guarded transactions. Pure."""

from __future__ import annotations

from typing import Any

from phalanx.rendezvous.events import (
    KeyChanged,
    KeyRead,
    KeysListed,
    Read,
    StartWatch,
    StopWatch,
    Told,
    Transact,
)
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.leader import Leader
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.policy import Policy
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import BadRecord, Member, Members, Phase, decode
from phalanx.rendezvous.view import JobView, Nodes, RoundTimes
from phalanx.store.port import Compare, Field

__all__ = ["LEAD", "Leading"]

LEAD = "lead"
# One look at a large membership costs some microseconds per node. When a thousand nodes join at once each of them is
# news; looking at all for each would grow with the square.
LOOK_AGAIN_S_PER_NODE = 2e-5
NODES_FEW = 64


class Leading:
    """``begin`` when the leader's key is ours, ``end`` when it is not any more."""

    def __init__(self, settings: MembershipSettings, keys: JobKeys, policy: Policy) -> None:
        self._settings = settings
        self._keys = keys
        self._policy = policy
        self._leader: Leader | None = None
        self._nodes = self._no_nodes()
        self._is_listed = False
        self._members: tuple[int, tuple[Member, ...]] = (0, ())
        self._reading = False
        self._looked_at: float | None = None
        self._decided_at_revision = 0
        self._told = 0
        self.deadline: float | None = None

    @property
    def is_leading(self) -> bool:
        """Whether this node decides for the job, as far as it knows."""
        return self._leader is not None

    @property
    def nodes(self) -> Nodes:
        """All that is known under ``nodes/``."""
        return self._nodes

    def _no_nodes(self) -> Nodes:
        return Nodes(self._keys, is_leased=self._settings.ttl_s != float("inf"))

    def others(self) -> list[str]:
        """The hosts of all other nodes that are present."""
        return [one.node.host for key, one in self._nodes.here.items() if key != self._settings.node_id]

    def begin(self) -> list[Any]:
        """Start with fresh timers; what the others have written is listed anew."""
        self._leader = Leader(self._settings, self._keys, self._policy)
        return [StartWatch(self._keys.nodes)]

    def end(self) -> list[Any]:
        """Another node leads, or none."""
        if self._leader is None:
            return []
        self.forget()
        return [StopWatch(self._keys.nodes)]

    def forget(self) -> None:
        """The connection is gone, and the watch with it."""
        self._leader = None
        self._is_listed = self._reading = False
        self._members = (0, ())
        self._looked_at = self.deadline = None
        self._decided_at_revision = 0

    def hear(self, event: KeysListed | KeyChanged) -> None:
        """What the watch of ``nodes/`` tells: all keys under it, or those that have changed."""
        if isinstance(event, KeyChanged):
            self._nodes.change(event.batch.changes)
            return
        self._nodes = self._no_nodes()
        self._nodes.put(event.items)
        self._is_listed = True
        self._told = 0

    def read(self, event: KeyRead) -> None:
        """The members of a round; none are there when the store has lost them."""
        number = int(event.key.rpartition("/")[2])
        self._reading = False
        try:
            members = () if event.kv is None else decode(Members, event.kv.value).members
        except BadRecord as reason:
            self._nodes.refused.append(str(reason))
            members = ()
        self._members = (number, members)

    def succeeded(self, revision: int) -> None:
        """Our transaction was applied: decide nothing more until the watch has told us so."""
        self._decided_at_revision = revision

    def decide(self, job: JobView, times: RoundTimes, pending: Pending, now: float) -> list[Any]:
        """What to do for the job now."""
        self.deadline = None
        if self._leader is None or not self._is_listed or job.revision < self._decided_at_revision:
            return []
        record = job.round
        wanted = 0
        if record is not None:
            wanted = record.previous if record.phase is Phase.JOINING else record.number
        if self._members[0] != wanted:
            if wanted == 0:
                self._members = (0, ())
            else:
                return self._read_members(wanted)
        if not pending.may_send(LEAD) or self._is_too_early(now):
            return []
        self._looked_at = now
        view = self._nodes.view(
            record,
            self._members[1],
            open_s=times.open_s(now),
            ran_s=times.ran_s(now),
            answers=job.answers,
            asks=job.asks,
        )
        writes = self._leader.decide(view, now)
        self.deadline = self._leader.deadline
        told = [Told(f"passed over: {reason}") for reason in self._nodes.refused[self._told :]]
        self._told = len(self._nodes.refused)
        if not writes:
            return told
        pending.sent(LEAD)
        assert job.leader is not None, "who leads has seen its own key"
        guards = (
            Compare(self._keys.leader, Field.CREATE_REVISION, job.leader.create_revision),
            Compare(self._keys.round, Field.MOD_REVISION, job.round_revision),
            Compare(self._keys.verdict, Field.CREATE_REVISION, 0),
        )
        return [*told, Transact(LEAD, guards, writes)]

    def _read_members(self, number: int) -> list[Any]:
        if self._reading:
            return []
        self._reading = True
        return [Read(self._keys.members(number))]

    def _is_too_early(self, now: float) -> bool:
        count = len(self._nodes.here)
        if count <= NODES_FEW or self._looked_at is None:
            return False
        again_at = self._looked_at + count * LOOK_AGAIN_S_PER_NODE
        if now < again_at:
            self.deadline = again_at
            return True
        return False
