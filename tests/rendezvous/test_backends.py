"""Rendezvous backends over stores of ours, and the store inside of a backend when that misbehaves.

That such a store is a store like others is shown by the suite in ``tests/store``.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.rendezvous.backends import Cell, CellBackend
from tests.store.stories import PATIENCE_S, within
from tests.system.launch import two_free_ports

from phalanx.rendezvous.backend import RendezvousBackend
from phalanx.rendezvous.backend_state import BackendState, Damaged
from phalanx.rendezvous.backend_store import BackendStore
from phalanx.rendezvous.c10d_backend import C10dRendezvousBackend, create_backend
from phalanx.rendezvous.errors import RendezvousConnectionError, RendezvousStateError
from phalanx.rendezvous.parameters import RendezvousParameters
from phalanx.store.machine import GrantAsked, TransactionAsked
from phalanx.store.port import LeaseExpired, Put, Refused, StoreReset, Unclear

KEY = "/phalanx/job/key"


def hash_store() -> Any:
    from torch.distributed import HashStore

    return HashStore()


# The interface


def _torchs(run_id: str) -> RendezvousBackend:
    return C10dRendezvousBackend(hash_store(), run_id)


def _cells(run_id: str) -> RendezvousBackend:
    return CellBackend(Cell())


@pytest.mark.torch
@pytest.mark.parametrize("make", [_torchs, _cells])
@shows_names("same", "elastic.rendezvous.dynamic_rendezvous", "RendezvousBackend")
def test_a_backend_keeps_one_value_under_compare_and_set(make: Callable[[str], RendezvousBackend]) -> None:
    backend = make("job")
    assert backend.get_state() is None
    first = backend.set_state(b"one")
    assert first is not None
    assert (first[0], first[2]) == (b"one", True)
    assert backend.set_state(b"two") == (*first[:2], False)
    assert backend.set_state(b"two", "no token") == (*first[:2], False)
    second = backend.set_state(b"two", first[1])
    assert second is not None
    assert (second[0], second[2]) == (b"two", True)
    assert backend.set_state(b"three", first[1]) == (*second[:2], False)
    assert backend.get_state() == second[:2]


@pytest.mark.torch
def test_the_first_value_needs_no_look_before() -> None:
    backend = C10dRendezvousBackend(hash_store(), "job")
    result = backend.set_state(b"one")
    assert result is not None
    assert result[2]


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous.c10d_rendezvous_backend", "C10dRendezvousBackend")
def test_what_the_c10d_backend_writes_torchelastics_reads_and_the_other_way_round() -> None:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend as Theirs

    store = hash_store()
    own, other = C10dRendezvousBackend(store, "job"), Theirs(store, "job")
    assert own.name == other.name
    assert own.get_state() is other.get_state() is None
    result = own.set_state(b"ours\0\xff")
    assert other.get_state() == own.get_state() == result[:2]  # type: ignore[index]
    result = other.set_state(b"theirs", other.get_state()[1])
    assert result[2]
    assert own.get_state() == result[:2]


@pytest.mark.torch
def test_a_state_that_is_no_base64_is_damaged_for_both() -> None:
    from torch.distributed.elastic.rendezvous.api import RendezvousStateError as TheirError
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend as Theirs

    store = hash_store()
    store.set("torch.rendezvous.job", "abc")
    with pytest.raises(TheirError):
        Theirs(store, "job").get_state()
    with pytest.raises(RendezvousStateError):
        C10dRendezvousBackend(store, "job").get_state()


def test_a_backend_without_a_run_id_is_refused() -> None:
    with pytest.raises(ValueError, match="run id"):
        C10dRendezvousBackend(None, "")


def test_a_store_that_fails_is_a_lost_connection() -> None:
    class Broken:
        def compare_set(self, *args: object) -> bytes:
            raise RuntimeError("socket closed")

    with pytest.raises(RendezvousConnectionError, match="socket closed"):
        C10dRendezvousBackend(Broken(), "job").get_state()


# Over stores of ours


def parameters(endpoint: str, **options: Any) -> RendezvousParameters:
    return RendezvousParameters("c10d", endpoint, "job/1", 1, 2, **options)


@pytest.fixture
def opened() -> Iterator[Callable[[RendezvousParameters], tuple[C10dRendezvousBackend, Any]]]:
    stores: list[Any] = []

    def open_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
        backend, store = create_backend(params)
        stores.insert(0, store)  # the host was first, and is closed last
        return backend, store

    yield open_backend
    for store in stores:
        store.close()


def test_whoever_comes_first_to_the_endpoint_serves_the_others(opened: Any) -> None:
    endpoint = f"127.0.0.1:{two_free_ports()}"
    host, _ = opened(parameters(endpoint))
    guest, store = opened(parameters(endpoint, is_host="false"))
    result = host.set_state(b"state")
    assert guest.get_state() == result[:2]
    store.set("key", "value")
    assert store.get("key") == b"value"


def test_a_shared_folder_is_a_store_too(opened: Any, tmp_path: Path) -> None:
    pytest.importorskip("phalanx.store.file")
    one, _ = opened(parameters(str(tmp_path / "here"), store_type="file"))
    other, _ = opened(parameters(str(tmp_path / "here"), store_type="file"))
    result = one.set_state(b"state")
    assert other.get_state() == result[:2]


def test_a_store_that_nobody_serves_is_waited_for_as_long_as_was_said(opened: Any) -> None:
    with pytest.raises(RendezvousConnectionError, match="cannot be used"):
        opened(parameters(f"127.0.0.1:{two_free_ports()}", is_host="0", read_timeout="1"))


@pytest.mark.torch
@pytest.mark.parametrize(
    "options", [{"store_type": "x"}, {"read_timeout": -1}, {"read_timeout": "x"}, {"is_host": "x"}]
)
@shows_names("same", "elastic.rendezvous.c10d_rendezvous_backend", "create_backend")
def test_options_that_torchelastic_refuses_are_refused(opened: Any, options: dict[str, Any]) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TheirParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend as theirs

    with pytest.raises(ValueError):  # noqa: PT011 # the sentences differ
        theirs(TheirParameters("c10d", "localhost:0", "job", 1, 2, **options))
    with pytest.raises(ValueError):  # noqa: PT011
        opened(parameters("localhost:0", **options))


# A store inside of a backend


@asynccontextmanager
async def clients(cell: Cell, count: int = 1, **options: Any) -> Any:
    stores = [BackendStore(CellBackend(cell), poll_s=0.02, **options) for _ in range(count)]
    try:
        yield stores
    finally:
        for store in stores:
            await store.close()


def test_a_backend_that_fails_is_unclear_and_is_asked_again() -> None:
    async def story() -> None:
        failing = threading.Event()

        def before_call() -> None:
            if failing.is_set():
                raise RendezvousConnectionError("the cable is out")

        store = BackendStore(CellBackend(Cell(), before_call=before_call))
        await store.put(KEY, b"1")
        failing.set()
        with pytest.raises(Unclear, match="the cable is out"):
            await within(store.put(KEY, b"2"))
        failing.clear()
        item = await within(store.get(KEY))
        assert item is not None
        assert item.value == b"1"
        await store.close()

    asyncio.run(story())


def test_whatever_a_backend_raises_is_no_answer_and_the_store_lives_on() -> None:
    async def story() -> None:
        errors: list[BaseException] = [SystemExit(3), StopIteration(), KeyError("x")]

        def before_call() -> None:
            if errors:
                raise errors.pop()

        store = BackendStore(CellBackend(Cell(), before_call=before_call))
        for name in ("KeyError", "StopIteration", "SystemExit"):
            with pytest.raises(Unclear, match=name):
                await within(store.get(KEY))
        assert await within(store.get(KEY)) is None
        await store.close()

    asyncio.run(story())


def test_a_backend_that_hangs_is_unclear_in_time_and_does_not_keep_the_store_from_closing() -> None:
    async def story() -> None:
        go_on = threading.Event()

        def before_call() -> None:
            go_on.wait()

        store = BackendStore(CellBackend(Cell(), before_call=before_call), attempt_s=0.1)
        try:
            with pytest.raises(Unclear, match=r"has not answered within 0\.1 s"):
                await within(store.get(KEY))
            await within(store.close())
        finally:
            go_on.set()

    asyncio.run(story())


def test_a_write_whose_answer_was_lost_may_have_happened() -> None:
    class Forgetful(CellBackend):
        is_forgetful = True

        def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
            result = super().set_state(state, token)
            if self.is_forgetful:
                raise RendezvousConnectionError("the answer was lost")
            return result

    async def story() -> None:
        backend = Forgetful(Cell())
        store = BackendStore(backend)
        with pytest.raises(Unclear):
            await within(store.put(KEY, b"1"))
        backend.is_forgetful = False
        item = await within(store.get(KEY))
        assert item is not None
        assert (item.value, item.version) == (b"1", 1)
        await store.close()

    asyncio.run(story())


def test_a_first_write_that_failed_has_not_happened() -> None:
    class Refusing(CellBackend):
        is_refusing = True

        def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
            if self.is_refusing:
                raise RendezvousConnectionError("not now")
            return super().set_state(state, token)

    async def story() -> None:
        backend = Refusing(Cell())
        store = BackendStore(backend)
        with pytest.raises(Unclear):
            await within(store.put(KEY, b"1"))
        backend.is_refusing = False
        assert await within(store.get(KEY)) is None
        await store.put(KEY, b"2")
        item = await within(store.get(KEY))
        assert item is not None
        assert (item.value, item.version) == (b"2", 1)
        await store.close()

    asyncio.run(story())


def test_a_state_that_is_lost_is_a_reset_for_calls_and_watches() -> None:
    async def story() -> None:
        cell = Cell()
        async with clients(cell) as [store]:
            watch = store.watch("/phalanx/", 1 + await store.put(KEY, b"1"))
            with cell.lock:
                cell.value = None
            with pytest.raises(StoreReset):
                await within(anext(aiter(watch)))
            for _ in range(2):
                with pytest.raises(StoreReset):
                    await within(store.get(KEY))
        async with clients(cell) as [store]:
            assert await store.get(KEY) is None

    asyncio.run(story())


def test_a_state_that_was_lost_and_written_anew_is_a_reset_too() -> None:
    async def story() -> None:
        cell = Cell()
        async with clients(cell) as [store]:
            await store.put(KEY, b"1")
            with cell.lock:
                cell.value = None
            async with clients(cell) as [other]:
                for count in range(5):
                    await other.put(KEY, b"%d" % count)
            with pytest.raises(StoreReset):
                await within(store.get(KEY))

    asyncio.run(story())


@pytest.mark.parametrize(
    "bits",
    [
        b"",
        b"\x80\x04\x95pickled",
        b"[]",
        b'{"phalanx": 2, "incarnation": "a", "store": {}}',
        b'{"phalanx": 1, "incarnation": "", "store": {}}',
        b'{"phalanx": 1, "incarnation": "a", "store": []}',
        b'{"phalanx": 1, "incarnation": "a", "store": {"version": 1}}',
        b"[" * 100_000,
    ],
)
def test_a_value_that_is_no_store_of_ours_is_refused_once_and_for_all(bits: bytes) -> None:
    async def story() -> None:
        cell = Cell()
        cell.value, cell.version = bits, 1
        async with clients(cell) as [store]:
            for _ in range(2):
                with pytest.raises(Refused, match="holds no store of ours"):
                    await within(store.put(KEY, b"1"))
        assert cell.value == bits

    asyncio.run(story())


def test_a_backend_that_calls_its_state_damaged_is_refused() -> None:
    async def story() -> None:
        def before_call() -> None:
            raise RendezvousStateError("checksum")

        store = BackendStore(CellBackend(Cell(), before_call=before_call))
        with pytest.raises(Refused, match="checksum"):
            await within(store.get(KEY))
        await store.close()

    asyncio.run(story())


def test_a_lease_lives_through_an_outage_of_the_backend_that_nobody_could_renew_in() -> None:
    async def story() -> None:
        cell, is_out = Cell(), threading.Event()

        def before_call() -> None:
            if is_out.is_set():
                raise RendezvousConnectionError("out of order")

        holder = BackendStore(CellBackend(cell, before_call=before_call), poll_s=0.02)
        looker = BackendStore(CellBackend(cell, before_call=before_call), poll_s=0.02)
        lease = await holder.grant(2)
        revision = await holder.put(KEY, b"here", lease=lease)
        watch = looker.watch("/phalanx/", revision)
        await within(anext(aiter(watch)))
        is_out.set()
        # Both find out: a call that began in the outage and came through after it would end what nobody renews.
        with pytest.raises(Unclear):
            await within(holder.renew(lease))
        with pytest.raises(Unclear):
            await within(looker.get(KEY))
        await asyncio.sleep(3)
        is_out.clear()
        assert await within(looker.get(KEY)) is not None
        await within(holder.renew(lease))
        assert await within(looker.get(KEY)) is not None
        await asyncio.sleep(0.4)  # of the two seconds that it has: a backend's thread may be late
        await within(holder.renew(lease))
        await within(anext(aiter(watch)))  # the end, once nobody renews
        with pytest.raises(LeaseExpired):
            await within(holder.renew(lease))
        await holder.close()
        await looker.close()

    asyncio.run(story())


def test_a_lease_lives_through_a_call_that_hung_until_the_outage_was_over() -> None:
    async def story() -> None:
        is_out, hangs, is_over = threading.Event(), threading.Event(), threading.Event()

        def before_call() -> None:
            if is_out.is_set():
                hangs.set()
                is_over.wait()

        # It watches nothing, and so asks for nothing before the lease is due.
        holder = BackendStore(CellBackend(Cell(), before_call=before_call), attempt_s=PATIENCE_S)
        try:
            lease = await within(holder.grant(1))
            is_out.set()
            assert await asyncio.to_thread(hangs.wait, PATIENCE_S)
            # It can be heard only when the call has returned.
            renewal = asyncio.ensure_future(holder.renew(lease))
            await asyncio.sleep(1)  # more than what a machine that works may be late
            is_over.set()
            await within(renewal)
        finally:
            is_over.set()
            await holder.close()

    asyncio.run(story())


def test_a_lease_that_nobody_renews_ends_though_each_call_takes_longer_than_is_forgiven() -> None:
    async def story() -> None:
        cell, is_slow = Cell(), threading.Event()

        def before_call() -> None:
            if is_slow.is_set():
                time.sleep(0.6)  # more than what a machine that works may be late

        holder = BackendStore(CellBackend(cell), attempt_s=PATIENCE_S)
        revision = await within(holder.put(KEY, b"here", lease=await within(holder.grant(1))))
        await holder.close()
        looker = BackendStore(CellBackend(cell, before_call=before_call), attempt_s=PATIENCE_S)
        try:
            watch = looker.watch(KEY, revision)
            await within(anext(aiter(watch)))
            is_slow.set()
            await within(anext(aiter(watch)))  # the end
            assert await within(looker.get(KEY)) is None
        finally:
            await looker.close()

    asyncio.run(story())


@pytest.mark.torch
def test_two_clients_that_ask_for_the_same_at_once_are_told_apart_by_a_store_that_compares_values() -> None:
    async def story() -> None:
        store = hash_store()
        stores = [BackendStore(C10dRendezvousBackend(store, "job")) for _ in range(8)]
        for _ in range(4):
            leases = await within(asyncio.gather(*(one.grant(PATIENCE_S) for one in stores)))
            assert len(set(leases)) == len(stores)
        for one in stores:
            await one.close()

    asyncio.run(story())


def test_the_same_requests_write_other_bytes_with_another_nonce() -> None:
    def trial(nonce: str) -> bytes | None:
        return BackendState().attempt([GrantAsked("caller", 5.0)], {}, nonce).state

    assert trial("a") != trial("b")
    assert trial("a") == trial("a")


def test_a_trial_that_is_not_written_leaves_nothing_behind() -> None:
    state = BackendState()
    put = TransactionAsked("caller", then=(Put(KEY, b"1"),))
    first = state.attempt([put], {}, "a")
    assert first.state is not None
    state.found_nothing()
    second = state.attempt([put], {}, "a")
    assert second == first
    assert state.machine.revision == 1
    state.commit(second, 0.0)
    assert state.machine.revision == 2
    assert state.attempt([], {}, "b").state is None


def test_a_state_of_another_store_is_told_from_a_damaged_one() -> None:
    state = BackendState()
    written = state.attempt([GrantAsked("caller", 5.0)], {}, "a")
    other = BackendState().attempt([GrantAsked("caller", 5.0)], {}, "b")
    assert written.state is not None
    assert other.state is not None
    state.load(written.state, 0.0)
    assert state.load(written.state, 0.0) == []
    with pytest.raises(LookupError):
        state.load(other.state, 0.0)
    with pytest.raises(Damaged):
        state.load(b"{}", 0.0)
