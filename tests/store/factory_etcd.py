"""etcd for the conformance suite: one real member, which is enough for what one client can see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.store.etcd.servers import FAST, cluster
from tests.store.stories import PATIENCE_S, Connect

from phalanx.store.etcd import open_etcd
from phalanx.store.etcd.store import EtcdV3Store
from phalanx.store.port import Store


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    async with cluster(1, arguments=FAST) as [member], AsyncExitStack() as opened:

        async def connect() -> Store:
            store = await open_etcd(member.endpoint, attempt_s=PATIENCE_S)
            opened.push_async_callback(store.close)
            return store

        yield connect


async def forget(store: Store, revision: int) -> None:
    assert isinstance(store, EtcdV3Store)
    await store.put("/phalanx/job/other", b"")
    await store.compact(revision + 1)
