"""torchrun's own parser, run as an oracle: what it takes means the same here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS
from phalanx.cli.run import launch_values
from phalanx.cli.words import read_words
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.meeting import meeting_of

pytestmark = pytest.mark.torch

# Rows whose default is meant to differ: where torchrun has a fixed value, "not given" lets the launcher choose.
CHOSEN_BY_THE_LAUNCHER = {"rdzv_id", "master_addr"}


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    found: argparse.ArgumentParser = get_args_parser()
    return found


@pytest.fixture(scope="module")
def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {
        action.dest: action for action in parser._actions if action.option_strings and action.dest != "help"
    }


def test_every_flag_of_torchrun_is_in_the_table_and_nothing_else_is_called_torchruns(
    actions: dict[str, argparse.Action],
) -> None:
    theirs = {dest: set(action.option_strings) for dest, action in actions.items()}
    ours = {
        option.dest: {*option.spellings, *([f"-{option.short}"] if option.short else [])}
        for option in OPTIONS
        if option.torchrun
    }
    assert ours == theirs


def test_flags_that_take_a_value_and_switches_are_the_same(actions: dict[str, argparse.Action]) -> None:
    switches = {dest for dest, action in actions.items() if action.nargs == 0}
    assert {option.dest for option in OPTIONS if option.torchrun and option.is_switch} == switches


def test_the_defaults_are_the_same(actions: dict[str, argparse.Action]) -> None:
    differing = set()
    for option in OPTIONS:
        if option.torchrun and not option.is_switch:
            default = actions[option.dest].default
            ours = None if option.default is None else option.read(option.default)
            theirs = None if default in (None, "", []) else option.read(str(default))
            if (ours or None) != (theirs or None):
                differing.add(option.dest)
    assert differing == CHOSEN_BY_THE_LAUNCHER | {"shutdown_timeout"}  # which is 30 in the end there, too


def test_variables_are_read_where_torchrun_reads_them(actions: dict[str, argparse.Action]) -> None:
    theirs = {dest for dest, action in actions.items() if type(action).__name__ in ("env", "check_env")}
    assert {option.dest for option in OPTIONS if option.torchrun and option.variables} == theirs


def test_every_abbreviation_that_torchrun_takes_means_the_same_here(
    parser: argparse.ArgumentParser, actions: dict[str, argparse.Action]
) -> None:
    compared = 0
    for dest, action in actions.items():
        for spelling in action.option_strings:
            for end in range(3, len(spelling) + 1):
                prefix = spelling[:end]
                if not spelling.startswith("--") or not _takes(parser, dest, prefix):
                    continue
                line = read_words([prefix, "train.py"] if action.nargs == 0 else [prefix, "3", "train.py"])
                assert (list(line.given), line.script) == ([dest], "train.py"), prefix
                compared += 1
    assert compared > 100


def _takes(parser: argparse.ArgumentParser, dest: str, prefix: str) -> bool:
    """Whether torchrun takes ``prefix`` for this flag and no other, asked by what its parser matches it with."""
    exact = parser._option_string_actions.get(prefix)
    candidates = [exact] if exact else [match[0] for match in parser._get_option_tuples(prefix)]
    return [action.dest for action in candidates] == [dest]


WORDS = [
    ["train.py"],
    ["--nproc-per-node", "4", "--max_restarts=3", "train.py", "--lr", "0.1"],
    ["-r3", "-t", "0:1", "train.py"],
    ["-r=3", "train.py"],
    ["-m", "pkg.train", "x"],
    ["--no-python", "--role", "a b", "echo", "hello"],
    ["--max-r", "3", "--tee=3", "train.py", "positional", "--flag", "-x"],
    ["--node-rank", "-1", "--", "train.py", "y"],
    ["--standalone", "--rdzv_conf", "a=1,b=2", "--rdzv-endpoint=h:1", "train.py", "-"],
    ["--role", "-", "train.py"],
    ["--tee", "1", "--tee", "2", "train.py"],
    ["--log-dir=", "train.py", ""],
]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_the_same_words_are_read_alike(words: list[str], parser: argparse.ArgumentParser) -> None:
    theirs = parser.parse_args(words)
    line = read_words(words)

    assert (line.script, list(line.arguments)) == (theirs.training_script, theirs.training_script_args)
    for dest, text in line.given.items():
        value = getattr(theirs, dest)
        assert text == ("1" if value is True else str(value))


def test_the_same_environment_is_read_alike(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch, values: Callable[..., dict[str, Any]]
) -> None:
    from torch.distributed.run import get_args_parser

    environ = {
        "PET_NPROC_PER_NODE": "3",
        "PET_MAX_RESTARTS": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "host:29400",
        "PET_STANDALONE": "1",
        "PET_ROLE": "trainer",
        "PET_DUPLICATE_STDOUT_FILTERS": "a,b,,c",
    }
    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    theirs = get_args_parser().parse_args(["train.py"])
    ours = values(environ=dict(os.environ))

    assert ours["restarts"].max_restarts == theirs.max_restarts
    for dest in ("rdzv_backend", "rdzv_endpoint", "standalone", "role"):
        assert ours[dest] == getattr(theirs, dest), dest
    assert ours["nproc"] == int(theirs.nproc_per_node)
    assert ours["duplicate_stdout_filters"] == tuple(theirs.duplicate_stdout_filters)


# Command lines of several nodes as they stand in documentation, job scripts and operators.
MEETINGS = [
    ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=29501", "train.py"],
    [
        "--nnodes",
        "4",
        "--nproc_per_node",
        "8",
        "--node_rank",
        "0",
        "--master_addr",
        "node0",
        "--master_port=1",
        "train.py",
    ],
    ["--nnodes=2", "--node_rank=1", "--rdzv-endpoint=10.0.0.1:1234", "train.py"],
    ["--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=node0:29400", "--rdzv-id=7", "train.py"],
    ["--nnodes=1:3", "--max-r=3", "--rdzv_backend=c10d", "--rdzv_endpoint=node0", "--rdzv_id=7", "train.py"],
    ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:29400", "--local-addr=10.0.0.9", "train.py"],
    [
        *("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node0", "--rdzv-id=7", "--rdzv-conf"),
        "join_timeout=7,last_call_timeout=3,keep_alive_interval=2,keep_alive_max_attempt=4,read_timeout=9,is_host=1",
        "train.py",
    ],
    ["--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379", "--rdzv-id=7", "train.py"],
    [
        *("--nnodes=1:2", "--rdzv-backend=etcd", "--rdzv-endpoint=etcd:2379", "--rdzv-id=7"),
        "--rdzv-conf=protocol=https,cacert=ca.pem,cert=me.pem,key=me.key",
        "train.py",
    ],
]


@pytest.mark.parametrize("words", MEETINGS, ids=" ".join)
def test_the_same_words_bring_the_same_nodes_together(
    words: list[str], script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
    from torch.distributed.run import config_from_args, parse_args

    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # which torchrun would set, with a banner
    theirs, _, _ = config_from_args(parse_args(words))
    ours = RunOptions(**launch_values(read_words([*words[:-1], script]), {}))
    member = meeting_of(ours).membership
    conf = RendezvousParameters("x", "x", "x", 1, 1, **theirs.rdzv_configs)

    assert (member.min_nodes, member.max_nodes) == (theirs.min_nodes, theirs.max_nodes)
    assert (member.slots, ours.restarts.max_restarts) == (theirs.nproc_per_node, theirs.max_restarts)
    assert (member.run_id or "none") == theirs.run_id
    assert member.local_addr == theirs.local_addr
    if theirs.rdzv_backend == "static":
        assert (member.master_addr, member.master_port) == parse_rendezvous_endpoint(theirs.rdzv_endpoint, -1)
        assert member.order_hint == theirs.rdzv_configs["rank"]
        assert member.join_timeout_s == 900
    elif theirs.rdzv_backend == "c10d":
        assert member.join_timeout_s == conf.get_as_int("join_timeout", 600)
        assert member.last_call_s == conf.get_as_int("last_call_timeout", 30)
        assert member.ttl_s == (
            (conf.get_as_int("keep_alive_interval", 5) or 0)
            * (conf.get_as_int("keep_alive_max_attempt", 3) or 0)
        )


def test_what_torchrun_makes_of_a_script_argument_is_the_defect_that_we_do_not_have(
    parser: argparse.ArgumentParser, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit):  # "ambiguous option: --no could match …", for an argument of the script
        parser.parse_args(["train.py", "--no", "y"])
    assert read_words(["train.py", "--no", "y"]).arguments == ("--no", "y")


def test_a_switch_that_torchrun_dies_of_is_read(
    monkeypatch: pytest.MonkeyPatch, values: Callable[..., dict[str, Any]]
) -> None:
    from torch.distributed.run import get_args_parser

    monkeypatch.setenv("PET_STANDALONE", "true")
    with pytest.raises(ValueError, match="invalid literal"):
        get_args_parser()
    assert values(environ={"PET_STANDALONE": "true"})["standalone"] is True


def test_words_that_torchrun_refuses_before_the_script_are_refused(parser: argparse.ArgumentParser) -> None:
    for words in (
        ["--unknown", "train.py"],
        ["--tee"],
        ["--standalone=1", "train.py"],
        ["--tee", "--role", "x"],
    ):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
        with pytest.raises(UsageError):
            launch_values(read_words(words), {})
