"""docs/chaos.md as it is written: the script is saved, the commands are typed, and what the page shows is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.system.machines import Network, why_no_hosts

PAGE = Path(__file__).parents[2] / "docs/chaos.md"
LIMIT_S = 150


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def bare(text: str) -> str:
    """Without what differs from run to run: numbers that have a unit or a name before them, hosts, ids."""
    # Who prints at the same moment as a worker: the end of that one's line is a write of its own.
    text = re.sub(r"(?<!\]:)(rank \d begins)", r"\n\1", text)
    text = re.sub(r"(begins at step \d+)(?=chaos: |phalanx: )", r"\1\n", text)
    text = re.sub(r"\d+\.\d s:", "# s:", text)
    text = re.sub(r"pid \d+", "pid #", text)
    text = re.sub(r"host [\w.-]+", "host #", text)
    text = re.sub(r"begins at step [1-9]\d*", "begins at step #", text)
    text = re.sub(r"seed [0-9a-f]{8}$", "seed #", text, flags=re.MULTILINE)
    text = re.sub(r"node \S+ \(group|joined: \S+:", "node #", text)
    # A slow machine: how late a store's answer is, and that a node has come a round later.
    text = re.sub(r"answered for [\d.]+ s|[\d.]+ s of grace|round \d+ has", "# s", text)
    return re.sub(r"job [0-9a-f]{12}:", "job #:", text)


def typed_in(block: str) -> list[tuple[str, str]]:
    """Each command of a block, and what it is said to print."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def has_background(block: str) -> bool:
    return any(command.endswith("&") for command, _ in typed_in(block))


def environment(folder: Path) -> dict[str, str]:
    """That of the commands; the script of the page is in the folder.

    With one line more: a slow machine may bring a rank to step 50 before rank 0 has saved once, and what is killed then
    has nothing to go on from.
    """
    (script,) = blocks("python")
    tells = '    phalanx.progress(state["step"])\n'
    assert script.count(tells) == 1
    waits = "    while rank and not saved.exists(): time.sleep(0.01)\n"
    (folder / "train.py").write_text(script.replace(tells, waits + tells))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}


@pytest.mark.system
@pytest.mark.slow
def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    env = environment(tmp_path)
    typed = 0

    for block in blocks("console"):
        if has_background(block):
            continue
        for command, shown in typed_in(block):
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


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("about", ["chaos kill --job", "chaos cut --job"])
def test_a_job_in_the_background_prints_what_the_page_says(about: str, tmp_path: Path) -> None:
    """Each on a host of its own: a cut needs root, and the port that is written there may be somebody's here."""
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    (block,) = [one for one in blocks("console") if has_background(one) and about in one]
    promised = [line for _, shown in typed_in(block) for line in bare(shown).splitlines()]
    network = Network(tmp_path / "network")
    printed = tmp_path / "printed"
    try:
        with printed.open("wb") as output:
            shell = subprocess.Popen(
                [
                    *network.host(1).entering(tmp_path),
                    *("bash", "-c", "\n".join(command for command, _ in typed_in(block)) + "\nwait"),
                ],
                env=environment(tmp_path),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + LIMIT_S
        try:
            while missing := set(promised) - set(bare(printed.read_text()).splitlines()):
                assert shell.poll() is None, (missing, printed.read_text())
                assert time.monotonic() < deadline, (missing, printed.read_text())
                time.sleep(0.1)  # nobody tells of a file's growth
        finally:
            os.killpg(shell.pid, signal.SIGTERM)  # it would train for a minute
            shell.wait(LIMIT_S)
    finally:
        network.close()
