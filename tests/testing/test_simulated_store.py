"""The store over the simulated network: cuts make answers unclear, writes late and watches catch up, without a gap."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from phalanx.store.port import LeaseExpired, StoreReset, Unclear
from phalanx.testing.loop import NodeLoop
from phalanx.testing.network import Network
from phalanx.testing.store_client import SimulatedStore
from phalanx.testing.store_server import StorePlace
from phalanx.testing.timeline import NodeClock, Timeline


class Two:
    """Two agents ``a`` and ``b`` and a store, each with a clock of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.timeline = Timeline()
        self.rng = Random(seed)
        self.network = Network(self.timeline, self.rng)
        self.place = StorePlace(self.network, "store", self.rng)
        self.clock = NodeClock(self.timeline, rate=1.1)
        self.server = self.place.start(self.clock, keeps_data=True)
        self.loops = {
            name: NodeLoop(self.timeline, NodeClock(self.timeline, rate=rate))
            for name, rate in (("a", 0.9), ("b", 1.0))
        }
        self.stores = {name: self.run(name, self._store(name)) for name in self.loops}
        self.pass_time(1)  # they are connected

    async def _store(self, name: str) -> SimulatedStore:
        return SimulatedStore(self.place, name, self.rng, source_address=name)

    def begin(self, name: str, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loops[name].create_task(work)

    def run(self, name: str, work: Coroutine[Any, Any, Any], within_s: float = 30) -> Any:
        task = self.begin(name, work)
        task.add_done_callback(lambda _: self.timeline.stop())
        if not task.done():
            self.timeline.run(self.timeline.now + within_s)
        assert task.done(), "it takes longer than that"
        return task.result()

    def pass_time(self, seconds: float) -> None:
        self.timeline.run(self.timeline.now + seconds)


def test_one_writes_and_the_other_reads() -> None:
    two = Two()
    two.run("a", two.stores["a"].put("/k", b"v"))
    found = two.run("b", two.stores["b"].get("/k"))
    assert found.value == b"v"


def test_a_cut_makes_an_answer_unclear_and_healing_ends_that() -> None:
    two = Two()
    two.network.cut("a", "store")
    with pytest.raises(Unclear):
        two.run("a", two.stores["a"].put("/k", b"v"))
    two.network.heal_all()
    two.pass_time(5)
    two.run("a", two.stores["a"].put("/k", b"w"))


def test_a_write_into_a_cut_may_arrive_after_its_sender_gave_up() -> None:
    late = set()
    for seed in range(20):
        two = Two(seed)
        two.network.cut("a", "store")
        with pytest.raises(Unclear):
            two.run("a", two.stores["a"].put("/k", b"late"))
        assert two.run("b", two.stores["b"].get("/k")) is None
        two.network.heal_all()
        two.pass_time(5)
        late.add(two.run("b", two.stores["b"].get("/k")) is not None)
    assert late == {True, False}


def test_an_answer_that_is_lost_leaves_the_write() -> None:
    two = Two()
    two.network.cut("store", "a")
    with pytest.raises(Unclear):
        two.run("a", two.stores["a"].put("/k", b"v"))
    assert two.run("b", two.stores["b"].get("/k")).value == b"v"


def test_a_watch_misses_nothing_and_doubles_nothing_over_cuts_and_restarts() -> None:
    two = Two()
    seen: list[bytes] = []

    async def read() -> None:
        async for batch in two.stores["a"].watch("/k/", 1):
            seen.extend(change.kv.value for change in batch.changes)

    async def write() -> None:
        for number in range(200):
            try:
                await two.stores["b"].put(f"/k/{number % 7}", b"%d" % number)
            except Unclear:
                written.discard(number)
            else:
                written.add(number)

    written: set[int] = set()
    two.begin("a", read())
    task = two.begin("b", write())
    while not task.done():
        for source, target in (("a", "store"), ("store", "a")):
            if two.rng.random() < 0.5:
                two.network.cut(source, target)
        two.pass_time(0.05)
        if two.rng.random() < 0.3:
            two.place.stop()
            two.pass_time(0.1)
            two.place.start(two.clock, keeps_data=True)
        two.network.heal_all()
        two.pass_time(0.1)
    with suppress(
        Unclear
    ):  # who only listens never learns that nobody speaks any more; an agent renews its lease
        two.run("a", two.stores["a"].get("/k"))
    two.pass_time(10)
    numbers = [int(one) for one in seen]
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    assert written <= set(numbers)
    assert len(written) > 100


def test_a_lease_that_is_renewed_lives_and_one_of_a_frozen_agent_ends() -> None:
    two = Two()
    store = two.stores["a"]
    lease = two.run("a", store.grant(3.0))
    for _ in range(5):
        two.pass_time(2)
        two.run("a", store.renew(lease))
    two.loops["a"].freeze()
    two.pass_time(4)
    two.loops["a"].thaw()
    with pytest.raises(LeaseExpired):
        two.run("a", store.renew(lease))


def test_a_store_that_was_frozen_grants_every_lease_a_whole_ttl() -> None:
    two = Two()
    lease = two.run("a", two.stores["a"].grant(3.0))
    two.server.freeze()
    two.pass_time(60)
    two.server.thaw()
    two.pass_time(1)
    two.run("a", two.stores["a"].renew(lease))


def test_a_store_with_other_data_is_a_reset_for_calls_and_watches() -> None:
    two = Two()
    store = two.stores["a"]
    errors: list[Exception] = []

    async def read() -> None:
        try:
            async for _ in store.watch("/", 1):
                pass
        except StoreReset as error:
            errors.append(error)

    two.begin("a", read())
    two.pass_time(1)
    two.place.stop()
    two.pass_time(1)
    two.place.start(two.clock, keeps_data=False)
    two.pass_time(5)
    assert len(errors) == 1
    with pytest.raises(StoreReset):
        two.run("a", store.get("/k"))


def test_a_store_that_keeps_its_data_is_the_same_one() -> None:
    two = Two()
    two.run("a", two.stores["a"].put("/k", b"v"))
    two.place.stop()
    two.place.start(two.clock, keeps_data=True)
    two.pass_time(5)
    assert two.run("a", two.stores["a"].get("/k")).value == b"v"


def test_the_same_seed_gives_the_same_world() -> None:
    ends = []
    for _ in range(2):
        two = Two(seed=7)
        two.run("a", two.stores["a"].put("/k", b"v"))
        ends.append((two.timeline.now, two.network.messages))
    assert ends[0] == ends[1]
