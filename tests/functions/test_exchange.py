"""When a worker that gathers values must be gone, and what is made of what it found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.functions.exchange import _leave_at, _published, announce, exchange, read_others


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


class Store:
    """What the workers of a round share, for workers of one thread: nobody sets what is not there when it is asked."""

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}
        self.at_end: dict[str, str] = {}
        self.failure: BaseException | None = None
        self.fails_above = 0

    def values(self) -> Store:
        return self

    def set(self, key: str, value: bytes) -> None:
        if self.failure is not None and len(value) > self.fails_above:
            raise self.failure
        self.found[key] = value

    def get(self, key: str, *, wait_s: float) -> bytes | None:
        return self.found.get(key)

    def compare_set(self, key: str, _expected: None, desired: str) -> bytes:
        return self.found.setdefault(key, desired.encode())

    def leave_at_end(self, key: str, value: str) -> None:
        self.at_end[key] = value

    def ended(self, rank: int) -> None:
        """The agent of this rank has seen that it has ended with exit code 0."""
        key = f"phalanx.returned/{rank}"
        self.found.setdefault(key, self.at_end[key].encode())


def of_two(store: Any, value: object, rank: int, *, gathers: bool) -> bytes:
    return exchange(
        value,
        store,
        rank=rank,
        world_size=2,
        own=range(rank, rank + 1),
        gathers=gathers,
        straggler_s=None,
        exit_barrier_s=None,
    )


FAILURES = [ValueError("bad"), OSError("no room"), RuntimeError("lost"), MemoryError("none"), KeyError("odd")]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
def test_whatever_goes_wrong_with_a_value_is_published_in_its_place(failure: Exception) -> None:
    store = Store()
    store.failure, store.fails_above = failure, 1000
    assert of_two(store, "x" * 5000, 0, gathers=False) == b""
    values, unsent = read_others(of_two(store, 1, 1, gathers=True))
    assert values == {}
    assert unsent == {0: f"the job's store could not be asked: {failure}"}


@pytest.mark.parametrize("failure", FAILURES, ids=lambda one: type(one).__name__)
def test_who_can_publish_nothing_waits_for_nobody_and_is_told_of_at_its_end(failure: Exception) -> None:
    store = Store()
    announce(store, 0)
    store.failure = failure
    _, unsent = read_others(of_two(store, "x", 0, gathers=True))  # comes back
    assert unsent == {1: "it had not returned when this node's workers could wait no longer"}
    store.failure = None
    store.ended(0)
    _, unsent = read_others(of_two(store, 1, 1, gathers=True))
    assert unsent == {0: "it ended its process itself, or could not publish its value"}


def test_what_somebody_else_puts_there_costs_only_that_rank_its_value() -> None:
    for odd in (b"", b"7", b"99999", b"{", b"[]", b"\xff", b"9" * 5000, b"[" * 100_000):
        store = Store()
        store.found["phalanx.returned/0"] = odd
        _, unsent = read_others(of_two(store, 1, 1, gathers=True))
        assert unsent[0].startswith("what came of it cannot be read"), odd


@pytest.mark.parametrize("size", [1, 300_000, 1_000_000])
def test_values_of_any_size_come_whole(size: int) -> None:
    store = Store()
    of_two(store, "x" * size, 0, gathers=False)
    assert read_others(of_two(store, 1, 1, gathers=True)) == ({0: "x" * size}, {})
