"""A client of the hosted store. It connects again by itself, and its watches go on where they were.

It tells *silent* from *lost*: ``Unclear`` while nobody answers, ``StoreReset`` for good once the store that answers is
another one than before, ``Refused`` for good once it says that it will not serve us.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from phalanx.store.dialogue import Done, Fault, News, Reply, Request, encode_request
from phalanx.store.limits import find_mistake
from phalanx.store.link import Link, connect
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
    Compare,
    Operation,
    Refused,
    Store,
    StoreError,
    StoreReset,
    Unclear,
    Watch,
)
from phalanx.store.sockets import resolve
from phalanx.store.watching import BatchQueue
from phalanx.store.wire import NONCE_BYTES, REQUEST_FRAME_MAX, Hello

if TYPE_CHECKING:
    import ssl

__all__ = ["ATTEMPT_S", "HostedStore"]

ATTEMPT_S = 2.0
# Pauses between attempts to connect: half to all of it, at random, so that a thousand agents whose store came back do
# not come in step.
PAUSE_MIN_S = 0.05
PAUSE_MAX_S = 1.0

KindT = TypeVar("KindT")


class HostedStore(Store):
    """See the module's docstring. Made by ``open``; ``run_id`` is that of the job, which the host may have told."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        secret: bytes | None,
        run_id: str | None,
        fingerprint: str = "",
        attempt_s: float = ATTEMPT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._run_id = run_id or ""
        self._host = host
        self._port = port
        self._secret = secret
        self._fingerprint = fingerprint
        self._attempt_s = attempt_s
        self._tls = tls
        self._link: Link | None = None
        self._incarnation = ""
        self._source_address: str | None = None
        self._end: StoreError | None = None
        self._numbers = 0
        self._calls: dict[int, asyncio.Future[Done]] = {}
        self._watches: dict[int, _HostedWatch] = {}
        self._connected = asyncio.Event()
        self._connecting: asyncio.Task[None] | None = None
        self._trouble = ""  # why we could not connect again

    async def open(self, timeout_s: float | None = None) -> None:
        """Connect for the first time. Raises ``Unclear`` if nobody answers in time (an attempt's), and ``Refused``."""
        self._adopt(await self._reach(self._attempt_s if timeout_s is None else timeout_s))

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As every store does."""
        asked = tuple(compares), tuple(then), tuple(otherwise)
        if mistake := find_mistake(*asked):
            raise Refused(mistake)
        return _expect(Answer, await self._ask(lambda number: TransactionAsked(number, *asked)))

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As every store does."""
        watch = _HostedWatch(self._next_number(), prefix, from_revision, self._watch_closed)
        if self._end is not None:
            watch.end(_again(self._end))
            return watch
        try:
            prefix.encode()
        except UnicodeEncodeError:
            watch.end(Refused("A prefix is no text: it holds half of a surrogate pair."))
            return watch
        self._watches[watch.number] = watch
        if self._link is not None:
            self._link.send(watch.request(self._numbers))
        return watch

    async def grant(self, ttl_s: float) -> int:
        """As every store does."""
        return _expect(int, await self._ask(lambda number: GrantAsked(number, ttl_s)))

    async def renew(self, lease: int) -> None:
        """As every store does."""
        await self._ask(lambda number: RenewAsked(number, lease))

    async def revoke(self, lease: int) -> None:
        """As every store does."""
        await self._ask(lambda number: RevokeAsked(number, lease))

    async def close(self) -> None:
        """As every store does."""
        self._finish(Unclear("The connection to the store was closed on our side."))
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        await asyncio.sleep(0)  # the transport lets go of its socket in the next turn of the loop

    @property
    def source_address(self) -> str | None:
        """Our address on the connection that was made last."""
        return self._source_address

    @property
    def run_id(self) -> str:
        """The id of our job: given, or told by the host."""
        return self._run_id

    # Requests

    async def _ask(self, make: Callable[[int], Request]) -> Answer | int | None:
        """Send a request once there is a connection, and wait for the answer; both within one attempt's time."""
        loop = asyncio.get_running_loop()
        number, sent_to, sent_at = 0, None, 0.0
        try:
            async with asyncio.timeout(self._attempt_s):
                while self._link is None:
                    if self._end is not None:
                        raise _again(self._end)
                    await self._connected.wait()
                number = self._next_number()
                payload = encode_request(make(number))
                if len(payload) > REQUEST_FRAME_MAX:
                    raise Refused(f"The request is too large: {len(payload)} bytes.")
                call: asyncio.Future[Done] = loop.create_future()
                self._calls[number] = call
                sent_to, sent_at = self._link, loop.time()
                sent_to.send(payload)
                return (await call).answer
        except TimeoutError:
            if sent_to is not None and sent_to is self._link and sent_to.heard_at < sent_at:
                # Not one byte since: a cut leaves a connection that heals later than a new one is made.
                self._lose("The store does not answer.")
            trouble = f" {self._trouble}" if self._trouble and self._link is None else ""
            raise Unclear(
                f"The store at {self._place} did not answer within {self._attempt_s:g} s.{trouble}"
            ) from None
        finally:
            self._calls.pop(number, None)

    def _next_number(self) -> int:
        """Numbers of requests grow in the order in which they are sent."""
        self._numbers += 1
        return self._numbers

    def take(self, reply: Reply) -> None:
        """A reply has arrived."""
        if isinstance(reply, News):
            if (watch := self._watches.get(reply.number)) is not None:
                watch.next_revision = reply.batch.revision + 1
                watch.notify(reply.batch)
            return
        if isinstance(reply, Done):
            for watch in self._watches.values():
                watch.answered(reply)
        call = self._calls.get(reply.number)
        if call is not None:
            if not call.done():
                _settle(call, reply)
        elif isinstance(reply, Fault) and (watch := self._watches.get(reply.number)) is not None:
            watch.end(reply.error)

    def _watch_closed(self, queue: BatchQueue) -> None:
        assert isinstance(queue, _HostedWatch)
        if self._watches.pop(queue.number, None) is not None and self._link is not None:
            self._link.send(encode_request(WatchClosed(queue.number)))

    # Connections

    def lost(self, link: Link, reason: str) -> None:
        """A link has ended."""
        if link is self._link:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Give up the connection, and begin to make another."""
        link, self._link = self._link, None
        self._connected.clear()
        if link is not None:
            link.close()
        self._fail_calls(Unclear(reason))
        self._connecting = asyncio.get_running_loop().create_task(self._connect_again())

    async def _connect_again(self) -> None:
        pause_s = PAUSE_MIN_S
        while self._end is None:
            try:
                self._adopt(await self._reach(self._attempt_s))
                self._trouble = ""
                return
            except Unclear as unclear:
                self._trouble = str(unclear)
            except StoreError as error:
                self._finish(error)
                return
            except Exception as error:  # noqa: BLE001 # nobody awaits this task, and without it all calls are in vain
                self._trouble = f"To connect again fails: {error!r}."
                if self._link is not None:  # it failed with what comes after it
                    self._link.close()
                    self._link = None
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _reach(self, timeout_s: float) -> Link:
        """A connection that is ready, by whichever address the name has. Raises ``Unclear`` and ``Refused``."""
        reason = f"Nobody answered within {timeout_s:g} s."
        try:
            async with asyncio.timeout(timeout_s):
                addresses = await resolve(self._host, self._port)
                for number, address in enumerate(addresses):
                    try:
                        async with asyncio.timeout(timeout_s / (len(addresses) - number)):
                            return await connect(
                                address, self._new_link, tls=self._tls, server_name=self._host
                            )
                    except (OSError, Unclear) as error:  # TimeoutError is among them
                        self._check_certificate(error)
                        reason = str(error) or reason
        except OSError as error:  # also of a name, which may be known later
            reason = str(error) or reason
        raise Unclear(f"The store at {self._place} cannot be reached: {reason}")

    def _new_link(self) -> Link:
        return Link(Hello(secrets.token_hex(NONCE_BYTES), self._run_id, self._fingerprint), self._secret)

    def _check_certificate(self, error: Exception) -> None:
        """Raise ``Refused`` if that is what is wrong: it will be wrong the next time, too."""
        if type(error).__name__ == "SSLCertVerificationError":  # without importing ssl for those who use none
            raise Refused(f"The store at {self._place} has a certificate that we do not trust: {error}")

    def _adopt(self, link: Link) -> None:
        if not link.is_open:
            raise Unclear("The connection to the store ended as soon as it was made.")
        assert link.welcome is not None
        if self._incarnation and link.welcome.incarnation != self._incarnation:
            link.close()
            raise StoreReset(f"The store at {self._place} was started anew, without the data that it had.")
        self._incarnation = link.welcome.incarnation
        self._run_id = link.welcome.run_id
        self._source_address = link.source_address
        self._link = link
        link.listen(self)
        for watch in self._watches.values():
            link.send(watch.request(self._numbers))
        self._connected.set()

    def _finish(self, error: StoreError) -> None:
        """No call will succeed from now on."""
        if self._end is None:
            self._end = error
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._connected.set()  # whoever waits for a connection is told why there is none
        self._fail_calls(self._end)
        for watch in tuple(self._watches.values()):
            watch.end(_again(self._end))

    def _fail_calls(self, error: StoreError) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(_again(error))

    @property
    def _place(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"


class _HostedWatch(BatchQueue):
    """A watch, and where it goes on when there is another connection."""

    def __init__(
        self, number: int, prefix: str, from_revision: int, closed: Callable[[BatchQueue], None]
    ) -> None:
        super().__init__(closed)
        self.number = number
        self.next_revision = from_revision
        self._prefix = prefix
        self._asked_after = number

    def request(self, last_number: int) -> bytes:
        """What asks for it, sent after the request of that number and before all later ones."""
        self._asked_after = last_number
        return encode_request(WatchAsked(self.number, self._prefix, self.next_revision))

    def answered(self, reply: Done) -> None:
        """A request was answered; if it was sent after ours, all changes until then have arrived here, ours or not.

        So a watch that is quiet for long does not ask for ancient history when it goes on elsewhere.
        """
        if reply.number > self._asked_after:
            self.next_revision = max(self.next_revision, reply.revision + 1)


def _settle(call: asyncio.Future[Done], reply: Done | Fault) -> None:
    if isinstance(reply, Fault):
        call.set_exception(reply.error)
    else:
        call.set_result(reply)


def _expect(kind: type[KindT], answer: object) -> KindT:
    if not isinstance(answer, kind):
        raise Unclear(f"The store answered with {type(answer).__name__} instead of {kind.__name__}.")
    return answer


def _again(error: StoreError) -> StoreError:
    """The same error, to be raised once more: a traceback belongs to one of them."""
    return type(error)(*error.args)
