"""A user's mistake is one sentence on stderr and exit code 2, before any worker starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

Arguments = Callable[[Path], list[str]]


def in_front(*flags: str) -> Arguments:
    """These flags and then a good script."""
    return lambda train: ["--standalone", *flags, str(train)]


# Arguments, and a word of the user's own that the sentence must contain.
MISTAKES: dict[str, tuple[Arguments, str]] = {
    "missing script": (lambda train: ["--standalone", "no_such_file.py"], "no_such_file.py"),
    "no script": (lambda train: ["--standalone"], "script"),
    "unknown flag": (in_front("--max-restart-count", "3"), "--max-restart-count"),
    "misspelt flag": (in_front("--nproc-per-nod3", "3"), "--nproc-per-node"),
    "ambiguous flag": (in_front("--duplicate", "x"), "--duplicate"),
    "flag without its value": (lambda train: ["--nproc-per-node"], "--nproc-per-node"),
    "no number": (in_front("--nproc-per-node", "many"), "many"),
    "no workers": (in_front("--nproc-per-node", "0"), "--nproc-per-node"),
    "fewer than no workers": (in_front("--nproc-per-node", "-3"), "--nproc-per-node"),
    "negative restarts": (in_front("--max-restarts", "-1"), "--max-restarts"),
    "negative grace": (in_front("--shutdown-timeout", "-1"), "--shutdown-timeout"),
    "nodes the wrong way round": (in_front("--nnodes", "3:2"), "3:2"),
    "no node count": (in_front("--nnodes", "a:b"), "a:b"),
    "unknown stream number": (in_front("-r", "7"), "7"),
    "redirect of no rank": (in_front("-t", "x:1"), "x:1"),
    "unknown start method": (in_front("--start-method", "teleport"), "teleport"),
    "unknown backend": (in_front("--rdzv-backend", "pigeon"), "pigeon"),
    "half a setting": (in_front("--rdzv-conf", "timeout"), "timeout"),
    "module and program": (in_front("-m", "--no-python"), "--no-python"),
    "log folder under a file": (in_front("-r", "3", "--log-dir", "/dev/zero/logs"), "/dev/zero/logs"),
}


@pytest.mark.parametrize(("arguments", "word"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_2(
    launch: Launch, script: Script, arguments: Arguments, word: str
) -> None:
    train = script("from telling import tell; tell('started')")

    job = launch(*arguments(train))

    assert job.wait() == 2
    message = job.stderr.decode()
    assert message.startswith("phalanx: error: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1, "one sentence"
    assert word in message
    assert "Traceback" not in message
    assert job.stdout == b""
    assert job.events == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PET_NPROC_PER_NODE", "many"),
        ("PET_MAX_RESTARTS", "often"),
        ("PET_NNODES", "a few"),
        ("PET_REDIRECTS", "7"),
        ("PET_STANDALONE", "perhaps"),
        ("PET_START_METHOD", "teleport"),
    ],
)
def test_a_bad_variable_is_named(launch: Launch, script: Script, variable: str, value: str) -> None:
    job = launch(script("pass"), env={variable: value})

    assert job.wait() == 2
    assert job.stderr.startswith(b"phalanx: error: ")
    assert job.stderr.count(b"\n") == 1
    assert variable.encode() in job.stderr
    assert value.encode() in job.stderr


@pytest.mark.parametrize("value", ["1", "0"])
def test_a_boolean_variable_is_understood(launch: Launch, script: Script, value: str) -> None:
    job = launch(script("pass"), env={"PET_STANDALONE": value})

    assert job.wait() == 0, job.stderr


HOPELESS_PROGRAMS: dict[str, tuple[Callable[[Path], str], str]] = {
    "not there": (lambda folder: "no_such_program", "not found"),
    "not executable": (lambda folder: _program(folder, "#!/bin/sh\n", mode=0o644), "not executable"),
    "bad interpreter": (
        lambda folder: _program(folder, "#!/no/such/interpreter\n", mode=0o755),
        "interpreter",
    ),
}


def _program(folder: Path, text: str, *, mode: int) -> str:
    path = folder / "train.sh"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(("program", "reason"), HOPELESS_PROGRAMS.values(), ids=HOPELESS_PROGRAMS)
def test_a_program_that_cannot_be_started_is_named_with_the_reason(
    launch: Launch, tmp_path: Path, program: Callable[[Path], str], reason: str
) -> None:
    named = program(tmp_path)

    job = launch("--standalone", "--nproc-per-node", 2, "--no-python", named)

    assert job.wait() not in (0, 1, 70)
    assert named.encode() in job.stderr
    assert reason.encode() in job.stderr
    assert b"Traceback" not in job.stderr


def test_help_is_on_stdout_and_a_success(launch: Launch) -> None:
    job = launch("--help")

    assert job.wait() == 0
    assert b"--nproc-per-node" in job.stdout
    assert job.stderr == b""
