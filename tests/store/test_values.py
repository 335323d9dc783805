"""The values of a round: several agents on one store, some of whose answers are lost or come late."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.store import values as module
from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Answer, Compare, Operation, Put, StoreReset, Unclear
from phalanx.store.values import SharedValues, ValueRefused, ValuesUnreachable

PATIENCE_S = 30.0
PREFIX = "/phalanx/job/kv/7/"


def story(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine as a test, in bounded time."""

    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 4 * PATIENCE_S))

    run.__name__ = test.__name__
    run.__signature__ = __import__("inspect").signature(test)  # type: ignore[attr-defined] # pytest reads the fixtures from it
    return run


def agents(count: int = 1) -> list[SharedValues]:
    server = MemoryServer()
    return [SharedValues(MemoryStore(server), PREFIX) for _ in range(count)]


class Lossy(MemoryStore):
    """Loses requests and answers. A request that was lost may be applied later, as in a network that holds it back."""

    def __init__(self, server: MemoryServer, dice: random.Random, losses: int = 10**9) -> None:
        super().__init__(server)
        self._dice = dice
        self.losses = losses
        self.held: list[tuple[Any, ...]] = []

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        await asyncio.sleep(0)
        if self.held and self._dice.random() < 0.3:
            await super().transaction(*self.held.pop(self._dice.randrange(len(self.held))))
        fate = self._dice.random() if self.losses > 0 else 1.0
        if fate < 0.2:
            self.losses -= 1
            self.held.append((compares, then, otherwise))
            raise Unclear("lost on the way, perhaps to arrive later")
        answer = await super().transaction(compares, then, otherwise)
        if fate < 0.4:
            self.losses -= 1
            raise Unclear("the answer was lost")
        return answer


@pytest.fixture
def hasty(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@story
async def test_what_one_agent_stores_another_reads() -> None:
    one, other = agents(2)
    assert await one.get("k") is None
    await one.set("k", b"v")
    assert await other.get("k") == b"v"
    await other.set("k", b"")
    assert await one.get("k", wait_s=9.0) == b"", "an empty value is one"
    assert (await other.delete("k"), await one.delete("k")) == (True, False)
    assert await other.get("k") is None


@story
async def test_a_sum_begins_at_zero_takes_any_sign_and_is_of_all_agents() -> None:
    one, other = agents(2)
    assert await one.add("n", 5) == 5
    assert await other.add("n", -7) == -2
    assert await one.get("n") == b"-2"


@story
async def test_a_sum_over_something_else_or_out_of_range_is_refused_and_changes_nothing() -> None:
    [values] = agents()
    for wrong in (b"no number", b"", b"1.0", b"\xff"):
        await values.set("k", wrong)
        with pytest.raises(ValueRefused, match="the value of 'k' is no number"):
            await values.add("k", 1)
        assert await values.get("k") == wrong
    for digits in (b"9" * 65, b"9" * 5000, b"9" * 19):
        await values.set("k", digits)
        with pytest.raises(ValueRefused, match="64 bits"):
            await values.add("k", -1)
    await values.set("k", b"%d" % module.NUMBER_MAX)
    with pytest.raises(ValueRefused, match="64 bits"):
        await values.add("k", 1)
    assert await values.add("k", -1) == module.NUMBER_MAX - 1


@pytest.mark.parametrize(
    ("before", "expected", "after"),
    [
        (None, None, b"new"),
        (None, b"", b"new"),
        (b"", b"", b"new"),
        (b"", None, b""),
        (b"old", None, b"old"),
        (b"old", b"", b"old"),
        (b"old", b"old", b"new"),
        (b"old", b"x", b"old"),
        (None, b"x", None),
    ],
)
def test_a_value_is_replaced_only_if_it_is_the_expected_one(before: Any, expected: Any, after: Any) -> None:
    async def test() -> None:
        one, other = agents(2)
        if before is not None:
            await one.set("k", before)
        assert await other.compare_set("k", expected, b"new") == after
        assert await one.get("k") == after

    asyncio.run(test())


@story
async def test_one_of_many_who_claim_a_key_gets_it() -> None:
    claims = await asyncio.gather(
        *(values.compare_set("k", None, b"%d" % number) for number, values in enumerate(agents(20)))
    )
    assert len(set(claims)) == 1


@story
async def test_many_agents_and_tasks_count_together() -> None:
    crowd = agents(5)
    sums = await asyncio.gather(*(values.add("n", 1) for values in crowd for _ in range(20)))
    assert sorted(sums) == list(range(1, 101))


@story
async def test_all_who_wait_for_a_value_get_it() -> None:
    one, other = agents(2)
    waits = [asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S)) for values in (one, one, other)]
    await _nothing_more_happens()
    await one.set("other", b"x")
    await other.add("k", 3)
    assert await asyncio.gather(*waits) == [b"3", b"3", b"3"]
    assert not one._arrivals


