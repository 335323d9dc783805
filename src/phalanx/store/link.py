"""One connection of a client to the hosted store, from its first byte to its last. ``client`` makes the next one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

from phalanx.store.dialogue import Reply, decode_reply
from phalanx.store.port import Refused, Unclear
from phalanx.store.sockets import Address, keep_alive
from phalanx.store.wire import (
    ANSWER_BYTES_MAX,
    GREETING_BYTES_MAX,
    READY,
    BadBytes,
    Denial,
    Frames,
    Hello,
    Keys,
    Welcome,
    decode_greeting,
    encode_greeting,
    job_key,
)

if TYPE_CHECKING:
    import ssl

__all__ = ["Link", "Listener", "connect"]


class Listener(Protocol):
    """Who uses a link."""

    def take(self, reply: Reply) -> None:
        """A reply has arrived."""

    def lost(self, link: Link, reason: str) -> None:
        """The connection has ended; not called for one that was closed by us."""


class Link(asyncio.Protocol):
    """A connection. ``welcome`` is there, and requests may be sent, once ``ready`` has its result.

    ``ready`` raises ``Refused`` when the other end is not, or does not serve, our store; ``Unclear`` when it is gone.
    """

    def __init__(self, hello: Hello, secret: bytes | None) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.welcome: Welcome | None = None
        self.heard_at = 0.0
        self.source_address: str | None = None
        self._hello = encode_greeting(hello)
        self._run_id = hello.run_id
        self._secret = secret
        self._listener: Listener | None = None
        self._frames = Frames(GREETING_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._clock = asyncio.get_running_loop().time

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self._transport is not None

    def listen(self, listener: Listener) -> None:
        """Who is to get the replies from now on."""
        self._listener = listener

    def send(self, payload: bytes) -> None:
        """Send a request. Nothing happens after the end."""
        if self._transport is not None:
            self._transport.write(self._frames.frame(payload))

    def close(self) -> None:
        """End the connection."""
        self._listener = None
        self._end(Unclear("The connection to the store was closed on our side."))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet."""
        self._transport = cast("asyncio.Transport", transport)
        keep_alive(transport)
        name = transport.get_extra_info("sockname")
        self.source_address = str(name[0]) if isinstance(name, tuple) else None
        self._transport.write(self._frames.frame(self._hello))

    def data_received(self, data: bytes) -> None:
        """Read what is complete."""
        self.heard_at = self._clock()
        try:
            for payload in self._frames.receive(data):
                if self.welcome is None:
                    self._greet(payload)
                elif not self.ready.done():
                    self._get_ready(payload)
                elif self._listener is not None:
                    self._listener.take(decode_reply(payload))
                if self._transport is None:
                    return
        except BadBytes as reason:
            self._end(self._interpret(str(reason)))

    def _greet(self, payload: bytes) -> None:
        greeting = decode_greeting(payload)
        if isinstance(greeting, Denial):
            self._end(Refused(greeting.reason))
            return
        if not isinstance(greeting, Welcome) or (self._run_id and greeting.run_id != self._run_id):
            raise BadBytes("It does not greet as a server of our job does.")
        self.welcome = greeting
        keys = Keys(job_key(greeting.run_id, self._secret), self._hello, payload)
        self._frames.secure(keys.of_client, keys.of_server)

    def _get_ready(self, payload: bytes) -> None:
        if payload != READY:
            raise BadBytes("It began to speak before it was ready.")
        self._frames.limit = ANSWER_BYTES_MAX
        self.send(READY)
        self.ready.set_result(None)

    def _interpret(self, reason: str) -> Refused | Unclear:
        if self.ready.done():  # a damaged stream: the next one may be whole
            return Unclear(f"The connection to the store broke: {reason}")
        if self.welcome is None:
            return Refused(f"What answers there is no store of this version of Phalanx. {reason}")
        return Refused("The store there has another secret than we have (PHALANX_SECRET, --secret-file).")

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end, or the network, has ended it."""
        self._end(Unclear(f"The connection to the store ended{f': {exc}' if exc else ''}."))

    def _end(self, error: Refused | Unclear) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()  # nobody needs to ask
        elif self._listener is not None:
            listener, self._listener = self._listener, None
            listener.lost(self, str(error))


async def connect(
    address: Address,
    make_link: Callable[[], Link],
    *,
    tls: ssl.SSLContext | None,
    server_name: str,
) -> Link:
    """Connect to one resolved address (family, socket address) and greet. Raises ``OSError`` and what ``ready`` does.

    Has no deadline of its own; cancelled, it leaves nothing behind.
    """
    loop = asyncio.get_running_loop()
    family, place = address
    endpoint = socket.socket(family, socket.SOCK_STREAM)
    try:
        endpoint.setblocking(False)
        await loop.sock_connect(endpoint, place)
        if endpoint.getsockname() == endpoint.getpeername():
            # TCP joins a socket with itself when the port of the other end is free here and was drawn for our own.
            raise ConnectionRefusedError("nobody listens there")
        _, link = await loop.create_connection(
            make_link, sock=endpoint, ssl=tls, server_hostname=server_name if tls is not None else None
        )
    except BaseException:
        endpoint.close()
        raise
    try:
        await link.ready
    except BaseException:
        link.close()
        raise
    return link
