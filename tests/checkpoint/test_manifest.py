"""A manifest says what was saved, and nothing that is not exactly one is taken for one."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.checkpoint.manifest import (
    VERSION,
    FileRecord,
    Manifest,
    NewerManifest,
    PartRecord,
    UnreadableManifest,
    _checksum,
    decode,
    encode,
    file_name_fault,
    json_value,
)
from phalanx.records import changed

FILES = {
    "a/b": FileRecord(3, "0f" * 16, "xxh3_128"),
    "ä": FileRecord(0, "1e" * 32, "sha256"),
}
GOOD = Manifest(
    step=1000,
    world_size=2,
    layout="whole",
    algorithm="xxh3_128",
    files=FILES,
    parts=(),
    meta={"epoch": 3, "loss": 0.25, "name": "ü\n"},
    run_id="job",
    round=1,
    saved_at=1e9,
)
DATA = encode(GOOD)


def altered(**changes: Any) -> bytes:
    """A manifest that somebody else made, with a right checksum."""
    value = json.loads(DATA) | changes
    del value["checksum"]
    return json.dumps(value | {"checksum": _checksum(value)}).encode()


def test_what_is_encoded_is_decoded() -> None:
    assert decode(DATA) == GOOD


def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    for position in range(len(DATA) * 8):
        data = bytearray(DATA)
        data[position // 8] ^= 1 << position % 8
        try:
            assert decode(bytes(data)) == GOOD, "a blank that became another one changes nothing"
        except UnreadableManifest:
            continue


@given(st.integers(0, len(DATA) - 2))
def test_a_cut_manifest_is_refused(length: int) -> None:
    with pytest.raises(UnreadableManifest):
        decode(DATA[:length])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"files": {"../x": {"size": 1, "checksum": "0f" * 16}}}, "leads out of the folder"),
        ({"files": {"/etc/passwd": {"size": 1, "checksum": "0f" * 16}}}, "leads out of the folder"),
        ({"files": {"a//b": {"size": 1, "checksum": "0f" * 16}}}, "leads out of the folder"),
        ({"files": {"a\0b": {"size": 1, "checksum": "0f" * 16}}}, "is no name"),
        ({"files": {"\ud800": {"size": 1, "checksum": "0f" * 16}}}, "is not UTF-8"),
        ({"files": {"x" * 5000: {"size": 1, "checksum": "0f" * 16}}}, "is too long"),
        ({"files": {"manifest.json": {"size": 1, "checksum": "0f" * 16}}}, "the manifest's name"),
        ({"files": {"a": {"size": -1, "checksum": "0f" * 16}}}, "has -1 as its size of a"),
        ({"files": {"a": {"size": True, "checksum": "0f" * 16}}}, "has True as its size of a"),
        ({"files": {"a": {"size": 2**63, "checksum": "0f" * 16}}}, "as its size of a"),
        ({"files": {"a": {"size": 1, "checksum": "0f"}}}, "has no checksum for a"),
        ({"files": {"a": {"size": 1}}}, "lacks or garbles"),
        ({"files": [1]}, "garbles its files"),
        ({"files": {"a": 1}}, "lacks or garbles"),
        ({"algorithm": "crc7"}, "of an unknown kind, 'crc7'"),
        ({"algorithm": []}, "lacks or garbles"),
        ({"step": -1}, "has -1 as its step"),
        ({"step": True}, "has True as its step"),
        ({"step": 2**63}, "as its step"),
        ({"world_size": 0}, "has 0 as its world_size"),
        ({"world_size": 10**12, "parts": []}, "as its world_size"),
        ({"parts": ["rank-00000"]}, "other parts than its world size of 2"),
        ({"parts": ["../..", "rank-00001"]}, "other parts than its world size of 2"),
        ({"parts": ["rank-00000", "rank-00001"]}, "outside of its parts"),
        ({"layout": "nobody"}, "garbles"),
        ({"meta": 3}, "garbles"),
        ({"saved_at": "today"}, "garbles when"),
        ({"format": "other"}, "is no manifest"),
        ({"version": "1"}, "has no version"),
    ],
)
def test_what_is_no_manifest_is_refused_in_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnreadableManifest, match=re.escape(says)):
        decode(altered(**changes))


@pytest.mark.parametrize("data", [b"", b"null", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"a": 1e999}'])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableManifest):
        decode(data)


@given(st.binary(max_size=200))
def test_no_bytes_do_anything_else(data: bytes) -> None:
    with pytest.raises(UnreadableManifest):
        decode(data)


def test_a_newer_version_is_told_from_damage() -> None:
    with pytest.raises(NewerManifest, match=f"has version {VERSION + 1}, and this phalanx reads {VERSION}"):
        decode(altered(version=VERSION + 1, new_words={"of": "the future"}))


def test_what_could_not_be_read_is_not_written() -> None:
    with pytest.raises(UnreadableManifest):
        encode(changed(GOOD, files={"../x": FILES["a/b"]}))


def test_a_part_comes_through_json() -> None:
    record = PartRecord(3, FILES)
    assert PartRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    "value",
    [None, {}, {"part": -1, "files": {}}, {"part": 1, "files": {"../x": [1, "0f" * 16, "xxh3_128"]}}, [1]],
)
def test_what_is_no_part_is_refused(value: Any) -> None:
    with pytest.raises(UnreadableManifest):
        PartRecord.from_json(value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_meta_comes_back_as_it_was_given(meta: dict[str, Any]) -> None:
    assert decode(encode(changed(GOOD, meta=json_value(meta, "meta")))).meta == meta


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1: 2}, "meta has the key 1"),
        ({"a": [{"b": {1, 2}}]}, "meta['a'][0]['b'] is of type set"),
        ({"loss": float("inf")}, "meta['loss'] is inf"),
        ([b"x"], "meta[0] is of type bytes"),
    ],
)
def test_meta_that_json_cannot_hold_is_refused_where_it_is(value: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(says)):
        json_value(value, "meta")


@given(st.text())
def test_a_name_that_is_allowed_stays_within_the_folder(name: str) -> None:
    import os.path

    if file_name_fault(name) is None:
        assert os.path.normpath(os.path.join("/x/y", name)).startswith("/x/y/")


@pytest.mark.parametrize("saved_at", [10**400, -1e300, 1e300, -1])
def test_a_time_that_is_none_is_refused(saved_at: float) -> None:
    with pytest.raises(UnreadableManifest, match="when or by which job"):
        decode(altered(saved_at=saved_at))


def test_a_huge_world_without_parts_costs_nothing() -> None:
    tracemalloc.start()
    try:
        assert decode(altered(world_size=10_000_000, parts=[])).world_size == 10_000_000
        assert tracemalloc.get_traced_memory()[1] < 10_000_000, "no list of all parts was made"
    finally:
        tracemalloc.stop()


def test_meta_that_cannot_be_written_is_refused_before() -> None:
    itself: dict[str, Any] = {}
    itself["more"] = [itself]
    with pytest.raises(ValueError, match="meta is nested too deeply, or holds itself"):
        json_value(itself, "meta")
    with pytest.raises(ValueError, match=r"meta\['n'\] has more digits"):
        json_value({"n": 10**5000}, "meta")