@story
async def test_a_wait_ends_at_its_own_time_and_leaves_the_others_waiting() -> None:
    [values] = agents()
    long = asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S))
    assert await values.get("k", wait_s=0.01) is None
    assert not long.done()
    await values.set("k", b"v")
    assert await long == b"v"


@story
async def test_who_gives_up_leaves_no_watch_behind() -> None:
    server = MemoryServer()
    values = SharedValues(MemoryStore(server), PREFIX)
    waits = [asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S)) for _ in range(3)]
    await _nothing_more_happens()
    store: Any = values._store
    assert len(store._watches) == 1, "who waits for the same value shares a watch"
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await _nothing_more_happens()
    assert (store._watches, values._arrivals) == (set(), {})


@story
async def test_a_value_that_was_deleted_before_the_wait_began_does_not_end_it() -> None:
    [values] = agents()
    early = asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S))
    await _nothing_more_happens()
    store: Any = values._store
    await store.put(f"{PREFIX}v/k/", b"old")  # at once: the early wait has not looked yet
    await store.delete(f"{PREFIX}v/k/")
    late = asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S))
    assert await early == b"old"
    await _nothing_more_happens()
    assert not late.done()
    await values.set("k", b"new")
    assert await late == b"new"


@story
async def test_a_wait_survives_that_history_is_forgotten() -> None:
    server = MemoryServer(StoreMachine(history_max=1))
    store = MemoryStore(server)
    values = SharedValues(store, PREFIX)
    read = values._read
    looks = 0

    async def slow(name: str) -> Any:
        nonlocal looks
        found = await read(name)
        looks += 1
        if looks <= 3:  # others write much between our look and our watch
            for number in range(5):
                await store.put("/elsewhere", b"%d" % number)
        return found

    values._read = slow  # type: ignore[method-assign] # the one place between the two
    wait = asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S))
    await _nothing_more_happens()
    assert looks == 4, "it looked anew until nothing was missing between look and watch"
    await values.set("k", b"v")
    assert await wait == b"v"


@story
async def test_several_keys_are_waited_for_checked_read_and_stored_together() -> None:
    one, other = agents(2)
    wait = asyncio.ensure_future(one.wait(["a", "b", "a"], wait_s=PATIENCE_S))
    await other.set("a", b"1")
    await _nothing_more_happens()
    assert not wait.done()
    assert (await one.check(["a"]), await one.check(["a", "b"]), await one.check([])) == (True, False, True)
    assert await one.wait(["a", "b"], wait_s=0.01) is False
    await other.multi_set({"b": b"2", "c": b"3"})
    assert await wait is True
    assert await one.wait(["a", "b"], wait_s=0.0) is True
    assert await one.multi_get(["c", "nope", "a"]) == [b"3", None, b"1"]


@story
async def test_keys_that_begin_alike_are_different_keys() -> None:
    [values] = agents()
    keys = ["a", "a/", "a/b", "ab", "", "/", "ä", "\0"]
    for number, key in enumerate(keys):
        await values.set(key, b"%d" % number)
    assert await values.multi_get(keys) == [b"%d" % number for number in range(len(keys))]
    assert await values.num_keys() == len(keys)


@story
async def test_keys_are_counted_over_all_agents() -> None:
    one, other = agents(2)
    await asyncio.gather(*(values.set(f"{number}", b"x") for values in (one, other) for number in range(20)))
    assert await other.num_keys() == 20
    await one.delete("3")
    await other.delete("3")
    await other.set("4", b"again")
    assert await one.num_keys() == 19


