"""The parser that programs take from ``torch.distributed.run``: torch's own is the oracle."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.options import OPTIONS
from phalanx.cli.parser import get_args_parser
from phalanx.run import run

OWN = {option.dest for option in OPTIONS if not option.torchrun}
POSITIONAL = {"training_script", "training_script_args"}


def _torchs_parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    found: argparse.ArgumentParser = get_args_parser()
    return found


def _both(words: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What torch's parser and ours make of the words; ours without our own options, which must be unset."""
    theirs = vars(_torchs_parser().parse_known_args(words)[0])
    ours = vars(get_args_parser().parse_known_args(words)[0])
    assert not any(value for name, value in ours.items() if name in OWN)
    return theirs, {name: value for name, value in ours.items() if name not in OWN}


def _facts(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return {
        action.dest: (
            sorted(action.option_strings),
            action.default,
            action.nargs,
            action.const,
            list(action.choices) if action.choices else None,
            action.required,
            type(action).__name__,
        )
        for action in parser._actions
        if action.dest not in OWN
    }


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.run.get_args_parser", "better", "nothing after the script is parsed"
)
def test_every_argument_of_torchs_parser_is_in_ours_with_the_same_spellings_default_and_choices() -> None:
    assert _facts(get_args_parser()) == _facts(_torchs_parser())


WORDS: list[list[Any]] = [
    ["train.py"],
    ["--nproc-per-node", "4", "--max_restarts=3", "--monitor-interval", "2", "train.py", "--lr", "0.1"],
    ["-r3", "-t", "0:1", "train.py"],
    ["-r=3", "train.py"],
    ["-m", "pkg.train", "x", "y"],
    ["--no-python", "--role", "a b", "echo", "hello"],
    ["--max-r", "3", "--tee=3", "train.py", "positional", "--flag", "-x"],
    ["--node-rank", "-1", "--", "train.py", "y"],
    ["--standalone", "--rdzv_conf", "a=1,b=2", "--rdzv-endpoint=h:1", "train.py", "-"],
    ["--duplicate-stdout-filters", "a,b,,c", "--duplicate_stderr_filters=x", "train.py"],
    ["--shutdown-timeout", "7", "--start-method", "fork", "--numa-binding", "node", "train.py"],
    ["--virtual-local-rank", "--run-path", "--local-ranks-filter", "0,1", "--master-port", "5", "train.py"],
    ["--re", "1", "--l", "x", "train.py"],
    ["--log-d", "x", "train.py"],
    # As accelerate has it: flags for the positional names, which nobody knows, and a list for the arguments.
    ["--training_script", "train.py", "--training_script_args", ["--lr", "1"]],
    ["--training_script", "train.py", "--training_script_args", []],
    ["--unknown", "train.py", "x"],
]


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.run.parse_args", "same")
@pytest.mark.parametrize("words", WORDS, ids=str)
def test_the_same_words_make_the_same_namespace(words: list[Any]) -> None:
    try:
        theirs, ours = _both(words)
    except SystemExit:
        with pytest.raises(SystemExit):
            _torchs_parser().parse_known_args(words)
        return
    assert ours == theirs
    assert {name: type(value) for name, value in ours.items()} == {
        name: type(value) for name, value in theirs.items()
    }


NO_EFFECT = "of no effect"  # torch reads no variable for these
VARIABLES = {
    "PET_NNODES": "2:3",
    "PET_NPROC_PER_NODE": "3",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "host:29400",
    "PET_RDZV_ID": "7",
    "PET_RDZV_CONF": "a=1",
    "PET_STANDALONE": "1",
    "PET_MAX_RESTARTS": "2",
    "PET_MONITOR_INTERVAL": "5",
    "PET_START_METHOD": "fork",
    "PET_EVENT_LOG_HANDLER": "console",
    "PET_ROLE": "trainer",
    "PET_MODULE": "1",
    "PET_NO_PYTHON": "0",
    "PET_RUN_PATH": "1",
    "PET_LOG_DIR": "logs",
    "PET_REDIRECTS": "3",
    "PET_TEE": "0:1",
    "PET_LOCAL_RANKS_FILTER": "0",
    "PET_DUPLICATE_STDOUT_FILTERS": "a,b,,c",
    "PET_DUPLICATE_STDERR_FILTERS": "x",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "host",
    "PET_MASTER_PORT": "5",
    "PET_LOCAL_ADDR": "10.0.0.1",
    "PET_LOGS_SPECS": NO_EFFECT,
    "PET_NUMA_BINDING": NO_EFFECT,
    "PET_SIGNALS_TO_HANDLE": "SIGTERM",
    "PET_SHUTDOWN_TIMEOUT": "3",
    "PET_VIRTUAL_LOCAL_RANK": "1",
}


