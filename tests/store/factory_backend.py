"""The store inside of a torchelastic rendezvous backend for the conformance suite."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.rendezvous.backends import Cell, CellBackend
from tests.store.stories import Connect

from phalanx.rendezvous.backend_state import HISTORY_MAX
from phalanx.rendezvous.backend_store import BackendStore
from phalanx.store.port import Store


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    cell = Cell()
    async with contextlib.AsyncExitStack() as clients:

        async def connect() -> Store:
            store = BackendStore(CellBackend(cell), attempt_s=30, poll_s=0.02)
            clients.push_async_callback(store.close)
            return store

        yield connect


async def forget(store: Store, revision: int) -> None:
    while await store.put("/phalanx/job/other", b"") <= revision + HISTORY_MAX:
        pass
