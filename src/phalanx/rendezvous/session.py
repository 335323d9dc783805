"""The session: performs on a store what the member's machine asks for, and tells it what it hears.

It opens the store and takes a lease, again and again until told otherwise, renews it in time, and turns watches and
answers into events. It decides nothing, and repeats nothing but reads and renewals.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from phalanx.rendezvous.events import (
    CloseSession,
    ConfirmLease,
    KeyChanged,
    KeyRead,
    KeysListed,
    LeaseEnded,
    LeaseRenewed,
    OpenSession,
    Read,
    RenewLease,
    RevokeLease,
    SessionClosed,
    SessionOpened,
    StartWatch,
    StopWatch,
    StoreFailed,
    StoreNotReached,
    StoreWasReset,
    Transact,
    Transacted,
    TransactionUnclear,
)
from phalanx.store.port import Compacted, LeaseExpired, Refused, Store, StoreReset, Unclear, Watch

__all__ = ["Session"]

OPEN_AGAIN_S = 0.5  # between attempts to reach a store that is not there
UNCLEAR_AGAIN_S = 0.2  # an unanswered request is not repeated faster, however fast it failed
RENEWALS_PER_TTL = 3
CLOSE_WITHIN_S = 5.0
LINGER_S = 5.0  # for an agent that is connected, and has not heard yet that the job is over


class Session:
    """``perform`` maps each command to what does it. ``post`` takes the events, in order.

    ``open_store`` raises ``Refused`` when trying again cannot help, ``Unclear`` or ``OSError`` when it can.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        post: Callable[[object], None],
        *,
        ttl_s: float,
        on_bug: Callable[[BaseException, object], None],
        on_refusal: Callable[[str], None] | None = None,
    ) -> None:
        self._open_store = open_store
        self._post = post
        self._ttl_s = ttl_s
        self._is_alone = ttl_s == float("inf")  # nobody would notice our end: no lease, and nothing to renew
        self._on_bug = on_bug
        self._on_refusal = on_refusal
        self._store: Store | None = None
        self._lease = 0
        self._tasks: dict[asyncio.Task[None], None] = {}  # in the order in which they began
        self._watches: dict[str, asyncio.Task[None]] = {}
        self.perform: dict[type, Callable[[Any], None]] = {
            CloseSession: self._close,
            ConfirmLease: self._in_a_task(self._confirm),
            OpenSession: self._open,
            Read: self._in_a_task(self._read),
            RenewLease: self._in_a_task(self._renew_now),
            RevokeLease: self._in_a_task(self._give_up),
            StartWatch: self._start_watch,
            StopWatch: self._stop_watch,
            Transact: self._in_a_task(self._transact),
        }

    @property
    def store(self) -> Store | None:
        """The open store, for what else is kept there (the values of the workers)."""
        return self._store

    async def aclose(self) -> None:
        """Drop everything at once; for who ends without the machine's leave."""
        self._cancel()
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    # Commands

    def _open(self, command: OpenSession) -> None:
        self._cancel()
        self._spawn(self._opening)

    def _close(self, command: CloseSession) -> None:
        self._cancel()
        self._spawn(self._closing, command)

    def _start_watch(self, command: StartWatch) -> None:
        self._stop_watch(StopWatch(command.prefix))
        self._watches[command.prefix] = self._spawn(self._watch, command.prefix)

    def _stop_watch(self, command: StopWatch) -> None:
        task = self._watches.pop(command.prefix, None)
        if task is not None:
            task.cancel()

    def _in_a_task(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        def start(command: object) -> None:
            self._spawn(work, command)

        return start

    def _spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._guarded(work, *args))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def _cancel(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        self._watches.clear()

    async def _guarded(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        try:
            await work(*args)  # made here: a task that is cancelled before it begins leaves none behind
        except (StoreReset, Refused) as error:
            self._tell_end(error)
        except Exception as error:  # noqa: BLE001 # a task's border: nobody awaits it
            self._on_bug(error, work)

    def _tell_end(self, error: StoreReset | Refused) -> None:
        """Said once: whoever else waits on this store hears the same."""
        self._cancel()
        self._post(StoreWasReset() if isinstance(error, StoreReset) else StoreFailed(str(error)))

    # Opening and closing

    async def _opening(self) -> None:
        await self._drop_store()
        while True:
            opened = await self._try_to_open()
            if opened is not None:
                break
            await asyncio.sleep(OPEN_AGAIN_S)
        store, sent_at = opened
        if not self._is_alone:
            self._spawn(self._keep_alive)
        source = store.source_address or ""
        outside = "" if source and not _is_loopback(source) else outside_address()
        self._post(
            SessionOpened(
                lease=self._lease,
                sent_at=sent_at,
                run_id=store.run_id or "",
                address=source or outside or "127.0.0.1",
                outside_address=outside if not source or _is_loopback(source) else source,
                is_host=store.is_host,
                is_local=store.is_local,
            )
        )

    async def _try_to_open(self) -> tuple[Store, float] | None:
        """A store with a lease, and when the lease was asked for."""
        try:
            store = self._store = await self._open_store()
            sent_at = asyncio.get_running_loop().time()
            if self._on_refusal is not None:
                store.tell_refusals(self._on_refusal)
            self._lease = 0 if self._is_alone else await store.grant(self._ttl_s)
        except (Unclear, StoreReset, OSError) as error:
            await self._drop_store()
            self._post(StoreNotReached(str(error) or type(error).__name__))
            return None
        return store, sent_at

    async def _closing(self, command: CloseSession) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._revoke()
        if command.lingers and self._store is not None:
            await self._store.others_gone(LINGER_S)
        await self._drop_store()
        self._post(SessionClosed())

    async def _drop_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_WITHIN_S):
                    await store.close()

    # The lease

    async def _keep_alive(self) -> None:
        again_s = min(UNCLEAR_AGAIN_S, self._ttl_s / 20)
        was_answered = True
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL if was_answered else again_s)
            if not self._lease:  # given up
                return
            was_answered = await self._renew(None)

    async def _confirm(self, command: ConfirmLease) -> None:
        while True:
            if await self._renew(command.number):
                return
            await asyncio.sleep(UNCLEAR_AGAIN_S)

    async def _renew_now(self, command: RenewLease) -> None:
        if self._lease:
            await self._renew(None)  # the keep-alive repeats it if need be

    async def _renew(self, number: int | None) -> bool:
        """Renew once; whether it was answered."""
        assert self._store is not None
        sent_at = asyncio.get_running_loop().time()
        try:
            if not self._is_alone:
                await self._store.renew(self._lease)
        except LeaseExpired:
            self._cancel_others()
            self._post(LeaseEnded())
        except Unclear:
            return False
        else:
            self._post(LeaseRenewed(sent_at, number))
        return True

    def _cancel_others(self) -> None:
        current = asyncio.current_task()
        for task in tuple(self._tasks):
            if task is not current:
                task.cancel()
        self._watches.clear()

    async def _give_up(self, command: RevokeLease) -> None:
        await self._revoke()

    async def _revoke(self) -> None:
        lease, self._lease = self._lease, 0
        if self._store is None or not lease:
            return
        with contextlib.suppress(Unclear, StoreReset, Refused):  # it ends by itself
            await self._store.revoke(lease)

    # Reading and writing

    async def _transact(self, command: Transact) -> None:
        assert self._store is not None
        began = asyncio.get_running_loop().time()
        try:
            answer = await self._store.transaction(command.compares, command.then, command.otherwise)
        except LeaseExpired:
            self._cancel_others()
            self._post(LeaseEnded())
        except Unclear as error:
            spent = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(0.0, UNCLEAR_AGAIN_S - spent))
            self._post(TransactionUnclear(command.purpose, str(error)))
        else:
            self._post(Transacted(command.purpose, answer.succeeded, answer.revision, answer.results))

    async def _read(self, command: Read) -> None:
        assert self._store is not None
        while True:
            try:
                found = await self._store.get(command.key)
            except Unclear:
                await asyncio.sleep(UNCLEAR_AGAIN_S)
            else:
                self._post(KeyRead(command.key, found))
                return

    async def _watch(self, prefix: str) -> None:
        assert self._store is not None
        while True:
            try:
                listing = await self._store.list(prefix)
            except Unclear:
                await asyncio.sleep(UNCLEAR_AGAIN_S)
                continue
            self._post(KeysListed(prefix, listing.revision, listing.items))
            watch: Watch = self._store.watch(prefix, listing.revision + 1)
            try:
                async for batch in watch:
                    self._post(KeyChanged(prefix, batch))
            except Compacted:
                continue  # we were cut off for longer than history lasts: list anew
            finally:
                await watch.aclose()


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def outside_address() -> str:
    """The address of the interface of the default route, which sends nothing to find out; empty: there is none."""
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((anywhere, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return ""
