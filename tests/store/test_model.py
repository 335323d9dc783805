"""The store machine against a model that is too simple to be wrong: plain dicts and lists, searched from end to end.

Requests come in any order, time passes with and without somebody who wakes the machine, and it is snapshotted and
restored. After each step, answers, keys, leases and all that every watch was ever told must be the model's.
"""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
    Operation,
    Put,
    Refused,
)
from phalanx.store.snapshot import load

KEYS = ["", "a", "a/", "a/1", "a/2", "ab", "b", "ä", "\U0001f600"]
LEASES_MAX = 4

keys = st.sampled_from(KEYS[1:])
prefixes = st.sampled_from(KEYS)
values = st.sampled_from([b"", b"1", b"2", b"3"])
operations = st.one_of(
    st.builds(Put, keys, values, st.sampled_from([0] * 9 + [999])),
    st.builds(Delete, keys),
    st.builds(Delete, prefixes, st.just(True)),
    st.builds(Get, keys),
    st.builds(Get, prefixes, st.just(True)),
)
branches = st.lists(operations, max_size=3).map(tuple)


class Model:
    """What a store is, by its port."""

    def __init__(self, history_max: int) -> None:
        self.revision = 1
        self.items: dict[str, KeyValue] = {}
        self.leases: dict[int, tuple[float, float]] = {}
        """Number → ttl, and when it ends."""
        self.past: list[tuple[int, str, KeyValue, bool]] = []
        """Each change that ever was: revision, key, what is told of it, whether it is a deletion."""
        self.remembered_from = 1
        self.history_max = history_max

    def under(self, prefix: str) -> list[str]:
        return sorted((key for key in self.items if key.startswith(prefix)), key=str.encode)

    def holds(self, compare: Compare) -> bool:
        item = self.items.get(compare.key)
        if compare.field is Field.VALUE:
            return item is not None and item.value == compare.value
        return (0 if item is None else getattr(item, compare.field.value)) == compare.value

    def is_refused(self, branch: tuple[Operation, ...]) -> bool:
        written = [one.key for one in branch if isinstance(one, Put)]
        deleted = [one for one in branch if isinstance(one, Delete)]
        return len(set(written)) < len(written) or any(
            key == one.key or (one.is_prefix and key.startswith(one.key))
            for key in written
            for one in deleted
        )

    def transact(
        self, compares: tuple[Compare, ...], then: tuple[Operation, ...], otherwise: tuple[Operation, ...]
    ) -> Answer | type[Exception]:
        if self.is_refused(then) or self.is_refused(otherwise):
            return Refused
        succeeded = all(map(self.holds, compares))
        branch = then if succeeded else otherwise
        if any(isinstance(one, Put) and one.lease and one.lease not in self.leases for one in branch):
            return LeaseExpired
        before, revision = len(self.past), self.revision + 1
        results = [self.perform(one, revision) for one in branch]
        self.commit(before)
        return Answer(succeeded, self.revision, tuple(map(tuple, results)))

    def perform(self, one: Operation, revision: int) -> list[KeyValue]:
        if isinstance(one, Put):
            old = self.items.get(one.key)
            created, version = (revision, 0) if old is None else (old.create_revision, old.version)
            item = KeyValue(one.key, one.value, created, revision, version + 1, one.lease)
            self.items[one.key] = item
            self.past.append((revision, one.key, item, False))
            return []
        found = self.under(one.key) if one.is_prefix else [one.key] if one.key in self.items else []
        items = [self.items[key] for key in found]
        if isinstance(one, Delete):
            for key in found:
                self.remove(key, revision)
        return items

    def remove(self, key: str, revision: int) -> None:
        del self.items[key]
        self.past.append((revision, key, KeyValue(key, b"", 0, revision, 0), True))

    def commit(self, before: int) -> None:
        """What was done since is a revision, if anything was."""
        if len(self.past) > before:
            self.revision += 1
            self.remembered_from = max(self.remembered_from, self.revision - self.history_max + 1)

    def end_lease(self, number: int) -> None:
        before = len(self.past)
        if self.leases.pop(number, None) is not None:
            for key in self.under(""):
                if self.items[key].lease == number:
                    self.remove(key, self.revision + 1)
        self.commit(before)

    def told(self, prefix: str, from_revision: int) -> list[tuple[int, KeyValue, bool]]:
        """What a watch is to have been told until now."""
        return [
            (revision, item, is_delete)
            for revision, key, item, is_delete in self.past
            if revision >= from_revision and key.startswith(prefix)
        ]


