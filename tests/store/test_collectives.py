"""Meeting points in one store, over torch's stores and ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from phalanx.store.collectives import barrier, get_all, store_timeout, synchronize
from phalanx.store.memory import MemoryStore
from phalanx.store.port import Store
from phalanx.store.synchronous import SynchronousStore

LIMIT_S = 60.0  # nothing here is waited for so long, unless it never comes


async def _memory() -> Store:
    return MemoryStore()


@pytest.fixture(params=["ours", pytest.param("torch", marks=pytest.mark.torch)])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "torch":
        from torch.distributed import HashStore

        yield HashStore()
        return
    ours = SynchronousStore.open(_memory, prefix="/phalanx/job/kv/1/")
    yield ours
    ours.close()


def on_each_rank(
    world_size: int, work: Callable[[int], Any], *, away: tuple[int, ...] = ()
) -> dict[int, Any]:
    """What ``work(rank)`` returned or raised, in a thread for each rank that is not ``away``."""
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world_size) if rank not in away]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


@pytest.mark.compat("name torch.distributed.elastic.utils.store.synchronize", "same")
@pytest.mark.compat("name torch.distributed.elastic.utils.store.get_all", "same")
def test_each_rank_gets_what_all_have_given(store: Any) -> None:
    before = store.timeout
    found = on_each_rank(3, lambda rank: synchronize(store, b"of %d" % rank, rank, 3, "data/"))
    assert found == {rank: [b"of 0", b"of 1", b"of 2"] for rank in range(3)}
    assert store.timeout == before
    assert get_all(store, 1, "data/", 2) == [b"of 0", b"of 1"]


@pytest.mark.compat("name torch.distributed.elastic.utils.store.barrier", "same")
def test_a_barrier_opens_when_all_have_come(store: Any) -> None:
    assert on_each_rank(4, lambda rank: barrier(store, 4, "gate", 60)) == dict.fromkeys(range(4))


@pytest.mark.compat(
    "name torch.distributed.elastic.utils.store.barrier",
    "better",
    "every rank's error names who is missing, where torch tells rank 0 alone",
)
def test_a_barrier_that_does_not_open_names_who_is_missing(store: Any) -> None:
    def come(rank: int) -> None:
        # Rank 0 names who is missing when its second is over: rank 2 is not to be one of them.
        limit_at = time.monotonic() + LIMIT_S
        while rank == 0 and not store.check(["gate2/TRACE"]):
            assert time.monotonic() < limit_at, "rank 2 has left no trace"
            time.sleep(0.01)
        barrier(store, 3, "gate", 1, rank, lambda one: f"host{one}", 60)

    found = on_each_rank(3, come, away=(1,))
    assert found.keys() == {0, 2}
    for rank, error in found.items():
        assert isinstance(error, RuntimeError)
        assert f"on rank {rank}" in str(error)
        assert "missing_ranks=[host1]" in str(error)


def test_at_most_sixteen_missing_ranks_are_named(store: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        barrier(store, 40, "gate", 0.2, 0, str, 1)
    assert "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, ...]" in str(raised.value)


def test_without_a_decoder_the_error_is_the_stores_own(store: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        barrier(store, 2, "gate", 0.2)
    assert "missing" not in str(raised.value)


@pytest.mark.compat("name torch.distributed.elastic.utils.store.store_timeout", "same")
def test_the_stores_patience_is_as_before_when_the_block_has_raised(store: Any) -> None:
    before = store.timeout
    with pytest.raises(KeyError, match="True"), store_timeout(store, 7):
        raise KeyError(store.timeout == timedelta(seconds=7))
    assert store.timeout == before


@pytest.mark.torch
def test_ranks_of_torchelastic_and_ours_meet_in_one_store() -> None:
    from torch.distributed import HashStore
    from torch.distributed.elastic.utils import store as theirs

    shared = HashStore()
    exchange = (synchronize, theirs.synchronize)
    found = on_each_rank(2, lambda rank: exchange[rank](shared, b"%d" % rank, rank, 2, "x/"))
    assert found == {0: [b"0", b"1"], 1: [b"0", b"1"]}
    gates = (barrier, theirs.barrier)
    assert on_each_rank(2, lambda rank: gates[rank](shared, 2, "gate", 60)) == {0: None, 1: None}
