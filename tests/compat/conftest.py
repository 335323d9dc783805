"""Programs of a few lines, each in an interpreter of its own: what an import does depends on those before it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Python = Callable[..., str]


def run_python(
    program: str, *words: str, folder: Path, compat: bool = False, python: str = sys.executable
) -> str:
    """Run a program from a file in ``folder`` with ``words`` as its arguments; returns what it printed."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    environment = {name: value for name, value in os.environ.items() if name != "PHALANX_COMPAT"}
    if compat:
        environment["PHALANX_COMPAT"] = "1"
    done = subprocess.run(
        [python, script, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run a program from a file; returns what it printed."""

    def run(program: str, *words: str, compat: bool = False) -> str:
        return run_python(program, *words, folder=tmp_path, compat=compat)

    return run
