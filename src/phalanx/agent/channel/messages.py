"""The lines of the worker channel: what each may say, with which types, and what it becomes. No input or output."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from phalanx.records import Struct
from phalanx.store.values import SharedValues

__all__ = [
    "KEYS_MAX",
    "MESSAGES",
    "READS",
    "REQUESTS",
    "CheckpointDone",
    "ExceptionRecorded",
    "ExcludeAsked",
    "Fields",
    "Foreign",
    "Message",
    "ProgressMade",
    "line_of",
    "packed",
]

KEYS_MAX = 1024  # that one request names: each is a question of its own to the store


class Message(Struct):
    """What a worker said. ``pid`` and ``round`` are those of its greeting."""

    pid: int
    round: int


class ExceptionRecorded(Message):
    """An exception was recorded. Times are of this machine's clocks; ``thread`` is None for the main thread."""

    wall_ns: int
    monotonic_ns: int
    message: str
    place: str | None
    thread: str | None
    error_file: str | None


class ProgressMade(Message):
    """The worker has come to this step of its work."""

    step: int


class CheckpointDone(Message):
    """A checkpoint of this step is complete."""

    step: int


class ExcludeAsked(Message):
    """The worker holds its node to be broken."""

    reason: str


class Foreign(Exception):
    """Why a connection cannot be served: the rest of "a connection …"."""


class Fields:
    """A line, taken apart with the types that are expected. Raises ``Foreign`` for anything else."""

    def __init__(self, line: bytes) -> None:
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            raise Foreign(f"sent a line that is no JSON: {line[:80]!r}") from None
        if not isinstance(fields, dict):
            raise Foreign(f"sent a line that is no JSON object: {line[:80]!r}")
        self._fields: dict[str, Any] = fields

    def text(self, name: str) -> str:
        """A text; lone surrogates, which JSON can smuggle in, are replaced."""
        value = self._fields.get(name)
        if not isinstance(value, str):
            raise Foreign(f"sent {name!r} that is no text")
        return value.encode("utf-8", "replace").decode()

    def text_or_none(self, name: str) -> str | None:
        """A text, or None for null or nothing."""
        return None if self._fields.get(name) is None else self.text(name)

    def texts(self, name: str) -> list[str]:
        """Up to ``KEYS_MAX`` texts."""
        value = self._fields.get(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise Foreign(f"sent {name!r} that is no list of texts")
        if len(value) > KEYS_MAX:
            raise Foreign(f"sent {name!r} with {len(value)} texts, {KEYS_MAX} are possible")
        return [text.encode("utf-8", "replace").decode() for text in value]

    def integer(self, name: str) -> int:
        """An integer of 64 bits."""
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 1 << 63:
            raise Foreign(f"sent {name!r} that is no integer")
        return value

    def seconds(self, name: str) -> float:
        """A finite time, brought into 0 to 1e9."""
        value = self._fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise Foreign(f"sent {name!r} that is no time")
        return min(max(float(value), 0.0), 1e9)

    def binary(self, name: str) -> bytes:
        """Bytes, sent as base64."""
        try:
            return base64.b64decode(self.text(name), validate=True)
        except (binascii.Error, ValueError):
            raise Foreign(f"sent {name!r} that is not base64") from None

    def binary_or_none(self, name: str) -> bytes | None:
        """Bytes, or None for null or nothing."""
        return None if self._fields.get(name) is None else self.binary(name)


REQUESTS: dict[str, Callable[[Fields], Callable[[SharedValues], Awaitable[Any]]]] = {
    "get": lambda said: partial(SharedValues.get, key=said.text("key"), wait_s=said.seconds("wait_s")),
    "wait": lambda said: partial(SharedValues.wait, keys=said.texts("keys"), wait_s=said.seconds("wait_s")),
    "check": lambda said: partial(SharedValues.check, keys=said.texts("keys")),
    "num_keys": lambda _: SharedValues.num_keys,
    "set": lambda said: partial(SharedValues.set, key=said.text("key"), value=said.binary("value")),
    "add": lambda said: partial(SharedValues.add, key=said.text("key"), amount=said.integer("amount")),
    "compare_set": lambda said: partial(
        SharedValues.compare_set,
        key=said.text("key"),
        expected=said.binary_or_none("expected"),
        desired=said.binary("desired"),
    ),
    "delete": lambda said: partial(SharedValues.delete, key=said.text("key")),
}
"""What a worker can ask for, as what is to be done with the values of its round."""

READS = frozenset(("get", "wait", "check", "num_keys"))
"""The requests that nobody needs any more when whoever asked has gone."""

MESSAGES: dict[str, Callable[[int, int, Fields], Message]] = {
    "exception": lambda pid, number, said: ExceptionRecorded(
        pid,
        number,
        wall_ns=said.integer("wall_ns"),
        monotonic_ns=said.integer("monotonic_ns"),
        message=said.text("message"),
        place=said.text_or_none("place"),
        thread=said.text_or_none("thread"),
        error_file=said.text_or_none("error_file"),
    ),
    "progress": lambda pid, number, said: ProgressMade(pid, number, said.integer("step")),
    "checkpoint": lambda pid, number, said: CheckpointDone(pid, number, said.integer("step")),
    "exclude": lambda pid, number, said: ExcludeAsked(pid, number, said.text("reason")),
}


def line_of(fields: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    return json.dumps(fields).encode("ascii") + b"\n"


def packed(value: bytes | int | bool | None) -> str | int | bool | None:
    """A value as JSON can carry it: bytes as base64."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
