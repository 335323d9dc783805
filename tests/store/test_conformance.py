"""What holds for every store, whatever is behind it. See ``conftest.py`` for how a store is added."""

from __future__ import annotations

import asyncio
import itertools
from types import ModuleType

import pytest
from tests.store.stories import PATIENCE_S, Connect, batches, changes, on_each_store, quiet, seen, within

from phalanx.store.port import (
    Compacted,
    Compare,
    Delete,
    Field,
    Get,
    LeaseExpired,
    Put,
    Refused,
    Store,
    Unclear,
)

JOB = "/phalanx/job/"
A, B, C = f"{JOB}a", f"{JOB}b", f"{JOB}c"


# Transactions


@on_each_store
async def test_a_key_has_the_revisions_of_its_creation_and_of_its_last_write(connect: Connect) -> None:
    store = await connect()
    assert await store.get(A) is None
    first = await store.put(A, b"1")
    second = await store.put(A, b"2")
    assert second > first
    item = await store.get(A)
    assert item is not None
    assert (item.key, item.value, item.create_revision, item.mod_revision, item.version, item.lease) == (
        A,
        b"2",
        first,
        second,
        2,
        0,
    )


@on_each_store
async def test_a_deleted_key_begins_anew(connect: Connect) -> None:
    store = await connect()
    await store.put(A, b"1")
    await store.put(A, b"2")
    assert await store.delete(A) == 1
    assert await store.delete(A) == 0
    assert await store.get(A) is None
    revision = await store.put(A, b"3")
    item = await store.get(A)
    assert item is not None
    assert (item.create_revision, item.mod_revision, item.version) == (revision, revision, 1)


@pytest.mark.parametrize("field", Field)
@pytest.mark.parametrize("holds", [True, False], ids=["holds", "fails"])
def test_each_field_of_a_key_can_be_compared(factory: ModuleType, field: Field, holds: bool) -> None:
    async def story(connect: Connect) -> None:
        store = await connect()
        await store.put(A, b"1")
        await store.put(A, b"2")
        item = await store.get(A)
        value = getattr(item, field.value)
        other = b"1" if isinstance(value, bytes) else value + 1
        compare = Compare(A, field, value if holds else other)
        answer = await store.transaction((compare,), (Put(B, b"then"),), (Put(B, b"otherwise"),))
        assert answer.succeeded is holds
        written = await store.get(B)
        assert written is not None
        assert written.value == (b"then" if holds else b"otherwise")
        assert written.mod_revision == answer.revision

    on_each_store(story)(factory)


@on_each_store
async def test_a_key_that_is_not_there_compares_as_zero_and_equals_no_value(connect: Connect) -> None:
    store = await connect()
    for field in (Field.CREATE_REVISION, Field.MOD_REVISION, Field.VERSION):
        assert (await store.transaction((Compare(A, field, 0),))).succeeded
        assert not (await store.transaction((Compare(A, field, 1),))).succeeded
    assert not (await store.transaction((Compare(A, Field.VALUE, b""),))).succeeded
    await store.put(A, b"")
    assert (await store.transaction((Compare(A, Field.VALUE, b""),))).succeeded


@on_each_store
async def test_all_comparisons_must_hold(connect: Connect) -> None:
    store = await connect()
    await store.put(A, b"1")
    holds, fails = Compare(A, Field.VERSION, 1), Compare(B, Field.VERSION, 1)
    assert (await store.transaction((holds, holds))).succeeded
    assert not (await store.transaction((holds, fails))).succeeded
    assert not (await store.transaction((fails, holds))).succeeded
    assert (await store.transaction()).succeeded


@on_each_store
async def test_all_changes_of_a_transaction_have_one_revision(connect: Connect) -> None:
    store = await connect()
    before = await store.put(C, b"0")
    answer = await store.transaction((), (Put(A, b"1"), Delete(C), Put(B, b"2")))
    assert answer.revision == before + 1
    listing = await store.list(JOB)
    assert listing.revision == answer.revision
    assert [(item.key, item.mod_revision) for item in listing.items] == [
        (A, answer.revision),
        (B, answer.revision),
    ]


