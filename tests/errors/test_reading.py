"""Whatever lies where an error file should be: the reader answers with a record, and says what is wrong with it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.errors import ProcessFailure, read_error_file
from phalanx.errors._description import describe
from phalanx.errors._writing import encode

LONG = {
    "message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "tb", "timestamp": "1700000000"}}
}

UNUSABLE = {
    "empty": b"",
    "blank": b" \n\t\n",
    "truncated": json.dumps(LONG).encode()[:40],
    "half of a multi-byte sign": b'{"message": "\xc3',
    "binary": bytes(range(256)) * 10,
    "zeros of a crashed file system": b"\0" * 4096,
    "text": b"Traceback (most recent call last):\n  ...",
    "another JSON": b'["a", "list"]',
    "a number": b"7",
    "nothing": b"null",
    "an object without a message": b'{"error": "x"}',
    "a message of another kind": b'{"message": 7}',
    "two records": json.dumps(LONG).encode() * 2,
    "nested too deeply": b"[" * 100_000,
    "a number without end": b'{"message": ' + b"9" * 10_000 + b"}",
    "larger than is read": b'{"message": "' + b"x" * (17 << 20) + b'"}',
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_file_is_a_sentence_and_no_exception(tmp_path: Path, name: str) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(UNUSABLE[name])
    record = read_error_file(path)
    assert record.problem is not None
    assert record.problem.startswith(f"the error file {str(path)!r} ")
    assert "\n" not in record.problem
    assert len(record.problem) < 2000
    assert record.message == record.problem == record.data["message"]
    assert abs(record.timestamp - time.time()) < 3600
    failure = ProcessFailure(1, 2, 1, str(path))
    assert failure.message.startswith("the error file")
    assert failure.error_file == str(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert read_error_file(tmp_path / "gone").problem == f"there is no error file {str(tmp_path / 'gone')!r}"


def test_what_is_no_file_is_named_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null/x"), tmp_path / "\udcff"):
        assert read_error_file(path).problem
    assert read_error_file("a\0b").problem
    assert read_error_file("").problem


def test_an_unusable_file_shows_how_it_begins(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(json.dumps(LONG).encode()[:40])
    assert "ValueError: x" in str(read_error_file(path).problem)


def test_torchs_long_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(LONG))
    record = read_error_file(path)
    assert record.data == LONG
    assert (record.message, record.exception_type, record.text) == ("ValueError: x", "ValueError", "x")
    assert (record.traceback, record.timestamp, record.problem) == ("tb", 1700000000, None)
    assert (record.wall_ns, record.monotonic_ns, record.place, record.thread) == (None, None, None, None)


def test_torchs_short_form_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": "out of memory: killed", "timestamp": 1700000001}')
    record = read_error_file(path)
    assert (record.message, record.timestamp, record.exception_type) == (
        "out of memory: killed",
        1700000001,
        "",
    )


ODD = [
    {"message": {}},
    {"message": {"message": None, "extraInfo": None}},
    {"message": {"message": "x", "extraInfo": {"timestamp": "soon", "py_callstack": 7}}},
    {
        "message": {
            "message": "x",
            "extraInfo": {"timestamp": "9" * 100, "wall_ns": 1e400, "place": {"file": 1}},
        }
    },
    {
        "message": {
            "message": ["x"],
            "extraInfo": {"place": {"file": "f", "line": "l"}, "thread": 5, "text": {}},
        }
    },
    {"message": "x", "timestamp": {}},
    {"message": "\ud800", "timestamp": True},
    {"message": "", "timestamp": -1},
]


@pytest.mark.parametrize("data", ODD)
def test_odd_fields_of_a_readable_file_are_left_out(tmp_path: Path, data: dict[str, Any]) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(data))
    record = read_error_file(path)
    assert record.problem is None
    record.message.encode()
    failure = ProcessFailure(0, 1, 1, str(path))
    failure.explanation().encode()
    assert failure.timestamp_isoformat()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(encode(describe(ValueError("bad batch 17: again"), thread="loader")))
    record = read_error_file(path)
    assert (record.exception_type, record.text, record.thread) == (
        "ValueError",
        "bad batch 17: again",
        "loader",
    )
    assert record.wall_ns is not None
    assert record.wall_ns // 10**9 == record.timestamp


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "error.json"
    path.write_bytes(content)
    ProcessFailure(0, 1, 1, str(path)).explanation().encode()


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack", "place"]), inner
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=_anything)
def test_any_json_is_read(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(data))
    failure = ProcessFailure(0, 1, 1, str(path))
    failure.explanation().encode()
    failure.timestamp_isoformat()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(min_value=0),
    flips=st.lists(st.tuples(st.integers(min_value=0), st.integers(0, 255)), max_size=5),
)
def test_any_damage_to_a_good_file_is_survived(
    tmp_path: Path, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(encode(describe(ValueError("bad batch 17"))), "ascii")
    for place, value in flips:
        content[place % len(content)] = value
    path = tmp_path / "error.json"
    path.write_bytes(content[: cut % (len(content) + 1)])
    ProcessFailure(0, 1, 1, str(path)).explanation().encode()
