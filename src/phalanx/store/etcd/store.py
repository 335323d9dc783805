"""The store port on etcd v3."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence

from phalanx.store.etcd.answers import LeaseExists
from phalanx.store.etcd.connection import Call
from phalanx.store.etcd.messages import Message, message
from phalanx.store.etcd.session import Session
from phalanx.store.etcd.watch import EtcdWatch
from phalanx.store.limits import TTL_MAX_S, find_mistake
from phalanx.store.port import (
    Answer,
    Change,
    Compare,
    Delete,
    Field,
    Get,
    KeyValue,
    LeaseExpired,
    Operation,
    Put,
    Refused,
    Store,
)

__all__ = ["EtcdV3Store"]

_TXN = Call("KV/Txn", "Txn")
_COMPACT = Call("KV/Compact", "Compaction")
_GRANT = Call("Lease/LeaseGrant", "LeaseGrant")
_REVOKE = Call("Lease/LeaseRevoke", "LeaseRevoke")
_KEEP_ALIVE = Call("Lease/LeaseKeepAlive", "LeaseKeepAlive", is_stream=True)

_TXN_COMPARE = message("Compare")
_REQUEST_OP = message("RequestOp")

_TARGETS = {
    Field.VERSION: (0, "version"),
    Field.CREATE_REVISION: (1, "create_revision"),
    Field.MOD_REVISION: (2, "mod_revision"),
    Field.VALUE: (3, "value"),
}

# A renewal is worth nothing after its lease: with a short one, several members must get their turn in time.
_ATTEMPTS_PER_TTL = 4


class EtcdV3Store(Store):
    """See the port. Made by ``open_etcd``. Every key begins with ``prefix``, which callers do not see.

    One member is asked at a time, and left for the next when it does not answer within the session's short attempt.
    A transaction that may have been applied is never sent again. Of etcd's own limits callers meet these: a request
    of at most 1.5 MiB and 128 operations, and leases of whole seconds, two at least with etcd's usual settings.
    """

    def __init__(self, session: Session, *, prefix: str = "") -> None:
        self.session = session
        self._prefix = prefix.encode()
        self._ttls: dict[int, float] = {}
        self._watches: set[EtcdWatch] = set()

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """See the port."""
        if mistake := find_mistake(compares, then, otherwise):
            raise Refused(mistake)
        request = _TXN.request(
            compare=map(self._compare, compares),
            success=map(self._operation, then),
            failure=map(self._operation, otherwise),
        )
        is_read = all(type(operation) is Get for operation in (*then, *otherwise))
        answer = await self.session.ask(_TXN, request, is_repeatable=is_read, is_ordered=True)
        return Answer(answer.succeeded, answer.header.revision, tuple(map(self._result, answer.responses)))

    def watch(self, prefix: str, from_revision: int) -> EtcdWatch:
        """See the port."""
        key, end = self._prefix_range(prefix)
        watch = EtcdWatch(self.session, key, end, from_revision=from_revision, change=self._change)
        self._watches = {open_one for open_one in self._watches if not open_one.is_over} | {watch}
        return watch

    async def grant(self, ttl_s: float) -> int:
        """See the port. The id is ours, so that an attempt without an answer can be repeated."""
        if not 0 < ttl_s <= TTL_MAX_S:
            raise Refused(f"A lease lasts more than 0 and at most {TTL_MAX_S:g} seconds, not {ttl_s}.")
        lease = random.getrandbits(62) + 1
        request = _GRANT.request(TTL=math.ceil(ttl_s), ID=lease)
        try:
            await self.session.ask(_GRANT, request, is_repeatable=True)
        except LeaseExists:
            # By our own first attempt, whose answer was lost; some of its time has passed since.
            await self.renew(lease)
        self._ttls[lease] = ttl_s
        return lease

    async def renew(self, lease: int) -> None:
        """See the port."""
        request = _KEEP_ALIVE.request(ID=lease)
        attempt_s = self._ttls[lease] / _ATTEMPTS_PER_TTL if lease in self._ttls else None
        answer = await self.session.ask(_KEEP_ALIVE, request, is_repeatable=True, attempt_s=attempt_s)
        if answer.TTL <= 0:  # etcd's way to say that there is no such lease
            self._ttls.pop(lease, None)
            raise LeaseExpired(f"Lease {lease:x} has ended.")

    async def revoke(self, lease: int) -> None:
        """See the port."""
        self._ttls.pop(lease, None)
        try:
            await self.session.ask(_REVOKE, _REVOKE.request(ID=lease), is_repeatable=True)
        except LeaseExpired:
            return

    async def compact(self, revision: int) -> None:
        """Let etcd forget all history before a revision: for tests, and for clusters that do not do so themselves."""
        await self.session.ask(_COMPACT, _COMPACT.request(revision=revision), is_repeatable=False)

    async def close(self) -> None:
        """See the port."""
        await self.session.close()
        await asyncio.gather(*(watch.join() for watch in self._watches))

    @property
    def source_address(self) -> str | None:
        """See the port."""
        return self.session.source_address

    # To etcd's words and back

    def _prefix_range(self, prefix: str) -> tuple[bytes, bytes]:
        """The first key of a prefix, and the first one after it."""
        key = self._prefix + prefix.encode()
        if not (stem := key.rstrip(b"\xff")):
            return key or b"\0", b"\0"  # to the end of all keys
        return key, stem[:-1] + bytes((stem[-1] + 1,))

    def _compare(self, compare: Compare) -> Message:
        target, name = _TARGETS[compare.field]
        made = _TXN_COMPARE(target=target, key=self._prefix + compare.key.encode())
        setattr(made, name, compare.value)
        return made

    def _operation(self, operation: Operation) -> Message:
        made = _REQUEST_OP()
        if isinstance(operation, Put):
            made.request_put.key = self._prefix + operation.key.encode()
            made.request_put.value = operation.value
            made.request_put.lease = operation.lease
            return made
        asked = made.request_range if isinstance(operation, Get) else made.request_delete_range
        if operation.is_prefix:
            asked.key, asked.range_end = self._prefix_range(operation.key)
        else:
            asked.key = self._prefix + operation.key.encode()
        if isinstance(operation, Delete):
            asked.prev_kv = True
        return made

    def _result(self, response: Message) -> tuple[KeyValue, ...]:
        found = response.response_range.kvs or response.response_delete_range.prev_kvs
        return tuple(map(self._key_value, found))

    def _key_value(self, kv: Message) -> KeyValue:
        # Nobody but us writes there; if somebody does, a key that is no text must not end a watch.
        key = kv.key[len(self._prefix) :].decode("utf-8", "surrogateescape")
        return KeyValue(key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)

    def _change(self, kv: Message, is_delete: bool) -> Change:
        return Change(self._key_value(kv), is_delete)
