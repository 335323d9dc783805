"""The store as a pure machine: keys, leases, watches and a bounded history. The reference for all other stores.

Requests come in as events and are answered by commands of the same step; what a request changed is notified to the
watches that cover it. A lease ends only when ``DeadlinePassed`` finds it due, so whoever replays a log and decides
the ends of leases otherwise just never sends that event.

Time that nobody saw is not held against the holders of leases: a machine that is stepped much later than its
deadline was frozen, could hear no renewal, and grants every lease one full ttl from then on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from typing import Any, ClassVar

from phalanx.machine import Arrow, Machine, Void
from phalanx.records import Struct
from phalanx.store import snapshot as form
from phalanx.store.history import HISTORY_MAX, History, Notice
from phalanx.store.items import Items
from phalanx.store.leases import Lease, Leases
from phalanx.store.limits import TTL_MAX_S, find_mistake
from phalanx.store.port import (
    Answer,
    Batch,
    Change,
    Compacted,
    Compare,
    Delete,
    Field,
    KeyValue,
    LeaseExpired,
    Operation,
    Put,
    Refused,
    StoreError,
    StoreReset,
)

__all__ = [
    "Answered",
    "DeadlinePassed",
    "EndWatch",
    "Failed",
    "GrantAsked",
    "Lease",
    "Notify",
    "RenewAsked",
    "RevokeAsked",
    "SnapshotLoaded",
    "StoreMachine",
    "StoreState",
    "TransactionAsked",
    "WatchAsked",
    "WatchClosed",
]

TOTAL_BYTES_MAX = 64 * 1024 * 1024
LEASES_MAX = 100_000


class StoreState(Enum):
    """One state: whether a request is possible never depends on those before."""

    OPEN = "open"


# Events


class TransactionAsked(Struct):
    """Asked for a transaction. ``caller`` is whatever the driver knows the request by; it is in the answer."""

    caller: Hashable
    compares: tuple[Compare, ...] = ()
    then: tuple[Operation, ...] = ()
    otherwise: tuple[Operation, ...] = ()


class WatchAsked(Struct):
    """Asked to watch a prefix. ``watch`` is the driver's name for it, not in use yet."""

    watch: Hashable
    prefix: str
    from_revision: int


class WatchClosed(Struct):
    """A watch is not read any more. One that has ended already is fine."""

    watch: Hashable


class GrantAsked(Struct):
    """Asked for a lease. ``lease``: its number, chosen at random by the driver; 0: the next one that is free."""

    caller: Hashable
    ttl_s: float
    lease: int = 0


class RenewAsked(Struct):
    """Asked to make a lease last its ttl from now on."""

    caller: Hashable
    lease: int


class RevokeAsked(Struct):
    """Asked to end a lease."""

    caller: Hashable
    lease: int


class DeadlinePassed(Struct):
    """``StoreMachine.deadline`` has passed."""


class SnapshotLoaded(Struct):
    """The state is now that of ``snapshot()`` of some machine, this one or a later one: watches see the difference.

    A lease that has not been renewed between the two keeps its deadline; any other gets a full ttl.
    """

    snapshot: Mapping[str, Any]


# Commands


class Answered(Struct):
    """Answer a request: an ``Answer``, the number of a granted lease, or None."""

    caller: Hashable
    answer: Answer | int | None


class Failed(Struct):
    """Answer a request with the reason why nothing was done."""

    caller: Hashable
    error: StoreError


class Notify(Struct):
    """Hand a batch to these watches."""

    watches: tuple[Hashable, ...]
    batch: Batch


class EndWatch(Struct):
    """Tell a watch why it gets no more batches. The machine has forgotten it."""

    watch: Hashable
    error: StoreError


Commands = list[Answered | Failed | Notify | EndWatch]


