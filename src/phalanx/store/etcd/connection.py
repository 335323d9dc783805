"""One HTTP/2 connection to one address of etcd: single exchanges, and streams that are read until they end.

It knows no other member and repeats nothing. Each exchange runs in a task of its own, because grpclib wakes what waits
on a lost connection by cancelling the task, and a caller's task must not be left half cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from google.protobuf.message import DecodeError
from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from h2.exceptions import H2Error

from phalanx.store.etcd.answers import NotDone, Silent, Untrusted, meaning
from phalanx.store.etcd.endpoints import Endpoint
from phalanx.store.etcd.messages import Message, message

__all__ = ["Call", "Connection"]

# A connection that ends in the middle of a message shows as an assertion of grpclib's, and a compressed message, which
# nobody has asked for, as something that is not implemented.
_BROKEN = (
    StreamTerminatedError,
    ProtocolError,
    H2Error,
    OSError,
    AssertionError,
    DecodeError,
    NotImplementedError,
)


class Call:
    """A method of etcd's interface: its path, and the classes of its messages."""

    __slots__ = ("cardinality", "path", "reply", "request")

    def __init__(self, path: str, messages: str, *, is_stream: bool = False) -> None:
        self.path = f"/etcdserverpb.{path}"
        self.request = message(f"{messages}Request")
        self.reply = message(f"{messages}Response")
        self.cardinality = Cardinality.STREAM_STREAM if is_stream else Cardinality.UNARY_UNARY


class _Attempt:
    """How far an exchange has come: only what is not out yet has certainly done nothing."""

    __slots__ = ("is_out",)

    def __init__(self) -> None:
        self.is_out = False


class Connection:
    """To one address; connects when it is first used. Must be closed, or retired."""

    def __init__(self, endpoint: Endpoint, address: str, context: ssl.SSLContext | None) -> None:
        self.endpoint = endpoint
        self.address = address
        self.heard_at = asyncio.get_running_loop().time()
        """When something last arrived, in the loop's time; at first, when this object was made."""
        self.source_address: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._streams: set[asyncio.Task[Any]] = set()
        self._is_retired = False
        # We connect to an address, and the certificate is for the name.
        config = Configuration(ssl_target_name_override=endpoint.host) if context is not None else None
        self._channel = Channel(address, endpoint.port, ssl=context, codec=ProtoCodec(), config=config)

    def __str__(self) -> str:
        place = str(self.endpoint)
        return place if self.address == self.endpoint.host else f"{place} ({self.address})"

    async def exchange(self, call: Call, request: Message, *, within_s: float, token: str | None) -> Message:
        """Send one request and take one answer.

        Raises ``NotDone`` when the request could not be sent, ``Silent`` when no answer came in time, and whatever an
        answered error means.
        """
        attempt = _Attempt()
        task = self._start(self._exchange(call, request, token, attempt))
        try:
            done, _ = await asyncio.wait((task,), timeout=within_s)
        finally:
            task.cancel()
        if not done:
            raise self._unanswered(attempt, f"no answer within {within_s:.2g} s")
        if task.cancelled():
            raise self._unanswered(attempt, "closed")
        return task.result()

    async def read(
        self, call: Call, request: Message, take: Callable[[Message], Awaitable[None]], *, token: str | None
    ) -> None:
        """Send one request on a stream and hand over each answer until the stream ends.

        Always raises: ``Silent`` or ``NotDone`` when the stream was lost or the connection retired, else the meaning
        of the error that ended it, or what ``take`` raised.
        """
        task = self._start(self._read(call, request, take, token))
        self._streams.add(task)
        try:
            await asyncio.wait((task,))
        finally:
            task.cancel()
            self._streams.discard(task)
        if not task.cancelled():
            task.result()
        raise Silent(f"{self}: left for another member")

    def retire(self) -> None:
        """End the streams now, and close when the exchanges that are under way have had their answers."""
        self._is_retired = True
        for task in self._streams:
            task.cancel()
        self._close_if_unused()

    async def close(self) -> None:
        """End everything. What waits raises ``Silent``."""
        self._is_retired = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._close_if_unused()

    @property
    def is_closed(self) -> bool:
        """Whether it is retired and nothing of it is left."""
        return self._is_retired and not self._tasks

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        if self._is_retired:
            work.close()
            raise NotDone(f"{self}: left for another member")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, for its caller may have gone away
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self.is_closed:
            self._channel.close()

    def _unanswered(self, attempt: _Attempt, reason: str) -> Exception:
        return (Silent if attempt.is_out else NotDone)(f"{self}: {reason}")

    async def _exchange(self, call: Call, request: Message, token: str | None, attempt: _Attempt) -> Message:
        try:
            await self._connect()
            async with self._open(call, token) as stream:
                attempt.is_out = True
                await stream.send_message(request, end=True)
                answer = await stream.recv_message()
                self._heard(stream)
        except GRPCError as error:
            self.heard_at = asyncio.get_running_loop().time()
            raise meaning(error.status, error.message) from error
        except _BROKEN as error:
            raise self._unanswered(attempt, _say(error)) from error
        if answer is None:
            # etcd 3.6 has been seen to answer so when a token had gone stale.
            raise Silent(f"{self}: an empty answer")
        return answer

    async def _read(
        self, call: Call, request: Message, take: Callable[[Message], Awaitable[None]], token: str | None
    ) -> None:
        try:
            await self._connect()
            async with self._open(call, token) as stream:
                await stream.send_message(request)
                while (answer := await stream.recv_message()) is not None:
                    self._heard(stream)
                    await take(answer)
                await stream.end()
        except GRPCError as error:
            raise meaning(error.status, error.message) from error
        except _BROKEN as error:
            raise Silent(f"{self}: {_say(error)}") from error

    async def _connect(self) -> None:
        try:
            # On its own, so that a failure of it is told from one of the request.
            await self._channel.__connect__()
        except ssl.SSLCertVerificationError as error:
            raise Untrusted(f"{self}: {_say(error)}") from error
        except OSError as error:
            raise NotDone(f"{self}: {_say(error)}") from error

    def _open(self, call: Call, token: str | None) -> Stream[Any, Any]:
        # Without "hasleader" a member that lost the others keeps a watch open, for ever and in silence.
        metadata = {"hasleader": "true"} if token is None else {"hasleader": "true", "token": token}
        return self._channel.request(call.path, call.cardinality, call.request, call.reply, metadata=metadata)

    def _heard(self, stream: Stream[Any, Any]) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if self.source_address is None and stream.peer is not None and (peer := stream.peer.addr()):
            self.source_address = _source_towards(peer)


def _source_towards(peer: tuple[Any, ...]) -> str | None:
    """Our address on the way to a peer that has just answered. grpclib does not show its sockets; a datagram socket
    takes the same route and sends nothing.
    """
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _say(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        if "ALERT" in reason and "CERTIFICATE" in reason:
            return f"it wants a certificate of ours that it trusts ({reason})"
        return f"it speaks no TLS ({reason})" if reason == "WRONG_VERSION_NUMBER" else reason
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
