"""The store machine by itself: time, leases, history, snapshots. What all stores do is in ``test_conformance``."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.machine import UnlistedEvent
from phalanx.store import history, items, machine
from phalanx.store.machine import (
    Answered,
    DeadlinePassed,
    EndWatch,
    Failed,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    SnapshotLoaded,
    StoreMachine,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import (
    Answer,
    Compacted,
    Compare,
    Delete,
    Field,
    Get,
    KeyValue,
    LeaseExpired,
    Put,
    Refused,
    StoreReset,
)


def put(store: StoreMachine, key: str, value: bytes = b"", *, lease: int = 0, now: float = 0.0) -> list[Any]:
    return store.step(TransactionAsked("put", (), (Put(key, value, lease),)), now)


def keys(store: StoreMachine, now: float = 0.0) -> list[str]:
    [answered] = store.step(TransactionAsked("get", (), (Get("", is_prefix=True),)), now)
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, Answer)
    return [item.key for item in answered.answer.results[0]]


def grant(store: StoreMachine, ttl_s: float, now: float = 0.0) -> int:
    [answered] = store.step(GrantAsked("grant", ttl_s), now)
    assert isinstance(answered, Answered)
    assert isinstance(answered.answer, int)
    return answered.answer


def sleep_until(store: StoreMachine, end: float) -> list[Any]:
    """Wake the machine at each of its deadlines up to ``end``; returns all that it said."""
    said: list[Any] = []
    while store.deadline is not None and store.deadline <= end:
        said += store.step(DeadlinePassed(), store.deadline)
    return said


def error_of(commands: list[Any]) -> Exception:
    [command] = commands
    assert isinstance(command, Failed | EndWatch)
    return command.error


def test_every_event_is_listed_and_an_unknown_one_is_refused() -> None:
    events = (
        TransactionAsked(1),
        WatchAsked(2, "", 1),
        WatchClosed(2),
        GrantAsked(3, 1.0),
        RenewAsked(4, 1),
        RevokeAsked(5, 1),
        DeadlinePassed(),
        SnapshotLoaded(StoreMachine().snapshot()),
    )
    store = StoreMachine()
    assert {type(event) for event in events} == set(StoreMachine.table)
    for event in events:
        store.step(event, 0.0)
    with pytest.raises(UnlistedEvent):
        store.step(Answered(1, None), 0.0)


def test_an_answer_names_its_caller_and_is_followed_by_the_notices() -> None:
    store = StoreMachine()
    assert store.step(WatchAsked("w", "a", 1), 0.0) == []
    answered, notice = put(store, "a", b"1")
    assert answered == Answered("put", Answer(succeeded=True, revision=2, results=((),)))
    assert isinstance(notice, Notify)
    assert (notice.watches, notice.batch.revision) == (("w",), 2)


def test_those_who_watch_one_prefix_get_one_batch() -> None:
    store = StoreMachine()
    for watch, prefix in enumerate(("a/", "a/", "", "a/b", "b")):
        store.step(WatchAsked(watch, prefix, 1), 0.0)
    notices: list[Any] = store.step(TransactionAsked("t", (), (Put("a/b", b""), Put("a/c", b""))), 0.0)[1:]
    assert [notice.watches for notice in notices] == [(0, 1), (2,), (3,)]
    whole, part = notices[0].batch, notices[2].batch
    assert notices[1].batch is whole
    assert [change.kv.key for change in part.changes] == ["a/b"]


def test_a_closed_watch_gets_nothing_more() -> None:
    store = StoreMachine()
    store.step(WatchAsked("w", "", 1), 0.0)
    store.step(WatchClosed("w"), 0.0)
    store.step(WatchClosed("w"), 0.0)
    assert len(put(store, "a")) == 1


def test_a_watch_of_the_future_is_silent_until_then() -> None:
    store = StoreMachine()
    store.step(WatchAsked("later", "", 4), 0.0)
    store.step(WatchAsked("now", "", 1), 0.0)
    seen = [put(store, "a")[1].watches for _ in range(3)]
    assert seen == [("now",), ("now",), ("later", "now")]


# Leases and time


def test_a_lease_ends_at_its_time_and_not_before() -> None:
    store = StoreMachine()
    lease = grant(store, 10.0, now=5.0)
    put(store, "a", lease=lease, now=5.0)
    assert sleep_until(store, 14.99) == []
    assert keys(store, 14.99) == ["a"]
    [notice] = [*store.step(WatchAsked("w", "", 1), 14.99)]
    assert isinstance(notice, Notify)
    [end] = sleep_until(store, 15.0)
    assert (end.batch.revision, end.batch.changes[0].is_delete) == (3, True)
    assert keys(store, 15.0) == []
    assert store.deadline is None
    assert isinstance(error_of(store.step(RenewAsked(1, lease), 15.0)), LeaseExpired)


def test_a_renewal_counts_from_its_own_moment() -> None:
    store = StoreMachine()
    lease = grant(store, 10.0)
    sleep_until(store, 9.0)
    store.step(RenewAsked(1, lease), 9.0)
    sleep_until(store, 18.9)
    assert lease in store.leases
    sleep_until(store, 19.0)
    assert lease not in store.leases


def test_leases_end_in_the_order_of_their_ends_each_at_a_revision_of_its_own() -> None:
    store = StoreMachine()
    store.step(WatchAsked("w", "", 1), 0.0)
    for key, ttl_s in (("long", 9.0), ("short", 3.0), ("middle", 6.0)):
        put(store, key, lease=grant(store, ttl_s))
    said = sleep_until(store, 100.0)
    assert [(notice.batch.revision, notice.batch.changes[0].kv.key) for notice in said] == [
        (5, "short"),
        (6, "middle"),
        (7, "long"),
    ]


def test_a_lease_without_keys_ends_without_a_revision() -> None:
    store = StoreMachine()
    grant(store, 1.0)
    assert sleep_until(store, 10.0) == []
    assert (store.revision, dict(store.leases)) == (1, {})


@pytest.mark.parametrize("frozen_from", [0.0, 7.0, 9.9])
def test_a_machine_that_wakes_late_grants_every_lease_a_full_ttl(frozen_from: float) -> None:
    store = StoreMachine()
    leases = [grant(store, 10.0), grant(store, 12.0)]
    sleep_until(store, frozen_from)
    thawed = 500.0
    assert store.step(DeadlinePassed(), thawed) == []
    sleep_until(store, thawed + 9.9)
    assert list(store.leases) == leases
    sleep_until(store, thawed + 10.0)
    assert list(store.leases) == leases[1:]
    sleep_until(store, thawed + 12.0)
    assert list(store.leases) == []


def test_a_freeze_that_ends_just_before_a_lease_does_is_forgiven_too() -> None:
    store = StoreMachine()
    lease = grant(store, 10.0)
    sleep_until(store, 1.0)
    keys(store, 9.9)  # the first request after a freeze of nearly nine seconds
    sleep_until(store, 19.8)
    assert lease in store.leases
    sleep_until(store, 19.9)
    assert lease not in store.leases


def test_a_loop_that_is_a_little_late_lengthens_no_lease() -> None:
    store = StoreMachine()
    lease = grant(store, 10.0)
    now = 0.0
    while lease in store.leases:
        assert store.deadline is not None
        now = store.deadline + 0.4
        store.step(DeadlinePassed(), now)
    assert now <= 10.0 + 0.4


def test_lateness_is_measured_by_each_lease_of_its_own() -> None:
    store = StoreMachine()
    short, long = grant(store, 2.0), grant(store, 100.0)
    first_look = store.deadline
    assert first_look is not None
    store.step(DeadlinePassed(), first_look + 3.0)  # much for two seconds, nothing for a hundred
    assert (store.leases[short].expires_at, store.leases[long].expires_at) == (first_look + 5.0, 100.0)


def test_the_machine_asks_to_be_woken_only_while_there_are_leases() -> None:
    store = StoreMachine()
    put(store, "a")
    assert store.deadline is None
    lease = grant(store, 8.0)
    deadlines = [store.deadline]
    store.step(RevokeAsked(1, lease), 1.0)
    assert [*deadlines, store.deadline] == [2.0, None]  # the first one to notice a freeze


def test_a_driver_may_choose_the_number_of_a_lease_once() -> None:
    store = StoreMachine()
    assert store.step(GrantAsked("c", 1.0, 77), 0.0) == [Answered("c", 77)]
    assert isinstance(error_of(store.step(GrantAsked("c", 1.0, 77), 0.0)), Refused)
    assert grant(store, 1.0) == 1


def test_there_is_a_limit_to_the_leases() -> None:
    store = StoreMachine()
    for _ in range(machine.LEASES_MAX):
        store.leases.add(len(store.leases) + 1, machine.Lease(1.0, 1.0), 0.0)
    assert isinstance(error_of(store.step(GrantAsked("c", 1.0, 10**6), 0.0)), Refused)


# Limits


def test_a_full_store_refuses_to_grow_and_takes_what_makes_room() -> None:
    store = StoreMachine(total_bytes_max=100)
    put(store, "a", b"x" * 60)
    assert isinstance(error_of(put(store, "b", b"x" * 60)), Refused)
    store.step(TransactionAsked("d", (), (Delete("a"),)), 0.0)
    put(store, "b", b"x" * 60)
    assert keys(store) == ["b"]


def test_a_transaction_that_fails_changes_nothing() -> None:
    store = StoreMachine()
    put(store, "a", b"1")
    before = store.snapshot()
    for operations in (
        (Put("b", b""), Put("c", b"", lease=9)),
        (Put("b", b""), Put("b", b"")),
        (Put("", b""),),
        (Put("\ud800", b""),),
        (Put("b", b"x" * 2_000_000),),
    ):
        error_of(store.step(TransactionAsked("t", (), operations), 0.0))
        assert store.snapshot() == before


# History


def test_history_is_bounded_by_revisions() -> None:
    store = StoreMachine(history_max=3)
    assert store.first_revision == 1
    for _ in range(10):
        put(store, "a")
    assert (store.revision, store.first_revision) == (11, 9)
    assert isinstance(error_of(store.step(WatchAsked("old", "", 8), 0.0)), Compacted)
    assert len(store.step(WatchAsked("new", "", 9), 0.0)) == 3
    assert len(put(store, "a")) == 2  # only one of the two still watches


def test_history_is_bounded_by_bytes() -> None:
    store = StoreMachine()
    for _ in range(20):
        put(store, "a", b"x" * 1_000_000)
    kept = store.revision + 1 - store.first_revision
    assert kept == history.HISTORY_BYTES_MAX // 1_000_001


def test_an_empty_store_can_be_watched_from_its_beginning() -> None:
    store = StoreMachine()
    assert store.step(WatchAsked("w", "", 1), 0.0) == []
    assert isinstance(error_of(store.step(WatchAsked("v", "", 0), 0.0)), Compacted)


# Snapshots


def test_a_snapshot_survives_json_and_the_machine_goes_on_from_it() -> None:
    store = StoreMachine()
    lease = grant(store, 10.0)
    put(store, "a", bytes(range(256)), lease=lease)
    put(store, "ü\U0001f600", b"")
    put(store, "a", b"2", lease=lease)
    store.step(TransactionAsked("d", (), (Delete("ü\U0001f600"),)), 0.0)
    other = StoreMachine.restore(json.loads(json.dumps(store.snapshot())), 1000.0)
    assert other.snapshot() == store.snapshot()
    assert other.step(WatchAsked("w", "", 1), 1000.0) == store.step(WatchAsked("w", "", 1), 1.0)
    assert other.leases[lease].expires_at == 1010.0
    assert grant(other, 5.0, now=1000.0) == grant(store, 5.0)
    assert [type(command) for command in sleep_until(other, 1010.0)] == [Notify]
    assert keys(other, 1010.0) == []


def test_a_snapshot_without_history_begins_its_own() -> None:
    store = StoreMachine()
    put(store, "a")
    put(store, "b")
    other = StoreMachine.restore(store.snapshot(with_history=False), 0.0)
    assert (other.revision, other.first_revision, keys(other)) == (3, 4, ["a", "b"])
    assert isinstance(error_of(other.step(WatchAsked("w", "", 3), 0.0)), Compacted)
    assert other.step(WatchAsked("w", "", 4), 0.0) == []
    assert len(put(other, "a")) == 2


def test_loading_a_later_snapshot_notifies_watches_of_the_difference() -> None:
    store = StoreMachine()
    put(store, "a", b"1")
    reader = StoreMachine.restore(store.snapshot(), 0.0)
    reader.step(WatchAsked("w", "a", 3), 0.0)
    put(store, "b")
    put(store, "a", b"2")
    [notice] = reader.step(SnapshotLoaded(store.snapshot()), 0.0)
    assert isinstance(notice, Notify)
    assert (notice.batch.revision, notice.batch.changes[0].kv.value) == (4, b"2")
    assert reader.step(SnapshotLoaded(store.snapshot()), 0.0) == []


def test_loading_a_snapshot_with_a_gap_or_from_the_past_ends_the_watches() -> None:
    store = StoreMachine(history_max=2)
    put(store, "a")
    early = store.snapshot()
    reader = StoreMachine.restore(early, 0.0)
    reader.step(WatchAsked("w", "", 3), 0.0)
    for _ in range(4):
        put(store, "a")
    assert isinstance(error_of(reader.step(SnapshotLoaded(store.snapshot()), 0.0)), Compacted)
    reader.step(WatchAsked("w", "", 7), 0.0)
    assert isinstance(error_of(reader.step(SnapshotLoaded(early), 0.0)), StoreReset)
    assert len(put(reader, "a")) == 1


def test_loading_snapshots_shows_which_leases_live() -> None:
    store = StoreMachine()
    silent, alive = grant(store, 10.0), grant(store, 10.0)
    reader = StoreMachine.restore(store.snapshot(), 0.0)
    for now in (2.0, 4.0, 6.0, 8.0):
        store.step(RenewAsked(1, alive), now)
        reader.step(SnapshotLoaded(store.snapshot()), now)
    sleep_until(reader, 10.0)
    assert list(reader.leases) == [alive]
    assert silent in store.leases
    assert reader.leases[alive].expires_at == 18.0


def _damaged() -> list[Any]:
    store = StoreMachine()
    put(store, "a", b"1", lease=grant(store, 5.0))
    good = store.snapshot()
    changes: list[dict[str, Any]] = [
        {"version": 2},
        {"revision": "2"},
        {"revision": True},
        {"revision": -1},
        {"items": [["a", "MQ==", 2, 2, 1]]},
        {"items": [["a", "no base64!", 2, 2, 1, 1]]},
        {"items": [[5, "MQ==", 2, 2, 1, 1]]},
        {"items": [["a", "MQ==", 3, 2, 1, 1]]},
        {"items": [["a", "MQ==", 2, 9, 1, 1]]},
        {"leases": []},
        {"leases": [[1, -5.0, 0]]},
        {"leases": None},
        {"history": [[9, []]]},
        {"history": 3},
    ]
    return [[], None, {}, *({**good, **change} for change in changes)]


@pytest.mark.parametrize("data", _damaged(), ids=lambda data: json.dumps(data)[:100])
def test_what_is_no_snapshot_is_refused_as_a_whole(data: Any) -> None:
    store = StoreMachine()
    put(store, "b")
    before = store.snapshot()
    with pytest.raises(ValueError, match="no snapshot"):
        store.step(SnapshotLoaded(data), 0.0)
    assert store.snapshot() == before


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "delete", "guarded"])), max_size=30)
)
def test_a_watch_replayed_is_the_store(steps: list[tuple[str, str]]) -> None:
    store = StoreMachine()
    store.step(WatchAsked("w", "", 1), 0.0)
    replayed: dict[str, bytes] = {}
    for number, (key, what) in enumerate(steps):
        operation = Delete(key) if what == "delete" else Put(key, b"%d" % number)
        compares = (Compare(key, Field.VERSION, 1),) if what == "guarded" else ()
        _, *notices = store.step(TransactionAsked("t", compares, (operation,)), 0.0)
        for notice in notices:
            assert isinstance(notice, Notify)
            for change in notice.batch.changes:
                replayed.pop(change.kv.key, None)
                if not change.is_delete:
                    replayed[change.kv.key] = change.kv.value
        assert sorted(replayed) == keys(store)


# Answers


@pytest.mark.parametrize("size", [4_000_000, 0], ids=["large values", "many keys"])
def test_what_reads_more_than_an_answer_holds_is_refused_before_it_is_built(size: int) -> None:
    store = StoreMachine()
    if size:
        for number in range(8):
            put(store, f"a/{number}", b"x" * (size // 8))
    else:
        store._items = items.Items(KeyValue(f"a/{number:05}", b"", 2, 2, 1) for number in range(20_000))
    before = store.revision
    reads = tuple(Get("a/", is_prefix=True) for _ in range(127))
    tracemalloc.start()
    try:
        error = error_of(store.step(TransactionAsked("much", (), (Put("b", b"new"), *reads)), 0.0))
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert isinstance(error, Refused)
    assert "too large" in str(error)
    assert store.revision == before, "nothing of it was done"
    [answered] = store.step(TransactionAsked("little", (), reads[:2]), 0.0)
    assert isinstance(answered, Answered)


def test_what_a_transaction_wrote_itself_counts_when_it_is_read() -> None:
    store = StoreMachine()
    written = Put("a", b"x" * 1_400_000)
    error = error_of(store.step(TransactionAsked("much", (), (written, *[Get("a")] * 127)), 0.0))
    assert "too large" in str(error)
    assert keys(store) == []


def test_every_key_can_be_read_and_deleted_at_once_however_many_there_are(monkeypatch: Any) -> None:
    monkeypatch.setattr(items, "ANSWER_KEYS_MAX", 10)
    store = StoreMachine()
    for number in range(50):
        put(store, f"a/{number:02}")
    assert len(keys(store)) == 50
    [answered] = store.step(TransactionAsked("all", (), (Delete("", is_prefix=True),)), 0.0)
    assert isinstance(answered, Answered)
    assert keys(store) == []
