"""A client of a simulated store: an implementation of the store port that behaves as the one over TCP does.

A request without an answer within its short deadline raises ``Unclear``; the connection is given up then and made
anew, watches resume behind the last batch, and another incarnation is a ``StoreReset`` for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import Any

from phalanx.store.machine import (
    GrantAsked,
    RenewAsked,
    RevokeAsked,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import (
    Answer,
    Batch,
    Compare,
    LeaseExpired,
    Operation,
    Store,
    StoreError,
    StoreReset,
    Unclear,
    Watch,
)
from phalanx.store.watching import BatchQueue
from phalanx.testing.store_server import Connection, StorePlace

__all__ = ["SimulatedStore"]

ATTEMPT_S = 2.0  # as the client of the hosted store
BACKOFF_S = (0.05, 1.0)


class _Request:
    __slots__ = ("connection", "future", "make")

    def __init__(self, make: Callable[[Any], object], future: asyncio.Future[Any]) -> None:
        self.make = make
        self.future = future
        self.connection: Connection | None = None  # the one it went over, if it did


class _ResumingWatch(BatchQueue):
    """A watch that knows where to go on."""

    def __init__(self, closed: Callable[[BatchQueue], None], prefix: str, from_revision: int) -> None:
        super().__init__(closed)
        self.prefix = prefix
        self.next_revision = from_revision

    def notify(self, batch: Batch) -> None:
        if batch.revision >= self.next_revision:
            self.next_revision = batch.revision + 1
            super().notify(batch)


class SimulatedStore(Store):
    """One client, on the loop that runs when it is made."""

    def __init__(
        self, place: StorePlace, source: str, rng: Random, *, source_address: str, is_host: bool = False
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._place = place
        self._source = source
        self._rng = rng
        self._source_address = source_address
        self._is_host = is_host
        self._numbers = count(1)
        self._requests: dict[int, _Request] = {}
        self._watches: dict[int, _ResumingWatch] = {}
        self._connection: Connection | None = None  # that has been welcomed
        self._knocking: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff_s = BACKOFF_S[0]
        self._incarnation: int | None = None
        self._error: StoreError | None = None
        self._connected = self._loop.create_future()
        self._connect()

    async def wait_connected(self, timeout_s: float) -> None:
        """Raises ``Unclear`` when the store is not reached in time; the client is closed then."""
        done, _ = await asyncio.wait((self._connected,), timeout=timeout_s)
        if not done:
            await self.close()
            raise Unclear(f"The store at {self._place.name} does not answer.")

    def abandon(self) -> None:
        """Its process is gone, and the kernel closes the connection."""
        self._hang_up()

    # The port

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As every store does."""
        parts = tuple(compares), tuple(then), tuple(otherwise)
        answer = await self._ask(lambda caller: TransactionAsked(caller, *parts))
        assert isinstance(answer, Answer)
        return answer

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As every store does."""
        watch = _ResumingWatch(self._watch_closed, prefix, from_revision)
        if self._error is not None:
            watch.end(self._error)
            return watch
        number = next(self._numbers)
        self._watches[number] = watch
        self._send_watch(number, watch)
        return watch

    async def grant(self, ttl_s: float) -> int:
        """As every store does."""
        lease = self._rng.getrandbits(63) | 1
        return int(await self._ask(lambda caller: GrantAsked(caller, ttl_s, lease)))

    async def renew(self, lease: int) -> None:
        """As every store does."""
        await self._ask(lambda caller: RenewAsked(caller, lease))

    async def revoke(self, lease: int) -> None:
        """As every store does."""
        try:
            await self._ask(lambda caller: RevokeAsked(caller, lease))
        except LeaseExpired:
            return

    async def close(self) -> None:
        """As every store does."""
        self._fail(Unclear("The connection to the store was closed on our side."))

    @property
    def source_address(self) -> str | None:
        """As every store does."""
        return self._source_address

    @property
    def is_host(self) -> bool:
        """As every store does."""
        return self._is_host

    # Requests

    async def _ask(self, make: Callable[[Any], object]) -> Any:
        if self._error is not None:
            raise type(self._error)(*self._error.args)
        number = next(self._numbers)
        request = _Request(make, self._loop.create_future())
        self._requests[number] = request
        timer = self._loop.call_later(ATTEMPT_S, self._expire, number)
        if self._connection is not None:
            self._send(number, request, self._connection)
        try:
            return await request.future
        finally:
            timer.cancel()
            self._requests.pop(number, None)

    def _send(self, number: int, request: _Request, connection: Connection) -> None:
        request.connection = connection
        connection.up.send(self._place.request, connection, request.make((connection, number)))

    def _expire(self, number: int) -> None:
        request = self._requests.get(number)
        if request is None or request.future.done():
            return
        request.future.set_exception(Unclear(f"The store did not answer for {ATTEMPT_S:g} s."))
        if request.connection is not None and request.connection is self._connection:
            self._drop("it does not answer")

    # The connection

    def _connect(self) -> None:
        self._timer = None
        self._hang_up()
        connection = self._knocking = Connection(
            self._place.network, self._source, self._place.name, self._take_later
        )
        connection.up.send(self._place.connect, connection)
        self._timer = self._loop.call_later(ATTEMPT_S, self._connect)

    def _take_later(self, connection: Connection, what: str, content: Any) -> None:
        """Have a message taken by the agent's loop; it may be frozen, or gone."""
        self._loop.call_soon(self._take, connection, what, content)

    def _take(self, connection: Connection, what: str, content: Any) -> None:
        if self._error is not None or connection not in (self._connection, self._knocking):
            return
        match what:
            case "welcome":
                self._welcome(connection, content)
            case "lost":
                self._drop("the connection was lost")
            case "answer":
                self._answer(*content)
            case "batch":
                number, batch = content
                if number in self._watches:
                    self._watches[number].notify(batch)
            case "watch ended":
                number, error = content
                if number in self._watches:
                    self._watches.pop(number).end(error)

    def _welcome(self, connection: Connection, incarnation: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._incarnation not in (None, incarnation):
            self._fail(StoreReset("Another store answers: it has none of the data of the one before."))
            return
        self._incarnation = incarnation
        self._connection, self._knocking = connection, None
        self._backoff_s = BACKOFF_S[0]
        for number, request in self._requests.items():
            if request.connection is None and not request.future.done():
                self._send(number, request, connection)
        for number, watch in self._watches.items():
            self._send_watch(number, watch)
        if not self._connected.done():
            self._connected.set_result(None)

    def _answer(self, number: int, answer: object, error: StoreError | None) -> None:
        request = self._requests.get(number)
        if request is None or request.future.done():
            return
        if error is not None:
            request.future.set_exception(error)
        else:
            request.future.set_result(answer)

    def _drop(self, reason: str) -> None:
        """Give the connection up, tell those whose requests went over it, and make another one in a moment."""
        for request in self._requests.values():
            if request.connection is not None and not request.future.done():
                request.future.set_exception(Unclear(f"The store: {reason}."))
        self._hang_up()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._backoff_s * self._rng.uniform(0.5, 1.0), self._connect)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_S[1])

    def _hang_up(self) -> None:
        for connection in (self._connection, self._knocking):
            if connection is not None:
                connection.up.send(self._place.hang_up, connection)
                connection.leave()
        self._connection = self._knocking = None

    def _fail(self, error: StoreError) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up()
        for request in self._requests.values():
            if not request.future.done():
                request.future.set_exception(type(error)(*error.args))
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            watch.end(error)

    # Watches

    def _send_watch(self, number: int, watch: _ResumingWatch) -> None:
        connection = self._connection
        if connection is not None:
            name = (connection, number)
            connection.watches[name] = None
            connection.up.send(
                self._place.request, connection, WatchAsked(name, watch.prefix, watch.next_revision)
            )

    def _watch_closed(self, queue: BatchQueue) -> None:
        for number, watch in list(self._watches.items()):
            if watch is queue:
                del self._watches[number]
                if self._connection is not None:
                    name = (self._connection, number)
                    self._connection.watches.pop(name, None)
                    self._connection.up.send(self._place.request, self._connection, WatchClosed(name))
