"""A gRPC server that answers as a test tells it: for what a real etcd does only in rare moments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpclib.const import Handler
from grpclib.encoding.proto import ProtoCodec
from grpclib.server import Server, Stream

from phalanx.store.etcd.connection import Call
from phalanx.store.etcd.messages import message

Script = Callable[[Any, Stream[Any, Any]], Awaitable[None]]

RANGE = Call("KV/Range", "Range")
TXN = Call("KV/Txn", "Txn")
STATUS = Call("Maintenance/Status", "Status")
WATCH = Call("Watch/Watch", "Watch", is_stream=True)
KEEP_ALIVE = Call("Lease/LeaseKeepAlive", "LeaseKeepAlive", is_stream=True)


def header(revision: int = 10) -> Any:
    return message("ResponseHeader")(cluster_id=1, revision=revision)


class AnyCodec(ProtoCodec):
    """Sends messages, and bytes as they are."""

    def encode(self, message: Any, message_type: Any) -> bytes:
        return message if isinstance(message, bytes) else bytes(message.SerializeToString())


class Scripted:
    """Answers reads and pulses by itself; ``on(call, script)`` sets what other requests get. Remembers all requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any, dict[str, Any]]] = []
        self._scripts: dict[str, Script] = {}
        self.endpoint = ""

    def on(self, call: Call, script: Script) -> None:
        self._scripts[call.path] = script

    def asked(self, call: Call) -> list[Any]:
        return [request for path, request, _ in self.requests if path == call.path]

    def __mapping__(self) -> dict[str, Handler]:
        return {call.path: self._handler(call) for call in (RANGE, TXN, STATUS, WATCH, KEEP_ALIVE)}

    def _handler(self, call: Call) -> Handler:
        async def handle(stream: Stream[Any, Any]) -> None:
            request = await stream.recv_message()
            self.requests.append((call.path, request, dict(stream.metadata or {})))
            if call.path in self._scripts:
                await self._scripts[call.path](request, stream)
            else:
                await stream.send_message(
                    call.reply(header=header(), **({"leader": 1} if call is STATUS else {}))
                )

        return Handler(handle, call.cardinality, call.request, object)  # whatever a script sends


@asynccontextmanager
async def scripted(service: Scripted | None = None) -> AsyncIterator[Scripted]:
    """A server of this kind, or one that can do more, on a port of its own."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop.time, _Clock):  # before anybody keeps the method
        loop.time = _Clock(loop)  # type: ignore[method-assign]
    service = service or Scripted()
    server = Server([service], codec=AnyCodec())
    await server.start("127.0.0.1", 0)
    [listening] = server._server.sockets  # type: ignore[union-attr]  # grpclib does not tell its port
    service.endpoint = f"127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield service
    finally:
        server.close()
        await server.wait_closed()


async def never(request: Any, stream: Stream[Any, Any]) -> None:
    """Never answer, as a frozen member."""
    await asyncio.Event().wait()


class _Clock:
    """The clock of a loop, which sets and looks at its timers by it; it can be put forward."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._true = loop.time
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return self._true() + self.ahead_s


def time_passes(seconds: float) -> None:
    """Put the clock forward: limits of so many seconds are over, however fast or slow this machine is."""
    clock = asyncio.get_running_loop().time
    assert isinstance(clock, _Clock)
    clock.ahead_s += seconds


def silent_for(seconds: float) -> Script:
    """Never answer; and so much time passes at once, so that a client with a generous limit need not be waited for."""

    async def be_silent(request: Any, stream: Stream[Any, Any]) -> None:
        time_passes(seconds)
        await never(request, stream)

    return be_silent


async def reset(request: Any, stream: Stream[Any, Any]) -> None:
    """Lose the stream without an answer."""
    await stream.cancel()


async def until(holds: Callable[[], object]) -> None:
    """Wait for what a server has no event for; the story as a whole is bounded."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
