"""The actions ``env`` and ``check_env``, beside torch's."""

from __future__ import annotations

import argparse
import inspect
from typing import Any

import pytest

from phalanx.cli import argparse_actions


def _add(module: Any, action: str, flag: str = "--foo", **options: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument(flag, action=getattr(module, action), **options)
    return parser


CASES = [
    ("env", {}, None, []),
    ("env", {"default": "d"}, None, []),
    ("env", {"default": "d"}, "e", []),
    ("env", {"default": "d"}, "e", ["--foo", "f"]),
    ("env", {"type": int, "default": 1}, "2", []),
    ("env", {"type": int}, None, ["--foo", "3"]),
    ("env", {"required": True}, "e", []),
    ("env", {"required": True, "default": "d"}, None, []),
    ("env", {"choices": ["a", "b"]}, "b", ["--foo", "a"]),
    ("check_env", {}, None, []),
    ("check_env", {}, None, ["--foo"]),
    ("check_env", {}, "1", []),
    ("check_env", {}, "0", []),
    ("check_env", {}, "0", ["--foo"]),
    ("check_env", {"default": True}, None, []),
    ("check_env", {"default": True}, "0", []),
]


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.argparse_util.env",
    "better",
    "a bad text is argparse's error with the variable's name",
)
@pytest.mark.compat(
    "name torch.distributed.argparse_util.check_env", "better", "every usual spelling of yes and no"
)
@pytest.mark.parametrize(("action", "options", "variable", "words"), CASES, ids=str)
def test_an_action_stores_what_torchs_stores(
    action: str,
    options: dict[str, Any],
    variable: str | None,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed import argparse_util

    if variable is not None:
        monkeypatch.setenv("PET_FOO", variable)
    ours, theirs = (
        _add(module, action, **options).parse_args(words) for module in (argparse_actions, argparse_util)
    )
    assert ours == theirs


@pytest.mark.torch
@pytest.mark.parametrize("name", ["env", "check_env"])
def test_the_signatures_are_torchs(name: str) -> None:
    from torch.distributed import argparse_util

    ours, theirs = (inspect.signature(getattr(module, name)) for module in (argparse_actions, argparse_util))
    assert [(one.name, one.default, one.kind) for one in ours.parameters.values()] == [
        (one.name, one.default, one.kind) for one in theirs.parameters.values()
    ]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("true", "True", "yes", "ON", "y")),
        *((text, False) for text in ("false", "no", "off", "F", "")),
    ],
)
def test_a_switch_reads_every_usual_spelling_and_an_empty_variable_is_none(
    text: str, value: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_FOO", text)
    assert _add(argparse_actions, "check_env").parse_args([]).foo is value


@pytest.mark.parametrize(
    ("action", "options", "text", "said"),
    [
        ("check_env", {}, "maybe", "PET_FOO: 'maybe' is neither yes nor no; write 1, 0, true or false"),
        ("env", {"type": int}, "x", "PET_FOO: invalid literal"),
        ("env", {"choices": ["a", "b"]}, "c", "PET_FOO: 'c' is not one of a, b"),
        ("env", {"required": True}, "", "required"),
    ],
)
def test_a_bad_text_is_the_parsers_error_with_the_variables_name(
    action: str,
    options: dict[str, Any],
    text: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PET_FOO", text)
    parser = _add(argparse_actions, action, **options)
    with pytest.raises(SystemExit) as end:
        parser.parse_args([])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_a_flags_bad_text_is_told_as_the_flags(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_FOO", "1")
    with pytest.raises(SystemExit):
        _add(argparse_actions, "env", type=int).parse_args(["--foo", "x"])
    assert "invalid int value: 'x'" in capsys.readouterr().err
