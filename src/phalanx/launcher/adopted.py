"""A store of a job whose id was left out: it is the host's to make, so it is unknown before the store is open.

Whoever uses the store names keys by ``UNKNOWN``; here they become those of the id that was adopted, and back. The id
may be another one after the host was lost and replaced: then a new store is opened, which adopts that one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from phalanx.store.port import (
    Answer,
    Batch,
    Change,
    Compare,
    Delete,
    Get,
    KeyValue,
    Operation,
    Put,
    Store,
    Watch,
)

__all__ = ["UNKNOWN", "AdoptedStore"]

UNKNOWN = "?"  # as a part of a key; an id that was given is quoted there, so it is never this


class AdoptedStore(Store):
    """``store``, with the keys under ``assumed`` (a prefix) where it has those under ``adopted``."""

    def __init__(self, store: Store, *, assumed: str, adopted: str) -> None:
        self._store = store
        self._assumed, self._adopted = assumed, adopted

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As ``Store``."""
        answer = await self._store.transaction(
            [Compare(self._out(one.key), one.field, one.value) for one in compares],
            [self._operation(one) for one in then],
            [self._operation(one) for one in otherwise],
        )
        results = tuple(tuple(map(self._kv, found)) for found in answer.results)
        return Answer(answer.succeeded, answer.revision, results)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As ``Store``."""
        return _AdoptedWatch(self._store.watch(self._out(prefix), from_revision), self._kv)

    async def grant(self, ttl_s: float) -> int:
        """As ``Store``."""
        return await self._store.grant(ttl_s)

    async def renew(self, lease: int) -> None:
        """As ``Store``."""
        await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        """As ``Store``."""
        await self._store.revoke(lease)

    async def close(self) -> None:
        """As ``Store``."""
        await self._store.close()

    @property
    def source_address(self) -> str | None:
        """As ``Store``."""
        return self._store.source_address

    @property
    def is_host(self) -> bool:
        """As ``Store``."""
        return self._store.is_host

    def _out(self, key: str) -> str:
        if not key.startswith(self._assumed):
            return key
        return self._adopted + key[len(self._assumed) :]

    def _operation(self, one: Operation) -> Operation:
        if isinstance(one, Put):
            return Put(self._out(one.key), one.value, one.lease)
        if isinstance(one, Delete):
            return Delete(self._out(one.key), one.is_prefix)
        return Get(self._out(one.key), one.is_prefix)

    def _kv(self, kv: KeyValue) -> KeyValue:
        if not kv.key.startswith(self._adopted):
            return kv
        key = self._assumed + kv.key[len(self._adopted) :]
        return KeyValue(key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


class _AdoptedWatch(Watch):
    def __init__(self, watch: Watch, translate: Callable[[KeyValue], KeyValue]) -> None:
        self._watch, self._translate = watch, translate

    async def __aiter__(self) -> AsyncIterator[Batch]:
        async for batch in self._watch:
            changes = tuple(Change(self._translate(one.kv), one.is_delete) for one in batch.changes)
            yield Batch(batch.revision, changes)

    async def aclose(self) -> None:
        await self._watch.aclose()
