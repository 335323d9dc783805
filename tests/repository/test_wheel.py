"""The wheel has the package, its types, its licence and its command, and nothing else."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_it_has_every_module_and_the_mark_of_types_and_no_other_file(wheel: zipfile.ZipFile) -> None:
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == sources | {"phalanx/py.typed", "phalanx_compat.pth"}


def test_it_has_the_licence_and_the_command_and_needs_no_other_package(wheel: zipfile.ZipFile) -> None:
    by_name = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    assert wheel.read(by_name["licenses/LICENSE"]) == (ROOT / "LICENSE").read_bytes()

    commands = configparser.ConfigParser()
    commands.read_string(wheel.read(by_name["entry_points.txt"]).decode())
    assert dict(commands["console_scripts"]) == {"phalanx": "phalanx.cli:command"}

    metadata = wheel.read(by_name["METADATA"]).decode()
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert needed
    assert all("extra ==" in line for line in needed)
