"""One open store for several users in an event loop: the session of a member, and questions beside it.

The session closes its store whenever it begins anew; the store, which may be the one that serves all nodes, is not
to end with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from phalanx.store.port import Answer, Compare, Operation, Store, StoreReset, Watch

__all__ = ["SharedStore"]


class SharedStore:
    """Opens the store when it is first needed, and anew when it has lost its data. Raises what ``open_store`` does."""

    def __init__(self, open_store: Callable[[], Awaitable[Store]]) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> Store:
        """The store. Whoever gets it does not close it."""
        async with self._opening:
            if self._store is None:
                self._store = await self._open_store()
            return self._store

    async def borrow(self) -> Store:
        """The store as one that may be closed, which only ends the loan."""
        return _Loan(await self.get(), self._forget)

    async def close(self) -> None:
        """Close the store, if it is open."""
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _forget(self, store: Store) -> None:
        if store is self._store:
            await self.close()


class _Loan(Store):
    """Everything is the store's but ``close``. The first that a session asks for is a lease: a reset shows there."""

    def __init__(self, store: Store, forget: Callable[[Store], Awaitable[None]]) -> None:
        self._store = store
        self._forget = forget

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        return await self._store.transaction(compares, then, otherwise)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        return self._store.watch(prefix, from_revision)

    async def grant(self, ttl_s: float) -> int:
        try:
            return await self._store.grant(ttl_s)
        except StoreReset:
            await self._forget(self._store)
            raise

    async def renew(self, lease: int) -> None:
        await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    async def close(self) -> None:
        """End the loan."""

    @property
    def source_address(self) -> str | None:
        return self._store.source_address

    @property
    def is_host(self) -> bool:
        return self._store.is_host

    @property
    def run_id(self) -> str | None:
        return self._store.run_id
