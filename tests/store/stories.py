"""Tests of stores are coroutines: what runs them, and bounds them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any, TypeVar

from phalanx.store.port import Batch, Change, Store, Watch

Connect = Callable[[], Awaitable[Store]]
T = TypeVar("T")

PATIENCE_S = 30  # for one event that must come, on a machine that is busy with other tests


def on_each_store(story: Callable[[Connect], Awaitable[None]]) -> Callable[[ModuleType], None]:
    """Make a test of a story: it runs once for each factory, on a store of its own."""

    def test(factory: ModuleType) -> None:
        async def run() -> None:
            async with asyncio.timeout(4 * PATIENCE_S), factory.stores() as connect:
                await story(connect)

        asyncio.run(run())

    test.__name__ = story.__name__
    return test


async def within(awaitable: Awaitable[T], seconds: float = PATIENCE_S) -> T:
    """Wait for what must come."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def batches(watch: Watch, count: int) -> list[Batch]:
    """The next batches of a watch."""
    iterator = aiter(watch)
    return [await within(anext(iterator)) for _ in range(count)]


async def changes(watch: Watch, count: int) -> list[Change]:
    """The next changes of a watch, in however many batches they come."""
    iterator = aiter(watch)
    found: list[Change] = []
    while len(found) < count:
        found += (await within(anext(iterator))).changes
    return found


async def quiet(watch: Watch, store: Store, marker: str) -> None:
    """Assert that the watch has nothing but what we write now at ``marker``, which it covers."""
    revision = await store.put(marker, b"now")
    [batch] = await batches(watch, 1)
    assert (batch.revision, [change.kv.key for change in batch.changes]) == (revision, [marker])


def seen(found: list[Change]) -> list[tuple[Any, ...]]:
    """Changes as tuples that read well in an assertion."""
    return [(change.kv.key, None if change.is_delete else change.kv.value) for change in found]
