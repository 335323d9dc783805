"""Variables of torchrun's beside ``PET_*``: what each has an effect on under both launchers, or why there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.side_by_side.pair import SideBySide, shows
from tests.side_by_side.test_worker_environment import (
    OTHER_VALUE,
    PROBE,
    differences,
    environments,
    places,
)
from tests.system.launch import launcher_under_test, two_free_ports

from phalanx.cli.run import run_options

# Asks whether somebody listens at the port when workers of a second attempt run: the agent has done all of its start.
ASKS_FOR_HEALTH = (
    PROBE
    + """
    import socket
    import sys

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
    with socket.socket() as link:
        tell("health", answer=link.connect_ex(("127.0.0.1", int(os.environ["TORCHELASTIC_HEALTH_CHECK_PORT"]))))
"""
)


@shows("same", "variable USE_LIBUV")
@shows(
    "better",
    "variable TORCHELASTIC_HEALTH_CHECK_PORT",
    how="health is answered over HTTP: 200 while workers get on, else 503",
)
@shows(
    "better", "variable LOGLEVEL", how="what an agent decides is in the record of a failed job at every level"
)
@shows(
    "better",
    "variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    how="no store is shared with the agents in any case, as with 1 there",
)
def test_variables_that_need_no_launcher_reach_the_workers_and_change_nothing_else(
    side_by_side: SideBySide,
) -> None:
    """``USE_LIBUV`` is for torch's own store. torchrun's health server opens no port: a vendor's does."""
    env = {
        "LOGLEVEL": "DEBUG",
        "USE_LIBUV": "0",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCHELASTIC_HEALTH_CHECK_PORT": str(two_free_ports()),
    }

    torchrun, phalanx = side_by_side(ASKS_FOR_HEALTH, "--standalone", "--max-restarts", 1, env=env)

    theirs, ours = environments(torchrun)[-1], environments(phalanx)[-1]
    assert {name: ours[name] for name in env} == env
    # With the third of them no store is shared there, too.
    assert differences(theirs, ours) == {"MASTER_ADDR": OTHER_VALUE["MASTER_ADDR"]}
    assert os.strerror(torchrun.told("health")[0]["answer"]) == "Connection refused"
    assert phalanx.told("health")[0]["answer"] == 0
    assert b"DEBUG" not in phalanx.stderr


@shows(
    "better",
    "variable TORCH_ELASTIC_WORKER_IDENTICAL",
    how="places are known without the exchange that it saves, and are right for nodes that differ",
)
def test_nodes_need_not_be_identical_whatever_a_variable_says(side_by_side: SideBySide) -> None:
    both = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", "{port}")
    nodes = [
        (*both, "--node-rank", 0, "--nproc-per-node", 1, "--role", "trainer"),
        (*both, "--node-rank", 1, "--nproc-per-node", 2, "--role", "reader"),
    ]
    says_so = [{"TORCH_ELASTIC_WORKER_IDENTICAL": "1"}] * 2

    # Without the variable both give the same, as test_worker_environment.py shows: torchrun need not be asked again.
    right = side_by_side.nodes_under(launcher_under_test(), PROBE, *nodes)
    wrong, ours = SideBySide(side_by_side.folder / "says so").nodes(PROBE, *nodes, env=says_so)

    assert places(ours) == places(right)
    assert places(wrong) != places(right)


@shows("same", "flag --shutdown-timeout", "variable PET_SHUTDOWN_TIMEOUT")
@shows("same", "variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({}, []),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, []),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, ["--shutdown-timeout", "3"]),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "PET_SHUTDOWN_TIMEOUT": "5"}, []),
    ],
    ids=str,
)
def test_the_grace_is_read_from_the_same_places(
    environ: dict[str, str], flags: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch.distributed.run import config_from_args, parse_args

    for name, text in environ.items():
        monkeypatch.setenv(name, text)
    words = [*flags, "--log-dir", str(tmp_path), "--no-python", "true"]
    theirs, _, _ = config_from_args(parse_args(words))
    assert run_options(words).grace_s == theirs.shutdown_timeout