@on_each_store
async def test_without_a_change_the_revision_stays(connect: Connect) -> None:
    store = await connect()
    revision = await store.put(A, b"1")
    assert (await store.transaction((), (Get(A),))).revision == revision
    assert (await store.transaction((Compare(A, Field.VERSION, 9),), (Put(A, b"2"),))).revision == revision
    assert await store.delete(B) == 0
    assert (await store.list(JOB)).revision == revision


@on_each_store
async def test_each_operation_has_a_result(connect: Connect) -> None:
    store = await connect()
    await store.put(A, b"1")
    await store.put(B, b"2")
    answer = await store.transaction(
        (), (Get(A), Put(C, b"3"), Get(f"{JOB}no"), Get(JOB, is_prefix=True), Delete(A), Delete(f"{JOB}no"))
    )
    keys = [[item.key for item in result] for result in answer.results]
    assert keys == [[A], [], [], [A, B, C], [A], []]
    assert answer.results[4][0].value == b"1"


@on_each_store
async def test_an_operation_sees_what_the_ones_before_it_did(connect: Connect) -> None:
    store = await connect()
    await store.put(A, b"old")
    answer = await store.transaction((), (Get(A), Put(A, b"new"), Get(A), Delete(B), Get(B)))
    old, _, new, _, gone = answer.results
    assert (old[0].value, new[0].value, new[0].mod_revision, gone) == (b"old", b"new", answer.revision, ())


@on_each_store
async def test_a_prefix_is_deleted_at_once(connect: Connect) -> None:
    store = await connect()
    for key in (f"{A}/1", f"{A}/2", f"{A}0", B):
        await store.put(key, b"x")
    answer = await store.transaction((), (Delete(f"{A}/", is_prefix=True),))
    assert [item.key for item in answer.results[0]] == [f"{A}/1", f"{A}/2"]
    assert [item.key for item in (await store.list(JOB)).items] == [f"{A}0", B]


@on_each_store
async def test_a_key_is_written_once_at_most_in_a_transaction(connect: Connect) -> None:
    store = await connect()
    twice = (Put(A, b"1"), Put(A, b"2"))
    put_and_delete = (Put(A, b"1"), Delete(JOB, is_prefix=True))
    for operations in (twice, put_and_delete, put_and_delete[::-1]):
        with pytest.raises(Refused):
            await store.transaction((), operations)
        with pytest.raises(Refused):
            await store.transaction((), (), operations)
    assert await store.get(A) is None
    await store.put(A, b"3")  # the connection lives on


@on_each_store
async def test_a_request_that_is_too_large_is_refused_and_the_next_is_served(connect: Connect) -> None:
    store = await connect()
    with pytest.raises(Refused, match="large"):
        await store.put(A, b"x" * (2 * 1024 * 1024))
    with pytest.raises(Refused):
        await store.transaction((), tuple(Put(f"{A}/{number}", b"") for number in range(1000)))
    assert (await store.list(JOB)).items == ()


@on_each_store
async def test_a_value_of_a_mebibyte_is_kept(connect: Connect) -> None:
    store, other = await connect(), await connect()
    value = bytes(range(256)) * 4096
    watch = other.watch(A, 1 + await store.put(B, b""))
    await store.put(A, value)
    item = await other.get(A)
    assert item is not None
    assert item.value == value
    [change] = await changes(watch, 1)
    assert change.kv.value == value


# Keys


@on_each_store
async def test_keys_are_listed_in_the_order_of_their_bytes(connect: Connect) -> None:
    store = await connect()
    keys = [f"{JOB}{end}" for end in ("n2", "n10", "N", "ä", "z", "\U0001f600", "\uffee", "n", "~", "n/1")]
    for key in keys:
        await store.put(key, b"")
    found = [item.key for item in (await store.list(JOB)).items]
    assert found == sorted(keys, key=lambda key: key.encode())


