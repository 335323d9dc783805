"""``Struct`` is a frozen dataclass in all but the cost of defining one."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import Any, ClassVar

import pytest

from phalanx.records import Struct, changed


class Point(Struct):
    x: int
    y: int = 0
    ORIGIN: ClassVar[str] = "here"

    @property
    def sum(self) -> int:
        return self.x + self.y


class Named(Point, kw_only=True):
    name: str


class Other(Struct):
    x: int
    y: int = 0


class Empty(Struct):
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    x: int
    y: int = 0


def test_fields_are_given_by_position_or_name_and_defaults_fill_the_rest() -> None:
    assert Point(1) == Point(x=1, y=0) == Point(1, y=0)
    assert Point(1, 2).sum == 3
    assert Named(x=1, name="a").y == 0


@pytest.mark.parametrize("make", [Point, Reference])
@pytest.mark.parametrize(
    ("args", "given"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 2}), ((1,), {"z": 2}), ((), {"y": 1})]
)
def test_wrong_fields_are_refused_as_a_dataclass_refuses_them(
    make: Any, args: tuple[int, ...], given: dict[str, int]
) -> None:
    with pytest.raises(TypeError):
        make(*args, **given)


def test_keyword_only_fields_are_not_taken_by_position() -> None:
    with pytest.raises(TypeError, match="positional"):
        Named(1, 2, "a")  # type: ignore[call-arg]


@pytest.mark.parametrize("one", [Point(1), Reference(1)])
def test_nothing_can_be_assigned_deleted_or_added(one: Any) -> None:
    with pytest.raises(AttributeError):
        one.x = 2
    with pytest.raises(AttributeError):
        del one.x
    with pytest.raises((AttributeError, TypeError)):
        one.z = 2
    assert not hasattr(one, "__dict__")


def test_records_are_equal_only_within_their_class_and_can_be_keys() -> None:
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Other(1, 2)
    assert Empty() == Empty()
    assert {Point(1, 2): "found"}[Point(1, 2)] == "found"
    assert hash(Point(1, 2)) != hash(Other(1, 2))


def test_they_print_as_they_are_made_and_match_by_position() -> None:
    assert repr(Point(1, 2)) == "Point(x=1, y=2)"
    assert repr(Named(x=1, name="a")) == "Named(x=1, y=0, name='a')"
    match Point(1, 2):
        case Point(1, y):
            assert y == 2
        case _:
            pytest.fail("no match")


def test_they_survive_pickle_and_copy() -> None:
    one = Named(x=1, name="a")
    assert pickle.loads(pickle.dumps(one)) == one
    assert copy.deepcopy(one) == one


def test_a_record_is_changed_by_a_new_one_of_its_class() -> None:
    one = Named(x=1, name="a")
    assert changed(one, y=5) == Named(x=1, y=5, name="a")
    assert one == Named(x=1, name="a")
    with pytest.raises(TypeError, match="z"):
        changed(one, z=5)


def test_its_signature_names_the_fields() -> None:
    assert str(inspect.signature(Point)) == "(x, y=0)"
    assert str(inspect.signature(Named)) == "(*, x, y=0, name)"


def test_a_record_with_an_init_of_its_own_has_that_ones_signature() -> None:
    class Doubled(Other):
        def __init__(self, half: int) -> None:
            super().__init__(2 * half)

    assert str(inspect.signature(Doubled)).startswith("(half")
    assert Doubled(2).x == 4
