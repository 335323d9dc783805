"""The key-values that the workers of one round share through their agent. Pure: it decides, the channel performs.

They are for small things (an address, a counter, a flag) and bounded so that no worker can fill the agent's memory.
A new round starts empty, and whoever still waits for a value of the old one is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import Enum
from typing import ClassVar

from phalanx.machine import Arrow, Machine, Void
from phalanx.records import Struct

__all__ = [
    "Add",
    "Answer",
    "CallerGone",
    "CompareSet",
    "DeadlinePassed",
    "Delete",
    "Get",
    "Refuse",
    "RoundBegan",
    "RoundValues",
    "Set",
    "ValuesState",
]

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 512 * 1024  # as base64 within a line of 1 MiB
TOTAL_BYTES_MAX = 16 * 1024 * 1024  # the whole agent is to stay below 40 MiB
NUMBER_MAX = (1 << 63) - 1
DIGITS_MAX = 64  # no number in range is longer, whatever its zeros and white space
WAITS_MAX = 10_000


class Call(Struct):
    """A request. ``caller`` is whatever the channel knows it by: the connection, and the request's own id."""

    caller: tuple[Hashable, int]
    key: str


class Get(Call):
    """Asked for a value, for ``wait_s`` seconds at most if there is none yet. The answer is None then."""

    wait_s: float = 0.0


class Set(Call):
    """Asked to store a value. The answer is None."""

    value: bytes


class Add(Call):
    """Asked to add to a decimal number, 0 if there is none yet. The answer is the sum."""

    amount: int


class CompareSet(Call):
    """Asked to store ``desired`` if the value is ``expected`` (None: there is none). The answer is the value then."""

    expected: bytes | None
    desired: bytes


class Delete(Call):
    """Asked to remove a value. The answer says whether there was one."""


class CallerGone(Struct):
    """A connection has ended; ``connection`` is the first part of ``Call.caller``."""

    connection: Hashable


class RoundBegan(Struct):
    """A new round: everything of the last one is forgotten."""


class DeadlinePassed(Struct):
    """``RoundValues.deadline`` has passed."""


class Answer(Struct):
    """Answer a call."""

    caller: tuple[Hashable, int]
    value: bytes | int | bool | None


class Refuse(Struct):
    """Answer a call with a reason why it was not performed."""

    caller: tuple[Hashable, int]
    reason: str


class ValuesState(Enum):
    """One state: whether a call is possible never depends on the calls before."""

    OPEN = "open"


class _Wait(Struct):
    get: Get
    until: float


class RoundValues(Machine[ValuesState]):
    """The values of one round, and the calls that wait for one."""

    def __init__(self) -> None:
        self.state = ValuesState.OPEN
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._waits: list[_Wait] = []

    def _get(self, event: Get, now: float) -> list[Answer | Refuse]:
        value = self._values.get(event.key)
        if value is not None or event.wait_s <= 0:
            return [Answer(event.caller, value)]
        if len(self._waits) >= WAITS_MAX:
            return [Refuse(event.caller, f"{WAITS_MAX} calls are waiting for values already")]
        self._wait_until(_Wait(event, now + event.wait_s))
        return []

    def _set(self, event: Set, now: float) -> list[Answer | Refuse]:
        return self._store(event, event.value, None)

    def _add(self, event: Add, now: float) -> list[Answer | Refuse]:
        digits = self._values.get(event.key, b"0")
        try:
            total = int(digits) + event.amount if len(digits) <= DIGITS_MAX else NUMBER_MAX + 1
        except ValueError:
            return [Refuse(event.caller, f"the value of {event.key!r} is no number")]
        if abs(total) > NUMBER_MAX:
            return [Refuse(event.caller, f"the sum at {event.key!r} does not fit into 64 bits")]
        return self._store(event, b"%d" % total, total)

    def _compare_set(self, event: CompareSet, now: float) -> list[Answer | Refuse]:
        current = self._values.get(event.key)
        if current != event.expected:
            return [Answer(event.caller, current)]
        return self._store(event, event.desired, event.desired)

    def _delete(self, event: Delete, now: float) -> list[Answer | Refuse]:
        value = self._values.pop(event.key, None)
        if value is not None:
            self._bytes -= _size(event.key, value)
        return [Answer(event.caller, value is not None)]

    def _caller_gone(self, event: CallerGone, now: float) -> None:
        self._keep_waits(lambda wait: wait.get.caller[0] != event.connection)

    def _round_began(self, event: RoundBegan, now: float) -> list[Refuse]:
        self._values.clear()
        self._bytes = 0
        waits = self._keep_waits(lambda _: False)
        return [Refuse(wait.get.caller, "the round is over") for wait in waits]

    def _deadline_passed(self, event: DeadlinePassed, now: float) -> list[Answer]:
        waits = self._keep_waits(lambda wait: wait.until > now)
        return [Answer(wait.get.caller, None) for wait in waits]

    def _store(self, call: Call, value: bytes, answer: bytes | int | None) -> list[Answer | Refuse]:
        old = self._values.get(call.key)
        total = self._bytes + _size(call.key, value) - (_size(call.key, old) if old is not None else 0)
        if len(call.key.encode()) > KEY_BYTES_MAX:
            return [Refuse(call.caller, f"the key is longer than {KEY_BYTES_MAX} bytes")]
        if len(value) > VALUE_BYTES_MAX:
            return [Refuse(call.caller, f"the value has {len(value)} bytes, {VALUE_BYTES_MAX} are possible")]
        if total > TOTAL_BYTES_MAX:
            return [Refuse(call.caller, f"the values of this round would exceed {TOTAL_BYTES_MAX >> 20} MiB")]
        self._values[call.key] = value
        self._bytes = total
        waits = self._keep_waits(lambda wait: wait.get.key != call.key)
        return [Answer(call.caller, answer), *(Answer(wait.get.caller, value) for wait in waits)]

    def _wait_until(self, wait: _Wait) -> None:
        self._waits.append(wait)
        self.deadline = wait.until if self.deadline is None else min(self.deadline, wait.until)

    def _keep_waits(self, keep: Callable[[_Wait], bool]) -> list[_Wait]:
        """Keep some of the waits; returns the others, in the order in which they came."""
        others = [wait for wait in self._waits if not keep(wait)]
        if others:
            self._waits = [wait for wait in self._waits if keep(wait)]
            self.deadline = min((wait.until for wait in self._waits), default=None)
        return others

    def check(self) -> None:
        """Assert that no call waits for a value that is there, and that time will wake those that wait."""
        assert self._bytes >= 0, "more was forgotten than stored"
        assert (self.deadline is None) == (not self._waits), "somebody waits, and nothing will wake them"

    table: ClassVar[dict[type, dict[ValuesState, Arrow | Void]]] = {
        Get: {ValuesState.OPEN: _get},
        Set: {ValuesState.OPEN: _set},
        Add: {ValuesState.OPEN: _add},
        CompareSet: {ValuesState.OPEN: _compare_set},
        Delete: {ValuesState.OPEN: _delete},
        CallerGone: {ValuesState.OPEN: _caller_gone},
        RoundBegan: {ValuesState.OPEN: _round_began},
        DeadlinePassed: {ValuesState.OPEN: _deadline_passed},
    }


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)