@on_each_store
async def test_odd_keys_are_keys_like_others(connect: Connect) -> None:
    store = await connect()
    odd = [
        "ü",
        "a b",
        "a\nb",
        "\x00",
        "\x7f",
        "long" * 1000,
        "..",
        "%2f",
        "\U0010ffff",
        "'\"\\",
        "a//b",
        "e\u0301",
    ]
    for number, end in enumerate(odd):
        await store.put(JOB + end, b"%d" % number)
    for number, end in enumerate(odd):
        item = await store.get(JOB + end)
        assert item is not None
        assert item.value == b"%d" % number
    assert await store.get(f"{JOB}\u00e9") is None  # equal to one of them only for people
    assert await store.delete(f"{JOB}\U0010ffff", is_prefix=True) == 1
    assert await store.delete(JOB, is_prefix=True) == len(odd) - 1


@on_each_store
async def test_a_key_that_is_no_text_is_refused(connect: Connect) -> None:
    store = await connect()
    with pytest.raises(Refused):
        await store.put(f"{JOB}\ud800", b"")
    await store.put(A, b"")


@on_each_store
async def test_values_are_bytes_of_any_kind(connect: Connect) -> None:
    store = await connect()
    for value in (b"", b"\x00", bytes(range(256)), b"\n", "ü".encode()):
        await store.put(A, value)
        item = await store.get(A)
        assert item is not None
        assert item.value == value


# Watches


@on_each_store
async def test_a_watch_sees_what_other_clients_change(connect: Connect) -> None:
    store, other = await connect(), await connect()
    start = await store.put(A, b"before")
    watch = other.watch(JOB, start + 1)
    await store.put(A, b"1")
    await store.delete(A)
    await store.put(B, b"2")
    found = await batches(watch, 3)
    assert [batch.revision for batch in found] == [start + 1, start + 2, start + 3]
    assert [seen(list(batch.changes)) for batch in found] == [[(A, b"1")], [(A, None)], [(B, b"2")]]
    put, gone = found[0].changes[0].kv, found[1].changes[0].kv
    assert (put.create_revision, put.mod_revision, put.version) == (start, start + 1, 2)
    assert (gone.mod_revision, gone.value) == (start + 2, b"")


@on_each_store
async def test_a_watch_may_begin_in_the_past(connect: Connect) -> None:
    store = await connect()
    first = await store.put(A, b"1")
    await store.put(f"{JOB}x", b"2")
    await store.put(A, b"3")
    assert seen(await changes(store.watch(A, first), 2)) == [(A, b"1"), (A, b"3")]
    assert seen(await changes(store.watch(A, first + 1), 1)) == [(A, b"3")]


@on_each_store
async def test_a_watch_may_begin_in_the_future(connect: Connect) -> None:
    store = await connect()
    now = await store.put(A, b"0")
    watch = store.watch(JOB, now + 3)
    for value in (b"1", b"2", b"3", b"4"):
        await store.put(A, value)
    assert seen(await changes(watch, 2)) == [(A, b"3"), (A, b"4")]


@on_each_store
async def test_a_watch_sees_its_prefix_and_nothing_else(connect: Connect) -> None:
    store = await connect()
    start = 1 + await store.put(B, b"")
    watch, all_of_it = store.watch(f"{A}/", start), store.watch(JOB, start)
    for key in (A, f"{A}/1", f"{A}0", B, f"{A}/", f"{A}/1/2"):
        await store.put(key, b"")
    assert [change.kv.key for change in await changes(watch, 3)] == [f"{A}/1", f"{A}/", f"{A}/1/2"]
    assert len(await changes(all_of_it, 6)) == 6
    await quiet(watch, store, f"{A}/marker")


@on_each_store
async def test_a_transaction_is_one_batch_with_the_part_that_a_watch_covers(connect: Connect) -> None:
    store = await connect()
    start = await store.put(C, b"0")
    watch, part = store.watch(JOB, start + 1), store.watch(B, start + 1)
    answer = await store.transaction((), (Put(B, b"2"), Delete(C), Put(A, b"1")))
    [batch] = await batches(watch, 1)
    assert batch.revision == answer.revision
    assert seen(list(batch.changes)) == [(B, b"2"), (C, None), (A, b"1")]
    [batch] = await batches(part, 1)
    assert seen(list(batch.changes)) == [(B, b"2")]