class StoreMachine(Machine[StoreState]):
    """See the module's docstring. ``revision`` begins with 1 (etcd's) and grows by one with each change."""

    def __init__(self, *, history_max: int = HISTORY_MAX, total_bytes_max: int = TOTAL_BYTES_MAX) -> None:
        self.state = StoreState.OPEN
        self.leases = Leases()
        self._last_lease = 0
        self._total_bytes_max = total_bytes_max
        self._items = Items()
        self._history = History(history_max)

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any], now: float) -> StoreMachine:
        """A machine with the state of a snapshot, in which every lease lasts one full ttl from now on.

        Raises ``ValueError`` if it is no snapshot.
        """
        machine = cls()
        machine.step(SnapshotLoaded(snapshot), now)
        return machine

    def snapshot(self, *, with_history: bool = True) -> dict[str, Any]:
        """The state as data that JSON can hold. Without history, watches cannot begin in the past of it."""
        return form.dump(
            form.Contents(
                self.revision,
                self._last_lease,
                tuple(self._items.values()),
                {number: (lease.ttl_s, lease.renewals) for number, lease in self.leases.items()},
                self._history.batches if with_history else (),
            )
        )

    @property
    def revision(self) -> int:
        """The current revision."""
        return self._history.revision

    @property
    def fullness(self) -> float:
        """The part of the room for keys and values that is taken."""
        return self._items.size / self._total_bytes_max

    @property
    def first_revision(self) -> int:
        """The first revision that a watch may begin with."""
        return self._history.first_revision

    def step(self, event: object, now: float) -> Commands:
        """As every machine does; also lengthens the leases after a freeze, and sets the next deadline."""
        if self.deadline is not None and now > self.deadline:
            self.leases.forgive(now - self.deadline, now)
        commands = super().step(event, now)
        self.deadline = self.leases.next_look(now)
        return commands

    # Transactions

    def _transaction(self, event: TransactionAsked, now: float) -> Commands:
        if mistake := find_mistake(event.compares, event.then, event.otherwise):
            return [Failed(event.caller, Refused(mistake))]
        succeeded = all(self._holds(compare) for compare in event.compares)
        operations = event.then if succeeded else event.otherwise
        if error := self._hindrance(operations):
            return [Failed(event.caller, error)]
        changes: list[Change] = []
        revision = self.revision + 1
        results = tuple(self._perform(operation, revision, changes) for operation in operations)
        notices = self._publish(changes)
        return [Answered(event.caller, Answer(succeeded, self.revision, results)), *notices]

    def _holds(self, compare: Compare) -> bool:
        item = self._items.get(compare.key)
        if item is None:
            return compare.field is not Field.VALUE and compare.value == 0
        return bool(getattr(item, compare.field.value) == compare.value)

    def _hindrance(self, operations: tuple[Operation, ...]) -> StoreError | None:
        if excess := self._items.find_excess(operations):
            return Refused(excess)
        puts = [operation for operation in operations if isinstance(operation, Put)]
        for put in puts:
            if put.lease and put.lease not in self.leases:
                return _no_lease(put.lease)
        more = sum(len(put.value) + len(put.key) for put in puts)
        if puts and self._items.size + more > self._total_bytes_max:
            return Refused(
                f"The store is full: it holds {self._items.size} bytes, and {more} more were to come."
            )
        return None

    def _perform(self, operation: Operation, revision: int, changes: list[Change]) -> tuple[KeyValue, ...]:
        if isinstance(operation, Put):
            self._put(operation, revision, changes)
            return ()
        found = self._items.find(operation)
        if isinstance(operation, Delete):
            self._remove(found, revision, changes)
        return found

    def _put(self, put: Put, revision: int, changes: list[Change]) -> None:
        key, old = put.key, self._items.get(put.key)
        if old is None:
            item = KeyValue(key, put.value, revision, revision, 1, put.lease)
        else:
            item = KeyValue(key, put.value, old.create_revision, revision, old.version + 1, put.lease)
            if old.lease:
                self.leases[old.lease].keys.discard(key)
        self._items.write(item)
        if put.lease:
            self.leases[put.lease].keys.add(key)
        changes.append(Change(item))

    def _remove(self, found: Iterable[KeyValue], revision: int, changes: list[Change]) -> None:
        for item in found:
            self._items.remove(item)
            if item.lease:
                self.leases[item.lease].keys.discard(item.key)
            changes.append(Change(KeyValue(item.key, b"", 0, revision, 0), is_delete=True))

    # Watches

    def _publish(self, changes: list[Change]) -> list[Notify]:
        """Make the changes the next revision, and hand them out. Nothing happens without a change."""
        return _notify(self._history.append(changes)) if changes else []

    def _watch(self, event: WatchAsked, now: float) -> Commands:
        if event.from_revision < self.first_revision:
            return [EndWatch(event.watch, self._compacted(event.from_revision))]
        return [*_notify(self._history.watch(event.watch, event.prefix, event.from_revision))]

    def _watch_closed(self, event: WatchClosed, now: float) -> None:
        self._history.unwatch(event.watch)

    def _compacted(self, revision: int) -> Compacted:
        return Compacted(f"History begins with revision {self.first_revision}; {revision} was asked for.")

    # Leases

    def _grant(self, event: GrantAsked, now: float) -> Commands:
        if not 0 < event.ttl_s <= TTL_MAX_S:
            return [Failed(event.caller, Refused(f"A lease cannot last {event.ttl_s} seconds."))]
        if len(self.leases) >= LEASES_MAX:
            return [Failed(event.caller, Refused(f"The store has {LEASES_MAX} leases already."))]
        number = event.lease or self._last_lease + 1
        if number in self.leases:
            return [Failed(event.caller, Refused(f"There is a lease {number} already."))]
        if not event.lease:
            self._last_lease = number
        self.leases.add(number, Lease(event.ttl_s, now + event.ttl_s), now)
        return [Answered(event.caller, number)]

    def _renew(self, event: RenewAsked, now: float) -> Commands:
        lease = self.leases.get(event.lease)
        if lease is None:
            return [Failed(event.caller, _no_lease(event.lease))]
        lease.expires_at = now + lease.ttl_s
        lease.renewals += 1
        return [Answered(event.caller, None)]

    def _revoke(self, event: RevokeAsked, now: float) -> Commands:
        return [Answered(event.caller, None), *self._end_lease(event.lease)]

    def _end_lease(self, number: int) -> list[Notify]:
        lease = self.leases.get(number)
        if lease is None:
            return []
        changes: list[Change] = []
        self._remove([self._items[key] for key in sorted(lease.keys)], self.revision + 1, changes)
        del self.leases[number]
        return self._publish(changes)

    def _deadline_passed(self, event: DeadlinePassed, now: float) -> list[Notify]:
        notices: list[Notify] = []
        while (top := self.leases.next_due()) is not None and top[0] <= now:
            notices += self._end_lease(top[1])
        return notices

    # Snapshots

    def _snapshot_loaded(self, event: SnapshotLoaded, now: float) -> Commands:
        contents = form.load(event.snapshot)
        seen, leases = self.revision, self.leases
        self._last_lease = contents.last_lease
        self._items = Items(contents.items)
        self.leases = Leases()
        for number, (ttl_s, renewals) in contents.leases.items():
            old = leases.get(number)
            is_silent = old is not None and old.renewals == renewals and old.ttl_s == ttl_s
            ends_at = old.expires_at if old is not None and is_silent else now + ttl_s
            self.leases.add(number, Lease(ttl_s, ends_at, renewals), now)
        for item in contents.items:
            if item.lease:
                self.leases[item.lease].keys.add(item.key)
        self._history.replace(contents.revision, contents.history)
        if self.revision < seen:
            return self._end_watches(StoreReset("The store has gone back to an older state."))
        if seen + 1 < self.first_revision:
            return self._end_watches(self._compacted(seen + 1))
        return [*_notify(self._history.notices_since(seen + 1))]

    def _end_watches(self, error: StoreError) -> Commands:
        ends: Commands = []
        for watch in self._history.watches:
            self._history.unwatch(watch)
            ends.append(EndWatch(watch, type(error)(*error.args)))
        return ends

    def check(self) -> None:
        """Assert what holds after each step and costs nothing to look at."""
        assert len(self._items.ordered) == len(self._items), "the sorted keys are not the keys"
        assert self._items.size >= 0, "more was deleted than written"
        assert self.first_revision <= self.revision + 1, "a revision that is to come is in history"
        assert (self.leases.next_due() is None) == (not self.leases), "nothing will end a lease"

    table: ClassVar[dict[type, dict[StoreState, Arrow | Void]]] = {
        TransactionAsked: {StoreState.OPEN: _transaction},
        WatchAsked: {StoreState.OPEN: _watch},
        WatchClosed: {StoreState.OPEN: _watch_closed},
        GrantAsked: {StoreState.OPEN: _grant},
        RenewAsked: {StoreState.OPEN: _renew},
        RevokeAsked: {StoreState.OPEN: _revoke},
        DeadlinePassed: {StoreState.OPEN: _deadline_passed},
        SnapshotLoaded: {StoreState.OPEN: _snapshot_loaded},
    }


def _no_lease(number: int) -> LeaseExpired:
    return LeaseExpired(f"Lease {number} has ended, or never was.")


def _notify(notices: list[Notice]) -> list[Notify]:
    return [Notify(watches, batch) for watches, batch in notices]
