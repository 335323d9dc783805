"""A job from a configuration file, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "phalanx", "run"]
TELL = (
    "import json, os, sys\n"
    "with open('told.' + os.environ['RANK'], 'w') as file:\n"
    "    json.dump([sys.argv[1:], dict(os.environ)], file)\n"
)
# Whatever the launcher could take for its own: abbreviations, flags, both kinds of dashes, numbers and truths.
ARGUMENTS = [
    "--r=16",
    "--log",
    "x",
    "--no",
    "--local",
    "3",
    "--nnodes=9",
    "-h",
    "--version",
    "--",
    "-t",
    "0.10",
]

pytestmark = pytest.mark.system


def told(folder: Path) -> list[tuple[list[str], dict[str, str]]]:
    return [tuple(json.loads(path.read_text())) for path in sorted(folder.glob("told.*"))]


def run(*words: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environ}
    return subprocess.run([*RUN, *words], cwd=cwd, env=env, capture_output=True, text=True, timeout=150)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TELL)
    arguments = "".join(f"  - {one}\n" for one in ARGUMENTS)
    (tmp_path / "job.yaml").write_text(
        "elastic:\n  nproc_per_node: ${WORKERS:-2}\njob:\n  role: trainer\nenv:\n  MODE: ${MODE:-fast}\n"
        f"script:\n  path: train.py\n  args:\n{arguments}"
    )
    return tmp_path


def test_the_file_says_it_all_and_every_argument_arrives_as_it_was_written(folder: Path) -> None:
    done = run("--config", "job.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = told(folder)
    assert [arguments for arguments, _ in found] == [ARGUMENTS, ARGUMENTS]
    assert {environ["MODE"] for _, environ in found} == {"fast"}
    assert {environ["ROLE_NAME"] for _, environ in found} == {"trainer"}


def test_variables_and_flags_and_a_script_on_the_command_line_are_stronger(folder: Path) -> None:
    (folder / "other.py").write_text(TELL)
    words = ["--config=job.yaml", "--role", "flag", "other.py", "--nnodes", "2:4"]
    done = run(*words, cwd=folder, WORKERS="3", MODE="slow", PET_NPROC_PER_NODE="1", PET_ROLE="variable")
    assert done.returncode == 0, done.stderr
    ((arguments, environ),) = told(folder)
    assert arguments == ["--nnodes", "2:4"]
    assert (environ["MODE"], environ["ROLE_NAME"], environ["WORLD_SIZE"]) == ("slow", "flag", "1")


def test_a_file_that_a_variable_names_is_for_this_job_and_not_for_one_inside_of_it(folder: Path) -> None:
    done = run(cwd=folder, PHALANX_CONFIG="job.yaml", PET_CONFIG="")
    assert done.returncode == 0, done.stderr
    for _, environ in told(folder):
        assert not environ.keys() & {"PHALANX_CONFIG", "PET_CONFIG"}


def test_a_failing_program_ends_the_job_as_without_a_file(folder: Path) -> None:
    (folder / "fails.yaml").write_text("script: {command: bash, args: [-c, exit 7]}\n")
    assert run("--config", "fails.yaml", cwd=folder).returncode == 7


def test_looking_starts_nothing_and_writes_nothing(folder: Path) -> None:
    before = sorted(folder.iterdir())
    for look in ("--print-config", "--dry-run"):
        done = run(look, "--config", "job.yaml", "--log-dir", "logs", cwd=folder)
        assert (done.returncode, done.stderr) == (0, "")
        assert "trainer" in done.stdout
    assert sorted(folder.iterdir()) == before
