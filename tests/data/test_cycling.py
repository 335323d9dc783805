from __future__ import annotations

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