class StoreAgainstModel(RuleBasedStateMachine):
    """Drives both, as an event loop would."""

    @initialize(history_max=st.sampled_from([1, 3, 1000]))
    def begin(self, history_max: int) -> None:
        self.now = 1000.0
        self.store = StoreMachine(history_max=history_max)
        self.model = Model(history_max)
        self.watches: dict[int, tuple[str, int, list[tuple[int, KeyValue, bool]]]] = {}
        self.watches_made = 0

    # The two

    def step(self, event: object) -> Any:
        """Step the store, collect what watches are told, and return the answer or the class of the error."""
        self.forgive()
        answer: Any = None
        for command in self.store.step(event, self.now):
            match command:
                case Answered(_, found):
                    answer = found
                case Failed(_, error):
                    answer = type(error)
                case Notify(watches, batch):
                    assert batch.changes, "an empty batch"
                    for watch in watches:
                        assert isinstance(watch, int)
                        told = [(batch.revision, change.kv, change.is_delete) for change in batch.changes]
                        self.watches[watch][2].extend(told)
                case EndWatch(watch, error):
                    answer = type(error)
        return answer

    def forgive(self) -> None:
        """A store that is woken much later than it had asked for was frozen, and could hear nobody renew."""
        if self.store.deadline is not None and self.now > self.store.deadline:
            late_s = self.now - self.store.deadline
            for number, (ttl_s, _) in self.model.leases.items():
                if late_s > max(ttl_s / 4, 0.5):
                    self.model.leases[number] = ttl_s, self.now + ttl_s

    @rule(
        fields=st.lists(st.tuples(keys, st.sampled_from(Field), st.booleans(), values), max_size=3),
        then=branches,
        otherwise=branches,
    )
    def transact(self, fields: list[Any], then: Any, otherwise: Any) -> None:
        self.transaction(fields, then, otherwise)

    def transaction(self, fields: list[Any], then: Any, otherwise: Any) -> None:
        compares = tuple(self.compare(*field) for field in fields)
        found = self.step(TransactionAsked("caller", compares, then, otherwise))
        assert found == self.model.transact(compares, then, otherwise)

    def compare(self, key: str, field: Field, is_true: bool, value: bytes) -> Compare:
        """A comparison that holds, mostly: one of two random numbers seldom does."""
        item = self.model.items.get(key)
        if field is Field.VALUE:
            return Compare(key, field, item.value if item is not None and is_true else value)
        return Compare(key, field, (getattr(item, field.value) if item else 0) + (not is_true))

    @precondition(lambda self: len(self.model.leases) < LEASES_MAX)
    @rule(ttl_s=st.sampled_from([0.3, 1.0, 5.0, 60.0, 0.0, -1.0, float("inf"), float("nan")]))
    def grant(self, ttl_s: float) -> None:
        found = self.step(GrantAsked("caller", ttl_s))
        if not 0 < ttl_s < float("inf"):
            assert found is Refused
        else:
            assert found not in self.model.leases
            self.model.leases[found] = ttl_s, self.now + ttl_s

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), is_known=st.integers(0, 9))
    def renew(self, data: st.DataObject, is_known: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.model.leases))) if is_known else 999
        found = self.step(RenewAsked("caller", number))
        if number in self.model.leases:
            assert found is None
            ttl_s = self.model.leases[number][0]
            self.model.leases[number] = ttl_s, self.now + ttl_s
        else:
            assert found is LeaseExpired

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from([*sorted(self.model.leases), 999]))
        assert self.step(RevokeAsked("caller", number)) is None
        self.model.end_lease(number)

    @rule(data=st.data(), key=keys, value=values)
    def put(self, data: st.DataObject, key: str, value: bytes) -> None:
        lease = data.draw(st.sampled_from([0, *sorted(self.model.leases)]))
        self.transaction([], (Put(key, value, lease),), ())

    @rule(key=keys)
    def delete(self, key: str) -> None:
        self.transaction([], (Delete(key), Get(key)), ())

    # Watches

    @rule(prefix=prefixes, offset=st.integers(-5, 3))
    def watch(self, prefix: str, offset: int) -> None:
        self.watches_made += 1
        from_revision = max(0, self.model.revision + offset)
        self.watches[self.watches_made] = prefix, from_revision, []
        found = self.step(WatchAsked(self.watches_made, prefix, from_revision))
        # The first change makes revision 2: a history that begins with it is whole.
        whole = self.model.remembered_from <= 2
        if from_revision >= (1 if whole else self.model.remembered_from):
            assert found is None
        else:
            assert found is Compacted
            del self.watches[self.watches_made]

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def close_watch(self, data: st.DataObject) -> None:
        watch = data.draw(st.sampled_from(sorted(self.watches)))
        assert self.step(WatchClosed(watch)) is None
        del self.watches[watch]

    # Time

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        """The store is woken whenever it asked for it, if never to the very moment."""
        until = self.now + seconds
        wakes = 0
        while self.store.deadline is not None and self.store.deadline <= until:
            self.now = max(self.now, self.store.deadline)
            self.wake()
            wakes += 1
            assert wakes < 2000, "it asks to be woken again and again"
        self.now = until

    @rule(seconds=st.floats(0, 3) | st.floats(0, 100))
    def frozen(self, seconds: float) -> None:
        """Time passes, and nobody wakes the store; what comes then, a request or the alarm, comes late."""
        self.now += seconds

    @rule()
    def wake(self) -> None:
        assert self.step(DeadlinePassed()) is None
        due = sorted((ends_at, number) for number, (_, ends_at) in self.model.leases.items())
        for ends_at, number in due:
            if ends_at <= self.now:
                self.model.end_lease(number)

    # Snapshots

    @rule(with_history=st.booleans())
    def move_to_another_machine(self, with_history: bool) -> None:
        """The store is restored elsewhere: watches are gone, every lease has its whole time."""
        snapshot = json.loads(json.dumps(self.store.snapshot(with_history=with_history)))
        self.store = StoreMachine(history_max=self.model.history_max)
        self.watches.clear()
        self.step(SnapshotLoaded(snapshot))
        self.model.leases = {
            number: (ttl_s, self.now + ttl_s) for number, (ttl_s, _) in self.model.leases.items()
        }
        if not with_history:
            self.model.remembered_from = self.model.revision + 1

    # What holds at any time

    @invariant()
    def keys_are_the_models(self) -> None:
        if hasattr(self, "model"):
            contents = load(self.store.snapshot())
            assert contents.revision == self.model.revision
            assert {item.key: item for item in contents.items} == self.model.items
            assert contents.leases.keys() == self.model.leases.keys()

    @invariant()
    def watches_were_told_everything_once_and_in_order(self) -> None:
        for prefix, from_revision, told in getattr(self, "watches", {}).values():
            assert told == self.model.told(prefix, from_revision)

    @invariant()
    def somebody_will_be_woken_before_any_lease_is_due(self) -> None:
        if hasattr(self, "model"):
            assert (self.store.deadline is None) == (not self.model.leases)
            if self.store.deadline is not None:
                assert self.store.deadline <= min(ends_at for _, ends_at in self.model.leases.values())


StoreAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestStoreAgainstModel = StoreAgainstModel.TestCase
