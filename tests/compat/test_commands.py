"""torch's command names, as commands, are ``phalanx run``: input, ends, reports and signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.compat.marks import shows
from tests.system.launch import Job, Launcher

pytestmark = [pytest.mark.system, pytest.mark.torch]

MODULE = ("-m", "torch.distributed.run")
TORCHRUN = str(Path(sysconfig.get_path("scripts")) / "torchrun")
COMMANDS = {
    "module": (sys.executable, *MODULE),
    "script": (TORCHRUN,),
    "deprecated": (sys.executable, "-m", "torch.distributed.launch", "--use_env"),
    "compat": (sys.executable, "-m", "phalanx.compat", *MODULE),
}
LIMIT_S = 150
COMPAT = {"PHALANX_COMPAT": "1"}
commands = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    free = {name: text for name, text in os.environ.items() if name not in ("OMP_NUM_THREADS", "OMP_THREADS")}
    return subprocess.run(
        command, cwd=folder, env=free | COMPAT, input="hi\n", capture_output=True, text=True, timeout=LIMIT_S
    )


@commands
def test_rank_0_has_standard_input_and_the_launchers_lines_are_those_of_phalanx_run(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "read.py").write_text(
        "import os, sys\nos.write(1, f'{os.environ[\"RANK\"]} {sys.stdin.read()!r}\\n'.encode())\n"
    )
    done = run(tmp_path, *command, "--nproc_per_node", "2", "read.py")
    plain = run(tmp_path, sys.executable, "-m", "phalanx", "run", "--nproc-per-node", "2", "read.py")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["0 'hi\\n'", "1 ''"]), done.stderr
    lines = done.stderr.splitlines()
    if "--use_env" in command:
        assert lines.pop(0).startswith("phalanx: warning: torch.distributed.launch is deprecated")
    assert lines == plain.stderr.splitlines()
    assert "OMP_NUM_THREADS is 1" in plain.stderr


@shows(
    "better",
    "extension console script torchrun",
    how="Phalanx installs phalanx, and leaves torchrun to torch; under PHALANX_COMPAT=1 torchrun runs Phalanx",
)
@commands
def test_a_workers_exit_code_is_the_commands_and_the_report_stands_once(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "end.py").write_text("import os\nif os.environ['RANK'] == '1': raise SystemExit(7)\n")
    done = run(tmp_path, *command, "--nproc_per_node", "2", "end.py")
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("end.py FAILED") == 1
    assert done.stderr.count("Traceback") == 1, "the one of rank 1, in the report"
    assert done.stderr.splitlines()[-1].startswith("phalanx: end.py failed: rank 1: exit code 7")


def test_a_mistake_and_help_are_those_of_phalanx_run(tmp_path: Path) -> None:
    done = run(tmp_path, *COMMANDS["script"], "--nporc", "2", "x.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("phalanx: error: unknown flag --nporc; did you mean --nproc-per-node?")
    shown = run(tmp_path, *COMMANDS["module"], "--help").stdout
    assert shown == run(tmp_path, sys.executable, "-m", "phalanx", "run", "--help").stdout


@pytest.mark.parametrize("name", ["module", "script"])
def test_a_stop_signal_ends_it_with_128_and_the_signal_and_no_traceback(name: str, tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import time\nfrom telling import tell\ntell('ready')\ntime.sleep(1000)\n")
    with Job(Launcher("torchrun", COMMANDS[name]), (str(script),), folder=tmp_path, env=COMPAT) as job:
        job.told("ready")
        job.send(signal.SIGTERM)
        assert job.wait() == 143
        job.wait_nobody()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