@story
async def test_another_round_has_other_values() -> None:
    store = MemoryStore()
    old, new = SharedValues(store, PREFIX), SharedValues(store, "/phalanx/job/kv/8/")
    await old.set("k", b"v")
    assert (await new.get("k"), await new.num_keys()) == (None, 0)
    await store.delete(PREFIX, is_prefix=True)
    assert (await store.list(PREFIX)).items == (), "whoever deletes the prefix of a round deletes all of it"


@story
async def test_keys_and_values_are_bounded() -> None:
    [values] = agents()
    for call in (values.set("k" * 1025, b""), values.set("ä" * 600, b""), values.get("k" * 1025)):
        with pytest.raises(ValueRefused, match="longer than 1024 bytes"):
            await call
    with pytest.raises(ValueRefused, match="524289 bytes"):
        await values.set("k", b"x" * (module.VALUE_BYTES_MAX + 1))
    await values.set("k" * 1024, b"x" * module.VALUE_BYTES_MAX)
    assert await values.num_keys() == 1


@story
async def test_the_sum_of_all_values_is_bounded_over_all_agents(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "TOTAL_BYTES_MAX", 100_000)
    monkeypatch.setattr(module, "LOOK_BYTES", 1000)
    crowd = agents(3)
    stored = 0

    async def fill() -> None:
        nonlocal stored
        while True:
            await crowd[stored % 3].set(f"{stored}", b"x" * 500)
            stored += 1

    with pytest.raises(ValueRefused, match="would exceed"):
        await fill()
    each = 500 + module.KEY_COSTS
    assert 100_000 // each - 10 <= stored <= (100_000 + 3 * 1000) // each
    await crowd[0].set("0", b"y" * 500)  # a replaced value makes room for itself
    for number in range(10):
        await crowd[1].delete(f"{number}")  # a deleted one for others
    await crowd[2].set("new", b"x" * 500)


@story
async def test_many_small_values_are_bounded_too(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "TOTAL_BYTES_MAX", 10_000)
    monkeypatch.setattr(module, "LOOK_BYTES", 100)
    [values] = agents()
    with pytest.raises(ValueRefused, match="would exceed"):
        await values.multi_set({f"{number}": b"" for number in range(1000)})
    assert await values.num_keys() < 200


@story
async def test_what_is_refused_costs_the_store_nothing() -> None:
    [values] = agents()
    await values.set("k", b"no number")
    for _ in range(30):
        with pytest.raises(ValueRefused):
            await values.add("k", 1)
        await values.set("other", b"x")
    store: Any = values._store
    assert len((await store.list(f"{PREFIX}p/")).items) == 1, "a pen is used again after a refusal"


@pytest.mark.parametrize("seed", range(30))
def test_a_sum_is_right_although_requests_and_answers_are_lost_and_come_late(seed: int, hasty: None) -> None:
    async def test() -> None:
        server = MemoryServer()
        dice = random.Random(seed)
        crowd = [SharedValues(Lossy(server, dice), PREFIX) for _ in range(3)]
        sums = await asyncio.gather(*(values.add("n", 1) for values in crowd for _ in range(10)))
        assert sorted(sums) == list(range(1, 31)), "each was done once, and each was told its own sum"

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


@pytest.mark.parametrize("seed", range(30))
def test_each_claim_and_each_deletion_is_done_once_and_answered_truly(seed: int, hasty: None) -> None:
    """Agents create and delete one key all the time: a late request finds the key as it was before its time."""

    async def test() -> None:
        server = MemoryServer()
        dice = random.Random(seed)
        created: list[bool] = []
        deleted: list[bool] = []

        async def quarrel(values: SharedValues, name: bytes) -> None:
            for number in range(5):
                mine = b"%s %d" % (name, number)
                created.append(await values.compare_set("k", None, mine) == mine)
                deleted.append(await values.delete("k"))

        crowd = [SharedValues(Lossy(server, dice), PREFIX) for _ in range(3)]
        await asyncio.gather(*(quarrel(values, b"%d" % number) for number, values in enumerate(crowd)))
        left = await SharedValues(MemoryStore(server), PREFIX).num_keys()
        assert left == sum(created) - sum(deleted)

    asyncio.run(asyncio.wait_for(test(), PATIENCE_S))


@story
async def test_the_lossy_store_of_these_tests_does_harm(hasty: None) -> None:
    """Adding without a guard goes wrong on it, so the tests above can fail."""
    server = MemoryServer()
    store = Lossy(server, random.Random(1))
    values = SharedValues(store, PREFIX)
    for _ in range(50):
        item = (await values._read("n"))[0]
        total = int(item.value) + 1 if item is not None else 1
        await values._ask((), (Put("n", b"%d" % total),))
    found = await MemoryStore(server).get("n")
    assert found is not None
    assert found.value != b"50"