@on_each_store
async def test_deleting_a_prefix_is_one_batch(connect: Connect) -> None:
    store = await connect()
    await store.put(f"{A}/2", b"")
    start = await store.put(f"{A}/1", b"")
    watch = store.watch(A, start + 1)
    await store.delete(f"{A}/", is_prefix=True)
    [batch] = await batches(watch, 1)
    assert seen(list(batch.changes)) == [(f"{A}/1", None), (f"{A}/2", None)]


@on_each_store
async def test_a_watch_that_was_closed_ends_and_others_go_on(connect: Connect) -> None:
    store = await connect()
    start = 1 + await store.put(A, b"")
    closed, other = store.watch(JOB, start), store.watch(JOB, start)

    async def read() -> int:
        return len([batch async for batch in closed])

    reader = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    await closed.aclose()
    await closed.aclose()
    assert await within(reader) == 0
    await store.put(A, b"1")
    assert seen(await changes(other, 1)) == [(A, b"1")]


@on_each_store
async def test_no_change_is_lost_or_doubled_under_load(connect: Connect) -> None:
    writers = [await connect() for _ in range(4)]
    reader = await connect()
    start = 1 + await writers[0].put(A, b"")
    watch = reader.watch(JOB, start)

    async def write(number: int, store: Store) -> list[int]:
        return [await store.put(f"{JOB}{number}/{count}", b"%d" % count) for count in range(100)]

    revisions = await asyncio.gather(*(write(number, store) for number, store in enumerate(writers)))
    middle = reader.watch(JOB, start + 200)
    found = await batches(watch, 400)
    assert [batch.revision for batch in found] == sorted(itertools.chain(*revisions))
    assert len({batch.changes[0].kv.key for batch in found}) == 400
    assert await batches(middle, 200) == found[200:]


def test_a_watch_from_a_forgotten_revision_is_told_so(factory: ModuleType) -> None:
    if not hasattr(factory, "forget"):
        pytest.skip("this store forgets nothing")

    async def story(connect: Connect) -> None:
        store = await connect()
        first = await store.put(A, b"1")
        await store.put(A, b"2")
        last = await store.put(A, b"3")
        await factory.forget(store, last)
        with pytest.raises(Compacted):
            await batches(store.watch(JOB, first), 1)
        item = await store.get(A)
        assert item is not None
        assert item.value == b"3"
        listing = await store.list(JOB)
        watch = store.watch(JOB, listing.revision + 1)
        await quiet(watch, store, B)

    on_each_store(story)(factory)


# Leases


@on_each_store
async def test_a_lease_that_is_not_renewed_takes_its_keys_along(connect: Connect) -> None:
    store, other = await connect(), await connect()
    start = await store.put(B, b"stays")
    lease = await store.grant(2)  # it is to be seen alive, by a machine that is busy
    await store.transaction((), (Put(A, b"1", lease), Put(f"{A}/2", b"2", lease)))
    item = await other.get(A)
    assert item is not None
    assert item.lease == lease
    [batch] = await batches(other.watch(JOB, start + 2), 1)
    assert sorted(seen(list(batch.changes))) == [(A, None), (f"{A}/2", None)]
    assert [item.key for item in (await other.list(JOB)).items] == [B]
    for ended in (store.renew(lease), store.put(A, b"2", lease=lease)):
        with pytest.raises(LeaseExpired):
            await ended
    assert await other.get(A) is None


@on_each_store
async def test_a_lease_lives_as_long_as_it_is_renewed(connect: Connect) -> None:
    store, other = await connect(), await connect()
    kept, left = await store.grant(3), await store.grant(3)
    start = await store.put(A, b"kept", lease=kept)
    await store.put(B, b"left", lease=left)

    async def renew() -> None:
        while True:
            await store.renew(kept)
            await asyncio.sleep(0.3)

    renewing = asyncio.ensure_future(renew())
    try:
        [batch] = await batches(other.watch(B, start + 2), 1)  # its own lease has ended meanwhile
        assert seen(list(batch.changes)) == [(B, None)]
        assert await other.get(A) is not None
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
    assert seen(await changes(other.watch(A, start + 1), 1)) == [(A, None)]


