"""The store as a pure machine: keys, leases, watches and a bounded history. The reference for all other stores.

Requests come in as events and are answered by commands of the same step; what a request changed is notified to the
watches that cover it. A lease ends only when ``DeadlinePassed`` finds it due, so whoever replays a log and decides
the ends of leases otherwise just never sends that event.

Time that nobody saw is not held against the holders of leases: a machine that is stepped much later than its
deadline was frozen, could hear no renewal, and grants every lease one full ttl from then on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from heapq import heappop, heappush, heapreplace
from itertools import islice
from typing import Any, ClassVar

from phalanx.machine import Arrow, Machine, Void
from phalanx.records import Struct
from phalanx.store import snapshot as form
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

HISTORY_MAX = 8192  # revisions; a job of a thousand nodes makes some three thousand in a round
HISTORY_BYTES_MAX = 8 * 1024 * 1024  # an agent that hosts the store is to stay below 40 MiB
TOTAL_BYTES_MAX = 64 * 1024 * 1024
# How much later than its deadline a machine may be stepped before it counts as frozen. A holder renews three times in
# a ttl: a quarter of it leaves room for one renewal that was missed, and a busy loop of ours is rarely that late.
LATE_TTLS = 0.25
LATE_MIN_S = 0.5


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


class Lease:
    """A lease as it is now. To be read; only the machine writes."""

    __slots__ = ("expires_at", "keys", "renewals", "ttl_s")

    def __init__(self, ttl_s: float, expires_at: float, renewals: int = 0) -> None:
        self.ttl_s = ttl_s
        self.expires_at = expires_at
        self.renewals = renewals
        """Grows with each renewal: who loads snapshots sees by it that the holder lives."""
        self.keys: set[str] = set()


class StoreMachine(Machine[StoreState]):
    """See the module's docstring. ``revision`` begins with 1 (etcd's) and grows by one with each change."""

    def __init__(self, *, history_max: int = HISTORY_MAX, total_bytes_max: int = TOTAL_BYTES_MAX) -> None:
        self.state = StoreState.OPEN
        self.revision = 1
        self.leases: dict[int, Lease] = {}
        self._last_lease = 0
        self._history_max = history_max
        self._total_bytes_max = total_bytes_max
        self._items: dict[str, KeyValue] = {}
        self._keys: list[str] = []  # sorted; the order of code points is that of the UTF-8 bytes
        self._bytes = 0
        self._history: deque[Batch] = deque()  # of consecutive revisions, up to the current one
        self._history_bytes = 0
        self._watches: dict[str, dict[Hashable, int]] = {}  # prefix → watch → first revision
        self._prefixes: dict[Hashable, str] = {}
        self._lengths: Counter[int] = (
            Counter()
        )  # of the watched prefixes: a key has one prefix of each length
        self._watched_from = 0  # above all first revisions seen so far
        self._due: list[tuple[float, int]] = []  # heap; an entry may be earlier than its lease's true end
        self._look_at: float | None = None

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
                tuple(self._history) if with_history else (),
            )
        )

    @property
    def first_revision(self) -> int:
        """The first revision that a watch may begin with."""
        first = self.revision + 1 - len(self._history)
        return 1 if first == 2 else first  # the first change makes revision 2: nothing is missing before it

    def step(self, event: object, now: float) -> Commands:
        """As every machine does; also lengthens the leases after a freeze, and sets the next deadline."""
        if self.deadline is not None and now > self.deadline:
            self._forgive(now - self.deadline, now)
        commands = super().step(event, now)
        self._set_deadline(now)
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
        puts = [operation for operation in operations if isinstance(operation, Put)]
        for put in puts:
            if put.lease and put.lease not in self.leases:
                return _no_lease(put.lease)
        more = sum(len(put.value) + len(put.key) for put in puts)
        if puts and self._bytes + more > self._total_bytes_max:
            return Refused(f"The store is full: it holds {self._bytes} bytes, and {more} more were to come.")
        return None

    def _perform(self, operation: Operation, revision: int, changes: list[Change]) -> tuple[KeyValue, ...]:
        if isinstance(operation, Put):
            self._put(operation, revision, changes)
            return ()
        if operation.is_prefix:
            found = self._under(operation.key)
        else:
            found = (self._items[operation.key],) if operation.key in self._items else ()
        if isinstance(operation, Delete):
            self._remove(found, revision, changes)
        return found

    def _under(self, prefix: str) -> tuple[KeyValue, ...]:
        keys, items, found = self._keys, self._items, []
        for place in range(bisect_left(keys, prefix), len(keys)):
            if not keys[place].startswith(prefix):
                break
            found.append(items[keys[place]])
        return tuple(found)

    def _put(self, put: Put, revision: int, changes: list[Change]) -> None:
        key, old = put.key, self._items.get(put.key)
        if old is None:
            insort(self._keys, key)
            item = KeyValue(key, put.value, revision, revision, 1, put.lease)
            self._bytes += len(key)
        else:
            item = KeyValue(key, put.value, old.create_revision, revision, old.version + 1, put.lease)
            self._bytes -= len(old.value)
            if old.lease:
                self.leases[old.lease].keys.discard(key)
        self._bytes += len(put.value)
        self._items[key] = item
        if put.lease:
            self.leases[put.lease].keys.add(key)
        changes.append(Change(item))

    def _remove(self, found: Iterable[KeyValue], revision: int, changes: list[Change]) -> None:
        for item in found:
            del self._items[item.key]
            del self._keys[bisect_left(self._keys, item.key)]
            self._bytes -= len(item.key) + len(item.value)
            if item.lease:
                self.leases[item.lease].keys.discard(item.key)
            changes.append(Change(KeyValue(item.key, b"", 0, revision, 0), is_delete=True))

    # Watches

    def _publish(self, changes: list[Change]) -> list[Notify]:
        """Make the changes the next revision, and hand them out. Nothing happens without a change."""
        if not changes:
            return []
        self.revision += 1
        batch = Batch(self.revision, tuple(changes))
        self._remember(batch)
        return self._notices(batch)

    def _remember(self, batch: Batch) -> None:
        self._history.append(batch)
        self._history_bytes += _size(batch)
        while len(self._history) > self._history_max or self._history_bytes > HISTORY_BYTES_MAX:
            self._history_bytes -= _size(self._history.popleft())

    def _notices(self, batch: Batch) -> list[Notify]:
        found: dict[str, list[Change]] = {}
        for change in batch.changes:
            key = change.kv.key
            for length in self._lengths:
                if length <= len(key) and (prefix := key[:length]) in self._watches:
                    found.setdefault(prefix, []).append(change)
        notices = []
        for prefix, changes in found.items():
            watches = self._watches[prefix]
            ready = tuple(watches)
            if self._watched_from > batch.revision:
                ready = tuple(watch for watch in watches if watches[watch] <= batch.revision)
            own = batch if len(changes) == len(batch.changes) else Batch(batch.revision, tuple(changes))
            if ready:
                notices.append(Notify(ready, own))
        return notices

    def _watch(self, event: WatchAsked, now: float) -> Commands:
        if event.from_revision < self.first_revision:
            return [EndWatch(event.watch, self._compacted(event.from_revision))]
        self._watches.setdefault(event.prefix, {})[event.watch] = event.from_revision
        self._prefixes[event.watch] = event.prefix
        self._lengths[len(event.prefix)] += 1
        self._watched_from = max(self._watched_from, event.from_revision)
        notices: Commands = []
        for batch in self._since(event.from_revision):
            changes = tuple(change for change in batch.changes if change.kv.key.startswith(event.prefix))
            if changes:
                notices.append(Notify((event.watch,), Batch(batch.revision, changes)))
        return notices

    def _since(self, revision: int) -> Iterable[Batch]:
        before = len(self._history) - (self.revision + 1 - revision)
        return islice(self._history, max(0, before), None)

    def _watch_closed(self, event: WatchClosed, now: float) -> None:
        prefix = self._prefixes.pop(event.watch, None)
        if prefix is None:
            return
        del self._watches[prefix][event.watch]
        if not self._watches[prefix]:
            del self._watches[prefix]
        self._lengths[len(prefix)] -= 1
        if not self._lengths[len(prefix)]:
            del self._lengths[len(prefix)]

    def _compacted(self, revision: int) -> Compacted:
        return Compacted(f"History begins with revision {self.first_revision}; {revision} was asked for.")

    # Leases

    def _grant(self, event: GrantAsked, now: float) -> Commands:
        if not 0 < event.ttl_s <= TTL_MAX_S:
            return [Failed(event.caller, Refused(f"A lease cannot last {event.ttl_s} seconds."))]
        number = event.lease or self._last_lease + 1
        if number in self.leases:
            return [Failed(event.caller, Refused(f"There is a lease {number} already."))]
        if not event.lease:
            self._last_lease = number
        self._add_lease(number, Lease(event.ttl_s, now + event.ttl_s), now)
        return [Answered(event.caller, number)]

    def _add_lease(self, number: int, lease: Lease, now: float) -> None:
        self.leases[number] = lease
        heappush(self._due, (lease.expires_at, number))
        look_at = now + lease.ttl_s * LATE_TTLS
        self._look_at = look_at if self._look_at is None else min(self._look_at, look_at)

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
        while (top := self._next_due()) is not None and top[0] <= now:
            notices += self._end_lease(top[1])
        return notices

    def _next_due(self) -> tuple[float, int] | None:
        """The lease that ends first, and when."""
        while self._due:
            at, number = self._due[0]
            lease = self.leases.get(number)
            if lease is None:
                heappop(self._due)
            elif lease.expires_at > at:  # renewed since: one entry per lease, moved when it comes up
                heapreplace(self._due, (lease.expires_at, number))
            else:
                return self._due[0]
        return None

    def _forgive(self, late_s: float, now: float) -> None:
        """Lengthen the leases whose renewals we were probably too frozen to hear."""
        for lease in self.leases.values():
            if late_s > max(LATE_TTLS * lease.ttl_s, LATE_MIN_S):
                lease.expires_at = now + lease.ttl_s

    def _set_deadline(self, now: float) -> None:
        top = self._next_due()
        if top is None:
            self.deadline = self._look_at = None
            return
        # We also wake a few times within a ttl, only to notice that we were frozen: a freeze that ends just before a
        # lease does would otherwise leave its holder, whose renewals it swallowed, no time to be heard.
        if self._look_at is None or now >= self._look_at:
            self._look_at = now + LATE_TTLS * min(lease.ttl_s for lease in self.leases.values())
        self.deadline = min(top[0], self._look_at)

    # Snapshots

    def _snapshot_loaded(self, event: SnapshotLoaded, now: float) -> Commands:
        contents = form.load(event.snapshot)
        seen, leases = self.revision, self.leases
        self.revision, self._last_lease = contents.revision, contents.last_lease
        self._items = {item.key: item for item in contents.items}
        self._keys = sorted(self._items)
        self._bytes = sum(len(item.key) + len(item.value) for item in contents.items)
        self.leases, self._due = {}, []
        for number, (ttl_s, renewals) in contents.leases.items():
            old = leases.get(number)
            is_silent = old is not None and old.renewals == renewals and old.ttl_s == ttl_s
            ends_at = old.expires_at if old is not None and is_silent else now + ttl_s
            self._add_lease(number, Lease(ttl_s, ends_at, renewals), now)
        for item in contents.items:
            if item.lease:
                self.leases[item.lease].keys.add(item.key)
        self._history.clear()
        self._history_bytes = 0
        for batch in contents.history:
            self._remember(batch)
        if seen + 1 < self.first_revision or self.revision < seen:
            return self._end_watches(seen)
        return [notice for batch in self._since(seen + 1) for notice in self._notices(batch)]

    def _end_watches(self, seen: int) -> Commands:
        ends: Commands = []
        for watch in tuple(self._prefixes):
            self._watch_closed(WatchClosed(watch), 0.0)
            is_older = self.revision < seen
            error = StoreReset("The store has gone back to an older state.") if is_older else None
            ends.append(EndWatch(watch, error or self._compacted(seen + 1)))
        return ends

    def check(self) -> None:
        """Assert what holds after each step and costs nothing to look at."""
        assert len(self._keys) == len(self._items), "the sorted keys are not the keys"
        assert self._bytes >= 0, "more was deleted than written"
        assert not self._history or self._history[-1].revision == self.revision, (
            "a revision is not in history"
        )
        assert len(self._due) >= len(self.leases), "nothing will end a lease"

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


def _size(batch: Batch) -> int:
    return sum(len(change.kv.key) + len(change.kv.value) for change in batch.changes)
