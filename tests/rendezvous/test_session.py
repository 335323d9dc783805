"""The session over the memory store, in a real event loop: what it tells, what it repeats, and that it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import pytest

from phalanx.rendezvous import session as module
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
from phalanx.rendezvous.session import Session
from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import (
    Answer,
    Compacted,
    Compare,
    Field,
    Get,
    Operation,
    Put,
    Refused,
    Store,
    StoreReset,
    Unclear,
)

LIMIT_S = 30
TTL_S = 30.0  # nothing here waits for a lease to end


class FaultyStore(MemoryStore):
    """The memory store, with answers that do not come: ``faults`` are raised in turn, by the name of the method."""

    def __init__(self, server: MemoryServer, faults: dict[str, list[Exception]] | None = None) -> None:
        super().__init__(server)
        self.faults = {} if faults is None else faults
        self.is_stuck = False
        self.renewals = 0
        self.is_closed = False
        self.address: str | None = "10.0.0.9"

    async def _meet(self, name: str) -> None:
        if self.is_stuck:
            await asyncio.get_running_loop().create_future()
        if self.faults.get(name):
            raise self.faults[name].pop(0)

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        await self._meet("transaction")
        return await super().transaction(compares, then, otherwise)

    async def grant(self, ttl_s: float) -> int:
        await self._meet("grant")
        return await super().grant(ttl_s)

    async def renew(self, lease: int) -> None:
        self.renewals += 1
        await self._meet("renew")
        await super().renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._meet("revoke")
        await super().revoke(lease)

    async def close(self) -> None:
        await self._meet("close")
        self.is_closed = True
        await super().close()

    @property
    def source_address(self) -> str | None:
        return self.address

    @property
    def run_id(self) -> str | None:
        return "told"


class Talk:
    """A session, and what it has posted."""

    def __init__(self, *, ttl_s: float = TTL_S, server: MemoryServer | None = None) -> None:
        self.server = server or MemoryServer(StoreMachine(history_max=8))
        self.stores: list[FaultyStore] = []
        self.to_raise: list[Exception] = []
        self.faults: dict[str, list[Exception]] = {}
        self.address: str | None = "10.0.0.9"
        self.posted: list[Any] = []
        self.bugs: list[BaseException] = []
        self.on_post: Callable[[object], None] = lambda event: None
        self._news = asyncio.Event()
        self.bug_found = asyncio.Event()
        self.session = Session(self._open, self._post, ttl_s=ttl_s, on_bug=self._on_bug)

    async def _open(self) -> Store:
        if self.to_raise:
            raise self.to_raise.pop(0)
        store = FaultyStore(self.server, self.faults)
        store.address = self.address
        self.stores.append(store)
        return store

    def _on_bug(self, error: BaseException, event: object) -> None:
        self.bugs.append(error)
        self.bug_found.set()

    def _post(self, event: object) -> None:
        self.posted.append(event)
        self._news.set()
        self.on_post(event)

    def do(self, *commands: object) -> None:
        for command in commands:
            self.session.perform[type(command)](command)

    def all(self, kind: type) -> list[Any]:
        return [one for one in self.posted if isinstance(one, kind)]

    async def heard(self, kind: type, many: int = 1) -> Any:
        """The last of so many events of a kind, once they are there."""
        while len(self.all(kind)) < many:
            self._news.clear()
            await self._news.wait()
        return self.all(kind)[many - 1]

    async def opened(self) -> SessionOpened:
        self.do(OpenSession())
        found = await self.heard(SessionOpened)
        assert isinstance(found, SessionOpened)
        return found

    @property
    def outsider(self) -> MemoryStore:
        return MemoryStore(self.server)


def told(story: Callable[[Talk], Awaitable[None]], **options: Any) -> Talk:
    """Run a story to its end, close the session, and see that nothing of it is left."""

    async def run() -> Talk:
        talk = Talk(**options)
        try:
            async with asyncio.timeout(LIMIT_S):
                await story(talk)
                await talk.session.aclose()
                await _settled()
        finally:
            talk.server.close()
        assert talk.bugs == []
        return talk

    return asyncio.run(run())


async def _settled() -> None:
    """All tasks but this one come to their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def _idle(seconds: float = 0.0) -> None:
    """Let everything that is ready happen."""
    for _ in range(20):
        await asyncio.sleep(seconds / 20)


def put(key: str, value: bytes = b"1", lease: int = 0) -> Transact:
    return Transact("join", (), (Put(key, value, lease),))


Story = Callable[[Talk], Coroutine[Any, Any, None]]


