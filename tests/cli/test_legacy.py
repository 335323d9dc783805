"""The deprecated launcher: its words, and the names of ``torch.distributed.launch``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli import legacy
from phalanx.cli.mistakes import UsageError
from phalanx.cli.torchrun import options_from_args

RANK = "=${local_rank}"


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        (["train.py", "a"], [f"--local-rank{RANK}", "a"]),
        (["--use-env", "train.py", "a"], ["a"]),
        (["--use_env", "train.py", "a"], ["a"]),
        (["--use", "train.py"], []),
        (["--local-rank-spelling=underscore", "train.py", "a"], [f"--local_rank{RANK}", "a"]),
        (["--local-rank-spelling", "dash", "train.py"], [f"--local-rank{RANK}"]),
        (["--nnodes=1", "train.py", "--use-env"], [f"--local-rank{RANK}", "--use-env"]),
    ],
    ids=str,
)
def test_the_words_say_how_a_script_is_told_its_local_rank(
    words: list[str], arguments: list[str], script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = legacy.command_line(words)
    assert (line.script, list(line.arguments)) == ("train.py", arguments)
    assert not line.given.keys() & {"use_env", "local_rank_spelling"}
    assert capsys.readouterr().err.count("phalanx: warning: torch.distributed.launch is deprecated") == 1
    # The Python names make the same of it.
    words = [script if word == "train.py" else word for word in words]
    assert list(options_from_args(legacy.parse_args(words)).args) == arguments


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-python", "true"], "--no-python needs --use-env"),
        (
            ["--local-rank-spelling", "camel", "x"],
            "--local-rank-spelling: 'camel' is not one of dash, underscore",
        ),
        (["--use-evn", "x"], "unknown flag --use-evn; did you mean --use-env?"),
        (["--config", "job.yaml"], "no script was named after the flags; name it, or say --use-env"),
        (["--nnodes=1"], "no script was named; name it after the flags"),
        (["--use-env=1", "x"], "--use-env takes no value"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match="^" + said.replace("?", r"\?")):
        legacy.command_line(words)


def test_the_launcher_without_the_words_of_the_deprecated_one_does_not_know_them() -> None:
    from phalanx.cli.words import read_words

    with pytest.raises(UsageError, match="unknown flag --use-env"):
        read_words(["--use-env", "train.py"])


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.launch.parse_args", "better", "either spelling of --local-rank")
@pytest.mark.parametrize(
    "words",
    [["train.py", "a"], ["--use-env", "--nnodes=2", "train.py"], ["--use_env", "-m", "train"]],
    ids=str,
)
def test_the_namespace_is_torchs(words: list[str]) -> None:
    from torch.distributed import launch

    theirs, ours = vars(launch.parse_args(words)), vars(legacy.parse_args(words))
    assert {name: ours[name] for name in theirs} == theirs


@pytest.mark.compat("name torch.distributed.launch.launch", "same")
@pytest.mark.compat("name torch.distributed.launch.main", "same")
def test_the_names_run_jobs_and_main_warns(tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    code = (
        "import warnings; from phalanx.cli.legacy import launch, main, parse_args\n"
        "launch(parse_args(['show.py', 'a']))\n"
        "with warnings.catch_warnings(record=True) as warned:\n"
        "    warnings.simplefilter('always'); main(['--use-env', 'show.py', 'b'])\n"
        "print([one.category.__name__ for one in warned], flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['--local-rank=0', 'a']\n['b']\n['FutureWarning']\n", done.stderr


def test_no_python_without_use_env_is_refused_by_the_function_too() -> None:
    with pytest.raises(ValueError, match="--no-python needs --use-env"):
        legacy.launch(legacy.parse_args(["--no-python", "true"]))


@pytest.mark.system
@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["show.py", "--nnodes=9"], 0, "['--local-rank=0', '--nnodes=9']\n", "is deprecated"),
        (["--no-python", "true"], 2, "", "phalanx: error: --no-python needs --use-env"),
        (["fail.py"], 7, "", "is deprecated"),
    ],
    ids=str,
)
def test_as_a_command_it_is_the_launcher_itself(
    words: list[str], code: int, out: str, err: str, tmp_path: Path
) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1:])\n")
    (tmp_path / "fail.py").write_text("import sys\nsys.exit(7)\n")
    command = [sys.executable, "-m", "phalanx.launch", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert err in done.stderr


@pytest.mark.system
def test_its_help_has_its_own_flags_and_those_of_the_launcher(tmp_path: Path) -> None:
    done: Any = subprocess.run([sys.executable, "-m", "phalanx.launch", "-h"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for flag in "--use-env", "--local-rank-spelling", "--nproc-per-node":
        assert flag in done.stdout
