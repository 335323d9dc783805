"""The section of the README about many machines, tried as written: on hosts that are called as in it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.system.machines import Network, why_no_hosts

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120

pytestmark = pytest.mark.system


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    found = Network(tmp_path / "network")
    yield found
    found.close()


def section() -> str:
    readme = (ROOT / "README.md").read_text()
    return readme.partition("\n## Many machines\n")[2].partition("\n## ")[0]


def test_one_machine_goes_on_where_both_were_when_the_other_is_told_to_stop(
    network: Network, tmp_path: Path
) -> None:
    commands = dict(re.findall(r"^(n\d)\$ (.*)$", section(), re.MULTILINE))
    assert list(commands) == ["n1", "n2"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    bin_folder = Path(sys.executable).parent
    with ExitStack() as running:
        launchers = []
        for number, command in enumerate(commands.values(), start=1):
            words = shlex.split(command)
            assert words[0] == "phalanx"
            launcher = subprocess.Popen(
                [*network.host(number).entering(tmp_path), str(bin_folder / words[0]), *words[1:]],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            running.callback(launcher.communicate)
            running.callback(launcher.kill)
            launchers.append(launcher)
        first, second = launchers
        shown = read_until(first, "step 40: ")
        second.send_signal(signal.SIGTERM)
        shown += first.communicate(timeout=PATIENCE_S)[0].splitlines()
        second.communicate(timeout=PATIENCE_S)
        assert (first.returncode, second.returncode) == (0, 143), shown
    assert_like(shown)


def read_until(launcher: subprocess.Popen[str], beginning: str) -> list[str]:
    assert launcher.stdout is not None
    lines = []
    for line in launcher.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith(beginning):
            break
    return lines


def assert_like(shown: list[str]) -> None:
    """What the README shows is what was shown, but for the step at which the second machine went."""
    promised = re.findall(r"^```\n(.*?)^```$", section(), re.DOTALL | re.MULTILINE)[0].splitlines()
    for line in promised:
        if line.startswith(("phalanx:", "fitted", "starting at step 0 ")):
            assert line in shown, shown
    again = [int(step) for step in re.findall(r"starting at step (\d+) with 2 workers", "\n".join(shown))]
    assert len(again) == 1
    assert again[0] % 10 == 0
    assert 30 <= again[0] < 300
