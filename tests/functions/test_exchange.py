"""When a worker that gathers values must be gone, and what is made of what it found."""

from __future__ import annotations

import json

import pytest

from phalanx.functions.exchange import _leave_at, _published, read_others


@pytest.mark.parametrize(
    ("since_first_s", "straggler_s", "exit_barrier_s", "leave_at"),
    [
        (0.0, None, None, None),
        (10.0, None, None, None),
        (0.0, 100.0, None, 1095.0),
        (30.0, 100.0, None, 1065.0),
        (0.0, 8.0, None, 1006.0),
        (0.0, None, 20.0, 1020.0),
        (0.0, 100.0, 20.0, 1020.0),
    ],
)
def test_it_leaves_before_stragglers_are_counted_and_as_soon_as_nodes_may(
    since_first_s: float, straggler_s: float | None, exit_barrier_s: float | None, leave_at: float | None
) -> None:
    assert _leave_at(1000.0, since_first_s, straggler_s, exit_barrier_s) == leave_at


def test_values_of_others_are_read_and_the_rest_says_why_not() -> None:
    entries = {
        "0": json.loads(_published((1, b"x"), 4)),
        "1": json.loads(_published(len, 4)),
        "2": json.loads(_published("x" * (1024 * 1024), 4)),
        "3": {"unsent": "late"},
        "4": {"plain": '{"odd": 1}'},
        "5": 5,
    }
    values, unsent = read_others(json.dumps(entries).encode())
    assert values == {0: (1, b"x")}
    assert unsent[1].startswith("it has something of type builtins.builtin_function_or_method in it")
    assert unsent[2] == "it has 1048578 bytes as JSON, and between nodes 1048576 are sent"
    assert unsent[3] == "late"
    assert set(unsent) == {1, 2, 3, 4, 5}


def test_many_ranks_share_the_room() -> None:
    assert "unsent" in json.loads(_published("x" * 100_000, 1000))
    assert "plain" in json.loads(_published("x" * 8000, 1000))


@pytest.mark.parametrize("data", [b"", b"no JSON", b"{}", b"[1]"])
def test_nothing_is_nothing(data: bytes) -> None:
    assert read_others(data) == ({}, {})
