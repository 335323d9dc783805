"""A dry run tells what a real one then does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.run import run_options
from phalanx.errors import boot_file
from phalanx.launcher.dry_run import MADE_AT_START, SETTLED_LATER, planned

LAUNCHER = [sys.executable, "-m", "phalanx", "run"]
TELL = (
    "import json, os, sys\n"
    "with open('told.' + os.environ['RANK'], 'w') as file:\n"
    "    json.dump([sys.orig_argv, dict(os.environ), os.getcwd()], file)\n"
)


def told_by_workers(words: list[str], folder: Path) -> list[Any]:
    subprocess.run([*LAUNCHER, *words], cwd=folder, timeout=120, check=True)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("told.*"))]


def dry_run(words: list[str], folder: Path) -> Any:
    done = subprocess.run(
        [*LAUNCHER, "--dry-run", "--print-format=json", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)["plan"]


@pytest.mark.system
def test_the_plan_has_the_command_and_the_environment_that_each_worker_then_has(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TELL)
    (tmp_path / "job.yaml").write_text(
        "elastic: {nproc_per_node: 3, max_restarts: 2}\njob: {rdzv_id: job7, role: r, master_port: 29512}\n"
        "env: {FLAVOUR: sour, OMP_NUM_THREADS: '2'}\n"
        "script: {path: train.py, args: ['--rank=$${local_rank}', 0.10]}\n"
    )
    words = ["--config", "job.yaml", "--log-dir", str(tmp_path / "logs")]
    plan = dry_run(words, tmp_path)
    assert not (tmp_path / "logs").exists()
    assert not list(tmp_path.glob("told.*"))
    real = told_by_workers(words, tmp_path)
    assert len(plan["workers"]) == len(real) == 3
    for worker, (argv, environ, cwd) in zip(plan["workers"], real, strict=True):
        assert plan["folder"] == cwd
        assert [word for word in worker["command"] if word != boot_file()] == argv  # it gets out of the way
        known = {
            name: text
            for name, text in worker["environment"].items()
            if MADE_AT_START not in text and name != "PHALANX_JOB"
        }
        assert known.items() <= environ.items()
        assert {"RANK", "WORLD_SIZE", "MASTER_PORT", "FLAVOUR", "TORCHELASTIC_RUN_ID"} <= known.keys()
        assert environ.keys() - worker["environment"].keys() - os.environ.keys() <= {
            "LC_CTYPE",
            "COLUMNS",
            "LINES",
        }


def test_what_nodes_agree_on_is_not_known_before_they_have_met(tmp_path: Path) -> None:
    words = [
        "--nnodes=2:4",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=h:1",
        "--no-python",
        "x",
    ]
    plan = planned(run_options(words))
    assert (plan.min_nodes, plan.max_nodes, plan.backend) == (2, 4, "c10d")
    for local_rank, worker in enumerate(plan.workers):
        assert worker.rank is None
        later = {name for name, text in worker.environment.items() if text == SETTLED_LATER}
        assert later == {
            "RANK",
            "ROLE_RANK",
            "GROUP_RANK",
            "WORLD_SIZE",
            "ROLE_WORLD_SIZE",
            "GROUP_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        }
        assert worker.environment["LOCAL_RANK"] == str(local_rank)
        assert worker.environment["LOCAL_WORLD_SIZE"] == "2"
        assert worker.environment["TORCHELASTIC_RUN_ID"] == MADE_AT_START


def test_where_ranks_are_fixed_by_hand_more_is_known() -> None:
    static = ["--nnodes=3", "--rdzv-backend=static", "--rdzv-endpoint=h:29500", "--no-python", "x"]
    first, second = (planned(run_options([f"--node-rank={place}", *static])) for place in (0, 1))
    assert first.workers[0].rank == 0
    assert first.workers[0].environment["GROUP_RANK"] == "0"
    assert second.workers[0].rank is None
    assert second.workers[0].environment["GROUP_RANK"] == "1"
    assert {one.workers[0].environment["GROUP_WORLD_SIZE"] for one in (first, second)} == {"3"}


def test_streams_go_where_they_would_go(tmp_path: Path) -> None:
    words = ["--nproc-per-node=3", "--redirects=0:1", "--tee=1:3", "--local-ranks-filter=0,1"]
    plan = planned(run_options([*words, "--no-python", "x"]))
    streams = [(one.stdout, one.stderr) for one in plan.workers]
    folder = "(a new temporary folder)/(made at start)/attempt_0"
    assert streams == [
        (f"{folder}/0/stdout.log", "console"),
        (f"{folder}/1/stdout.log and console", f"{folder}/1/stderr.log and console"),
        ("/dev/null", "/dev/null"),
    ]
    plan = planned(run_options(["--log-dir=/dev/null", "--no-python", "x"]))
    assert plan.workers[0].environment["TORCHELASTIC_ERROR_FILE"] == ""
