"""The file store for the conformance suite."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.store.stories import Connect

from phalanx.store.file import open_file
from phalanx.store.port import Store

# Each entry is synced to the disk, and the suite makes thousands of them.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    with tempfile.TemporaryDirectory(prefix="phalanx-store-", dir=FAST) as folder:
        clients: list[Store] = []

        async def connect() -> Store:
            client = await open_file(f"{folder}/store", attempt_s=30.0)  # the tests' machine is busy
            clients.append(client)
            return client

        yield connect
        await asyncio.gather(*(client.close() for client in clients))
