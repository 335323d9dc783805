"""What kind of failure it was: which errors cannot heal, and which failures look the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.restarts.causes import signature_of, what_cannot_heal
from phalanx.agent.verdict.verdict import Failure

SCRIPT = "/home/u/job/train.py"
PYTHON = "/usr/lib/python3.11"
SITE = f"{PYTHON}/site-packages"
REFUSED = "arguments that the script refuses"

# What cannot heal


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("ModuleNotFoundError", "a module that cannot be imported"),
        ("ImportError", "a module that cannot be imported"),
        ("SyntaxError", "a syntax error"),
        ("IndentationError", "a syntax error"),
        ("TabError", "a syntax error"),
        ("builtins.ImportError", "a module that cannot be imported"),
    ],
)
def test_errors_that_the_same_program_will_meet_again(kind: str, what: str) -> None:
    assert what_cannot_heal(kind, SCRIPT, None) == what


@pytest.mark.parametrize(
    "kind", ["ValueError", "OSError", "RuntimeError", "NameError", "MemoryError", "KeyboardInterrupt", ""]
)
def test_other_errors_may_heal(kind: str) -> None:
    assert what_cannot_heal(kind, SCRIPT, None) == ""


@pytest.mark.parametrize(
    "file",
    [
        f"{PYTHON}/argparse.py",
        f"{PYTHON}/optparse.py",
        f"{SITE}/click/core.py",
        f"{SITE}/typer/core.py",
        f"{SITE}/fire/core.py",
        f"{SITE}/docopt.py",
        f"{SITE}/tyro/_cli.py",
        f"{SITE}/jsonargparse/_core.py",
        "/usr/lib/python3/dist-packages/click/core.py",
    ],
)
def test_a_parser_that_refuses_the_scripts_arguments(file: str) -> None:
    assert what_cannot_heal("SystemExit", file, 2) == REFUSED
    assert what_cannot_heal("SystemExit", file, 1) == "", "that is no refusal"
    assert what_cannot_heal("SystemExit", file, 0) == ""


def test_a_parsers_own_kind_of_exit_counts() -> None:
    assert what_cannot_heal("FireExit", f"{SITE}/fire/core.py", 2) == REFUSED


@pytest.mark.parametrize(
    "file",
    [
        SCRIPT,
        "/home/u/fire/train.py",
        "/home/u/click/train.py",
        "/home/u/typer/src/train.py",
        f"{SITE}/absent/core.py",
        f"{SITE}/trainer/fire/launch.py",
        "",
    ],
)
def test_exit_code_2_of_a_script_that_parses_nothing_may_heal(file: str) -> None:
    assert what_cannot_heal("SystemExit", file, 2) == ""


def test_a_module_to_run_that_is_not_there() -> None:
    assert what_cannot_heal("SystemExit", "<frozen runpy>", 1) == "a module that cannot be imported"
    assert what_cannot_heal("ValueError", "<frozen runpy>", None) == ""


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_a_shell_cannot_execute(code: int) -> None:
    assert what_cannot_heal("", "", code, is_silent=True) == "a command that cannot be executed"
    assert what_cannot_heal("SystemExit", SCRIPT, code) == "", "it was executed, and left by that code"


@pytest.mark.parametrize("code", [1, 2, 125, 128, 255, -9, -11, None])
def test_other_ends_without_a_word_may_heal(code: int | None) -> None:
    assert what_cannot_heal("", "", code, is_silent=True) == ""


# What looks the same


def failure(summary: str = "", **facts: Any) -> Failure:
    values = {"rank": 0, "local_rank": 0, "pid": 7, "exit_code": 1, "exited_at": 1.0, **facts}
    return Failure(summary=summary, **values)


def are_alike(*failures: Failure) -> bool:
    return len({signature_of(one) for one in failures}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 3 is gone", "rank 11 is gone"),
        ("cannot reach 10.0.0.7:29500", "cannot reach 10.0.0.12:41233"),
        ("cannot reach [fe80::1]:29500", "cannot reach [fe80::2a]:1"),
        ("<Model at 0x7f3a00>", "<Model at 0xdeadbeef10>"),
        ("late since 2026-11-30T05:06:57.123", "late since 2026-12-01T15:00:00.9"),
        ("late since 05:06:57", "late since 15:10:01"),
        ("loss is -1.25e-05", "loss is 3.5"),
        ("no file /tmp/tmpab1c/x", "no file /tmp/tmp9zq4/x"),
        ("job 0b5c-41aa failed", "job 77fe-1b02 failed"),
        ("node-17 does not answer", "node-4 does not answer"),
    ],
)
def test_numbers_of_a_message_do_not_matter(one: str, other: str) -> None:
    assert are_alike(*(failure(f"ValueError: {text} at train.py:9") for text in (one, other)))
    assert are_alike(*(failure(f"ValueError: {text}") for text in (one, other))), "no place is known"


def test_who_failed_and_when_does_not_matter() -> None:
    first = failure("ValueError: x at t.py:2", round=1, host="n1", stderr="a", traceback="t")
    later = failure(
        "ValueError: x at t.py:2",
        rank=5,
        local_rank=1,
        pid=99,
        exited_at=7.5,
        round=4,
        host="n2",
        wall_at=9.0,
    )
    assert are_alike(first, later)


@pytest.mark.parametrize(
    "other",
    [
        failure("KeyError: x at t.py:2"),
        failure("ValueError: y at t.py:2"),
        failure("ValueError: x at t.py:3"),
        failure("ValueError: x at u.py:2"),
        failure("ValueError: x"),
        failure("ValueError: x at t.py:2", exit_code=3),
    ],
    ids=["type", "words", "line", "file", "no place", "exit code"],
)
def test_type_words_place_and_exit_code_matter(other: Failure) -> None:
    assert not are_alike(failure("ValueError: x at t.py:2"), other)


def test_the_place_of_a_failure_without_one_in_its_summary_matters() -> None:
    assert not are_alike(failure("exit code 3", place="t.py:2"), failure("exit code 3", place="t.py:9"))


def test_deaths_by_signals_differ_by_the_signal() -> None:
    assert not are_alike(
        failure("killed by SIGSEGV", exit_code=-11), failure("killed by SIGKILL", exit_code=-9)
    )
    memory = "killed by SIGKILL: out of memory (limit {} MiB; {} MiB at last look)"
    assert are_alike(
        *(failure(memory.format(57, at), exit_code=-9) for at in (51, 56)),
    )


def test_a_failure_that_our_signal_cut_short_looks_as_the_whole_one() -> None:
    whole = failure("ValueError: x at t.py:2", signed_at=0.5)
    cut = failure("ValueError: x at t.py:2", exit_code=-15, own_exit_code=1, signed_at=0.5, stopped_at=0.9)
    assert are_alike(whole, cut)


def test_commands_that_could_not_be_started_differ_by_the_reason() -> None:
    assert not are_alike(failure(why_not_started="'x' not found"), failure(why_not_started="'y' not found"))


@given(st.text(), st.text(), st.integers(-64, 255))
def test_any_text_has_a_signature(summary: str, place: str, code: int) -> None:
    assert 0 <= signature_of(failure(summary, place=place, exit_code=code)) < 2**32
