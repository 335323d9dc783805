from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from phalanx.cli import main
from phalanx.cli.options import OPTIONS

MODULE = [sys.executable, "-m", "phalanx"]
COMMANDS = {
    "the console script": [str(Path(sys.executable).with_name("phalanx")), "run"],
    "python -m phalanx": [*MODULE, "run"],
    "python -m phalanx.run": [sys.executable, "-m", "phalanx.run"],
}
EVERYTHING = [
    "--r=16",
    "--log",
    "x",
    "--no",
    "y",
    "--local",
    "3",
    "--nnodes=9",
    "-h",
    "--version",
    "--",
    "-t",
]


@pytest.mark.parametrize("words", [["--version"], ["run", "--version"]])
def test_the_version_is_that_of_the_installed_package(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == f"phalanx {version('phalanx-launcher')}\n"


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "phalanx run --help" in capsys.readouterr().out


def test_help_of_run_lists_each_option_that_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--nnodes", "1", "--help", "no-such-script.py"]) == 0
    page = capsys.readouterr().out
    for option in OPTIONS:
        assert (option.flag in page) == (option.later is None), option.flag
    assert "-h, --help" in page
    assert max(map(len, page.splitlines())) <= 80
    assert "exit codes" in page


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no command was given; write phalanx run SCRIPT, or phalanx --help"),
        (["rnu", "train.py"], "'rnu' is no command; did you mean run?"),
        (["train.py"], "'train.py' is no command; did you mean phalanx run train.py?"),
        (["run"], "no program was named; write phalanx run [flags] SCRIPT [the script's own arguments]"),
        (["run", "--standalone=1", "train.py"], "--standalone takes no value; leave out '=1'"),
    ],
)
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"phalanx: error: {sentence}\n")


@pytest.mark.system
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_way_to_start_hands_the_scripts_arguments_on(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = subprocess.run(
        [*command, "--nnodes=1", "show.py", *EVERYTHING], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"{EVERYTHING}\n"), done.stderr


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("SIGINT", 130, "phalanx: stopped by SIGINT before anything was started\n"),
        ("SIGUSR1", 2, "phalanx: error: there is no script 'train.py'"),
    ],
)
def test_a_signal_before_anything_is_started_is_no_traceback_and_a_warning_ends_nothing(
    tmp_path: Path, name: str, code: int, said: str
) -> None:
    # A signal in the middle of our own imports, which is most of the time before the launcher takes over the signals.
    (tmp_path / "sitecustomize.py").write_text(
        "import builtins, os, signal\n"
        "real = builtins.__import__\n"
        "def importing(name, *rest, **named):\n"
        "    if name == 'phalanx.cli.words':\n"
        "        builtins.__import__ = real\n"
        "        os.kill(os.getpid(), signal.NAME)\n"
        "    return real(name, *rest, **named)\n"
        "builtins.__import__ = importing\n".replace("NAME", name)
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*MODULE, "run", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
    )
    assert done.returncode == code
    assert done.stderr.decode().startswith(said)
