"""A job whose id was used before."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.launcher.rendezvous.ended import clear_ended_job
from phalanx.rendezvous.keys import JobKeys
from phalanx.store.memory import MemoryStore

KEYS = JobKeys("7")
OF_THE_JOB = (KEYS.verdict, KEYS.round, KEYS.members(1), f"{KEYS.values(1)}x")


async def left_by_a_job() -> MemoryStore:
    store = MemoryStore()
    for key in (*OF_THE_JOB, JobKeys("8").verdict, JobKeys("77").verdict):
        await store.put(key, b"{}")
    return store


def test_the_keys_of_a_job_that_is_over_and_empty_are_removed_and_no_others() -> None:
    async def run() -> None:
        store = await left_by_a_job()
        await clear_ended_job(store, "7")
        left = [kv.key for kv in (await store.list("/phalanx/")).items]
        assert left == [JobKeys("77").verdict, JobKeys("8").verdict]

    asyncio.run(run())


@pytest.mark.parametrize("has_verdict", [True, False])
def test_a_job_that_somebody_is_in_is_left_alone(has_verdict: bool) -> None:
    async def run() -> None:
        store = await left_by_a_job()
        if not has_verdict:
            await store.delete(KEYS.verdict)
        await store.put(KEYS.here("n1"), b"{}", lease=await store.grant(60))
        before = await store.list("/phalanx/")
        await clear_ended_job(store, "7")
        assert (await store.list("/phalanx/")).items == before.items

    asyncio.run(run())


def test_a_job_whose_last_node_was_told_to_stop_does_not_go_on_under_its_id() -> None:
    async def run() -> None:
        store = await left_by_a_job()
        await store.delete(KEYS.verdict)
        await clear_ended_job(store, "7")
        assert not (await store.list("/phalanx/7/")).items

    asyncio.run(run())


def test_several_newcomers_clear_it_once_and_nobody_clears_the_new_job() -> None:
    async def run() -> None:
        store = await left_by_a_job()

        async def come(name: str) -> None:
            await clear_ended_job(store, "7")
            await store.put(KEYS.here(name), b"{}", lease=await store.grant(60))

        await asyncio.gather(*(come(f"n{number}") for number in range(20)))
        assert len((await store.list(KEYS.all_here)).items) == 20
        assert await store.get(KEYS.verdict) is None

    asyncio.run(run())
