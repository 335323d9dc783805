"""A network that a test has in its hands: between clients and a server, it cuts, falls silent, and damages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable


class Proxy:
    """Forwards connections to ``target``. ``to_server`` is what the last one said to it."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        self.to_server = bytearray()
        self.change: Callable[[bytes], bytes] = bytes
        """What becomes of bytes on their way to the client."""
        self._flows = asyncio.Event()
        self._answers_flow = asyncio.Event()
        self.heal()
        self._generation = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.cut()
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """End all connections, at once and with what was under way."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def swallow(self) -> None:
        """Never forward anything again on the connections that there are."""
        self._generation += 1

    def fall_silent(self) -> None:
        """Forward nothing, also of new connections, and end none."""
        self._flows.clear()

    def hold_answers(self) -> None:
        """Forward nothing to clients, as a client does that does not read."""
        self._answers_flow.clear()

    def heal(self) -> None:
        """Forward again, also what was held back."""
        self._flows.set()
        self._answers_flow.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            others = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self.connections += 1
        self.to_server = bytearray()
        self._writers.add(others[1])
        await asyncio.gather(
            self._forward(reader, others[1], is_to_client=False),
            self._forward(others[0], writer, is_to_client=True),
        )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_to_client: bool
    ) -> None:
        generation = self._generation
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                if generation != self._generation:
                    continue
                if is_to_client:
                    await self._answers_flow.wait()
                    data = self.change(data)  # that is what it is for
                else:
                    self.to_server += data
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
