"""A real launcher in a process of its own, started on a worker's text."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

LIMIT_S = 60


def start(tmp_path: Path, script: str, *flags: str, before: str = "") -> subprocess.Popen[str]:
    """Run ``phalanx run`` on a script in a process of its own; ``before`` is code that runs first in the launcher."""
    worker = tmp_path / "worker.py"
    worker.write_text(textwrap.dedent(script))
    launcher = (
        textwrap.dedent(before) + "\nimport sys\nfrom phalanx.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", launcher, "run", *flags, str(worker)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)


def last_line(process: subprocess.Popen[str]) -> str:
    _, err = process.communicate(timeout=LIMIT_S)
    return err.splitlines()[-1]
