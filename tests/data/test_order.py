from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.order import Order

# What saved positions were counted in. These never change; a better order is another class beside this one.
GOLDEN = {
    (0, 0, 1): ([0], 0),
    (0, 0, 2): ([0, 1], 1),
    (0, 3, 10): ([4, 5, 3, 0, 9, 2, 1, 7], 6),
    (1, 0, 16): ([15, 0, 13, 1, 6, 7, 8, 9], 5),
    (2**64 - 1, 7, 4096): ([926, 849, 3629, 2177, 1977, 1577, 553, 197], 3634),
    (0, 0, 4097): ([3018, 387, 1010, 768, 3378, 222, 1354, 1572], 595),
    (0, 0, 10**6): ([943511, 191644, 344088, 624250, 757555, 183371, 880685, 185617], 963835),
    (42, 5, 10**6): ([774103, 119820, 420957, 754194, 164204, 686508, 559860, 349249], 785860),
    (1, 2**64 - 1, 2**48 - 1): ([1184870649606, 170338958421354, 99582308589645], 277318664791968),
}


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN.items(), ids=str)
def test_the_order_is_the_same_for_ever(
    arguments: tuple[int, int, int], expected: tuple[list[int], int]
) -> None:
    order = Order(*arguments)
    beginning, end = expected
    assert [order.at(place) for place in range(len(beginning))] == beginning
    assert order.at(order.length - 1) == end


@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
    length=st.one_of(st.integers(0, 50), st.integers(4090, 4110), st.integers(5000, 9000)),
)
def test_every_item_comes_once(seed: int, epoch: int, length: int) -> None:
    order = Order(seed, epoch, length)
    assert sorted(order.at(place) for place in range(length)) == list(range(length))


@given(seed=st.integers(0, 2**64 - 1), length=st.integers(4097, 2**48), data=st.data())
def test_places_of_a_long_order_can_be_asked_for_alone(seed: int, length: int, data: st.DataObject) -> None:
    order = Order(seed, 0, length)
    places = data.draw(st.lists(st.integers(0, length - 1), unique=True, min_size=2, max_size=50))
    found = [order.at(place) for place in places]
    assert len(set(found)) == len(places)
    assert all(0 <= item < length for item in found)


def _too_uneven(counts: list[int]) -> bool:
    """Whether these counts are no equal shares: a chi-squared value that chance exceeds once in about 10^6 cases."""
    expected = sum(counts) / len(counts)
    found = sum((count - expected) ** 2 for count in counts) / expected
    free = len(counts) - 1
    return (found - free) / math.sqrt(2 * free) > 6


@pytest.mark.parametrize("length", [2, 3, 4, 5])
def test_all_orders_of_a_few_items_are_equally_likely(length: int) -> None:
    orders = (Order(7, epoch, length) for epoch in range(100 * math.factorial(length)))
    seen = Counter(tuple(order.at(place) for place in range(length)) for order in orders)
    assert not _too_uneven([seen[each] for each in itertools.permutations(range(length))])


@pytest.mark.parametrize("length", [1000, 5000, 123_457])
def test_an_item_is_anywhere_and_knows_nothing_of_the_one_before_it_or_of_other_epochs(length: int) -> None:
    """Pairs over a grid of 20 x 20: (place, item), (item, next item), (item, the next epoch's at this place)."""
    where, following, between = Counter[int](), Counter[int](), Counter[int]()

    def cell(one: int, other: int) -> int:
        return one * 20 // length * 20 + other * 20 // length

    step = max(1, length // 2000) | 1
    for epoch in range(20):
        order, other = Order(3, epoch, length), Order(3, epoch + 1, length)
        for place in range(0, length - 1, step):
            item = order.at(place)
            where[cell(place, item)] += 1
            following[cell(item, order.at(place + 1))] += 1
            between[cell(item, other.at(place))] += 1
    for seen in (where, following, between):
        assert len(seen) == 400
        assert not _too_uneven(list(seen.values()))


def test_neighbouring_seeds_epochs_and_lengths_have_nothing_in_common() -> None:
    base = Order(0, 0, 100_000)
    for other in (Order(1, 0, 100_000), Order(0, 1, 100_000), Order(0, 0, 100_001), Order(1, 1, 100_000)):
        agreeing = sum(base.at(place) == other.at(place) for place in range(2000))
        assert agreeing <= 2  # chance has 0.02 of them
