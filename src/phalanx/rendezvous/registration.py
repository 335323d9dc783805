"""This node's registration: who it is to the others for one life of it, which ends with its lease. Pure.

Every transaction of a member is made here, guarded by the registration: a life of the node that the others count as
lost writes nothing any more.
"""

from __future__ import annotations

from typing import Any

from phalanx.rendezvous.events import SessionOpened, Transact, Transacted
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import BadRecord, NodeRecord, RoundRecord, decode, encode
from phalanx.store.port import Compare, Delete, Field, Get, Operation, Put

__all__ = ["REGISTER", "UNREGISTER", "Registration"]

NAME_TAKEN_LEASES = 2.0
NAME_RETRY_S = 1.0

# Purposes of transactions
REGISTER = "register"
UNREGISTER = "unregister"


class Registration:
    """``revision`` is the create-revision of this life's registration, 0 while there is none."""

    def __init__(self, settings: MembershipSettings, keys: JobKeys, pending: Pending) -> None:
        self._settings = settings
        self._keys = keys
        self._pending = pending
        self.lease = 0
        self.revision = 0
        self.again_at: float | None = None
        """When to try again to register."""
        self._former_leases: set[int] = set()
        self._address = self._outside_address = ""
        self._name_taken_since: float | None = None
        self.excluded = ""
        """Why this node should not be used, as the others are told, and the round that it ran when that began."""
        self.excluded_in = 0
        self._written_at = 0  # the revision of the last write of the registration, as far as is known
        self._remembered = NodeRecord(host="", address="", slots=0)  # what a store without data must be told

    @property
    def name(self) -> bytes:
        """How the others call this node."""
        return self._settings.node_id.encode()

    @property
    def _key(self) -> str:
        return self._keys.here(self._settings.node_id)

    def leased(self, event: SessionOpened) -> None:
        """A new lease, for a new life."""
        self.lease = event.lease
        self._former_leases.add(event.lease)
        self._address = self._settings.local_addr or event.address
        self._outside_address = event.outside_address

    def ended(self) -> None:
        """The lease is over, and all that was written under it."""
        self.revision = 0

    def remember(self, seen: RoundRecord | None, latest: RoundRecord | None, last: Round | None) -> None:
        """A life of this node is over: the next registration tells what it has seen of the job, and what ran here.

        Only a store that has lost its data needs to be told; who has registered anew cannot know whether it has.
        ``seen`` has settled, ``latest`` perhaps not, ``last`` ran here.
        """
        if seen is not None and latest is not None:
            self._remembered = NodeRecord(
                host="",
                address="",
                slots=0,
                last_round=seen.number,
                last_restart_count=latest.restart_count,
                last_policy_state=latest.policy_state,
                last_ran=0 if last is None else last.number,
                last_group_rank=-1 if last is None else last.group_rank,
                last_group_world_size=0 if last is None else last.group_world_size,
            )

    def register(self, *, is_leaving: bool, is_busy: bool) -> Transact:
        """Say that this node is here."""
        self.again_at = None
        return self.send(
            REGISTER,
            (Compare(self._key, Field.CREATE_REVISION, 0),),
            (self.put(is_leaving=is_leaving, is_busy=is_busy),),
        )

    def put(self, *, is_leaving: bool, is_busy: bool) -> Put:
        """The registration as it is written."""
        record = self._node_record(is_leaving=is_leaving, is_busy=is_busy)
        return Put(self._key, encode(record), self.lease)

    def was_registered(self, event: Transacted) -> bool:
        """Whether the answer to ``register`` says that we are, now or by an attempt that seemed to have failed."""
        if event.succeeded:
            self.revision = self._written_at = event.revision
            return True
        found = event.results[0][0] if event.results and event.results[0] else None
        if found is not None and found.lease == self.lease:
            self.revision, self._written_at = found.create_revision, found.mod_revision
            return True
        return False

    def rewrite(self, purpose: str, *, is_leaving: bool, is_busy: bool) -> list[Transact]:
        """Write it anew over what was written last: a copy of this that arrives late must not undo what came after."""
        last = Compare(self._key, Field.MOD_REVISION, self._written_at)
        return self.attempt(purpose, (last,), (self.put(is_leaving=is_leaving, is_busy=is_busy),))

    def was_written(self, event: Transacted) -> None:
        """A transaction with it was applied; or not, since one that seemed to have failed has written it."""
        if event.succeeded:
            self._written_at = event.revision
        elif event.results and event.results[0]:
            self._written_at = event.results[0][0].mod_revision
            self._pending.seen()  # this was the news

    def not_registered(self, event: Transacted, now: float) -> tuple[list[Any], str | None]:
        """Somebody else is registered by this name: what to do about it, or the sentence with which to give up."""
        found = event.results[0][0] if event.results and event.results[0] else None
        if found is None:
            self.again_at = now
            return [], None
        if found.lease in self._former_leases:  # an earlier life of this process
            guard = Compare(found.key, Field.CREATE_REVISION, found.create_revision)
            return [self.send(UNREGISTER, (guard,), (Delete(found.key),))], None
        # A predecessor that was killed is gone after one lease; who is still there then is alive.
        self._name_taken_since = now if self._name_taken_since is None else self._name_taken_since
        if now < self._name_taken_since + NAME_TAKEN_LEASES * self._settings.ttl_s:
            self.again_at = now + NAME_RETRY_S
            return [], None
        try:
            host = decode(NodeRecord, found.value).host
        except BadRecord:
            host = "an unknown host"
        rank = self._settings.order_hint
        taken = f"another agent, on {host}, has the node rank {rank} of this job"
        return [], f"{taken}; each node needs a --node-rank of its own"

    def is_lost(self, event: Transacted) -> bool:
        """Whether a guard failed because the registration is gone, which only the end of the lease explains."""
        if not event.results:
            return False
        found = event.results[0][0] if event.results[0] else None
        return found is None or found.create_revision != self.revision

    def _node_record(self, *, is_leaving: bool, is_busy: bool) -> NodeRecord:
        remembered = self._remembered
        return NodeRecord(
            host=self._settings.host,
            address=self._address,
            outside_address=self._outside_address,
            boot_id=self._settings.boot_id,
            slots=self._settings.slots,
            role=self._settings.role,
            order_hint=self._settings.order_hint,
            topology=self._settings.topology,
            is_leaving=is_leaving,
            excluded=self.excluded,
            excluded_in=self.excluded_in,
            is_busy=is_busy,
            last_round=remembered.last_round,
            last_restart_count=remembered.last_restart_count,
            last_policy_state=remembered.last_policy_state,
            last_ran=remembered.last_ran,
            last_group_rank=remembered.last_group_rank,
            last_group_world_size=remembered.last_group_world_size,
        )

    # Transactions

    def attempt(
        self, purpose: str, guards: tuple[Compare, ...], then: tuple[Operation, ...]
    ) -> list[Transact]:
        """A transaction of this life of the node, unless it is under way or would fail again."""
        if not self._pending.may_send(purpose):
            return []
        alive = Compare(self._key, Field.CREATE_REVISION, self.revision)
        return [self.send(purpose, (alive, *guards), then)]

    def send(self, purpose: str, guards: tuple[Compare, ...], then: tuple[Operation, ...]) -> Transact:
        """A transaction that stands on its guards alone."""
        self._pending.sent(purpose)
        return Transact(purpose, guards, then, otherwise=(Get(self._key),))