def test_it_opens_the_store_takes_a_lease_and_says_where_it_is() -> None:
    async def story(talk: Talk) -> None:
        before = asyncio.get_running_loop().time()
        opened = await talk.opened()
        assert before <= opened.sent_at <= asyncio.get_running_loop().time()
        assert (opened.run_id, opened.address, opened.outside_address) == ("told", "10.0.0.9", "10.0.0.9")
        assert not opened.is_host
        assert list(talk.server.machine.leases) == [opened.lease]
        assert talk.session.store is talk.stores[0]

    told(story)


@pytest.mark.parametrize("source", ["127.0.0.1", "127.8.9.1", "::1", None])
@pytest.mark.parametrize("outside", ["192.0.2.7", ""])
def test_a_loopback_address_is_never_said_to_be_of_use_to_other_machines(
    monkeypatch: pytest.MonkeyPatch, source: str | None, outside: str
) -> None:
    monkeypatch.setattr(module, "outside_address", lambda: outside)

    async def story(talk: Talk) -> None:
        talk.address = source
        opened = await talk.opened()
        assert opened.outside_address == outside
        assert opened.address == (source or outside or "127.0.0.1")

    told(story)


def test_a_store_that_is_not_there_is_tried_again_and_each_reason_is_told() -> None:
    async def story(talk: Talk) -> None:
        talk.to_raise = [
            Unclear("silence"),
            OSError(111, "refused"),
            ConnectionError(),
            StoreReset("another"),
        ]
        await talk.opened()
        reasons = [one.reason for one in talk.all(StoreNotReached)]
        assert reasons == ["silence", "[Errno 111] refused", "ConnectionError", "another"]

    told(story)


def test_a_store_that_grants_no_lease_is_closed_and_opened_anew() -> None:
    async def story(talk: Talk) -> None:
        talk.faults["grant"] = [Unclear("no answer")]
        await talk.opened()
        assert [one.is_closed for one in talk.stores] == [True, False]

    told(story)


@pytest.mark.parametrize("method", ["open", "grant"])
def test_a_store_that_refuses_us_is_told_once_and_not_tried_again(method: str) -> None:
    async def story(talk: Talk) -> None:
        if method == "open":
            talk.to_raise = [Refused("wrong secret")]
        else:
            talk.faults[method] = [Refused("wrong secret")]
        talk.do(OpenSession())
        await talk.heard(StoreFailed)
        await _idle(2 * module.OPEN_AGAIN_S)
        assert talk.posted == [StoreFailed("wrong secret")]

    told(story)


def test_the_lease_is_renewed_three_times_in_its_time() -> None:
    async def story(talk: Talk) -> None:
        opened = await talk.opened()
        renewed = await talk.heard(LeaseRenewed, 3)
        assert renewed.number is None
        assert renewed.sent_at - opened.sent_at >= 0.99 * 3.0
        assert opened.lease in talk.server.machine.leases

    told(story, ttl_s=3.0)


def test_a_renewal_without_an_answer_is_repeated_soon_and_says_nothing() -> None:
    async def story(talk: Talk) -> None:
        talk.faults["renew"] = [Unclear("lost")] * 3
        await talk.opened()
        await talk.heard(LeaseRenewed)
        assert talk.stores[0].renewals == 4
        assert len(talk.posted) == 2

    told(story, ttl_s=6.0)


def test_a_lease_that_ended_is_told_once_although_many_requests_wait_for_it() -> None:
    async def story(talk: Talk) -> None:
        opened = await talk.opened()
        talk.do(StartWatch("job/"))
        await talk.heard(KeysListed)
        await talk.outsider.revoke(opened.lease)
        talk.do(ConfirmLease(1), put("a", lease=opened.lease), put("b", lease=opened.lease), ConfirmLease(2))
        await talk.heard(LeaseEnded)
        await talk.outsider.put("job/x", b"")
        await _idle()
        assert talk.posted[2:] == [LeaseEnded()], "and nothing of that life is told any more"

    told(story)


def test_who_is_alone_takes_no_lease_and_renews_none() -> None:
    async def story(talk: Talk) -> None:
        opened = await talk.opened()
        assert opened.lease == 0
        assert not talk.server.machine.leases
        talk.do(ConfirmLease(3))
        assert (await talk.heard(LeaseRenewed)).number == 3
        assert talk.stores[0].renewals == 0

    told(story, ttl_s=float("inf"))


