"""The hosted store's server: the store machine behind TCP connections, in the event loop of one agent.

A client is a stranger until its first frame has the right key: until then it may say a few kilobytes, for ten seconds.
Bytes that no client of ours sends end its connection, for one reason that is told, and nothing else. A client that
does not read is cut off; it comes back, and its watches go on where they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from phalanx.store.admission import Admission, NotAdmitted, job_prefix
from phalanx.store.dialogue import (
    Done,
    Fault,
    Request,
    decode_request,
    encode_batch,
    encode_news,
    encode_reply,
)
from phalanx.store.machine import LEASES_MAX, GrantAsked, TransactionAsked, WatchAsked, WatchClosed
from phalanx.store.memory import MemoryServer
from phalanx.store.port import Batch, Refused, StoreError
from phalanx.store.sockets import BACKLOG, keep_alive
from phalanx.store.watching import RemoteWatch
from phalanx.store.wire import (
    ANSWER_BYTES_MAX,
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    READY,
    REQUEST_FRAME_MAX,
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

__all__ = ["StoreServer"]

STRANGER_S = 10.0
LATE_S = 1.0  # a timer that is so late was held up together with all that was to be heard
STRANGERS_MAX = 1024  # a thousand agents may come at once, each for some milliseconds
CONNECTIONS_MAX = 16_384
DESCRIPTORS_KEPT = 256
GUESTS_PART = 0.25  # of the store: other jobs than the host's own may not fill it
WATCHES_MAX = (
    10_000  # of one connection: an agent has a handful, and one for each value that a worker waits for
)
UNSENT_PAUSE = 1024 * 1024  # of answers that are not read: nothing more is read from there
UNSENT_MAX = 8 * 1024 * 1024  # of batches, which come unasked: who does not read them is cut off
REASONS_MAX = 100  # that are told; a scanner is not to fill a terminal


class StoreServer:
    """Serves ``memory`` to the job of ``admission`` and, without a secret, to others. ``report`` gets sentences."""

    def __init__(
        self,
        memory: MemoryServer,
        admission: Admission,
        *,
        report: Callable[[str], None] | None = None,
        stranger_s: float = STRANGER_S,
        strangers_max: int = STRANGERS_MAX,
        unsent_max: int = UNSENT_MAX,
    ) -> None:
        self.memory = memory
        self.admission = admission
        self.incarnation = secrets.token_hex(16)
        self.stranger_s = stranger_s
        self.unsent_max = unsent_max
        limit = os.sysconf("SC_OPEN_MAX") % (1 << 31)  # negative: without limit
        # Of the descriptors that this process may have, some are its own, and strangers get no more than a quarter.
        self._connections_max = max(8, min(CONNECTIONS_MAX, limit - DESCRIPTORS_KEPT))
        self._strangers_max = min(strangers_max, max(8, limit // 4))
        self._report = report
        self._told = 0
        self._listeners: list[asyncio.Server] = []
        self._connections: set[_Connection] = set()
        self._strangers: dict[_Connection, None] = {}
        self._gone = asyncio.Event()
        self._encoded: tuple[Batch | None, bytes] = (None, b"")

    async def start(self, sockets: Sequence[socket.socket], *, tls: ssl.SSLContext | None = None) -> None:
        """Serve on sockets that listen already. They are ours from now on."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._listeners.append(
                await loop.create_server(
                    lambda: _Connection(self),
                    sock=listener,
                    backlog=BACKLOG,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else self.stranger_s,
                )
            )

    async def others_gone(self, limit_s: float) -> None:
        """Wait until no authenticated client is connected, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._connections - self._strangers.keys():
                    self._gone.clear()
                    await self._gone.wait()

    async def close(self) -> None:
        """Stop serving: clients see their connections end. Idempotent."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # transports call back in the next turn of the loop
        self.memory.close()

    @property
    def addresses(self) -> list[tuple[Any, ...]]:
        """Where it listens."""
        return [listener.getsockname() for server in self._listeners for listener in server.sockets]

    @property
    def connection_count(self) -> int:
        """How many connections there are, strangers included."""
        return len(self._connections)

    @property
    def unsent_bytes(self) -> int:
        """How much waits to be sent to all clients together."""
        return sum(connection.unsent_bytes for connection in self._connections)

    def opened(self, connection: _Connection) -> bool:
        """Whether a new connection may stay."""
        if len(self._connections) >= self._connections_max:
            return False
        if len(self._strangers) >= self._strangers_max:
            next(iter(self._strangers)).refuse("Too many connections wait to be authenticated.")
        self._connections.add(connection)
        self._strangers[connection] = None
        return True

    def authenticated(self, connection: _Connection) -> None:
        """A connection is no stranger any more."""
        self._strangers.pop(connection, None)

    def closed(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._gone.set()
        self._connections.discard(connection)
        self._strangers.pop(connection, None)

    def report_to(self, report: Callable[[str], None]) -> None:
        """Sentences go there from now on."""
        self._report = report

    def tell(self, sentence: str) -> None:
        """Report why a connection was ended."""
        self._told += 1
        if self._report is not None and self._told <= REASONS_MAX:
            self._report(sentence)

    def encoded(self, batch: Batch) -> bytes:
        """A batch as bytes. Those who watch one prefix get the same object one after another."""
        if self._encoded[0] is not batch:
            self._encoded = batch, encode_batch(batch)
        return self._encoded[1]


class _Connection(asyncio.Protocol):
    """One client."""

    def __init__(self, server: StoreServer) -> None:
        self._server = server
        self._frames = Frames(GREETING_BYTES_MAX)
        self._prefix: str | None = None  # of the keys it may touch; None before its greeting
        self._is_guest = False  # of another job than the host's
        self._is_authentic = False
        self._requests: deque[bytes] = deque()
        self._is_paused = False
        self._watches: dict[int, RemoteWatch] = {}
        self._transport: asyncio.Transport | None = None
        self._peer = "somebody"
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self._peer = str(address[0])
        if not self._server.opened(self):
            self._transport.abort()
            self._transport = None
            return
        keep_alive(transport)
        self._transport.set_write_buffer_limits(high=UNSENT_PAUSE)
        self._begin_patience()

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._frames.receive(data):
                if self._prefix is None:
                    self._greet(payload)
                elif not self._is_authentic:
                    self._welcome_in(payload)
                else:
                    self._requests.append(payload)
            self._work()
        except BadBytes as reason:
            self.refuse(str(reason))
        except Exception as error:  # noqa: BLE001 # whatever one peer sends must not end the server of all
            self.refuse(f"What it sent could not be handled: {error!r}")

    def _work(self) -> None:
        """Serve what was asked for, unless answers wait to be read."""
        try:
            while self._requests and self._transport is not None and not self._is_paused:
                self._serve(decode_request(self._requests.popleft()))
        except BadBytes as reason:
            self.refuse(str(reason))

    def _greet(self, payload: bytes) -> None:
        admission = self._server.admission
        try:
            hello = decode_greeting(payload)
            if not isinstance(hello, Hello):
                raise BadBytes("It greets as a server does.")
            run_id = admission.admit(hello)
        except (BadBytes, NotAdmitted) as reason:
            # One that speaks another version sees by our greeting that we do: it would wait for us in vain.
            self._write(encode_greeting(Denial(str(reason))))
            self.refuse(str(reason), at_once=False)
            return
        welcome = encode_greeting(Welcome(secrets.token_hex(NONCE_BYTES), run_id, self._server.incarnation))
        self._write(welcome)
        keys = Keys(job_key(run_id, admission.secret), payload, welcome)
        self._frames.secure(keys.of_server, keys.of_client)
        self._write(READY)
        self._prefix = job_prefix(run_id)
        self._is_guest = run_id != admission.run_id

    def _welcome_in(self, payload: bytes) -> None:
        if payload != READY:
            raise BadBytes("It began to speak before it was ready.")
        self._is_authentic = True
        self._frames.limit = REQUEST_FRAME_MAX
        self._server.authenticated(self)
        self._stop_patience()

    def _serve(self, request: Request) -> None:
        try:
            self._check(request)
            if isinstance(request, WatchAsked):
                self._watch(request)
            elif isinstance(request, WatchClosed):
                self._unwatch(request)
            else:
                self._answer(cast("int", request.caller), request)
        except StoreError as error:
            number = request.watch if isinstance(request, WatchAsked | WatchClosed) else request.caller
            self._reply(Fault(cast("int", number), error))

    def _check(self, request: Request) -> None:
        """Raise ``Refused`` for a request that leaves the job's own keys."""
        keys: list[str] = []
        if isinstance(request, TransactionAsked):
            keys = [part.key for part in (*request.compares, *request.then, *request.otherwise)]
        elif isinstance(request, WatchAsked):
            keys = [request.prefix]
        if self._is_guest and isinstance(request, TransactionAsked | GrantAsked):
            machine = self._server.memory.machine
            if machine.fullness > GUESTS_PART or len(machine.leases) > LEASES_MAX * GUESTS_PART:
                raise Refused("The store of another job has no room left for this one.")
        assert self._prefix is not None
        for key in keys:
            if not key.startswith(self._prefix):
                raise Refused(f"The key {key!r} is not among this job's, which begin with {self._prefix!r}.")

    def _answer(self, number: int, request: Request) -> None:
        if isinstance(request, GrantAsked):
            # At random, so that no job meets another one's lease, and none from an earlier life of the store.
            request = GrantAsked(request.caller, request.ttl_s, 1 + secrets.randbelow((1 << 62) - 1))
        answer = self._server.memory.perform(request)
        self._reply(Done(number, self._server.memory.machine.revision, answer))

    def _watch(self, request: WatchAsked) -> None:
        number = cast("int", request.watch)
        if number in self._watches:
            raise BadBytes("It opened one watch twice.")
        if len(self._watches) >= WATCHES_MAX:
            raise Refused(f"One connection has {WATCHES_MAX} watches at most.")
        watch = self._watches[number] = RemoteWatch(self, number)
        self._server.memory.perform(WatchAsked(watch, request.prefix, request.from_revision))

    def _unwatch(self, request: WatchClosed) -> None:
        watch = self._watches.pop(cast("int", request.watch), None)
        if watch is not None:
            self._server.memory.perform(WatchClosed(watch))

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def send_batch(self, number: int, batch: Batch) -> None:
        """Send what a watch covers; or cut off a client that does not read."""
        if self._transport is None:
            return
        if self.unsent_bytes > self._server.unsent_max:
            self.refuse(f"It does not read: {self.unsent_bytes} bytes wait for it.")
            return
        self._write(encode_news(number, self._server.encoded(batch)))

    def watch_ended(self, number: int, error: StoreError) -> None:
        """Tell the client that a watch gets no more."""
        self._watches.pop(number, None)
        self._reply(Fault(number, error))

    def _reply(self, reply: Done | Fault) -> None:
        payload = encode_reply(reply)
        if len(payload) > ANSWER_BYTES_MAX:
            error = Refused(f"The answer is too large: {len(payload)} bytes.")
            payload = encode_reply(Fault(reply.number, error))
        self._write(payload)

    def _write(self, payload: bytes) -> None:
        if self._transport is not None:
            self._transport.write(self._frames.frame(payload))

    def pause_writing(self) -> None:
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_paused = False
        self._work()
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()

    def refuse(self, reason: str, *, at_once: bool = True) -> None:
        """End the connection, and say why."""
        if self._transport is None:
            return
        self._server.tell(f"The store closed a connection from {self._peer}: {reason}")
        if at_once:
            self.abort()
        else:
            self._transport.close()
            self._forget()

    def abort(self) -> None:
        """End the connection now; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()

    def _forget(self) -> None:
        self._transport = None
        self._stop_patience()
        self._server.closed(self)
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            self._server.memory.perform(WatchClosed(watch))

    def _begin_patience(self) -> None:
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(self._server.stranger_s, self._lose_patience)

    def _lose_patience(self) -> None:
        assert self._patience is not None
        if asyncio.get_running_loop().time() - self._patience.when() > LATE_S:
            self._begin_patience()  # we were frozen, and could hear nobody
        else:
            self.refuse("It did not authenticate itself in time.")

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
