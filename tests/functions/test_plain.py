"""Plain data keeps its types across nodes, and nothing else gets across."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.functions.plain import NotPlain, from_plain, to_plain

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = scalars | st.tuples(scalars, scalars)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.frozensets(keys)
    ),
    max_leaves=20,
)


@given(plain)
def test_a_value_is_what_it_was(value: object) -> None:
    again = from_plain(to_plain(value))
    assert again == value
    assert repr(type(again)) == repr(type(value))


def test_what_is_no_finite_number_arrives_too() -> None:
    assert math.isnan(from_plain(to_plain(math.nan)))
    assert from_plain(to_plain([math.inf, -math.inf])) == [math.inf, -math.inf]


def test_a_number_of_any_length_arrives() -> None:
    for number in (10**5000, -(10**5000), 2**2048, 2**2048 - 1, -(2**2048)):
        assert from_plain(to_plain({number: [number]})) == {number: [number]}


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [object(), Text("a"), [1, {"a": len}], 1j, range(3)])
def test_anything_else_is_named(value: object) -> None:
    with pytest.raises(NotPlain, match="it has something of type "):
        to_plain(value)


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotPlain, match="nested deeper than 100"):
        to_plain(endless)


@given(st.binary() | st.text().map(str.encode))
def test_what_nobody_wrote_is_an_error_and_no_more(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        from_plain(data)


@pytest.mark.parametrize(
    "text", ['{"bytes": 1}', '{"list": 1}', '{"odd": []}', '{"dict": [1]}', '{"set": [{"list": []}]}']
)
def test_forms_that_are_not_ours_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="no plain data"):
        from_plain(text.encode())
