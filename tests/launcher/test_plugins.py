"""Error handlers by name: the agent reads entry points, workers get ``module:name``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.launcher.plugins import ERROR_HANDLERS, resolve_error_handler


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with an error handler, as pip would have left it."""
    (tmp_path / "their_handler.py").write_text(
        "import json, os\n"
        "from phalanx.errors import ErrorHandler\n"
        "class Handler(ErrorHandler):\n"
        "    def record_exception(self, e):\n"
        "        super().record_exception(e)\n"
        "        with open('seen.json', 'w') as file:\n"
        "            json.dump({'type': type(e).__name__, 'rank': os.environ['RANK']}, file)\n"
    )
    info = tmp_path / "their_handler-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-handler\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ERROR_HANDLERS}]\ntheirs = their_handler:Handler\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_entry_point_becomes_module_and_name(installed: Path) -> None:
    assert resolve_error_handler("theirs") == "their_handler:Handler"


def test_a_module_and_name_is_taken_as_it_is() -> None:
    assert resolve_error_handler("somewhere:Handler") == "somewhere:Handler"


def test_an_unknown_name_is_refused_with_those_that_exist(installed: Path) -> None:
    with pytest.raises(ValueError, match=r"no error handler is called 'thiers'.*: theirs\)"):
        resolve_error_handler("thiers")


@pytest.mark.system
def test_the_handler_of_an_installed_distribution_sees_the_exception_of_a_worker(installed: Path) -> None:
    (installed / "train.py").write_text("raise KeyError('x')\n")
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    ended = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "--error-handler=theirs", "train.py"],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert "KeyError: 'x' at train.py:1" in ended.stderr
    assert json.loads((installed / "seen.json").read_text()) == {"type": "KeyError", "rank": "0"}
