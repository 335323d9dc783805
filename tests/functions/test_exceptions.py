"""Exceptions as bytes and back: chains, groups, odd classes, frames."""

from __future__ import annotations

import os
import threading
import traceback
from types import TracebackType
from typing import Any

import pytest

from phalanx.functions.exceptions import packed, unpacked
from phalanx.launcher.functions.function_job import RemoteError


def whole(trace: TracebackType | None) -> TracebackType | None:
    return trace


def sent(failure: BaseException, *, by_value: bool = True) -> BaseException:
    return unpacked(packed(failure, by_value=by_value, users_part=whole), RemoteError)


def raised(failure: BaseException, *, cause: BaseException | None = None) -> BaseException:
    try:
        raise failure from cause
    except BaseException as caught:  # noqa: BLE001 # the test's own
        return caught


class TwoArguments(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Reduces(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("never")


class Hides(Exception):
    def __str__(self) -> str:
        raise RuntimeError("never")


class Slotted(Exception):
    __slots__ = ("step",)


def test_type_arguments_attributes_and_notes_arrive() -> None:
    failure = TwoArguments(7, "text")
    failure.add_note("a note")
    again = sent(raised(failure))
    assert type(again) is TwoArguments
    assert (str(again), again.code, again.__notes__) == ("text", 7, ["a note"])


def test_frames_arrive_with_their_lines() -> None:
    def inner() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here") as caught:
        inner()
    expected = traceback.extract_tb(caught.value.__traceback__)
    found = traceback.extract_tb(sent(caught.value).__traceback__)
    text = traceback.format_exception(sent(caught.value))
    assert [(one.filename, one.lineno, one.name, one.line) for one in found] == [
        (one.filename, one.lineno, one.name, one.line) for one in expected
    ]
    assert not [line for line in text if "^" in line], "columns do not travel"


def test_a_chain_keeps_its_links() -> None:
    cause = raised(OSError(2, "no file", "a"))
    again = sent(raised(KeyError("k"), cause=cause))
    assert isinstance(again.__cause__, FileNotFoundError)
    assert again.__cause__.filename == "a"
    assert again.__suppress_context__
    assert again.__cause__.__traceback__ is not None


def test_members_of_a_group_have_their_tracebacks() -> None:
    members = [raised(ValueError(1)), raised(KeyError(2), cause=raised(OSError("c")))]
    group = BaseExceptionGroup("two", members)
    again = sent(raised(group))
    assert isinstance(again, ExceptionGroup)
    assert [type(one) for one in again.exceptions] == [ValueError, KeyError]
    assert all(one.__traceback__ is not None for one in again.exceptions)
    assert isinstance(again.exceptions[1].__cause__, OSError)


def test_a_circle_of_causes_stays_one() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    again = sent(first)
    assert again.__context__ is not None
    assert again.__context__.__context__ is again


@pytest.mark.parametrize("by_value", [True, False])
@pytest.mark.parametrize(
    ("failure", "text"),
    [
        (Hides("hidden"), "<exception str() failed>"),
        (ValueError(threading.Lock()), "<unlocked _thread.lock"),
    ],
)
def test_what_cannot_be_pickled_is_told_by_name_and_text(
    failure: Exception, text: str, by_value: bool
) -> None:
    again = sent(failure, by_value=by_value)
    if isinstance(failure, Hides):  # this can be pickled, and hides on
        assert type(again) is Hides
    else:
        assert type(again) is RemoteError
        assert (again.type_name, again.text[:22]) == ("ValueError", text)


def test_a_reduce_that_raises_is_gone_around() -> None:
    again = sent(Reduces("around"))
    assert type(again) is Reduces
    assert again.args == ("around",)


def test_a_class_with_slots_arrives() -> None:
    assert type(sent(raised(Slotted("s")))) is Slotted


def test_a_long_chain_is_cut() -> None:
    failure: BaseException = ValueError(0)
    for number in range(1000):
        failure = raised(ValueError(number), cause=failure)
    again: BaseException | None = sent(failure)
    length = 0
    while again is not None:
        again = again.__cause__
        length += 1
    assert length == 200


def test_a_class_that_is_not_there_any_more_is_told_by_name(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone.py").write_text("class Gone(Exception):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone  # type: ignore[import-not-found]

    data = packed(gone.Gone("text"), by_value=True, users_part=whole)
    monkeypatch.delitem(__import__("sys").modules, "gone")
    os.remove(tmp_path / "gone.py")
    __import__("importlib").invalidate_caches()
    assert str(unpacked(data, RemoteError)) == "gone.Gone: text"
