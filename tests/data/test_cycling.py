from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from phalanx.data import CyclingIterator


@pytest.mark.compat("name torch.distributed.elastic.utils.data.cycling_iterator.CyclingIterator", "same")
def test_epochs_follow_each_other_and_each_is_asked_for_when_it_begins() -> None:
    asked: list[int] = []

    def epoch(number: int) -> Iterator[int]:
        asked.append(number)
        return iter([number] * number)  # epoch 0 is empty

    cycling = CyclingIterator(4, epoch)
    assert asked == []
    assert next(cycling) == 1
    assert asked == [0, 1]
    assert list(cycling) == [2, 2, 3, 3, 3]
    assert list(cycling) == []


def test_an_epoch_at_or_behind_the_end_is_none() -> None:
    assert list(CyclingIterator(2, lambda epoch: iter([epoch]), start_epoch=1)) == [1]
    assert list(CyclingIterator(2, lambda epoch: iter([epoch]), start_epoch=2)) == []


def test_it_goes_on_where_it_was_and_makes_what_was_taken_again() -> None:
    def epoch(number: int) -> Iterator[int]:
        return iter(range(number * 10, number * 10 + 3))

    whole = list(CyclingIterator(3, epoch))
    for taken in range(len(whole) + 1):
        first = CyclingIterator(3, epoch)
        before = [next(first) for _ in range(taken)]
        second = CyclingIterator(3, epoch)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert second.state_dict() == first.state_dict()
        assert before + list(second) == whole


def test_an_epoch_that_can_begin_in_its_middle_is_opened_there() -> None:
    opened: list[tuple[int, int]] = []

    def open_at(epoch: int, taken: int) -> Iterator[int]:
        opened.append((epoch, taken))
        return iter(range(taken, 3))

    cycling = CyclingIterator(3, lambda epoch: iter(range(3)))
    cycling.load_state_dict({"version": 1, "epoch": 1, "taken": 2}, open_at=open_at)
    assert opened == []
    assert list(cycling) == [2, 0, 1, 2]
    assert opened == [(1, 2)]


def test_an_epoch_that_has_become_shorter_is_an_error() -> None:
    cycling = CyclingIterator(3, lambda epoch: iter([1]))
    cycling.load_state_dict({"version": 1, "epoch": 1, "taken": 2})
    with pytest.raises(ValueError, match="epoch 1 has 1 items here, and the state has taken 2"):
        next(cycling)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 2, "epoch": 0, "taken": 0},
        {"version": 1, "epoch": 0},
        {"version": 1, "epoch": True, "taken": 0},
        {"version": 1, "epoch": 0, "taken": True},
        {"version": 1, "epoch": -1, "taken": 0},
    ],
)
def test_what_is_no_state_is_refused(state: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is no state of a CyclingIterator"):
        CyclingIterator(3, lambda epoch: iter([1])).load_state_dict(state)
