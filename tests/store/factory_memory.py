"""The memory store for the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.store.stories import Connect

from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Store

HISTORY_MAX = 600


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    server = MemoryServer(StoreMachine(history_max=HISTORY_MAX))

    async def connect() -> Store:
        return MemoryStore(server)

    yield connect
    server.close()


async def forget(store: Store, revision: int) -> None:
    while await store.put("/phalanx/job/other", b"") <= revision + HISTORY_MAX:
        pass