def test_a_lease_is_confirmed_by_a_renewal_that_was_sent_after_it_was_asked_for() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.faults["renew"] = [Unclear("lost"), Unclear("lost")]
        asked_at = asyncio.get_running_loop().time()
        talk.do(ConfirmLease(7))
        renewed = await talk.heard(LeaseRenewed)
        assert renewed.number == 7
        assert renewed.sent_at >= asked_at + 2 * module.UNCLEAR_AGAIN_S

    told(story)


def test_a_renewal_out_of_turn_is_sent_at_once() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(RenewLease())
        assert (await talk.heard(LeaseRenewed)).number is None

    told(story)


def test_transactions_are_answered_in_order_with_what_they_read() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(
            put("a", b"1"),
            Transact("lead", (Compare("a", Field.VERSION, 1),), (Put("b", b"2"),)),
            Transact("leave", (Compare("a", Field.VERSION, 9),), (Put("c", b"3"),), (Get("a"),)),
        )
        await talk.heard(Transacted, 3)
        first, second, third = talk.all(Transacted)
        assert (first.purpose, first.succeeded, second.purpose, second.succeeded) == (
            "join",
            True,
            "lead",
            True,
        )
        assert (third.purpose, third.succeeded, third.results[0][0].value) == ("leave", False, b"1")
        assert third.revision == second.revision == first.revision + 1

    told(story)


def test_a_transaction_without_an_answer_is_told_and_never_repeated() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.faults["transaction"] = [Unclear("lost")]
        began = asyncio.get_running_loop().time()
        talk.do(put("a"))
        assert (await talk.heard(TransactionUnclear)).purpose == "join"
        assert asyncio.get_running_loop().time() - began >= module.UNCLEAR_AGAIN_S, (
            "who repeats at once spins"
        )
        assert await talk.outsider.get("a") is None

    told(story)


def test_a_read_is_repeated_until_it_is_answered() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        await talk.outsider.put("a", b"1")
        talk.faults["transaction"] = [Unclear("lost")] * 2
        talk.do(Read("a"), Read("b"))
        await talk.heard(KeyRead, 2)
        found = {one.key: one.kv for one in talk.all(KeyRead)}
        assert found["a"].value == b"1"
        assert found["b"] is None

    told(story)


def test_a_watch_lists_and_then_tells_each_change_once() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        await talk.outsider.put("job/a", b"1")
        await talk.outsider.put("other", b"1")
        talk.faults["transaction"] = [Unclear("lost")]
        talk.do(StartWatch("job/"))
        listed = await talk.heard(KeysListed)
        assert [one.key for one in listed.items] == ["job/a"]
        for value in (b"2", b"3"):
            await talk.outsider.put("job/a", value)
        await talk.outsider.put("other", b"2")
        await talk.outsider.delete("job/a")
        await talk.heard(KeyChanged, 3)
        await _idle()
        changes = talk.all(KeyChanged)
        assert [one.batch.changes[0].kv.value for one in changes] == [b"2", b"3", b""]
        assert changes[0].batch.revision == listed.revision + 1

    told(story)


def test_a_watch_that_was_cut_off_for_longer_than_history_lasts_lists_anew() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(StartWatch("job/"))
        await talk.heard(KeysListed)
        (queue,) = talk.stores[0]._watches
        queue.end(Compacted("too far behind"))
        await talk.outsider.put("job/a", b"1")
        listed = await talk.heard(KeysListed, 2)
        assert [one.key for one in listed.items] == ["job/a"]
        await talk.outsider.put("job/a", b"2")
        assert (await talk.heard(KeyChanged)).batch.changes[0].kv.value == b"2"

    told(story)


def test_a_watch_that_was_stopped_or_started_anew_tells_nothing_twice() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(StartWatch("job/"), StopWatch("job/"), StartWatch("job/"), StartWatch("job/"))
        await talk.heard(KeysListed)
        await _idle()
        await talk.outsider.put("job/a", b"1")
        await talk.heard(KeyChanged)
        talk.do(StopWatch("job/"), StopWatch("nothing/"))
        await _idle()
        await talk.outsider.put("job/a", b"2")
        await _idle()
        assert len(talk.all(KeysListed)) == len(talk.all(KeyChanged)) == 1

    told(story)


def test_a_store_that_was_reset_is_told_once_whoever_finds_out_first() -> None:
    async def story(talk: Talk) -> None:
        opened = await talk.opened()
        talk.do(StartWatch("job/"))
        await talk.heard(KeysListed)
        talk.faults["transaction"] = [StoreReset("another")] * 9
        talk.faults["renew"] = [StoreReset("another")] * 9
        talk.do(
            put("a"), put("b"), ConfirmLease(1), Read("c"), StartWatch("nodes/"), put("d", lease=opened.lease)
        )
        await talk.heard(StoreWasReset)
        await _idle()
        assert talk.posted[2:] == [StoreWasReset()]

    told(story)


