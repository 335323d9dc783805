"""The store of a job without an id for the conformance suite: every key has another name outside."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.store import factory_memory
from tests.store.factory_memory import forget
from tests.store.stories import Connect

from phalanx.launcher.adopted import AdoptedStore
from phalanx.store.port import Store

__all__ = ["forget", "stores"]


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    async with factory_memory.stores() as connect_inside:

        async def connect() -> Store:
            inside = await connect_inside()
            return AdoptedStore(inside, assumed="/phalanx/job/", adopted="/phalanx/5f1e/")

        yield connect
