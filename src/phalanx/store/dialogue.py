"""Requests and answers of the hosted store as bytes: the events and commands of the store machine. Pure.

A payload is a JSON list with a length before it, then the values one after another, for which the list has their
lengths. Each request has a number, which its answer repeats; that of a watch is in its batches. Whatever does not
read back as exactly such a message raises ``BadBytes``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from phalanx.records import Struct
from phalanx.store.machine import (
    GrantAsked,
    RenewAsked,
    RevokeAsked,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import (
    Answer,
    Batch,
    Change,
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
    StoreError,
    StoreReset,
    Unclear,
)
from phalanx.store.wire import BadBytes, parse

__all__ = [
    "Done",
    "Fault",
    "News",
    "Reply",
    "Request",
    "decode_reply",
    "decode_request",
    "encode_batch",
    "encode_news",
    "encode_reply",
    "encode_request",
]

Request = TransactionAsked | WatchAsked | WatchClosed | GrantAsked | RenewAsked | RevokeAsked
"""Events of the machine; ``caller`` or ``watch`` is the number of the request."""


class Done(Struct):
    """A request was served. ``revision`` is that of the store then: the watches have had all changes until there."""

    number: int
    revision: int
    answer: Answer | int | None


class Fault(Struct):
    """A request was not served, or the watch of that number has ended."""

    number: int
    error: StoreError


class News(Struct):
    """A batch for the watch of that number."""

    number: int
    batch: Batch


Reply = Done | Fault | News

_ERRORS: dict[str, type[StoreError]] = {
    kind.__name__: kind for kind in (Compacted, LeaseExpired, Refused, StoreReset, Unclear)
}
_FIELDS = {field.value: field for field in Field}
_NUMBER_MAX = (1 << 63) - 1


# Requests


def encode_request(request: Request) -> bytes:
    """A request as a payload. Raises ``UnicodeEncodeError`` for a key that is no text."""
    values: list[bytes] = []
    head: list[Any]
    match request:
        case TransactionAsked(number, compares, then, otherwise):
            head = [
                "transaction",
                number,
                [_dump_compare(compare, values) for compare in compares],
                [_dump_operation(operation, values) for operation in then],
                [_dump_operation(operation, values) for operation in otherwise],
            ]
        case WatchAsked(number, prefix, from_revision):
            head = ["watch", number, prefix, from_revision]
        case WatchClosed(number):
            head = ["unwatch", number]
        case GrantAsked(number, ttl_s, _):
            head = ["grant", number, ttl_s]
        case RenewAsked(number, lease):
            head = ["renew", number, lease]
        case RevokeAsked(number, lease):
            head = ["revoke", number, lease]
    return _join(head, values)


def decode_request(payload: bytes) -> Request:
    """The request of a payload, or ``BadBytes``."""
    request: Request = _decode(payload, _READ_REQUEST)
    return request


def _read_transaction(reader: _Reader, number: int, compares: Any, then: Any, otherwise: Any) -> Request:
    return TransactionAsked(
        number,
        tuple([_load_compare(reader, *compare) for compare in compares]),
        tuple([_load_operation(reader, *operation) for operation in then]),
        tuple([_load_operation(reader, *operation) for operation in otherwise]),
    )


_READ_REQUEST: dict[str, Callable[..., Request]] = {
    "transaction": _read_transaction,
    "watch": lambda _, number, prefix, revision: WatchAsked(number, _text(prefix), _integer(revision)),
    "unwatch": lambda _, number: WatchClosed(number),
    "grant": lambda _, number, ttl_s: GrantAsked(number, float(ttl_s)),
    "renew": lambda _, number, lease: RenewAsked(number, _integer(lease)),
    "revoke": lambda _, number, lease: RevokeAsked(number, _integer(lease)),
}


def _dump_compare(compare: Compare, values: list[bytes]) -> list[Any]:
    value = compare.value
    if isinstance(value, bytes):
        values.append(value)
        value = len(value)
    return [compare.key, compare.field.value, value, isinstance(compare.value, bytes)]


def _load_compare(reader: _Reader, key: Any, field: Any, value: Any, is_bytes: Any) -> Compare:
    return Compare(_text(key), _FIELDS[field], reader.take(value) if is_bytes else _integer(value))


def _dump_operation(operation: Operation, values: list[bytes]) -> list[Any]:
    if isinstance(operation, Put):
        values.append(operation.value)
        return ["put", operation.key, len(operation.value), operation.lease]
    return ["delete" if isinstance(operation, Delete) else "get", operation.key, operation.is_prefix, 0]


def _load_operation(reader: _Reader, word: Any, key: Any, second: Any, lease: Any) -> Operation:
    if word == "put":
        return Put(_text(key), reader.take(second), _integer(lease))
    if type(second) is not bool:
        raise TypeError
    kinds: dict[Any, type[Delete | Get]] = {"delete": Delete, "get": Get}
    return kinds[word](_text(key), second)


# Replies


def encode_reply(reply: Done | Fault) -> bytes:
    """A reply as a payload."""
    if isinstance(reply, Fault):
        return _join(["fault", reply.number, type(reply.error).__name__, str(reply.error)], [])
    answer, values = reply.answer, list[bytes]()
    told: Any = answer
    if isinstance(answer, Answer):
        results = [[_dump_item(item, values) for item in result] for result in answer.results]
        told = [answer.succeeded, answer.revision, results]
    return _join(["done", reply.number, reply.revision, told], values)


def encode_batch(batch: Batch) -> bytes:
    """A batch as bytes that follow ``encode_news``: made once, however many watches get it."""
    values: list[bytes] = []
    changes = [[change.is_delete, _dump_item(change.kv, values)] for change in batch.changes]
    return _join([batch.revision, changes], values)


def encode_news(number: int, batch: bytes) -> bytes:
    """An encoded batch as the payload for one watch."""
    return _join(["news", number], [batch])


def decode_reply(payload: bytes) -> Reply:
    """The reply of a payload, or ``BadBytes``."""
    reply: Reply = _decode(payload, _READ_REPLY)
    return reply


def _read_done(reader: _Reader, number: int, revision: Any, told: Any) -> Reply:
    answer: Answer | int | None = None
    if isinstance(told, list):
        succeeded, changed_at, results = told
        found = tuple([tuple([_load_item(reader, *item) for item in result]) for result in results])
        answer = Answer(bool(succeeded), _integer(changed_at), found)
    elif told is not None:
        answer = _integer(told)
    return Done(number, _integer(revision), answer)


def _read_news(reader: _Reader, number: int) -> Reply:
    (revision, changes), inner = _split(reader.rest())
    found = [Change(_load_item(inner, *item), bool(is_delete)) for is_delete, item in changes]
    inner.end()
    return News(number, Batch(_integer(revision), tuple(found)))


_READ_REPLY: dict[str, Callable[..., Reply]] = {
    "done": _read_done,
    "fault": lambda _, number, kind, text: Fault(number, _ERRORS[kind](_text(text))),
    "news": _read_news,
}


def _dump_item(item: KeyValue, values: list[bytes]) -> list[Any]:
    values.append(item.value)
    return [item.key, len(item.value), item.create_revision, item.mod_revision, item.version, item.lease]


def _load_item(
    reader: _Reader, key: Any, length: Any, created: Any, modified: Any, version: Any, lease: Any
) -> KeyValue:
    value = reader.take(length)
    return KeyValue(
        _text(key), value, _integer(created), _integer(modified), _integer(version), _integer(lease)
    )


# Bytes


class _Reader:
    """Hands out the values behind a list, in order."""

    def __init__(self, payload: bytes, place: int) -> None:
        self._payload = payload
        self._place = place

    def take(self, length: Any) -> bytes:
        begin, self._place = self._place, self._place + _integer(length)
        if self._place > len(self._payload) or self._place < begin:
            raise ValueError
        return self._payload[begin : self._place]

    def rest(self) -> bytes:
        return self.take(len(self._payload) - self._place)

    def end(self) -> None:
        if self._place != len(self._payload):
            raise ValueError


def _join(head: list[Any], values: list[bytes]) -> bytes:
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    return b"".join((len(text).to_bytes(4, "big"), text, *values))


def _split(payload: bytes) -> tuple[Any, _Reader]:
    begin = 4 + int.from_bytes(payload[:4], "big")
    if begin > len(payload):
        raise ValueError
    return parse(payload[4:begin]), _Reader(payload, begin)


def _decode(payload: bytes, table: dict[str, Callable[..., Any]]) -> Any:
    try:
        (word, number, *fields), reader = _split(payload)
        message = table[word](reader, _integer(number), *fields)
        reader.end()
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadBytes("It is no message that we know.") from None
    return message


def _integer(number: Any) -> int:
    if type(number) is not int or abs(number) > _NUMBER_MAX:
        raise ValueError
    return number


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError
    text.encode()  # raises for half of a surrogate pair, which JSON can hold
    return text
