"""What cannot be right in a job, and what has no effect: the same for each front end, in its own words."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

import phalanx
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.launcher.checks import Finding, check, check_limits, sort_signals, warning_of
from phalanx.launcher.choices import CHOICES
from phalanx.launcher.elastic.config_options import options_of
from phalanx.launcher.elastic.launch_config import LaunchConfig
from phalanx.launcher.ineffective import RULES
from phalanx.launcher.options import RunOptions
from phalanx.multiprocessing.std import Std

TWICE = RestartPolicy(max_restarts=1, restart_on=(3,), no_restart_on=(3,))
OFTEN = RestartPolicy(max_restarts=33, window_s=60.0)


def options(**fields: Any) -> RunOptions:
    return RunOptions(**{"entrypoint": "train.py", "redirects": Std.NONE, "tee": Std.NONE, **fields})


def said(job: RunOptions, *asked: str) -> list[tuple[str, bool]]:
    return [(one.text(str.upper), one.is_error) for one in check(job, asked=asked, called=str.upper)]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"module": True, "no_python": True}, "MODULE and NO_PYTHON exclude each other"),
        ({"no_python": True, "python": "python3"}, "PYTHON has no effect with NO_PYTHON"),
        ({"standalone": True, "min_nodes": 2, "max_nodes": 2}, "MIN_NODES: at least 2 nodes are asked for"),
        ({"debug_rank": 1}, "DEBUG_RANK: there is no rank 1; this job has rank 0 alone"),
        ({"restarts": OFTEN}, "RESTARTS.WINDOW_S: with a window RESTARTS.MAX_RESTARTS can be 32 at most"),
        ({"restarts": TWICE}, "exit code 3 is in RESTARTS.RESTART_ON and in RESTARTS.NO_RESTART_ON"),
        ({"warn_signal": int(signal.SIGTERM)}, "WARN_SIGNAL: SIGTERM stops the job"),
    ],
    ids=str,
)
def test_a_contradiction_is_an_error_in_the_words_of_the_front_end(
    fields: dict[str, Any], sentence: str
) -> None:
    ((text, is_error),) = said(options(**fields))
    assert text.startswith(sentence)
    assert is_error


def test_a_plain_job_has_nothing_to_be_told() -> None:
    assert said(options()) == []
    assert list(check_limits(options())) == []


def test_what_has_no_effect_is_told_to_who_asked_for_it_once_for_each_reason() -> None:
    job = options(stop_all=True, exclude_for_s=5.0, start_method="fork")
    assert said(job) == []
    assert said(job, "stop_all", "exclude_for_s", "start_method") == [
        ("START_METHOD has no effect: workers are programs here, started by exec", False),
        ("STOP_ALL, EXCLUDE_FOR_S have no effect: this job has one node", False),
    ]


def test_no_sentence_has_the_spelling_of_a_flag() -> None:
    assert not [rule.reason for rule in RULES if re.search(r"(^|\s)--?[a-z]", rule.reason)]


def test_every_rule_and_every_choice_is_about_a_field() -> None:
    fields = {*RunOptions.__struct_fields__, *(f"restarts.{one}" for one in RestartPolicy.__struct_fields__)}
    named = {one for rule in RULES for one in re.findall(r"\{(.*?)\}", rule.reason)}
    assert {field for rule in RULES for field in rule.fields} | named | CHOICES.keys() <= fields


def test_the_types_of_words_are_the_choices() -> None:
    for field, words in CHOICES.items():
        assert tuple(re.findall(r"['\"](.*?)['\"]", RunOptions.__annotations__[field])) == words


def test_a_value_out_of_its_range_is_an_error() -> None:
    (few,) = check_limits(options(nproc=0))
    assert few.text(str) == "nproc=0: it is to be from 1 to 32768"
    (word,) = check_limits(options(start_method="thread"))
    assert word.text(str) == "start_method='thread': it is to be one of 'spawn', 'fork', 'forkserver'"


def test_a_signal_stops_the_job_or_is_passed_on() -> None:
    term, hup, usr1, usr2 = (
        int(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    )
    assert sort_signals((term, usr1), (), is_asked=True, called=str) == ((term,), (usr1, usr2), [])
    stops, passed, (found,) = sort_signals((term, hup), (hup,), is_asked=False, called=str)
    assert (stops, passed, found.is_error) == ((term,), (usr1, usr2, hup), False)
    *_, (refused,) = sort_signals((term, hup), (hup,), is_asked=True, called=str)
    assert refused == Finding(
        (), "SIGHUP is in stop_signals and in pass_signals; it cannot do both", joint=""
    )


def test_one_word_about_a_warning_is_enough() -> None:
    assert warning_of(None, None) == warning_of(None, 0.0) == (None, 0.0)
    assert warning_of(None, 5.0) == (int(signal.SIGUSR1), 5.0)
    assert warning_of(int(signal.SIGUSR2), 0.0) == (int(signal.SIGUSR2), 30.0)


# The front ends of programs


@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"standalone": True, "nnodes": "2"},
            "nnodes: at least 2 nodes are asked for, and standalone is one",
        ),
        ({"warn_signal": "TERM"}, "warn_signal: SIGTERM stops the job"),
        ({"event_log_handler": "nope"}, "event_log_handler: no handler of events is called 'nope'"),
        ({"rdzv_backend": "nope"}, "rdzv_backend: 'nope' is not one of static, c10d"),
        ({"rdzv_endpoint": "h:1:2"}, "rdzv_endpoint: 'h:1:2' has several colons"),
        ({"module": True}, "module: it is about a program, and a function is launched"),
        ({"stop_signals": ["HUP"], "pass_signals": ["HUP"]}, "SIGHUP is in stop_signals and in pass_signals"),
        ({"restarts": OFTEN}, "restarts.window_s: with a window max_restarts can be 32 at most"),
    ],
    ids=str,
)
def test_launch_refuses_before_anything_starts(keywords: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        phalanx.start(len, "abc", **keywords)


@pytest.mark.system
@pytest.mark.parametrize(
    ("keywords", "sentence"),
    [
        (
            {"local_ranks_filter": [7]},
            "local_ranks_filter names local rank 7, and this node has one worker, 0",
        ),
        ({"rdzv_conf": {"nope": 1}}, "rdzv_conf: nobody knows the key 'nope'; it has no effect"),
        ({"stop_all": True}, "stop_all has no effect: this job has one node"),
        (
            {"restarts": RestartPolicy(give_up_after=2)},
            "restarts.give_up_after has no effect: no restart is allowed; raise max_restarts",
        ),
    ],
    ids=str,
)
def test_launch_warns_at_the_line_that_calls_it(keywords: dict[str, Any], sentence: str) -> None:
    with pytest.warns(UserWarning, match=re.escape(sentence)) as caught:
        assert phalanx.launch(len, "abc", **keywords).values == (3,)
    assert [Path(one.filename).name for one in caught] == [Path(__file__).name]


def test_a_launch_config_is_checked_by_the_same_rules_in_its_own_words() -> None:
    with pytest.raises(ValueError, match=r"^rdzv_endpoint: 'a:b:c' has several colons"):
        options_of(LaunchConfig(1, 1, 1, rdzv_backend="static", rdzv_endpoint="a:b:c"), entrypoint="true")
    prefixed = LaunchConfig(1, 1, 1, rdzv_backend="static", log_line_prefix_template="x")
    with pytest.warns(UserWarning, match="^log_line_prefix_template has no effect: it is about teed lines"):
        options_of(prefixed, entrypoint="true")
