"""What workers find around them: what the command line makes of devices, interpreter, threads and terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.mistakes import UsageError
from phalanx.launcher.hardware.cpus import cpu_slots

Values = Callable[..., dict[str, Any]]


def test_devices_are_counted_by_gpu_and_by_auto(values: Values) -> None:
    for word in ("gpu", "auto", "xpu"):
        assert values("--devices", "0,2,5", "--nproc-per-node", word)["nproc"] == 3
    assert values("--devices", "0,2,5", "--nproc-per-node", "4")["nproc"] == 4


@pytest.mark.compat("variable PET_VIRTUAL_LOCAL_RANK", "same")
def test_a_virtual_rank_for_each_device_that_the_job_was_given(values: Values) -> None:
    environ = {"PET_VIRTUAL_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "3,5,7"}
    found = values("--devices", "7,3", "--nproc-per-node", "gpu", environ=environ)
    assert (found["nproc"], found["virtual_local_rank"]) == (2, True)
    with pytest.raises(UsageError, match="PET_VIRTUAL_LOCAL_RANK: each worker gets a device of its own"):
        values("--devices", "7", "--nproc-per-node", "2", environ=environ)


@pytest.mark.compat(
    "variable PYTHON_EXEC", "better", "it is looked at before anything starts, and `--python` is its flag"
)
def test_torchruns_variable_names_the_interpreter_and_the_flag_is_stronger(values: Values) -> None:
    environ = {"PYTHON_EXEC": sys.executable}
    assert values(environ=environ)["python"] == sys.executable
    assert values("--python", "/bin/sh", environ=environ)["python"] == "/bin/sh"


def test_torchruns_variable_says_nothing_of_a_command(values: Values) -> None:
    assert values("--no-python", environ={"PYTHON_EXEC": "/nowhere"})["python"] is None


def test_with_run_path_a_script_has_an_interpreter_whatever_no_python_says(values: Values) -> None:
    assert values("--no-python", "--run-path", "--python", "/bin/sh")["python"] == "/bin/sh"


def another_environment(folder: Path) -> dict[str, str]:
    (folder / "env/bin").mkdir(parents=True)
    (folder / "env/bin/python").symlink_to(sys.executable)
    return {"VIRTUAL_ENV": str(folder / "env"), "PATH": os.environ["PATH"]}


def test_a_mix_up_of_environments_is_one_warning(
    values: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = another_environment(tmp_path)
    values(environ=environ)
    assert capsys.readouterr().err.startswith(
        f"phalanx: warning: the active environment is {tmp_path}/env (VIRTUAL_ENV), and workers will run "
        f"{sys.executable}"
    )


def test_an_interpreter_that_was_chosen_is_no_mix_up(
    values: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = another_environment(tmp_path)
    values("--python", "/bin/sh", environ=environ)
    values("--no-python", environ=environ)
    assert capsys.readouterr().err == ""


def test_threads_are_a_number_or_the_launchers_to_find(values: Values) -> None:
    assert values("--omp-threads", "4")["omp_threads"] == 4
    assert values("--omp-threads", "AUTO")["omp_threads"] == 0
    assert values()["omp_threads"] is None


def test_a_debug_rank_of_another_node_is_known_when_they_have_met(values: Values) -> None:
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:29555", "--nnodes", "2")
    assert values("--debug-rank", "9", *meeting)["debug_rank"] == 9
    with pytest.raises(UsageError, match="--debug-rank: there is no rank 9; this job has rank 0 alone"):
        values("--debug-rank", "9")


@pytest.mark.compat("variable PET_NPROC_PER_NODE", "same")
def test_workers_are_counted_by_the_word_in_a_variable(values: Values) -> None:
    assert values(environ={"PET_NPROC_PER_NODE": "cpu"})["nproc"] == cpu_slots()