@story
async def test_a_store_that_stays_silent_is_given_up(monkeypatch: Any) -> None:
    class Silent(MemoryStore):
        async def transaction(self, *_: Any, **__: Any) -> Answer:
            raise Unclear("no answer")

    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    monkeypatch.setattr(module, "PAUSE_S", 0.01)
    values = SharedValues(Silent(), PREFIX)
    with pytest.raises(ValuesUnreachable, match="does not answer: no answer"):
        await values.set("k", b"v")


@story
async def test_a_store_that_lost_its_data_says_so_and_ends_the_waits() -> None:
    class Reset(MemoryStore):
        is_reset = False

        async def transaction(self, *arguments: Any, **named: Any) -> Answer:
            if self.is_reset:
                raise StoreReset("the store is another one")
            return await super().transaction(*arguments, **named)

    store = Reset()
    values = SharedValues(store, PREFIX)
    wait = asyncio.ensure_future(values.get("k", wait_s=PATIENCE_S))
    await _nothing_more_happens()
    store.is_reset = True
    for queue in tuple(store._watches):
        queue.end(StoreReset("the store is another one"))
    for call in (wait, values.add("n", 1)):
        with pytest.raises(ValuesUnreachable, match="another one"):
            await call


@story
async def test_what_was_cancelled_half_way_confuses_no_later_write(hasty: None) -> None:
    server = MemoryServer()
    dice = random.Random(3)
    values = SharedValues(Lossy(server, dice), PREFIX)
    tasks = [asyncio.ensure_future(values.add("n", 1)) for _ in range(40)]
    for task in tasks:
        await asyncio.sleep(0)
        if dice.random() < 0.3:
            task.cancel()
    sums = [found for found in await asyncio.gather(*tasks, return_exceptions=True) if isinstance(found, int)]
    assert len(sums) == len(set(sums)), "two were told the same sum"
    assert await values.add("n", 1) > max(sums)


_keys = st.sampled_from(["a", "b"])
_bytes = st.binary(max_size=3)
_calls = st.one_of(
    st.tuples(st.just("get"), _keys),
    st.tuples(st.just("set"), _keys, _bytes),
    st.tuples(st.just("add"), _keys, st.integers(-9, 9)),
    st.tuples(st.just("compare_set"), _keys, st.none() | _bytes, _bytes),
    st.tuples(st.just("delete"), _keys),
    st.tuples(st.just("check"), st.lists(_keys)),
    st.tuples(st.just("num_keys")),
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), _calls)), st.integers(0, 2**32))
def test_it_behaves_like_a_dictionary(calls: list[tuple[int, tuple[Any, ...]]], seed: int) -> None:
    """Two agents in turn, over connections that lose answers, are no different from one plain dictionary."""

    async def test() -> None:
        server = MemoryServer()
        dice = random.Random(seed)
        crowd = [SharedValues(Lossy(server, dice), PREFIX) for _ in range(2)]
        model: dict[str, bytes] = {}
        for who, (method, *arguments) in calls:
            expected = _in_model(model, method, *arguments)
            try:
                found = await getattr(crowd[who], method)(*arguments)
            except ValueRefused:
                found = "refused"
            assert found == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAUSE_S", 0.0)
        asyncio.run(test())


def _in_model(model: dict[str, bytes], method: str, key: Any = None, *arguments: Any) -> Any:
    if method == "get":
        return model.get(key)
    if method == "set":
        model[key] = arguments[0]
        return None
    if method == "add":
        try:
            total = int(model.get(key, b"0")) + arguments[0]
        except ValueError:
            return "refused"
        model[key] = b"%d" % total
        return total
    if method == "compare_set":
        expected, desired = arguments
        if model.get(key) == expected or (expected == b"" and key not in model):
            model[key] = desired
        return model.get(key)
    if method == "delete":
        return model.pop(key, None) is not None
    return all(name in model for name in key) if method == "check" else len(model)


async def _nothing_more_happens() -> None:
    """Let all tasks run until each of them waits for something."""
    for _ in range(50):
        await asyncio.sleep(0)