@on_each_store
async def test_revoking_a_lease_deletes_its_keys_at_one_revision(connect: Connect) -> None:
    store, other = await connect(), await connect()
    lease = await store.grant(30)
    await store.put(A, b"1", lease=lease)
    start = await store.put(B, b"2", lease=lease)
    watch = other.watch(JOB, start + 1)
    await store.revoke(lease)
    [batch] = await batches(watch, 1)
    assert sorted(seen(list(batch.changes))) == [(A, None), (B, None)]
    await store.revoke(lease)
    with pytest.raises(LeaseExpired):
        await store.renew(lease)


@on_each_store
async def test_a_key_goes_with_the_lease_of_its_last_write(connect: Connect) -> None:
    store = await connect()
    first, second = await store.grant(30), await store.grant(30)
    assert first != second
    await store.put(A, b"1", lease=first)
    await store.put(A, b"2", lease=second)
    await store.put(B, b"1", lease=first)
    await store.put(B, b"2")
    await store.revoke(first)
    assert [item.key for item in (await store.list(JOB)).items] == [A, B]
    await store.revoke(second)
    assert [item.key for item in (await store.list(JOB)).items] == [B]


@on_each_store
async def test_a_put_under_a_lease_that_never_was_fails_the_whole_transaction(connect: Connect) -> None:
    store = await connect()
    with pytest.raises(LeaseExpired):
        await store.transaction((), (Put(A, b"1"), Put(B, b"2", lease=12345)))
    assert (await store.list(JOB)).items == ()
    never = Compare(A, Field.VERSION, 1)
    await store.transaction((never,), (Put(A, b"1", lease=12345),), (Put(B, b"2"),))  # the branch not taken
    assert [item.key for item in (await store.list(JOB)).items] == [B]


@on_each_store
async def test_a_lease_outlives_the_client_that_took_it(connect: Connect) -> None:
    store, other = await connect(), await connect()
    lease = await store.grant(30)
    await store.put(A, b"1", lease=lease)
    await store.close()
    assert await other.get(A) is not None
    await other.renew(lease)
    await other.revoke(lease)
    assert await other.get(A) is None


@on_each_store
async def test_a_lease_lasts_some_time(connect: Connect) -> None:
    store = await connect()
    for ttl_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(Refused):
            await store.grant(ttl_s)


# Clients


@on_each_store
async def test_fifty_clients_count_together(connect: Connect) -> None:
    clients = [await connect() for _ in range(50)]
    await clients[0].put(A, b"0")

    async def count(store: Store) -> None:
        for _ in range(2):
            while True:
                item = await store.get(A)
                assert item is not None
                guard = Compare(A, Field.MOD_REVISION, item.mod_revision)
                if (await store.transaction((guard,), (Put(A, b"%d" % (int(item.value) + 1)),))).succeeded:
                    break

    await within(asyncio.gather(*map(count, clients)), 2 * PATIENCE_S)
    item = await clients[0].get(A)
    assert item is not None
    assert item.value == b"100"
    await asyncio.gather(*(client.close() for client in clients))


@on_each_store
async def test_one_client_serves_many_tasks(connect: Connect) -> None:
    store = await connect()
    revisions = await asyncio.gather(
        *(store.put(f"{A}/{number:03}", b"%d" % number) for number in range(200))
    )
    assert len(set(revisions)) == 200
    listing = await store.list(f"{A}/")
    assert [item.value for item in listing.items] == [b"%d" % number for number in range(200)]


@on_each_store
async def test_a_closed_client_says_so_and_disturbs_no_other(connect: Connect) -> None:
    store, other = await connect(), await connect()
    start = 1 + await store.put(A, b"1")
    watch = store.watch(JOB, start)
    waiting = asyncio.ensure_future(batches(watch, 1))
    await asyncio.sleep(0)
    await store.close()
    await store.close()
    with pytest.raises(Unclear):
        await within(waiting)
    for call in (store.get(A), store.grant(5), store.renew(1)):
        with pytest.raises(Unclear):
            await call
    with pytest.raises(Unclear):
        await batches(store.watch(JOB, start), 1)
    await watch.aclose()
    assert await other.get(A) is not None
