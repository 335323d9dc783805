"""``Std`` and the grammar of ``-r`` and ``-t``."""

from __future__ import annotations

import pytest

from phalanx.multiprocessing.std import Std, to_map


@pytest.mark.parametrize(
    ("text", "expected"), [("0", Std.NONE), ("1", Std.OUT), ("2", Std.ERR), ("3", Std.ALL)]
)
def test_one_digit_is_for_all_workers(text: str, expected: Std) -> None:
    assert Std.from_str(text) is expected


def test_a_map_names_local_ranks_of_any_number_of_digits() -> None:
    assert Std.from_str("0:3,10:1,255:2") == {0: Std.ALL, 10: Std.OUT, 255: Std.ERR}


def test_the_last_entry_of_a_rank_counts() -> None:
    assert Std.from_str("0:1,0:2") == {0: Std.ERR}


@pytest.mark.parametrize(
    "text", ["", "4", "00", " 1", "0:3,", "0:4", "a:1", "0:1;1:2", "-1:1", "0:1\n", "٣", "1:٣"]
)
def test_anything_else_is_refused_with_the_text_and_the_grammar(text: str) -> None:
    with pytest.raises(ValueError, match="does not match"):
        Std.from_str(text)


def test_one_value_is_spread_over_all_local_ranks() -> None:
    assert to_map(Std.OUT, 3) == {0: Std.OUT, 1: Std.OUT, 2: Std.OUT}


def test_gaps_of_a_map_are_filled_and_ranks_beyond_are_dropped() -> None:
    assert to_map({1: Std.ALL, 9: Std.OUT}, 3) == {0: Std.NONE, 1: Std.ALL, 2: Std.NONE}
