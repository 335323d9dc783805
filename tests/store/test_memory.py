"""The memory store in an event loop. What all stores do is in ``test_conformance``."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from tests.store.stories import batches, changes, seen, within

from phalanx.store.machine import Answered, StoreMachine, TransactionAsked
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Batch, Change, Compacted, KeyValue, Put, StoreReset, Unclear
from phalanx.store.watching import WAITING_MAX, BatchQueue


def batch(revision: int) -> Batch:
    return Batch(revision, (Change(KeyValue("a", b"", revision, revision, 1)),))


def test_stores_share_what_their_server_has_and_nothing_else() -> None:
    async def story() -> None:
        server = MemoryServer()
        first, second, stranger = MemoryStore(server), MemoryStore(server), MemoryStore()
        await first.put("a", b"1")
        assert await second.get("a") is not None
        assert await stranger.get("a") is None
        assert (first.is_host, first.source_address, first.run_id) == (False, None, None)

    asyncio.run(story())


def test_a_store_may_begin_with_a_machine() -> None:
    async def story() -> None:
        before = MemoryStore()
        await before.put("a", b"1")
        after = MemoryStore(StoreMachine.restore(before.server.machine.snapshot(), 0.0))
        assert await after.get("a") == await before.get("a")

    asyncio.run(story())


def test_leases_end_by_the_clock_of_the_loop() -> None:
    async def story() -> None:
        store = MemoryStore()
        loop = asyncio.get_running_loop()
        true_time, now = loop.time, loop.time()
        loop.time = lambda: now  # type: ignore[method-assign] # or a slow machine lets it end before the put
        lease = await store.grant(0.2)
        revision = await store.put("a", b"1", lease=lease)
        loop.time = true_time  # type: ignore[method-assign]
        assert seen(await changes(store.watch("a", revision + 1), 1)) == [("a", None)]

    asyncio.run(story())


def test_a_server_that_is_closed_ends_no_lease() -> None:
    async def story() -> None:
        store = MemoryStore()
        await store.grant(0.05)
        store.server.close()
        await asyncio.sleep(0.1)
        assert len(store.server.machine.leases) == 1

    asyncio.run(story())


def test_a_queue_hands_out_everything_before_the_reason_of_its_end() -> None:
    async def story() -> None:
        closed: list[BatchQueue] = []
        queue = BatchQueue(closed.append)
        queue.notify(batch(1))
        queue.notify(batch(2))
        queue.end(StoreReset("gone"))
        queue.end(Unclear("too late to matter"))
        queue.notify(batch(3))
        assert [one.revision for one in await batches(queue, 2)] == [1, 2]
        with pytest.raises(StoreReset, match="gone"):
            await batches(queue, 1)
        assert [one async for one in queue] == []  # told once, and over
        assert closed == [queue]

    asyncio.run(story())


def test_a_reader_that_was_cancelled_loses_no_batch() -> None:
    async def story() -> None:
        queue = BatchQueue(lambda _: None)
        for _ in range(3):
            reading = asyncio.ensure_future(batches(queue, 1))
            await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        queue.notify(batch(1))
        assert await within(batches(queue, 1)) == [batch(1)]

    asyncio.run(story())


def test_a_queue_that_nobody_reads_ends_instead_of_growing() -> None:
    async def story() -> None:
        closed: list[BatchQueue] = []
        queue = BatchQueue(closed.append)
        one = batch(1)
        for _ in range(WAITING_MAX + 10):
            queue.notify(one)
        assert closed == [queue]
        with pytest.raises(Compacted):
            await batches(queue, 1)

    asyncio.run(story())


def test_a_watch_that_nobody_holds_costs_the_machine_nothing() -> None:
    async def story() -> None:
        store = MemoryStore()
        watch = store.watch("a", 1)
        await watch.aclose()
        other = store.watch("a", 1)
        await store.close()
        with pytest.raises(Unclear):
            await batches(other, 1)
        [answered] = store.server.machine.step(TransactionAsked("t", (), (Put("a", b""),)), 0.0)
        assert isinstance(answered, Answered)  # and no notice to anybody

    asyncio.run(story())


def test_a_job_on_one_machine_loads_no_network() -> None:
    # Whatever asyncio has loaded is there anyhow: the agent runs in its loop.
    program = (
        "import asyncio, sys; before = set(sys.modules); import phalanx.store.memory; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"phalanx.store.memory", "phalanx.store.machine"} <= loaded
    assert not {name for name in loaded if not name.startswith("phalanx")} - {
        "__future__",
        "binascii",
        "_bisect",
        "bisect",
    }
