"""The commands of examples/README.md, tried as they are written."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, two_free_ports

ROOT = Path(__file__).parents[2]
TRAINING = (ROOT / "docs/training.md").read_text()
COMMANDS = re.findall(r"\| `([^`]+)` \|$", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
# What each prints last, or near its end.
SAYS = {
    "ddp": "trained to step",
    "cluster.yaml": "trained to step",
    "numpy": "trained to step 200",
    "local.yaml": "trained to step 200",
    "examples/train.py": "fitted y = ",
    "launch.py": "rank 1 fitted y = 3.00x + 1.00",
    "shell.sh": "rank 2 of 3: ",
    "two_nodes.py": "n1 ended with 0, n2 with 0",
    "demo.py": "the same, to the last bit",
}
NEED_TORCH = ("ddp", "cluster.yaml")


def _marked(command: str) -> object:
    if any(one in command for one in NEED_TORCH):
        lacks = importlib.util.find_spec("torch") is None
        marks = [pytest.mark.torch, pytest.mark.slow, pytest.mark.skipif(lacks, reason="needs torch")]
        return pytest.param(command, marks=[*marks, pytest.mark.timeout(600)])
    return command


def test_each_example_has_a_command() -> None:
    assert len(COMMANDS) >= 11
    listed = (ROOT / "examples/README.md").read_text()
    beside = {"demo_picture.py", "demo_story.py", "README.md"}  # parts of another, and this page
    for path in (ROOT / "examples").iterdir():
        if path.name not in beside and not path.name.startswith("__"):
            assert f"]({path.name}" in listed or f"examples/{path.name}" in listed, path.name


@pytest.mark.parametrize(
    "command",
    [
        _marked(command)
        for command in COMMANDS
        if not command.startswith("torchrun ")  # test_ddp.py has it
    ],
)
def test_a_command_does_what_it_is_there_for(command: str, tmp_path: Path) -> None:
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Somebody else on this machine may have that port; the rest stays as it is written.
    command = command.replace("127.0.0.1:29400", f"127.0.0.1:{two_free_ports()}")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S * 3,
    )
    assert done.returncode == 0, done.stdout
    (says,) = {text for name, text in SAYS.items() if name in command}
    assert says in done.stdout
    if command.startswith("python examples/ddp"):
        learnt = re.search(r"trained to step 240: ([\d.]+)% of new images", done.stdout)
        assert learnt, done.stdout
        assert float(learnt[1]) > 90  # of six kinds: 17 if it guessed
    if "ddp" in command and "--lose-rank" in command:
        written = losses(TRAINING)
        assert {20, 40, 120, 140} <= written.keys()
        # Processors round in their own ways, and a training makes more of that; what is stale is further off.
        assert written == pytest.approx({step: losses(done.stdout)[step] for step in written}, abs=0.03)


def losses(text: str) -> dict[int, float]:
    found = re.findall(r"^step (\d+): loss ([\d.]+)$", text, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}
