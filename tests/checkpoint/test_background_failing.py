"""A background save that fails costs its own step, and the error is heard of at the next call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.thread_ranks import LIMIT_S, Shared

from phalanx.checkpoint import Checkpointer, SaveFailed


class State:
    """Written when it is let go; fails if it is to."""

    def __init__(self, *, fails: bool = False, go: threading.Event | None = None) -> None:
        self._fails = fails
        self._go = go

    def snapshot(self) -> State:
        return self

    def write(self, folder: Path) -> None:
        assert self._go is None or self._go.wait(LIMIT_S)
        if self._fails:
            raise OSError(28, "No space left on device")
        (folder / "mine").write_bytes(b"1")


class Late(Shared):
    """A view of the store in which decisions are seen when ``go`` is set."""

    def __init__(self, store: Shared) -> None:
        self.values, self.lock, self.go = store.values, store.lock, threading.Event()

    def check(self, keys: list[str]) -> bool:
        return super().check(keys) and (self.go.is_set() or not any(key.endswith("decided") for key in keys))


def _wait_for_error(rank: Checkpointer, count: int = 1) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while len(rank._saves._background._errors) < count:  # type: ignore[union-attr]
        assert time.monotonic() < ends_at
        time.sleep(0.001)


def test_ranks_that_hear_of_a_failure_at_different_steps_lose_no_other_step(tmp_path: Path) -> None:
    store = Shared()
    late = Late(store)
    first, second = (
        Checkpointer(
            tmp_path,
            sharded=True,
            background=1,
            keep=9,
            rank=rank,
            world_size=2,
            store=(late, store)[rank],
            timeout_s=LIMIT_S,
        )
        for rank in range(2)
    )
    for one in (first, second):
        one._saves._rank_group()._name = "c"
    first.save(3, State(fails=True))
    second.save(3, State())
    _wait_for_error(second)
    with pytest.raises(SaveFailed, match=r"step 3 was not saved: rank 0: .*No space left"):
        second.save(4, State())
    first.save(4, State())  # has not heard of it yet
    late.go.set()
    _wait_for_error(first)
    with pytest.raises(SaveFailed, match=r"step 3 was not saved: .*No space left"):
        first.save(5, State())
    second.save(5, State())
    for step in (6, 7):
        for rank in (second, first):
            rank.save(step, State())
    for rank in (first, second):
        rank.close()
    assert first.steps() == [4, 5, 6, 7]


@pytest.mark.parametrize("per_node", [False, True])
def test_the_save_that_raises_the_error_of_an_earlier_one_is_taken_itself(
    tmp_path: Path, per_node: bool
) -> None:
    rank = Checkpointer(tmp_path, background=1, per_node=per_node, world_size=1)
    rank.save(1, State(fails=True))
    _wait_for_error(rank)
    with pytest.raises(SaveFailed, match="step 1 was not saved: "):
        rank.save(2, State())
    rank.close()
    assert rank.steps() == [2]


def test_a_with_block_that_fails_says_all_that_was_not_saved(tmp_path: Path) -> None:
    def train(rank: Checkpointer) -> None:
        with rank:
            for step in (1, 2):
                rank._saves._background.put(step, _fail)  # type: ignore[union-attr]
            _wait_for_error(rank, 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        train(Checkpointer(tmp_path, background=2, world_size=1))
    assert raised.value.__notes__ == [
        "also, a save in the background failed: disk full",
        "also, a save in the background failed: step 1 was not saved: OSError: disk full",
    ]


def _fail() -> None:
    raise OSError("disk full")


def _step(rank: Checkpointer, step: int) -> int:
    return rank.load(step, lambda saved: saved).step


def test_one_rank_waits_for_its_saves_before_it_loads_a_step(tmp_path: Path) -> None:
    rank = Checkpointer(tmp_path, background=2, world_size=1)
    rank.save(100, State())
    go = threading.Event()
    rank.save(200, State(go=go))
    _when_waited_for(rank, go.set)
    assert _step(rank, 200) == 200


def test_what_was_queued_when_one_rank_goes_back_makes_way_for_its_next_step(tmp_path: Path) -> None:
    rank = Checkpointer(tmp_path, background=2, world_size=1)
    rank.save(100, State())
    rank.wait()
    go = threading.Event()
    rank.save(300, State(go=go))
    _when_waited_for(rank, go.set)
    assert _step(rank, 100) == 100
    rank.save(110, State())
    rank.close()
    assert rank.steps() == [100, 110]
    assert (tmp_path / "step-000000300.superseded").is_dir()


def test_a_load_of_one_rank_raises_the_error_of_a_save(tmp_path: Path) -> None:
    rank = Checkpointer(tmp_path, background=1, world_size=1)
    rank.save(100, State())
    rank.wait()
    rank.save(200, State(fails=True))
    with pytest.raises(SaveFailed, match="step 200 was not saved"):
        _step(rank, 100)
    assert _step(rank, 100) == 100


def _when_waited_for(rank: Checkpointer, do: Callable[[], Any]) -> None:
    """Call ``do`` when somebody waits for the saves of ``rank``."""
    waiters = rank._saves._background._changed._waiters  # type: ignore[union-attr]

    def watch() -> None:
        ends_at = time.monotonic() + LIMIT_S
        while not waiters and time.monotonic() < ends_at:
            time.sleep(0.001)
        do()

    threading.Thread(target=watch, daemon=True).start()
