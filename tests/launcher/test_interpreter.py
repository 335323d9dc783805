"""Which Python runs the workers, and what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from phalanx.launcher.interpreter import interpreter, mix_up, why_not


@pytest.fixture
def environments(tmp_path: Path) -> tuple[Path, Path]:
    """Two environments, each with an interpreter that is a link to this one, as a virtual environment's is."""
    for name in ("mine", "yours"):
        (tmp_path / name / "bin").mkdir(parents=True)
        for python in ("python", "python3"):
            (tmp_path / name / "bin" / python).symlink_to(sys.executable)
    return tmp_path / "mine", tmp_path / "yours"


def test_the_interpreter_is_the_one_that_was_given_then_torchruns_variable_then_this_one() -> None:
    assert interpreter("a", {"PYTHON_EXEC": "b"}) == "a"
    assert interpreter(None, {"PYTHON_EXEC": "b"}) == "b"
    assert interpreter(None, {"PYTHON_EXEC": ""}) == sys.executable


def test_an_interpreter_is_a_file_that_can_be_run(tmp_path: Path, environments: tuple[Path, Path]) -> None:
    (tmp_path / "text").write_text("no program")
    path = {"PATH": str(environments[0] / "bin")}
    assert why_not(sys.executable, {}) is None
    assert why_not("python3", path) is None
    for wrong, reason in (
        ("/nowhere/python", "there is no '/nowhere/python'; give"),
        ("python9", "there is no 'python9' on PATH; give"),
        (str(tmp_path / "text"), "text' is not executable; give"),
        (str(tmp_path), "is a folder; give"),
    ):
        assert reason in (why_not(wrong, path) or "")


def test_the_active_environments_own_interpreter_is_no_mix_up(environments: tuple[Path, Path]) -> None:
    mine, _ = environments
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        assert mix_up(str(mine / "bin/python3"), {variable: str(mine)}) is None


def test_an_environment_that_is_reached_by_a_link_is_the_same(
    tmp_path: Path, environments: tuple[Path, Path]
) -> None:
    (tmp_path / "link").symlink_to(environments[0])
    assert mix_up(str(environments[0] / "bin/python"), {"VIRTUAL_ENV": str(tmp_path / "link")}) is None


def test_another_interpreter_than_the_active_environments_is_a_mix_up_although_both_are_one_file(
    environments: tuple[Path, Path],
) -> None:
    mine, yours = environments
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        warning = mix_up(str(mine / "bin/python"), {variable: str(yours)}) or ""
        assert f"the active environment is {yours} ({variable})" in warning
        assert f"--python {yours}/bin/python" in warning


def test_no_environment_an_old_one_and_condas_base_mean_nothing(environments: tuple[Path, Path]) -> None:
    python = str(environments[0] / "bin/python")
    yours = str(environments[1])
    assert mix_up(python, {}) is None
    assert mix_up(python, {"VIRTUAL_ENV": "/removed"}) is None
    assert mix_up(python, {"CONDA_PREFIX": yours, "CONDA_DEFAULT_ENV": "base"}) is None
    assert mix_up(python, {"VIRTUAL_ENV": str(environments[0]), "CONDA_PREFIX": yours}) is None
