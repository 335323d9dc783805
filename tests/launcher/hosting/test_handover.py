"""What a program and its agent hand each other is the same on both sides, and nothing else is taken."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.cli.run import run_options
from phalanx.launcher import RunOptions
from phalanx.launcher.hosting.handover import from_json, to_json
from phalanx.launcher.hosting.outcome import Outcome
from phalanx.multiprocessing.std import Std
from phalanx.records import Struct

SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    NoneType: st.none(),
    bool: st.booleans(),
    int: st.integers(),
    float: st.floats(allow_nan=False),
    str: st.text(st.characters()),  # lone surrogates, too: arguments that are no text
    bytes: st.binary(),
}


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Anything that an annotation allows, so that a new field of a record is covered without a word here."""
    arguments = get_args(kind)
    if kind in SIMPLE:
        return SIMPLE[kind]
    if not arguments:
        return records(kind) if issubclass(kind, Struct) else st.sampled_from(list(kind))
    match get_origin(kind):
        case origin if origin is Literal:
            return st.sampled_from(arguments)
        case origin if origin is tuple and arguments[1:] == (...,):
            return st.lists(values_of(arguments[0]), max_size=4).map(tuple)
        case origin if origin is tuple:
            return st.tuples(*map(values_of, arguments))
        case origin if origin in (set, frozenset):
            return st.sets(values_of(arguments[0]), max_size=4).map(origin)
        case origin if isinstance(origin, type) and issubclass(origin, Mapping):
            return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=4)
        case _:
            return st.one_of(*map(values_of, arguments))


def records(kind: type[Struct]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind, localns={"Std": Std})
    fields = {name: values_of(hints[name]) for name in kind.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda values: kind(**values))


@given(records(RunOptions))
def test_options_come_back_as_they_were(options: RunOptions) -> None:
    back = from_json(to_json(options), RunOptions)
    assert back == options
    assert type(back.redirects) is type(options.redirects)


@given(records(Outcome))
def test_outcomes_come_back_as_they_were(outcome: Outcome) -> None:
    assert from_json(to_json(outcome), Outcome) == outcome


def options(**changes: Any) -> RunOptions:
    made = run_options(["--standalone", "--no-python", "true"])
    return RunOptions(**{**{name: getattr(made, name) for name in RunOptions.__struct_fields__}, **changes})


def test_the_options_of_a_command_line_come_back() -> None:
    words = [
        "--nproc-per-node",
        "2",
        "-t",
        "0:3,12:1",
        "--local-ranks-filter",
        "0,1",
        "--no-python",
        "echo",
        "\udcff",
    ]
    made = run_options(words)
    assert from_json(to_json(made), RunOptions) == made


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"nproc": "2"}, "RunOptions.nproc is to be int, and is '2', of type str"),
        ({"nproc": True}, "RunOptions.nproc is to be int, and is True"),
        ({"nproc": 2.0}, "RunOptions.nproc is to be int"),
        ({"entrypoint": Path("train.py")}, "RunOptions.entrypoint is to be str, and is PosixPath"),
        ({"args": "--lr 1"}, "RunOptions.args is to be tuple"),
        ({"args": ("--lr", 1)}, "RunOptions.args[1] is to be str, and is 1"),
        ({"redirects": 3}, "RunOptions.redirects is to be"),
        ({"rdzv_conf": {"timeout": 60}}, "RunOptions.rdzv_conf['timeout'] is to be str, and is 60"),
        (
            {"restart_scope": "job"},
            "RunOptions.restart_scope is to be Literal['group', 'worker'], and is 'job'",
        ),
        ({"restarts": 3}, "RunOptions.restarts is to be RestartPolicy, and is 3"),
        ({"stop_signals": None}, "RunOptions.stop_signals is to be"),
    ],
)
def test_a_value_of_another_type_is_named_before_anything_starts(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(TypeError) as raised:
        to_json(options(**changes))
    assert str(raised.value).startswith(sentence)


def test_a_list_of_arguments_and_an_int_of_seconds_will_do() -> None:
    back = from_json(to_json(options(args=["--lr", "1"], straggler_s=3)), RunOptions)
    assert back.args == ("--lr", "1")
    assert back.straggler_s == 3


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(to_json(options())), **changes})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "RunOptions cannot be read"),
        ("{", "RunOptions cannot be read"),
        (b"\xff\xfe\x00", "RunOptions cannot be read"),
        ("[" * 100_000, "RunOptions cannot be read"),
        ("null", "RunOptions is to be RunOptions, and is null"),
        ("{}", "RunOptions: missing or unknown: args,"),
        (changed(another=1), "RunOptions: missing or unknown: another"),
        (changed(nproc="2"), 'RunOptions.nproc is to be int, and is "2"'),
        (changed(nproc=True), "RunOptions.nproc is to be int, and is true"),
        (changed(nproc=1e300), "RunOptions.nproc is to be int"),
        (changed(args="x"), "RunOptions.args is to be"),
        (changed(args=[["x"]]), "RunOptions.args[0] is to be str"),
        (changed(redirects="3"), "RunOptions.redirects is to be"),
        (changed(redirects=[[0]]), "RunOptions.redirects is to be"),
        (changed(secret={"hex": "no"}), "RunOptions.secret is to be"),
        (changed(secret="plain"), "RunOptions.secret is to be"),
        (changed(restart_scope="job"), "RunOptions.restart_scope is to be Literal"),
        (changed(restarts={}), "RunOptions.restarts: missing or unknown: backoff_max_s,"),
        (changed(rdzv_conf={"a": "b"}), "RunOptions.rdzv_conf is to be"),
    ],
)
def test_nonsense_is_one_sentence(text: str | bytes, sentence: str) -> None:
    with pytest.raises(ValueError, match="RunOptions") as raised:
        from_json(text, RunOptions)
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda one: st.lists(one) | st.dictionaries(st.text(), one),
    )
)
def test_no_json_at_all_is_anything_but_read_or_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="Outcome"):
        from_json(json.dumps(value), Outcome)


def test_times_that_nobody_knows_come_back() -> None:
    failure = Failure(rank=0, local_rank=0, pid=1, exit_code=-9, exited_at=math.inf)
    assert from_json(to_json(failure), Failure) == failure


def test_a_record_of_another_kind_is_none_of_this_one() -> None:
    with pytest.raises(ValueError, match="Verdict: missing or unknown"):
        from_json(to_json(options()), Verdict)
