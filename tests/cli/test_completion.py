"""Completion in real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from phalanx.cli import main
from phalanx.cli.completion import SHELLS, completion
from phalanx.cli.options import OPTIONS

ASK = (
    'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _phalanx;'
    ' printf "%s\\n" "${COMPREPLY[@]}"; }; ask "$@"'
)


def offered(*words: str, cwd: Path) -> set[str]:
    """What bash offers for the last of these words."""
    (cwd / ".completion").write_text(completion("bash"))
    done = subprocess.run(
        ["bash", "--norc", "-c", f". ./.completion; {ASK}", "bash", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(filter(None, done.stdout.splitlines()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").touch()
    (tmp_path / "my job.yaml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (
            ["phalanx", ""],
            ["run", "chaos", "checkpoints", "completion", "config-schema", "--help", "--version"],
        ),
        (["phalanx", "completion", ""], ["bash", "zsh", "fish"]),
        (["phalanx", "chaos", ""], ["kill", "stop", "freeze", "cut", "slow", "--help"]),
        (["phalanx", "chaos", "kill", "--ag"], ["--agent"]),
        (["phalanx", "chaos", "slow", "--t"], ["--to", "--times"]),
        (["phalanx", "chaos", "stop", ""], []),
        (["phalanx", "chaos", "kill", "--events-file", "t"], ["train.py"]),
        (["phalanx", "chaos", "kill", "--rank", "1", "--", "t"], ["train.py"]),
        (["phalanx", "chaos", "kill", "--", "phalanx", "run", "--ag"], []),
        (["phalanx", "checkpoints", "--v"], ["--verify"]),
        (["phalanx", "checkpoints", "t"], ["train.py"]),
        (["phalanx", "run", "--nn"], ["--nnodes"]),
        (["phalanx", "run", "--max-r"], ["--max-restarts"]),
        (["phalanx", "run", "t"], ["train.py"]),
        (["phalanx", "run", "--tee", "3", "--nn"], ["--nnodes"]),
        (["phalanx", "run", "--tee", "=", "3", "--nn"], ["--nnodes"]),
        (["phalanx", "run", "--start-method", ""], ["spawn", "fork", "forkserver"]),
        (["phalanx", "run", "--start_method", "fo"], ["fork", "forkserver"]),
        (["phalanx", "run", "--start-method", "=", "s"], ["spawn"]),
        (["phalanx", "run", "--start-method", "="], ["spawn", "fork", "forkserver"]),
        (["phalanx", "run", "--nproc-per-node", "g"], ["gpu"]),
        (["phalanx", "run", "--rdzv-backend", "c"], ["c10d"]),
        (["phalanx", "run", "--config", "my"], ["my job.yaml"]),
        (["phalanx", "run", "--nproc_"], ["--nproc_per_node"]),
        (["phalanx", "run", "--event_log_handler", "c"], ["console"]),
        (["phalanx", "run", "--event-log-handler", ""], ["console", "dynamic_rendezvous", "null"]),
        (["phalanx", "run", "--role", "t"], []),
        (["phalanx", "run", "-m", "--nn"], ["--nnodes"]),
        (["phalanx", "run", "train.py", "--nn"], []),
        (["phalanx", "run", "train.py", "--tee", "t"], ["train.py"]),
        (["phalanx", "run", "-m", "train", "my"], ["my job.yaml"]),
    ],
    ids=" ".join,
)
def test_bash_offers_what_fits_and_after_the_script_file_names_alone(
    words: list[str], found: list[str], folder: Path
) -> None:
    assert offered(*words, cwd=folder) == set(found)


def test_every_flag_is_offered(folder: Path) -> None:
    flags = {one.flag for one in OPTIONS if one.later is None}
    assert flags | {"--help", "--version"} <= offered("phalanx", "run", "--", cwd=folder)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_here_takes_its_script(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_offers_what_fits(folder: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("there is no fish here")
    (folder / "phalanx.fish").write_text(completion("fish"))

    def ask(line: str) -> set[str]:
        code = f"source phalanx.fish; complete -C {line!r}"
        done = subprocess.run(
            ["fish", "--no-config", "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return {found.split("\t")[0] for found in done.stdout.splitlines()}

    assert ask("phalanx run --nn") == {"--nnodes"}
    assert ask("phalanx run --nproc_") == {"--nproc_per_node"}
    assert ask("phalanx run --start-method fo") == {"fork", "forkserver"}
    assert "bash" in ask("phalanx completion ")
    assert "run" in ask("phalanx ")
    assert "--nnodes" not in ask("phalanx run train.py --nn")
    assert {"kill", "stop"} <= ask("phalanx chaos ")
    assert ask("phalanx chaos kill --ag") == {"--agent"}
    assert ask("phalanx chaos stop --ag") == set()
    assert "kill" not in ask("phalanx chaos kill --rank 1 ")
    assert "train.py" in ask("phalanx chaos kill -- tr")


def test_another_shell_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bahs"]) == 2
    assert main(["completion"]) == 2
    assert main(["config-schema", "x"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert (
        said[0] == "phalanx: error: completion takes the name of a shell: bash, zsh, fish; did you mean bash?"
    )
    assert said[2] == "phalanx: error: config-schema takes no words; leave out 'x'"
