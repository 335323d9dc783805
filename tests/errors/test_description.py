"""Any exception can be described, in bounded size, without a second exception."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors._description import clip, describe, label
from phalanx.errors._writing import encode

Raised = Callable[[Callable[[], object]], BaseException]


def _info(failure: BaseException, **more: Any) -> dict[str, Any]:
    data = json.loads(encode(describe(failure, **more)))
    assert set(data) == {"message"}
    assert set(data["message"]) == {"message", "extraInfo"}
    return dict(data["message"]["extraInfo"])


class BrokenText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ExitingText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class EndlessText(Exception):
    def __str__(self) -> str:
        return str(self)


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value] # noqa: PLE0307


class Hostile(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"hands off {name}")


class _BrokenType(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class BrokenType(Exception, metaclass=_BrokenType):
    pass


@pytest.mark.parametrize(
    "kind", ["BrokenText", "ExitingText", "EndlessText", "NoText", "Hostile", "BrokenType"]
)
def test_an_exception_that_fights_back_is_described_nevertheless(raised: Raised, kind: str) -> None:
    def fail() -> None:
        raise globals()[kind]

    failure = raised(fail)
    info = _info(failure)
    assert info["timestamp"].isdigit()
    assert info["place"] is None or info["place"]["file"] == __file__
    assert label(failure)


def test_a_broken_text_keeps_type_place_and_traceback(raised: Raised) -> None:
    def fail() -> None:
        raise BrokenText

    failure = raised(fail)
    assert label(failure) == "BrokenText: <exception str() failed>"
    assert "in fail" in _info(failure)["py_callstack"]


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\udcc3\udca4", "\x00\x1b[31m", "\U0001f600", "ä"])
def test_texts_that_no_console_takes_are_made_printable(text: str) -> None:
    data = describe(ValueError(text))
    written = encode(data)
    assert written.isascii()
    for found in (json.loads(written)["message"]["message"], _info(ValueError(text))["py_callstack"]):
        found.encode("utf-8")


@given(st.text())
def test_every_text_survives_or_is_escaped(text: str) -> None:
    found = label(ValueError(text))
    found.encode("utf-8")
    if not any(0xD800 <= ord(sign) < 0xE000 for sign in text):
        assert found == f"ValueError: {text}"


def test_a_message_of_ten_megabytes_is_cut_in_the_middle() -> None:
    failure = ValueError("begin " + "x" * 10_000_000 + " end")
    data = describe(failure)
    message = data["message"]["message"]
    assert message.startswith("ValueError: begin xxx")
    assert message.endswith("xxx end")
    assert "characters left out" in message
    assert len(encode(data)) < 1024 * 1024


@given(st.text(), st.integers(min_value=2, max_value=50))
def test_what_is_clipped_keeps_both_ends(text: str, room: int) -> None:
    found = clip(text, room)
    if len(text) <= room:
        assert found == text
    else:
        assert found.startswith(text[: room // 2])
        assert found.endswith(text[-(room - room // 2) :])


def test_a_recursion_is_described_with_its_first_and_last_frames(raised: Raised) -> None:
    def dive(n: int) -> int:
        return dive(n + 1)

    info = _info(raised(lambda: dive(0)))
    assert info["exception_type"] == "RecursionError"
    assert "lambda" in info["py_callstack"]
    assert "Previous line repeated" in info["py_callstack"]


def test_a_recursion_through_several_functions_stays_in_bounds(raised: Raised) -> None:
    def even(n: int) -> int:
        return odd(n + 1)

    def odd(n: int) -> int:
        return even(n + 1)

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        failure = raised(lambda: even(0))
    finally:
        sys.setrecursionlimit(before)
    assert len(encode(describe(failure))) < 1024 * 1024


def test_the_chain_names_causes_and_contexts_in_order(raised: Raised) -> None:
    def fail() -> None:
        try:
            try:
                1 / 0  # noqa: B018
            except ZeroDivisionError as zero:
                raise OSError(5, "disk") from zero
        except OSError:
            raise ValueError("x")  # noqa: B904

    chain = _info(raised(fail))["chain"]
    assert [(one["relation"], one["exception_type"]) for one in chain] == [
        ("context", "OSError"),
        ("cause", "ZeroDivisionError"),
    ]
    assert chain[1]["place"]["function"] == "fail"


def test_a_suppressed_context_is_left_out(raised: Raised) -> None:
    def fail() -> None:
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            raise ValueError("x") from None

    assert _info(raised(fail))["chain"] == []


def test_a_chain_that_bites_its_tail_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert [one["text"] for one in _info(first)["chain"]] == ["second"]


def test_a_chain_of_thousands_is_cut() -> None:
    failure = ValueError("0")
    for number in range(3000):
        following = ValueError(str(number))
        following.__context__ = failure
        failure = following
    assert len(_info(failure)["chain"]) <= 16


def test_notes_are_kept_and_cut() -> None:
    failure = ValueError("x")
    for number in range(100):
        failure.add_note(f"note {number} " + "y" * 10**5)
    notes = _info(failure)["notes"]
    assert notes[0].startswith("note 0 ")
    assert len(notes) == 16
    assert sum(map(len, notes)) < 64 * 1024


@pytest.mark.parametrize("notes", [7, None, "one text", [object()], [BrokenText()]])
def test_notes_that_are_none_do_no_harm(notes: Any) -> None:
    failure = ValueError("x")
    failure.__notes__ = notes
    assert isinstance(_info(failure)["notes"], list)


def test_a_group_is_a_tree_of_its_members(raised: Raised) -> None:
    def fail() -> None:
        raise ExceptionGroup("ranks", [ValueError("a"), ExceptionGroup("inner", [OSError(2, "b")])])

    group = _info(raised(fail))["group"]
    assert [one["exception_type"] for one in group] == ["ValueError", "ExceptionGroup"]
    assert [one["exception_type"] for one in group[1]["group"]] == ["FileNotFoundError"]
    assert _info(ValueError("x"))["group"] is None


def test_groups_without_end_are_cut() -> None:
    failure: Exception = ValueError("leaf")
    for _ in range(50):
        failure = ExceptionGroup("g", [failure] * 40)
    assert len(encode(describe(failure))) < 1024 * 1024


class Nested:
    class LocalError(Exception):
        pass


def test_types_are_named_as_the_interpreter_names_them() -> None:
    assert _info(ValueError())["exception_type"] == "ValueError"
    assert _info(json.JSONDecodeError("x", "", 0))["exception_type"] == "json.decoder.JSONDecodeError"
    assert _info(Nested.LocalError())["exception_type"] == f"{__name__}.Nested.LocalError"


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (SystemExit(7), 7),
        (SystemExit(None), 0),
        (SystemExit("x"), 1),
        (SystemExit(True), 1),
        (ValueError(), None),
    ],
)
def test_only_an_exit_has_a_code(failure: BaseException, code: int | None) -> None:
    assert _info(failure)["exit_code"] == code


def test_an_exception_that_was_never_raised_has_no_place() -> None:
    info = _info(ValueError("x"))
    assert (info["place"], info["script_place"]) == (None, None)
    assert info["py_callstack"] == "ValueError: x\n"


def test_who_and_where_comes_from_the_environment(monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "12")
    monkeypatch.setenv("LOCAL_RANK", "4")
    monkeypatch.setenv("PHALANX_ROUND", "two")
    info = _info(ValueError("x"), thread="loader")
    assert (info["rank"], info["local_rank"], info["round"]) == (12, 4, None)
    assert (info["pid"], info["host"], info["thread"]) == (os.getpid(), os.uname().nodename, "loader")


def test_a_traceback_module_that_is_not_the_real_one_is_replaced_by_a_plain_form(
    raised: Raised, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "traceback", object())

    def fail() -> None:
        raise ValueError("bad batch 17")

    found = _info(raised(fail))["py_callstack"]
    assert found.startswith("Traceback (most recent call last):\n")
    assert f'File "{__file__}"' in found
    assert found.endswith("ValueError: bad batch 17\n")
