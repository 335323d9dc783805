"""The hosted store over TCP for the conformance suite."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.store import factory_memory
from tests.store.stories import PATIENCE_S, Connect

from phalanx.store.admission import Admission
from phalanx.store.client import HostedStore
from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer
from phalanx.store.port import Store
from phalanx.store.server import StoreServer

forget = factory_memory.forget


@asynccontextmanager
async def stores() -> AsyncIterator[Connect]:
    memory = MemoryServer(StoreMachine(history_max=factory_memory.HISTORY_MAX))
    server = StoreServer(memory, Admission(run_id="job"), report=print)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    await server.start([listener])

    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)

        async def connect() -> Store:
            client = HostedStore("127.0.0.1", port, secret=None, run_id="job", attempt_s=PATIENCE_S)
            await client.open()
            stack.push_async_callback(client.close)
            return client

        yield connect