def test_a_store_that_refuses_a_request_has_failed_for_good() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(put("a", b"x" * 9_000_000))
        assert "bytes" in (await talk.heard(StoreFailed)).reason
        await _idle()
        assert len(talk.posted) == 2

    told(story)


def test_nothing_of_an_earlier_session_is_told_in_a_new_one() -> None:
    async def story(talk: Talk) -> None:
        first = await talk.opened()
        talk.do(StartWatch("job/"))
        await talk.heard(KeysListed)
        stale: list[int] = []

        def reopen(event: object) -> None:
            if isinstance(event, KeyChanged) and len(talk.all(KeyChanged)) == 1:
                talk.do(OpenSession())
            elif isinstance(event, SessionOpened):
                stale.append(len(talk.posted))

        talk.on_post = reopen
        for value in (b"1", b"2", b"3"):
            await talk.outsider.put("job/a", value)
        talk.do(put("late"), Read("late"), ConfirmLease(5))
        second = await talk.heard(SessionOpened, 2)
        await talk.outsider.put("job/a", b"4")
        await _idle()
        assert second.lease != first.lease
        assert talk.posted[stale[0] :] == []
        assert talk.stores[0].is_closed
        assert not talk.stores[1].is_closed

    told(story)


def test_tasks_that_are_cancelled_before_they_began_leave_no_complaint(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(put("a"), Read("b"), StartWatch("c"), ConfirmLease(1), OpenSession())
        await talk.heard(SessionOpened, 2)

    gc.collect()  # what other tests have left may complain, before
    recwarn.clear()
    told(story)
    gc.collect()
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def test_a_session_that_closes_gives_its_lease_back_and_says_so() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(StartWatch("job/"), CloseSession())
        await talk.heard(SessionClosed)
        assert not talk.server.machine.leases
        assert talk.stores[0].is_closed
        assert talk.session.store is None
        assert talk.posted[-1] == SessionClosed()

    told(story)


def test_a_session_that_gives_its_lease_back_stays_connected_and_renews_no_more() -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.do(RevokeLease())
        talk.do(StartWatch("nodes/"))
        await talk.heard(KeysListed)
        assert not talk.server.machine.leases
        await _idle(1.0)
        assert talk.stores[0].renewals == 0
        assert not talk.all(LeaseEnded)
        talk.do(RenewLease())
        await talk.outsider.put("nodes/x", b"")
        await talk.heard(KeyChanged)
        assert talk.stores[0].renewals == 0

    told(story, ttl_s=1.0)


@pytest.mark.parametrize("method", ["revoke", "close"])
def test_the_end_is_bounded_although_the_store_is_dead(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    monkeypatch.setattr(module, "CLOSE_WITHIN_S", 0.1)

    async def story(talk: Talk) -> None:
        await talk.opened()
        store = talk.stores[0]

        async def stuck(*args: object) -> None:
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(store, method, stuck)
        talk.do(CloseSession())
        await talk.heard(SessionClosed)

    told(story)


@pytest.mark.parametrize("error", [Unclear("lost"), StoreReset("another"), Refused("no")])
def test_the_end_comes_whatever_the_store_says_to_it(error: Exception) -> None:
    async def story(talk: Talk) -> None:
        await talk.opened()
        talk.faults["revoke"] = [error]
        talk.do(CloseSession())
        await talk.heard(SessionClosed)
        assert talk.stores[0].is_closed

    told(story)


def test_a_session_that_never_reached_its_store_ends_at_once() -> None:
    async def story(talk: Talk) -> None:
        talk.to_raise = [Unclear("silence")] * 100
        talk.do(OpenSession())
        await talk.heard(StoreNotReached)
        talk.do(CloseSession())
        await talk.heard(SessionClosed)
        tried = len(talk.to_raise)
        await _idle(2 * module.OPEN_AGAIN_S)
        assert len(talk.to_raise) == tried

    told(story)


def test_a_bug_in_a_task_is_handed_up_and_not_swallowed() -> None:
    async def run() -> list[BaseException]:
        talk = Talk()
        async with asyncio.timeout(LIMIT_S):
            await talk.opened()
            talk.faults["transaction"] = [ZeroDivisionError("a bug")]
            talk.do(put("a"))
            await talk.bug_found.wait()
            await talk.session.aclose()
            await _settled()
        talk.server.close()
        return talk.bugs

    (bug,) = asyncio.run(run())
    assert isinstance(bug, ZeroDivisionError)
