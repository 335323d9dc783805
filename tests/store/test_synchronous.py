"""The store for code that does not await, beside torch's own stores."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.store.proxy import Proxy
from tests.store.stories import PATIENCE_S

from phalanx.store.admission import Admission
from phalanx.store.client import HostedStore
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Store, Unclear
from phalanx.store.server import StoreServer
from phalanx.store.synchronous import StoreTimeout, StoreUnreachable, SynchronousStore

PREFIX = "/phalanx/job/kv/1/"


async def _memory() -> Store:
    return MemoryStore()


@contextmanager
def opened(open_store: Callable[[], Any] = _memory, **settings: Any) -> Iterator[SynchronousStore]:
    store = SynchronousStore.open(open_store, prefix=PREFIX, **settings)
    try:
        yield store
    finally:
        store.close()


# As torch's stores do

STEPS: list[tuple[str, tuple[Any, ...]]] = [
    ("check", (["a"],)),
    ("set", ("a", "x")),
    ("get", ("a",)),
    ("check", (["a"],)),
    ("check", (["a", "b"],)),
    ("check", ([],)),
    ("set", ("bytes", b"\x00\xff")),
    ("get", ("bytes",)),
    ("set", ("ü", "ü")),
    ("get", ("ü",)),
    ("add", ("n", 3)),
    ("add", ("n", -5)),
    ("get", ("n",)),
    ("set", ("m", "41")),
    ("add", ("m", 1)),
    ("compare_set", ("new", "", "first")),
    ("compare_set", ("new", "wrong", "second")),
    ("compare_set", ("new", "first", "third")),
    ("get", ("new",)),
    ("compare_set", ("absent", "expected", "desired")),
    ("check", (["absent"],)),
    ("delete_key", ("a",)),
    ("delete_key", ("a",)),
    ("check", (["a"],)),
    ("multi_set", (["m1", "m2"], ["1", b"2"])),
    ("multi_get", (["m2", "m1", "m2"],)),
    ("multi_get", ([],)),
    ("wait", (["m1", "m2"],)),
    ("wait", ([],)),
    ("wait", (["m1"], timedelta(seconds=5))),
    ("set", (5, "x")),
    ("set", ("a", 5)),
    ("add", ("n", "1")),
    ("add", ("n", 1.5)),
    ("wait", ("m1",)),
    ("check", ("m1",)),
]


def outcome(store: Any, method: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(store, method)(*arguments)
    except TypeError:
        return TypeError


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["HashStore", "TCPStore"])
def test_each_method_does_what_torch_s_does(kind: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch import distributed
    theirs = distributed.HashStore() if kind == "HashStore" else distributed.TCPStore("127.0.0.1", 0, 1, True)
    there_before = theirs.num_keys()  # a TCPStore counts one of its own
    with opened() as ours:
        for method, arguments in STEPS:
            expected = outcome(theirs, method, arguments)
            assert outcome(ours, method, arguments) == expected, (method, arguments)
            assert ours.num_keys() == theirs.num_keys() - there_before
        for store in (theirs, ours):
            store.set_timeout(timedelta(seconds=0.2))
            assert store.timeout == timedelta(seconds=0.2)
            for method, arguments in (
                ("get", ("never",)),
                ("wait", (["m1", "never"],)),
                ("wait", (["never"], timedelta(seconds=0.1))),
                ("multi_get", (["m1", "never"],)),
            ):
                with pytest.raises(
                    RuntimeError, match=r"(?i)timeout|nobody has set 'never'|nobody has set 'm1'"
                ):
                    getattr(store, method)(*arguments)


@pytest.mark.torch
def test_what_is_no_number_is_refused_as_by_torch_s_store_in_memory() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch import distributed
    with opened() as ours:
        for store in (distributed.HashStore(), ours):
            store.set("text", "abc")
            with pytest.raises(ValueError):  # noqa: PT011 # "stoll" in one of them
                store.add("text", 1)


@pytest.mark.torch
def test_its_methods_are_torch_s() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed import Store as Theirs
    names = [
        "set",
        "get",
        "add",
        "wait",
        "compare_set",
        "check",
        "delete_key",
        "num_keys",
        "multi_get",
        "multi_set",
        "set_timeout",
        "timeout",
    ]
    assert all(hasattr(kind, name) for kind in (Theirs, SynchronousStore) for name in names)


# Beyond them


def test_a_value_that_comes_later_is_waited_for() -> None:
    with opened() as store, ThreadPoolExecutor(3) as threads:
        waiting: list[Future[Any]] = [
            threads.submit(store.get, "a"),
            threads.submit(store.multi_get, ["a", "b"]),
        ]
        waiting.append(threads.submit(store.wait, ["b"]))
        store.set("a", "1")
        store.set("b", "2")
        assert [one.result(PATIENCE_S) for one in waiting] == [b"1", [b"1", b"2"], None]


def test_threads_count_together() -> None:
    with opened() as store, ThreadPoolExecutor(8) as threads:
        sums = list(threads.map(lambda _: store.add("n", 1), range(100)))
        assert sorted(sums) == list(range(1, 101))


def test_a_round_sees_nothing_of_the_last_one() -> None:
    server: list[MemoryServer] = []

    async def open_store() -> Store:
        if not server:
            server.append(MemoryServer())
        return MemoryStore(server[0])

    with opened(open_store) as first:
        first.set("a", "1")
        assert first._thread is not None
        second = SynchronousStore(first._store, first._loop, prefix="/phalanx/job/kv/2/")
        assert (second.num_keys(), second.check(["a"])) == (0, False)
        twin = SynchronousStore(first._store, first._loop, prefix=PREFIX)
        assert twin.get("a") == b"1"
        twin.close()
        assert first.get("a") == b"1"


def test_a_call_that_waits_is_told_when_the_store_is_closed() -> None:
    with opened() as store, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(store.get, "never")
        while not store._calls:
            time.sleep(0.01)
        store.close()
        with pytest.raises(StoreUnreachable, match="closed"):
            waiting.result(PATIENCE_S)
        with pytest.raises(StoreUnreachable, match="closed"):
            store.set("a", "1")
        assert isinstance(StoreUnreachable(), ConnectionError)
        assert isinstance(StoreTimeout(), TimeoutError)


def test_closing_leaves_no_thread() -> None:
    before = set(threading.enumerate())  # a store that another test has let go of may be ending
    with opened() as store:
        store.set("a", "1")
    assert "phalanx-store" not in {thread.name for thread in set(threading.enumerate()) - before}


class Closed(MemoryStore):
    """Says when it was closed, and can fail in that."""

    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__()
        self.was_closed = threading.Event()
        self._problem = problem

    async def close(self) -> None:
        await super().close()
        self.was_closed.set()
        if self._problem is not None:
            raise self._problem


def opening(store: Store) -> SynchronousStore:
    async def open_store() -> Store:
        return store

    return SynchronousStore.open(open_store, prefix=PREFIX)


@pytest.mark.parametrize("problem", [None, OSError("gone")])
def test_a_store_that_nobody_holds_any_more_ends_with_its_thread(problem: Exception | None) -> None:
    held = Closed(problem)
    store = opening(held)
    store.set("a", "1")
    thread = store._thread
    assert thread is not None
    del store
    gc.collect()
    assert held.was_closed.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_store_that_cannot_be_closed_leaves_no_thread() -> None:
    store = opening(Closed(OSError("gone")))
    thread = store._thread
    assert thread is not None
    with pytest.raises(OSError, match="gone"):
        store.close()
    assert not thread.is_alive()
    store.close()


def test_a_store_that_cannot_be_opened_leaves_no_thread() -> None:
    before = set(threading.enumerate())

    async def open_store() -> Store:
        raise Unclear("nobody there")

    with pytest.raises(Unclear, match="nobody there"):
        SynchronousStore.open(open_store, prefix=PREFIX)
    assert "phalanx-store" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_a_call_from_the_loop_itself_is_a_mistake() -> None:
    async def story() -> None:
        store = SynchronousStore(MemoryStore(), asyncio.get_running_loop(), prefix=PREFIX)
        with pytest.raises(RuntimeError, match="wait for itself"):
            store.set("a", "1")

    asyncio.run(story())


def test_a_loop_that_is_gone_is_an_unreachable_store() -> None:
    loop = asyncio.new_event_loop()
    store = SynchronousStore(MemoryStore(), loop, prefix=PREFIX)
    loop.close()
    with pytest.raises(StoreUnreachable):
        store.set("a", "1")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("set", ("k" * 2000, "x")),
        ("set", ("a", b"x" * 600_000)),
        ("set", ("\ud800", "x")),
        ("multi_set", (["a", "b"], ["1"])),
        ("add", ("n", 1 << 63)),
    ],
)
def test_what_is_refused_is_a_value_error(method: str, arguments: tuple[Any, ...]) -> None:
    with opened() as store, pytest.raises(ValueError, match=r".+"):
        getattr(store, method)(*arguments)


def test_on_a_bad_network_everything_is_counted_once() -> None:
    async def story() -> None:
        memory = MemoryServer()
        server = StoreServer(memory, Admission(run_id="job"))
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        await server.start([listener])
        async with Proxy(listener.getsockname()[1]).running() as network:

            async def open_store() -> Store:
                store = HostedStore(
                    "127.0.0.1", network.port, secret=None, run_id="job", attempt_s=PATIENCE_S
                )
                await store.open()
                return store

            counted: list[int] = []

            def count() -> None:
                with opened(open_store) as store:
                    while len(counted) < 60 or network.connections <= 2:
                        counted.append(store.add("n", 1))

            async def cut() -> None:
                while True:
                    last = len(counted)
                    await asyncio.sleep(0.03)
                    while len(counted) == last:  # noqa: ASYNC110 # a handshake may need more time
                        await asyncio.sleep(0.01)
                    network.cut()

            cutting = asyncio.ensure_future(cut())
            await asyncio.to_thread(count)
            cutting.cancel()
            assert counted == list(range(1, len(counted) + 1))
        await server.close()

    asyncio.run(story())
