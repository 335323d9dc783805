"""docs/chaos.md as it is written: the script is saved, the commands are typed, and what the page shows is printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/chaos.md"
LIMIT_S = 150


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def bare(text: str) -> str:
    """Without what differs from run to run: numbers that have a unit or a name before them, hosts, ids."""
    # Two workers that print at the same moment: the end of a line is a write of its own.
    text = re.sub(r"(?<!\]:)(rank \d begins)", r"\n\1", text)
    text = re.sub(r"\d+\.\d s:", "# s:", text)
    text = re.sub(r"pid \d+", "pid #", text)
    text = re.sub(r"host [\w.-]+", "host #", text)
    text = re.sub(r"begins at step [1-9]\d*", "begins at step #", text)
    return re.sub(r"job [0-9a-f]{12}:", "job #:", text)


@pytest.mark.system
@pytest.mark.slow
def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    (script,) = blocks("python")
    (tmp_path / "train.py").write_text(script)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = {**os.environ, "PATH": path, "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    typed = 0

    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            done = subprocess.run(
                command,
                shell=True,
                executable="/bin/bash",
                cwd=tmp_path,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}"
            printed = bare(done.stdout).splitlines()
            for line in bare(shown).splitlines():
                assert line in printed, f"{command}\nthe page has {line!r}, and printed was\n{done.stdout}"
            typed += 1

    assert typed >= 10
