"""Records in the store: what is written is read back, what does not fit is refused with one sentence."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.records import Struct
from phalanx.rendezvous.stored import (
    BadRecord,
    Joined,
    Member,
    Members,
    NodeRecord,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    VerdictRecord,
    Waiting,
    decode,
    encode,
)

RECORDS: list[Struct] = [
    NodeRecord(host="h", address="::1", slots=8, order_hint=3, topology="rack 1", is_leaving=True),
    NodeRecord(host="ümläut", address="10.0.0.1", slots=1, is_busy=True, last_round=7, last_group_rank=0),
    RoundRecord(number=3, phase=Phase.COLLECTING, previous=2, reason='a "reason"\n', has_stragglers=True),
    Joined(registration=12, port=29500),
    Members(members=(Member(node_id="a", registration=1, host="h", slots=2),) * 3),
    Members(members=()),
    Report(outcome=Outcome.FAILED, evidence='[{"rank":1}]'),
    VerdictRecord(text="{}"),
    Waiting(text="2 of 3"),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda one: type(one).__name__)
def test_what_was_written_is_read_back(record: Struct) -> None:
    assert decode(type(record), encode(record)) == record


def test_fields_of_a_later_release_are_passed_over_and_those_of_an_earlier_one_may_lack() -> None:
    assert decode(Joined, b'{"registration":1,"port":2,"colour":[{}]}') == Joined(registration=1, port=2)
    assert decode(Joined, b'{"registration":1}') == Joined(registration=1, port=0)
    rows = b'{"members":[["a",1,"h",2,"default","later"]]}'
    assert decode(Members, rows).members == (Member(node_id="a", registration=1, host="h", slots=2),)


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (Joined, b"", "a Joined in the store is no JSON"),
        (Joined, b"\xff\xfe", "a Joined in the store is no JSON"),
        (Joined, b"[" * 100_000, "a Joined in the store is no JSON"),
        (Joined, b"[1]", "a Joined in the store is no object"),
        (Joined, b"null", "a Joined in the store is no object"),
        (Joined, b"{}", "a record in the store is not whole"),
        (Joined, b'{"registration":"1"}', "Joined.registration in the store is '1', not int"),
        (Joined, b'{"registration":true}', "Joined.registration in the store is 'True', not int"),
        (Joined, b'{"registration":1.0}', "Joined.registration in the store is '1.0', not int"),
        (Joined, b'{"registration":null}', "Joined.registration in the store is 'None', not int"),
        (NodeRecord, b'{"host":"h","address":"a","slots":1,"is_busy":1}', "NodeRecord.is_busy"),
        (NodeRecord, b'{"host":["h"],"address":"a","slots":1}', "NodeRecord.host"),
        (RoundRecord, b'{"number":1,"phase":"over"}', "RoundRecord.phase in the store is 'over', not Phase"),
        (RoundRecord, b'{"number":1,"phase":[]}', "RoundRecord.phase"),
        (RoundRecord, b'{"number":1,"phase":"joining","delay_s":Infinity}', "RoundRecord.delay_s"),
        (RoundRecord, b'{"number":1,"phase":"joining","delay_s":NaN}', "RoundRecord.delay_s"),
        (Report, b'{"outcome":"fine"}', "Report.outcome"),
        (Report, b'{"outcome":"failed","life_s":1e999}', "Report.life_s"),
        (Members, b'{"members":{}}', "Members.members"),
        (Members, b'{"members":[{}]}', "Members.members"),
        (Members, b'{"members":[["a",1]]}', "Members.members"),
        (Members, b'{"members":[["a","1","h",1]]}', "Members.members"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_sentence(
    kind: type[Struct], value: bytes, sentence: str
) -> None:
    with pytest.raises(BadRecord, match="in the store") as refused:
        decode(kind, value)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 300


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=8,
)


@given(
    st.sampled_from([type(one) for one in RECORDS]),
    st.binary(max_size=40) | st.builds(lambda one: json.dumps(one).encode(), _JSON),
)
def test_no_bytes_do_anything_but_decode_or_be_refused(kind: type[Struct], value: bytes) -> None:
    with contextlib.suppress(BadRecord):
        assert isinstance(decode(kind, value), kind)


@given(st.sampled_from(RECORDS), st.data())
def test_one_wrong_field_is_refused_or_of_the_right_kind(record: Struct, data: st.DataObject) -> None:
    plain = json.loads(encode(record))
    field = data.draw(st.sampled_from(sorted(plain)))
    plain[field] = data.draw(_JSON)
    try:
        read = decode(type(record), json.dumps(plain).encode())
    except BadRecord:
        return
    assert decode(type(record), encode(read)) == read


def test_lone_surrogates_of_a_host_name_can_be_written() -> None:
    record = NodeRecord(host="h\udc80", address="a", slots=1)
    assert decode(NodeRecord, encode(record)).host == "h?"


def test_a_thousand_members_stay_small() -> None:
    row = Member(node_id="f" * 32, registration=123456, host="node-1234.cluster.example", slots=8)
    assert len(encode(Members(members=(row,) * 1000))) < 100_000
