"""Bytes of the hosted store: what was said is read, anything else is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.store.admission import Admission, NotAdmitted
from phalanx.store.dialogue import (
    Done,
    Fault,
    News,
    Reply,
    Request,
    decode_reply,
    decode_request,
    encode_batch,
    encode_news,
    encode_reply,
    encode_request,
)
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
    Put,
    Refused,
    StoreReset,
    Unclear,
)
from phalanx.store.wire import (
    GREETING_BYTES_MAX,
    BadBytes,
    Denial,
    Frames,
    Hello,
    Keys,
    Welcome,
    decode_greeting,
    encode_greeting,
    job_key,
)

KEY = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.integers(0, (1 << 63) - 1)
VALUE = st.binary(max_size=50)
COMPARE = st.builds(Compare, KEY, st.sampled_from(Field), NUMBER | VALUE)
OPERATION = (
    st.builds(Put, KEY, VALUE, NUMBER)
    | st.builds(Delete, KEY, st.booleans())
    | st.builds(Get, KEY, st.booleans())
)
OPERATIONS = st.lists(OPERATION, max_size=4).map(tuple)
REQUEST = (
    st.builds(TransactionAsked, NUMBER, st.lists(COMPARE, max_size=4).map(tuple), OPERATIONS, OPERATIONS)
    | st.builds(WatchAsked, NUMBER, KEY, NUMBER)
    | st.builds(WatchClosed, NUMBER)
    | st.builds(GrantAsked, NUMBER, st.floats(0, 1e9))
    | st.builds(RenewAsked, NUMBER, NUMBER)
    | st.builds(RevokeAsked, NUMBER, NUMBER)
)
ITEM = st.builds(KeyValue, KEY, VALUE, NUMBER, NUMBER, NUMBER, NUMBER)
ITEMS = st.lists(ITEM, max_size=3).map(tuple)
ANSWER = st.builds(Answer, st.booleans(), NUMBER, st.lists(ITEMS, max_size=3).map(tuple))
BATCH = st.builds(
    Batch, NUMBER, st.lists(st.builds(Change, ITEM, st.booleans()), min_size=1, max_size=3).map(tuple)
)


# Messages


@given(REQUEST)
def test_a_request_is_read_as_it_was_meant(request: Request) -> None:
    assert decode_request(encode_request(request)) == request


@given(st.builds(Done, NUMBER, NUMBER, ANSWER | NUMBER | st.none()))
def test_a_reply_is_read_as_it_was_meant(reply: Done) -> None:
    assert decode_reply(encode_reply(reply)) == reply


@given(NUMBER, BATCH)
def test_a_batch_is_read_as_it_was_meant(number: int, batch: Batch) -> None:
    assert decode_reply(encode_news(number, encode_batch(batch))) == News(number, batch)


@pytest.mark.parametrize("kind", [Compacted, LeaseExpired, Refused, StoreReset, Unclear])
def test_an_error_arrives_as_its_own_kind(kind: type[Exception]) -> None:
    fault = decode_reply(encode_reply(Fault(3, kind("a reason: ü"))))  # type: ignore[arg-type]
    assert isinstance(fault, Fault)
    assert (fault.number, type(fault.error), str(fault.error)) == (3, kind, "a reason: ü")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    for decode in (decode_request, decode_reply, decode_greeting):
        try:
            decode(payload)
        except BadBytes:
            continue


@given(REQUEST, st.data())
def test_a_damaged_message_is_read_or_refused(request: Request, data: st.DataObject) -> None:
    payload = bytearray(encode_request(request))
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut]), bytes(payload) + b"x"):
        for decode in (decode_request, decode_reply):
            try:
                decode(damaged)
            except BadBytes:
                continue


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=10,
)
WORDS = st.sampled_from(
    ["transaction", "watch", "unwatch", "grant", "renew", "revoke", "done", "fault", "news", "delete"]
)


@given(WORDS, st.lists(JSON, max_size=5))
def test_a_message_of_the_wrong_shape_is_read_or_refused(word: str, fields: list[Any]) -> None:
    text = json.dumps([word, *fields]).encode()
    for decode in (decode_request, decode_reply):
        try:
            message: Request | Reply = decode(len(text).to_bytes(4, "big") + text)
        except BadBytes:
            continue
        assert type(message).__name__  # whatever was read has its fields


@pytest.mark.parametrize(
    "head",
    [
        "[]",
        "{}",
        "null",
        '["renew"]',
        '["renew",1,2,3]',
        '["renew",1,true]',
        '["renew",1,1.5]',
        '["renew",1,' + "9" * 30 + "]",
        '["renew",1,' + "9" * 5000 + "]",
        '["grant",1,"soon"]',
        '["watch",1,"\\ud800",1]',
        '["watch",1,5,1]',
        '["transaction",1,[],[["put","a",5,0]],[]]',
        '["transaction",1,[],[["put","a",-1,0]],[]]',
        '["transaction",1,[],[["burn","a",false,0]],[]]',
        '["transaction",1,[],[["get","a",1,0]],[]]',
        '["transaction",1,[["a","colour",0,false]],[],[]]',
        "[" * 100_000,
    ],
    ids=range(18),
)
def test_a_request_that_no_client_makes_is_refused(head: str) -> None:
    text = head.encode()
    with pytest.raises(BadBytes):
        decode_request(len(text).to_bytes(4, "big") + text)


# Frames


def _pair() -> tuple[Frames, Frames]:
    keys = Keys(b"key", b"hello", b"welcome")
    client, server = Frames(1000), Frames(1000)
    client.secure(keys.of_client, keys.of_server)
    server.secure(keys.of_server, keys.of_client)
    return client, server


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 50))
def test_payloads_arrive_whole_and_in_order_however_they_are_cut(payloads: list[bytes], size: int) -> None:
    client, server = _pair()
    stream = b"".join(client.frame(payload) for payload in payloads)
    found = [
        payload
        for begin in range(0, len(stream), size)
        for payload in server.receive(stream[begin : begin + size])
    ]
    assert found == payloads


def test_both_directions_have_their_own_key() -> None:
    client, _ = _pair()
    with pytest.raises(BadBytes, match="not authentic"):
        list(client.receive(client.frame(b"reflected")))


def test_a_frame_is_taken_once_and_in_its_place() -> None:
    for tamper in (
        lambda one, two: one + one,  # replayed
        lambda one, two: two + one,  # reordered
        lambda one, two: two,  # the first left out
        lambda one, two: one[:-1] + bytes([one[-1] ^ 1]),  # changed
        lambda one, two: one[:4] + bytes([one[4] ^ 1]) + one[5:],  # its code changed
    ):
        client, server = _pair()
        stream = tamper(client.frame(b"one"), client.frame(b"two"))
        with pytest.raises(BadBytes):
            list(server.receive(stream))


def test_a_frame_shorter_than_its_code_is_refused() -> None:
    _, server = _pair()
    with pytest.raises(BadBytes):
        list(server.receive(b"\0\0\0\x05short"))


def test_a_long_frame_is_refused_before_it_is_there() -> None:
    client, server = _pair()
    assert list(server.receive(client.frame(b"x" * 1000))) == [b"x" * 1000]
    with pytest.raises(BadBytes, match="too long"):
        list(server.receive(client.frame(b"x" * 1001)[:4]))


@pytest.mark.parametrize("stray", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00\x01", b"SSH-2.0-x\r\n"])
def test_other_protocols_are_known_by_their_first_bytes(stray: bytes) -> None:
    with pytest.raises(BadBytes, match="no frame"):
        list(Frames(GREETING_BYTES_MAX).receive(stray))


def test_another_connection_has_other_keys() -> None:
    frames = {
        (keys.of_client, keys.of_server)
        for keys in (
            Keys(b"k", b"h", b"w"),
            Keys(b"k", b"H", b"w"),
            Keys(b"k", b"h", b"W"),
            Keys(b"K", b"h", b"w"),
        )
    }
    assert len(frames) == 4


# Greetings


@pytest.mark.parametrize("greeting", [Hello("n", "job ü", "f"), Welcome("n", "job", "i"), Denial("no.")])
def test_a_greeting_is_read_as_it_was_meant(greeting: Hello | Welcome | Denial) -> None:
    assert decode_greeting(encode_greeting(greeting)) == greeting


def test_another_version_is_named() -> None:
    with pytest.raises(BadBytes, match="version 2"):
        decode_greeting(b'{"phalanx-store": 2, "is": "hello"}')


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"phalanx-store": 1}',
        b'{"phalanx-store": 1, "is": ["hello"]}',
        b'{"phalanx-store": 1, "is": "hello", "nonce": 5, "run_id": "", "fingerprint": ""}',
    ],
)
def test_what_is_no_greeting_is_refused(payload: bytes) -> None:
    with pytest.raises(BadBytes):
        decode_greeting(payload)


# Keys and jobs


def test_the_key_of_a_job_follows_from_its_secret_or_else_from_its_id() -> None:
    keys = [
        job_key("a", None),
        job_key("b", None),
        job_key("a", b"s"),
        job_key("a", b"t"),
        job_key("a", b"a"),
    ]
    assert len(set(keys)) == 5
    assert job_key("a", b"s") == job_key("b", b"s")


def test_without_a_secret_every_job_is_admitted_under_its_own_id() -> None:
    admission = Admission(run_id="mine", fingerprint="f")
    assert admission.admit(Hello("", "other", "x")) == "other"
    assert admission.admit(Hello("", "mine", "")) == "mine"


def test_with_a_secret_only_the_host_s_job_is() -> None:
    admission = Admission(run_id="mine", fingerprint="f", secret=b"s")
    assert admission.admit(Hello("", "mine", "")) == "mine"
    assert admission.admit(Hello("", "", "f")) == "mine"
    with pytest.raises(NotAdmitted, match="'other'"):
        admission.admit(Hello("", "other", "f"))


@pytest.mark.parametrize(("own", "theirs"), [("f", "g"), ("", ""), ("f", "")])
def test_a_job_without_an_id_is_only_admitted_if_it_is_the_same_job(own: str, theirs: str) -> None:
    with pytest.raises(NotAdmitted, match="rdzv-id"):
        Admission(run_id="mine", fingerprint=own).admit(Hello("", "", theirs))
    assert Admission(run_id="mine", fingerprint="f").admit(Hello("", "", "f")) == "mine"


def test_half_a_character_in_a_greeting_is_refused() -> None:
    payload = encode_greeting(Hello("00" * 16, "job", "")).replace(b'"job"', b'"\\ud800"')
    with pytest.raises(BadBytes, match="half a character"):
        decode_greeting(payload)
