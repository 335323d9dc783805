"""What in a value keeps it from being sent."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.functions.unpicklable import culprit

LOCK = threading.Lock()
WHY = "(cannot pickle '_thread.lock' object)"


def closure() -> Any:
    lock = LOCK

    def function() -> Any:
        return lock

    return function


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (LOCK, "result"),
        ([1, LOCK], "result[1]"),
        ({"a": {"b": (0, LOCK)}}, "result['a']['b'][1]"),
        (SimpleNamespace(model=[LOCK]), "result.model[0]"),
        ({LOCK}, "an item of result"),
        ({LOCK: 1}, "a key of result"),
        (closure(), "the variable 'lock' of result"),
    ],
)
def test_the_deepest_part_that_fails_is_named(value: object, place: str) -> None:
    assert (
        culprit(value, "result", TypeError(WHY[1:-1]), by_value=True)
        == f"{place} is of type _thread.lock {WHY}"
    )


def test_where_no_part_fails_the_whole_does() -> None:
    class Odd:
        def __reduce__(self) -> Any:
            raise ValueError("never")

    said = culprit(Odd(), "result", ValueError("never"), by_value=True)
    assert said.startswith("result is of type ")
    assert said.endswith("Odd (never)")


def test_a_circle_ends() -> None:
    circle: list[Any] = [LOCK]
    circle.insert(0, circle)
    assert "_thread.lock" in culprit(circle, "result", TypeError(WHY[1:-1]), by_value=True)