@pytest.mark.torch
@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(
            name, marks=[] if text == NO_EFFECT else [pytest.mark.compat(f"variable {name}", "same")]
        )
        for name, text in VARIABLES.items()
    ],
)
def test_a_variable_gives_the_same_value_and_a_flag_is_stronger(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, VARIABLES[variable])
    theirs, ours = _both(["train.py"])
    assert ours == theirs
    theirs, ours = _both(["--nnodes", "9", "--role", "x", "--standalone", "--node-rank", "3", "train.py"])
    assert ours == theirs


def test_the_variables_above_are_those_of_all_arguments() -> None:
    dests = {action.dest for action in get_args_parser()._actions} - OWN - POSITIONAL - {"help"}
    assert {f"PET_{dest.upper()}" for dest in dests} == VARIABLES.keys()


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("PET_STANDALONE", "ture", "PET_STANDALONE: 'ture' is neither yes nor no"),
        ("PET_MAX_RESTARTS", "two", "PET_MAX_RESTARTS: invalid literal for int"),
        ("PET_START_METHOD", "thread", "PET_START_METHOD: 'thread' is not one of spawn, fork, forkserver"),
        ("PET_MONITOR_INTERVAL", "soon", "PET_MONITOR_INTERVAL: 'soon' is no time"),
    ],
)
def test_a_variable_that_cannot_be_read_is_an_error_of_the_parser_with_its_name(
    variable: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, text)
    parser = get_args_parser()
    with pytest.raises(SystemExit) as end:
        parser.parse_args(["train.py"])
    assert end.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--r=16"],
        ["--log", "x"],
        ["--no", "y"],
        ["--local", "3"],
        ["--nnodes=9"],
        ["-h"],
        ["--version"],
        ["--", "-t"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    "before", [[], ["--standalone", "-t", "3"], ["-mtrain.py"], ["--"], ["--tee=1", "--max-r", "1"]], ids=str
)
def test_nothing_after_the_script_is_parsed(before: list[str], arguments: list[str]) -> None:
    words = before if before == ["-mtrain.py"] else [*before, "train.py"]
    args = get_args_parser().parse_args([*words, *arguments])
    assert (args.training_script, args.training_script_args) == ("train.py", arguments)


def test_a_program_may_add_arguments_of_its_own() -> None:
    parser = get_args_parser()
    parser.add_argument("--model", default="small")
    parser.add_argument("--sizes", type=int, nargs="+")
    args = parser.parse_args(["--model", "large", "--nnodes", "2", "train.py", "--model", "x"])
    assert (args.model, args.nnodes, args.training_script_args) == ("large", "2", ["--model", "x"])
    args = parser.parse_args(["--sizes", "1", "2", "--nnodes", "2", "train.py", "x"])
    assert (args.sizes, args.nnodes, args.training_script_args) == ([1, 2], "2", ["x"])


def test_a_programs_own_parser_may_take_our_arguments_over() -> None:
    own = argparse.ArgumentParser()
    for action in get_args_parser()._actions:
        if action.dest != "help":
            own._add_action(action)
    args = own.parse_args(["--nproc-per-node", "2", "train.py", "x"])
    assert (args.nproc_per_node, args.training_script, args.training_script_args) == ("2", "train.py", ["x"])


def test_a_time_may_have_a_unit_and_other_options_are_texts() -> None:
    args = get_args_parser().parse_args(
        ["--shutdown-timeout", "1m", "--monitor-interval", "2s", "--restart-window", "1h", "train.py"]
    )
    assert (args.shutdown_timeout, args.monitor_interval, args.restart_window) == (60, 2.0, "1h")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--standalone"],
        ["--tee"],
        ["--tee", "--role", "x"],
        ["--unknown", "train.py"],
        ["--max-restarts", "x", "a"],
    ],
)
def test_what_torchrun_refuses_is_refused_with_exit_code_2(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        get_args_parser().parse_args(words)
    assert end.value.code == 2


def test_help_has_the_groups_of_our_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        get_args_parser().parse_args(["-h"])
    assert end.value.code == 0
    page = capsys.readouterr().out
    assert "size of the job:" in page
    assert "--restart-window" in page


def test_a_configuration_file_may_name_the_script() -> None:
    for words in (["--config", "job.yaml"], ["--tee=1", "--config=job.yaml"]):
        args = get_args_parser().parse_args(words)
        assert (args.config, args.training_script, args.training_script_args) == ("job.yaml", None, [])
    args = get_args_parser().parse_args(["--config", "job.yaml", "train.py", "--config", "x"])
    assert (args.training_script, args.training_script_args) == ("train.py", ["--config", "x"])


@pytest.mark.system
def test_a_namespace_with_a_configuration_file_runs_what_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("show.py").write_text("import os, sys\nopen(os.environ['RANK'], 'w').write(repr(sys.argv[1:]))\n")
    Path("job.yaml").write_text("elastic: {nproc_per_node: 2}\nscript: {path: show.py, args: [--tee, x]}\n")
    run(get_args_parser().parse_args(["--config", "job.yaml"]))
    assert [Path(name).read_text() for name in "01"] == ["['--tee', 'x']"] * 2
