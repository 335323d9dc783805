"""``--print-config`` and ``--dry-run``: what is told of a job that is not started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli import main
from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS
from phalanx.cli.preview import config_rows
from phalanx.cli.run import run_options
from phalanx.cli.sources import asked
from phalanx.cli.words import read_words

Rows = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def rows() -> Rows:
    def showing(*words: str, environ: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in config_rows(asked(read_words(words), environ or {}))}

    return showing


@pytest.fixture
def job_file(tmp_path: Path, script: str) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(
        "elastic:\n  max_restarts: 3\nlogs: {tee: {0: 3}}\nenv: {API_KEY: hidden-1, MODE: fast}\n"
        f"script: {{path: {script}, args: [--lr, 0.10]}}\n"
    )
    return str(path)


def test_each_option_is_shown_with_its_value_and_where_it_came_from(rows: Rows, job_file: str) -> None:
    found = rows("--config", job_file, "--nproc-per-node=2", environ={"PET_ROLE": "trainer"})
    shown = {
        name: (found[name]["value"], found[name]["from"], found[name]["origin"])
        for name in ("nproc_per_node", "role", "max_restarts", "tee", "start_method", "log_dir", "standalone")
    }
    assert shown == {
        "nproc_per_node": ("2", "flag", "--nproc-per-node"),
        "role": ("trainer", "variable", "PET_ROLE"),
        "max_restarts": ("3", "file", f"{job_file}:2: elastic.max_restarts"),
        "tee": ("0:3", "file", f"{job_file}:3: logs.tee"),
        "start_method": ("spawn", "default", "default"),
        "log_dir": (None, "default", "default"),
        "standalone": (False, "default", "default"),
    }
    offered = {one.dest for one in OPTIONS if one.later is None}
    assert offered - found.keys() == {"config", "print_config", "dry_run", "print_format"}


def test_what_a_text_means_is_shown_beside_it(rows: Rows) -> None:
    found = rows("--shutdown-timeout=2m", "--log-max-size=1M", "--nproc-per-node=cpu")
    assert found["shutdown_timeout"]["means"] == 120
    assert found["log_max_size"]["means"] == 1 << 20
    assert found["nproc_per_node"]["means"] >= 1
    assert "means" not in found["max_restarts"]


def test_the_program_and_its_arguments_are_shown_with_their_place(rows: Rows, job_file: str) -> None:
    found = rows("--config", job_file)
    assert found["program"]["origin"] == f"{job_file}:5: script.path"
    assert found["arguments"]["value"] == ["--lr", "0.10"]
    found = rows("--config", job_file, "other.py", "-x")
    assert (found["program"]["value"], found["program"]["origin"]) == ("other.py", "command line")
    assert found["arguments"]["value"] == ["-x"]


def test_secrets_are_not_printed(
    job_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_SECRET", "hidden-2")
    for look in ("--print-config", "--dry-run"):
        for layout in ("text", "json"):
            assert main(["run", look, "--print-format", layout, "--config", job_file]) == 0
            said = capsys.readouterr().out
            assert "hidden" not in said
            assert "API_KEY" in said
            assert "fast" in said


def test_the_table_is_for_people_and_says_nothing_else(
    job_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--print-config", "--config", job_file, "--warn-before", "5m"]) == 0
    captured = capsys.readouterr()
    lines = {line.split()[0]: line for line in captured.out.splitlines()}
    assert " ".join(lines["warn_before"].split()) == "warn_before 5m = 300 --warn-before"
    assert " ".join(lines["log_dir"].split()) == "log_dir - default"
    assert " ".join(lines["exclude_on"].split()) == "exclude_on - default"
    assert captured.err == ""


NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def test_devices_that_are_not_here_are_shown_as_they_were_asked_for_with_the_reason(
    rows: Rows, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rows("--nproc-per-node=gpu", environ=NO_GPU)["nproc_per_node"]
    assert found["value"] == "gpu"
    assert found["problem"].startswith("'gpu' finds no GPU here")
    for name, text in NO_GPU.items():
        monkeypatch.setenv(name, text)
    assert main(["run", "--print-config", "--nproc-per-node=gpu", "x.py"]) == 0
    assert "--nproc-per-node (not here: 'gpu' finds no GPU here" in capsys.readouterr().out
    assert main(["run", "--dry-run", "--nproc-per-node=gpu", "--no-python", "true"]) == 2
    assert capsys.readouterr().err.endswith("error: to look at the job here, add --nproc-per-node N\n")


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--print-config"],
        ["run", "--dry-run"],
        ["config-schema"],
        ["completion", "bash"],
        ["run", "--help"],
    ],
    ids=" ".join,
)
def test_a_reader_that_has_seen_enough_is_no_mistake(words: list[str]) -> None:
    program = [] if words[0] != "run" else ["--no-python", "true"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        for command in ([sys.executable, "-m", "phalanx"], [str(Path(sys.executable).with_name("phalanx"))]):
            done = subprocess.run(
                [*command, *words, *program], stdout=writing, stderr=subprocess.PIPE, timeout=90
            )
            assert (done.returncode, done.stderr) == (0, b"")
    finally:
        os.close(writing)


def test_a_value_cannot_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--print-config", "--role", "a\x1b[2Jb\nc", "x.py"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert r"'a\x1b[2Jb\nc'" in said


def test_a_mistake_ends_the_looking(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", "--print-config", "--max-restarts", "x"]) == 2
    assert main(["run", "--dry-run"]) == 2
    assert "no program was named" in capsys.readouterr().err
    (tmp_path / "job.yaml").write_text("job:\n  a: 1\n  b: 2\n")
    assert main(["run", "--print-config", "--config", str(tmp_path / "job.yaml")]) == 2
    assert capsys.readouterr().err == (
        f"phalanx: error: {tmp_path}/job.yaml:2: job.a: unknown key\n"
        f"phalanx: error: {tmp_path}/job.yaml:3: job.b: unknown key\n"
    )


def test_a_program_that_wants_options_to_start_with_gets_none_for_looking() -> None:
    with pytest.raises(UsageError, match="--dry-run starts nothing, and options are to start a job"):
        run_options(["--dry-run", "--no-python", "true"])


def test_both_may_be_asked_for_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--print-config", "--dry-run", "--print-format=json", "--no-python", "true"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["config"][0]["name"] == "nnodes"
    assert found["plan"]["workers"][0]["command"] == ["true"]


def test_a_dry_run_is_told_for_people(capsys: pytest.CaptureFixture[str], script: str) -> None:
    words = ["--nnodes=2:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--log-dir=/no/such"]
    assert main(["run", "--dry-run", *words, script, "a b"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        "job:      2 to 4 nodes, which meet by c10d; one worker on this one; nothing is started\n"
        f"folder:   {os.getcwd()}\n"
        "logs:     /no/such\n"
    )
    assert "\nrank (settled at rendezvous), local rank 0\n  command:  " in said
    assert f" {script} 'a b'\n" in said
    assert "\n    MASTER_ADDR=(settled at rendezvous)\n" in said
