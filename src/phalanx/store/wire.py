"""Frames of the hosted store: what two ends of a connection send, and how each knows that it was the other. Pure.

A frame is its length (4 bytes, big endian), then a payload. Both ends begin with one plain frame, ``Hello`` and
``Welcome``; from their bytes, which hold fresh random numbers, and from the job's key come two keys, one for each
direction. Every further frame has an HMAC-SHA256 of its place in the stream and its payload, so that nothing can be
changed, replayed, left out or reordered. What cannot be read raises ``BadBytes``, with the reason in words.

Nothing is encrypted: who wants that gives the server a TLS context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from hmac import compare_digest, digest
from typing import Any

from phalanx.records import Struct
from phalanx.store.limits import ANSWER_BYTES_MAX, REQUEST_BYTES_MAX

__all__ = [
    "ANSWER_BYTES_MAX",
    "GREETING_BYTES_MAX",
    "READY",
    "REQUEST_FRAME_MAX",
    "BadBytes",
    "Denial",
    "Frames",
    "Hello",
    "Keys",
    "Welcome",
    "decode_greeting",
    "encode_greeting",
    "frame",
    "job_key",
]

VERSION = 1
NONCE_BYTES = 32
MAC_BYTES = 32
GREETING_BYTES_MAX = 4096  # all that a stranger can make us keep
REQUEST_FRAME_MAX = 2 * REQUEST_BYTES_MAX  # as JSON, a key may be longer than it is
READY = b""
"""The first payload after the greetings, which proves the key and says nothing."""


class BadBytes(Exception):
    """The other end sent what no end of ours does, in this version and with this key. The message is a sentence."""


class Hello(Struct):
    """A client's greeting. An empty ``run_id`` asks for the host's, which is told if the jobs have one fingerprint."""

    nonce: str
    run_id: str
    fingerprint: str


class Welcome(Struct):
    """The server's greeting: which job the client is in, and which life of the store it speaks to."""

    nonce: str
    run_id: str
    incarnation: str


class Denial(Struct):
    """The server's other greeting, before it closes the connection: asking again cannot help."""

    reason: str


Greeting = Hello | Welcome | Denial
_GREETINGS: dict[str, type[Greeting]] = {"hello": Hello, "welcome": Welcome, "denial": Denial}


def job_key(run_id: str, secret: bytes | None) -> bytes:
    """The key of a job: from its secret, or else from its id alone, which keeps out strays but no attackers.

    The endpoint is no part of it: one node may call it by a name, another by an address or a forwarded port.
    """
    if secret is None:
        return digest(b"phalanx: a job without a secret", run_id.encode(), "sha256")
    return digest(b"phalanx: a job's secret", secret, "sha256")


def encode_greeting(greeting: Greeting) -> bytes:
    """A greeting as a payload. Its fields must fit into ``GREETING_BYTES_MAX``."""
    [word] = [word for word, kind in _GREETINGS.items() if type(greeting) is kind]
    fields = {name: getattr(greeting, name) for name in greeting.__struct_fields__}
    return json.dumps({"phalanx-store": VERSION, "is": word, **fields}).encode()


def decode_greeting(payload: bytes) -> Greeting:
    """A greeting of our own version, or ``BadBytes``."""
    data = parse(payload)
    if not isinstance(data, dict) or "phalanx-store" not in data:
        raise BadBytes("It is no greeting.")
    if data["phalanx-store"] != VERSION:
        raise BadBytes(
            f"It speaks version {data['phalanx-store']!r} of the protocol, and we speak {VERSION}."
        )
    kind = _GREETINGS.get(str(data.get("is")))
    if kind is None:
        raise BadBytes("It is no greeting that we know.")
    fields: dict[str, Any] = {name: data.get(name) for name in kind.__struct_fields__}
    if not all(isinstance(value, str) for value in fields.values()):
        raise BadBytes("A greeting lacks something.")
    if any("\ud800" <= sign <= "\udfff" for value in fields.values() for sign in value):
        raise BadBytes("A greeting has half a character.")
    return kind(**fields)


def parse(text: bytes) -> Any:
    """What a JSON text holds, or ``BadBytes``."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise BadBytes("It is no JSON.") from None


class Keys:
    """The two keys of a connection, made from the job's key and the payloads of both greetings."""

    def __init__(self, key: bytes, hello: bytes, welcome: bytes) -> None:
        transcript = sha256(sha256(hello).digest() + sha256(welcome).digest()).digest()
        self.of_client = digest(key, b"client" + transcript, "sha256")
        self.of_server = digest(key, b"server" + transcript, "sha256")


class Frames:
    """One end of a connection: cuts what arrives into payloads, and makes frames of what leaves.

    ``limit`` is the longest payload that is accepted; it may be set anew at any time. Payloads are plain until
    ``secure`` has set both keys.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._keys: tuple[bytes, bytes] | None = None
        self._sent = 0
        self._received = 0

    def secure(self, own: bytes, other: bytes) -> None:
        """From the next frame on, in each direction, frames are authenticated with these keys."""
        self._keys = own, other

    def frame(self, payload: bytes) -> bytes:
        """The payload as the next frame to be sent."""
        if self._keys is None:
            return frame(payload)
        mac = digest(self._keys[0], self._sent.to_bytes(8, "big") + payload, "sha256")
        self._sent += 1
        return (MAC_BYTES + len(payload)).to_bytes(4, "big") + mac + payload

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Take bytes, and yield the payloads that they complete. Raises ``BadBytes``; nothing can be read then."""
        self._buffer += data
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > self.limit + (MAC_BYTES if self._keys else 0):
                raise BadBytes(f"A frame of {length} bytes is too long, or this is no frame.")
            if len(self._buffer) < 4 + length:
                return
            body = bytes(memoryview(self._buffer)[4 : 4 + length])
            del self._buffer[: 4 + length]
            yield self._opened(body) if self._keys else body

    def _opened(self, body: bytes) -> bytes:
        assert self._keys is not None
        payload = body[MAC_BYTES:]
        mac = digest(self._keys[1], self._received.to_bytes(8, "big") + payload, "sha256")
        if not compare_digest(mac, body[:MAC_BYTES]):
            raise BadBytes("A frame is not authentic: it was made with another secret.")
        self._received += 1
        return payload


def frame(payload: bytes) -> bytes:
    """The payload as a plain frame."""
    return len(payload).to_bytes(4, "big") + payload
