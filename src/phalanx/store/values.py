"""The values that the workers of one round share, on all nodes: each agent's way to them, through the job's store.

They are for small things (an address, a counter, a flag) and bounded, so that no worker can fill the store. A round has
a prefix of its own: a new one starts empty, and the leader deletes the old ones. ``v/<key>/`` below it is a value,
``p/…`` a *pen*: a note of what one agent has written with it so far.

Each write is one transaction, guarded by the value as it was and by the pen, and writes both. So a write whose answer
was lost can be repeated, and is done once; and the pens together tell how much there is, without anybody listing it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from phalanx.records import Struct
from phalanx.store.port import (
    Answer,
    Compacted,
    Compare,
    Delete,
    Field,
    Get,
    KeyValue,
    Operation,
    Put,
    Refused,
    Store,
    StoreError,
    Unclear,
)

__all__ = ["SharedValues", "ValueRefused", "ValuesUnreachable"]

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 512 * 1024  # as base64 within a line of 1 MiB
TOTAL_BYTES_MAX = 16 * 1024 * 1024  # the agent that hosts the store is to stay below 40 MiB
# An agent looks at what all have written each time it has written that much itself: the bound holds within this much
# for each node, and who shares an address never looks.
LOOK_BYTES = 64 * 1024
KEY_COSTS = 64  # bytes that a key takes beside its text and value, so that many empty values are bounded, too
NUMBER_MAX = (1 << 63) - 1
DIGITS_MAX = 64  # no number in range is longer, whatever its zeros and white space
PENS = 8  # writes of an agent that are under way at a time; a worker waits for one before it asks for another
PATIENCE_S = 30.0  # of a silent store; half of what a worker waits for its agent
PAUSE_S = 0.2  # before asking a silent store again: it may have refused the connection at once

T = TypeVar("T")


class ValueRefused(Exception):
    """The request cannot be performed, now or later; the message says why."""


class ValuesUnreachable(Exception):
    """The store does not answer, or is another one without our values. What was asked for may have happened."""


class _Pen:
    """What one line of writes has done; only one of them is under way at a time."""

    __slots__ = ("bytes", "key", "keys", "revision")

    def __init__(self, key: str) -> None:
        self.key = key
        self.revision = 0
        self.keys = 0
        self.bytes = 0


class _Attempt(Struct):
    """One try of a write: what it does to the value, if anything, what it answers, and the pen after it."""

    operation: Operation | None
    outcome: Any
    """What the call returns, or the ``ValueRefused`` that it raises."""
    keys: int
    bytes: int


class SharedValues:
    """The values under ``prefix`` (which ends with a slash), for the workers of one agent.

    Every method raises ``ValueRefused`` and ``ValuesUnreachable``. A call may be cancelled at any time; a write may
    then have happened or not.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._values = f"{prefix}v/"
        self._pens = f"{prefix}p/"
        self._me = os.urandom(6).hex()
        self._made = 0
        self._idle: list[_Pen] = []
        self._turns = asyncio.Semaphore(PENS)
        self._room = LOOK_BYTES
        self._arrivals: dict[str, _Arrival] = {}

    # Reading

    async def get(self, key: str, *, wait_s: float = 0.0) -> bytes | None:
        """The value, waiting up to ``wait_s`` seconds for somebody to set it; None if there is none."""
        name = self._name(key)
        item, revision = await self._read(name)
        if item is None and wait_s > 0:
            item = await self._await_value(name, revision, wait_s)
        return None if item is None else item.value

    async def multi_get(self, keys: Sequence[str], *, wait_s: float = 0.0) -> list[bytes | None]:
        """The values of all keys, waiting up to ``wait_s`` seconds in all; not a picture of one moment."""
        return list(await asyncio.gather(*(self.get(key, wait_s=wait_s) for key in keys)))

    async def wait(self, keys: Sequence[str], *, wait_s: float) -> bool:
        """Wait until each key has had a value since the call; False if ``wait_s`` seconds were not enough."""

        async def wait_for(key: str) -> bool:
            name = self._name(key)
            is_absent, revision = await self._is_absent(name)
            return not is_absent or await self._await_value(name, revision, wait_s) is not None

        return all(await asyncio.gather(*map(wait_for, dict.fromkeys(keys))))

    async def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        looks = [self._is_absent(self._name(key)) for key in dict.fromkeys(keys)]
        return not any(is_absent for is_absent, _ in await asyncio.gather(*looks))

    async def num_keys(self) -> int:
        """How many keys have a value, on all nodes together."""
        return (await self._count())[0]

    # Writing

    async def set(self, key: str, value: bytes) -> None:
        """Store a value, whatever was there."""
        name = self._name(key)
        await self._write(name, lambda _: (Put(name, value), None))

    async def multi_set(self, values: Mapping[str, bytes]) -> None:
        """Store several values; others may see some of them before the rest."""
        await asyncio.gather(*(self.set(key, value) for key, value in values.items()))

    async def add(self, key: str, amount: int) -> int:
        """Add to a decimal number, 0 if there is none yet; returns the sum."""
        name = self._name(key)

        def decide(item: KeyValue | None) -> tuple[Operation | None, int]:
            total = _sum(key, b"0" if item is None else item.value, amount)
            return Put(name, b"%d" % total), total

        return await self._write(name, decide)

    async def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        """Store ``desired`` if the value is ``expected`` (None: there is none; empty: there is none, or an empty one,
        as torch has it). Returns the value afterwards.
        """
        name = self._name(key)

        def decide(item: KeyValue | None) -> tuple[Operation | None, bytes | None]:
            if not expected if item is None else item.value == expected:
                return Put(name, desired), desired
            return None, None if item is None else item.value

        return await self._write(name, decide)

    async def leave(self, key: str, value: bytes) -> None:
        """Store a value if there is none, though the bound be reached: for the few bytes that an agent has to say."""
        name = self._name(key)
        await self._write(
            name, lambda item: (Put(name, value) if item is None else None, None), is_bounded=False
        )

    async def delete(self, key: str) -> bool:
        """Remove a value; returns whether there was one."""
        name = self._name(key)
        return await self._write(
            name, lambda item: (None if item is None else Delete(name), item is not None)
        )

    # How a write is done once

    async def _write(
        self,
        name: str,
        decide: Callable[[KeyValue | None], tuple[Operation | None, T]],
        *,
        is_bounded: bool = True,
    ) -> T:
        """Write what ``decide`` makes of the value as it is, and return what it says the answer is then."""
        item, _ = await self._read(name)
        async with self._turns:
            pen = self._idle.pop() if self._idle else self._new_pen()
            is_known = True  # what the pen says; not while a request may be under way, as after an exception
            tried: list[_Attempt] = []
            try:
                while True:
                    tried.append(await self._attempt(pen, item, decide, is_bounded=is_bounded))
                    done = 0
                    if tried[-1].operation is None and len(tried) == 1:
                        break
                    is_known = False
                    answer = await self._ask(*_guarded(pen, name, item, tried))
                    if answer.succeeded:
                        done = len(tried) - 1
                        pen.keys, pen.bytes, pen.revision = tried[-1].keys, tried[-1].bytes, answer.revision
                        break
                    item = answer.results[0][0] if answer.results[0] else None
                    note = answer.results[1][0] if answer.results[1] else None
                    if note is not None and note.mod_revision != pen.revision:
                        # Done, by a request whose answer was lost; the note says by which: a late one may have won.
                        pen.keys, pen.bytes, done = map(int, note.value.split())
                        pen.revision = note.mod_revision
                        break
                is_known = True
            finally:
                if is_known:
                    self._idle.append(pen)
            outcome: T | ValueRefused = tried[done].outcome
            if isinstance(outcome, ValueRefused):
                raise outcome
            return outcome

    def _new_pen(self) -> _Pen:
        self._made += 1
        return _Pen(f"{self._pens}{self._me}-{self._made}")

    async def _attempt(
        self,
        pen: _Pen,
        item: KeyValue | None,
        decide: Callable[[KeyValue | None], tuple[Operation | None, Any]],
        *,
        is_bounded: bool,
    ) -> _Attempt:
        try:
            operation, result = decide(item)
            if operation is None:
                return _Attempt(None, result, pen.keys, pen.bytes)
            before = _cost(operation.key, item.value) if item is not None else 0
            after = 0
            if isinstance(operation, Put):
                size = len(operation.value)
                if size > VALUE_BYTES_MAX:
                    raise ValueRefused(f"the value has {size} bytes, {VALUE_BYTES_MAX} are possible")
                after = _cost(operation.key, operation.value)
            if is_bounded:
                await self._make_room(after - before)
        except ValueRefused as refusal:
            return _Attempt(None, refusal, pen.keys, pen.bytes)
        return _Attempt(operation, result, pen.keys + bool(after) - bool(before), pen.bytes + after - before)

    async def _make_room(self, growth: int) -> None:
        """Refuse growth that would exceed the bound; looks at what all have written only now and then."""
        if growth > self._room:
            left = TOTAL_BYTES_MAX - (await self._count())[1]
            if growth > left:
                raise ValueRefused(f"the values of this round would exceed {TOTAL_BYTES_MAX >> 20} MiB")
            self._room = min(left, growth + LOOK_BYTES)
        self._room = min(self._room - growth, LOOK_BYTES)

    async def _count(self) -> tuple[int, int]:
        """How many keys have a value, and how many bytes they take, as all pens together tell."""
        answer = await self._ask((), (Get(self._pens, is_prefix=True),))
        notes = [tuple(map(int, item.value.split())) for item in answer.results[0]]
        return sum(note[0] for note in notes), sum(note[1] for note in notes)

    # How the store is asked

    def _name(self, key: str) -> str:
        if len(key.encode()) > KEY_BYTES_MAX:
            raise ValueRefused(f"the key is longer than {KEY_BYTES_MAX} bytes")
        # With a slash, because a watch is by prefix: who waits for rank1 is not to hear of rank10 to rank19.
        return f"{self._values}{key}/"

    async def _read(self, name: str) -> tuple[KeyValue | None, int]:
        answer = await self._ask((), (Get(name),))
        return (answer.results[0][0] if answer.results[0] else None), answer.revision

    async def _is_absent(self, name: str) -> tuple[bool, int]:
        answer = await self._ask((Compare(name, Field.VERSION, 0),))  # carries no value, which may be large
        return answer.succeeded, answer.revision

    async def _ask(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """Ask until there is an answer: callers only read, or guard what they write by a pen that it moves."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + PATIENCE_S
        while True:
            try:
                return await self._store.transaction(compares, then, otherwise)
            except Unclear as silence:
                if loop.time() >= ends_at:
                    raise ValuesUnreachable(f"the store does not answer: {silence}") from silence
                await asyncio.sleep(PAUSE_S)
            except Refused as refusal:
                raise ValueRefused(str(refusal)) from refusal
            except StoreError as loss:
                raise ValuesUnreachable(str(loss)) from loss

    # Waiting

    async def _await_value(self, name: str, revision: int, wait_s: float) -> KeyValue | None:
        """The first value after a revision at which there was none; None if it takes too long."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + wait_s
        while (rest_s := ends_at - loop.time()) > 0:
            arrival = self._arrivals.get(name)
            if arrival is None:
                arrival = self._arrivals[name] = _Arrival(loop.create_task(self._next(name, revision)))
            item = await self._share(name, arrival, rest_s)
            if item is not None and item.mod_revision > revision:
                return item  # else it was deleted again before we looked: the other wait began earlier
        return None

    async def _share(self, name: str, arrival: _Arrival, wait_s: float) -> KeyValue | None:
        """Wait with the others for an arrival, which is given up when nobody waits any more."""
        arrival.waiting += 1
        try:
            await asyncio.wait((arrival.task,), timeout=wait_s)
        finally:
            arrival.waiting -= 1
            if (arrival.task.done() or not arrival.waiting) and self._arrivals.get(name) is arrival:
                del self._arrivals[name]
            if not arrival.waiting:
                arrival.task.cancel()
        return arrival.task.result() if arrival.task.done() else None

    async def _next(self, name: str, revision: int) -> KeyValue:
        while True:
            watch = self._store.watch(name, revision + 1)
            try:
                async for batch in watch:
                    for change in batch.changes:
                        if change.kv.key == name and not change.is_delete:
                            return change.kv
                raise ValuesUnreachable("the connection to the store was closed")
            except Compacted:
                item, revision = await self._read(name)
                if item is not None:
                    return item
            except StoreError as loss:
                raise ValuesUnreachable(str(loss)) from loss
            finally:
                await watch.aclose()


class _Arrival:
    """A wait for one value, and how many share it."""

    __slots__ = ("task", "waiting")

    def __init__(self, task: asyncio.Task[KeyValue]) -> None:
        self.task = task
        self.waiting = 0
        # Whoever waited may have gone when it fails: nobody is to be told then.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _guarded(
    pen: _Pen, name: str, item: KeyValue | None, tried: list[_Attempt]
) -> tuple[tuple[Compare, ...], tuple[Operation, ...], tuple[Operation, ...]]:
    """The last attempt as a transaction that can happen once: while the value is ``item``, and the pen is where it was.

    One that writes no value moves the pen all the same, so that no earlier attempt, held up somewhere, can happen now.
    """
    attempt = tried[-1]
    note = Put(pen.key, b"%d %d %d" % (attempt.keys, attempt.bytes, len(tried) - 1))
    unmoved = Compare(pen.key, Field.MOD_REVISION, pen.revision)
    look = (Get(name), Get(pen.key))
    if attempt.operation is None:
        return (unmoved,), (note,), look
    unchanged = Compare(name, Field.MOD_REVISION, 0 if item is None else item.mod_revision)
    return (unchanged, unmoved), (attempt.operation, note), look


def _cost(name: str, value: bytes) -> int:
    return len(name) + len(value) + KEY_COSTS


def _sum(key: str, digits: bytes, amount: int) -> int:
    try:
        total = int(digits) + amount if len(digits) <= DIGITS_MAX else NUMBER_MAX + 1
    except ValueError:
        raise ValueRefused(f"the value of {key!r} is no number") from None
    if abs(total) > NUMBER_MAX:
        raise ValueRefused(f"the sum at {key!r} does not fit into 64 bits")
    return total
