"""What the README shows is what one sees: its commands and programs, tried as written."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import venv
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


README = (ROOT / "README.md").read_text()
EXPORTED = dict(re.findall(r"^\$ export (\w+)=(\S+)$", README, re.MULTILINE))
BIN = Path(sys.executable).parent


def section(name: str = "Many machines") -> str:
    return README.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def transcript(number: int) -> tuple[list[str], list[str]]:
    """The command of the README's first or second example, and the lines that it is said to print."""
    block = re.findall(r"^```console\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)[number]
    command, *lines = [line for line in block.splitlines() if not line.startswith("$ export ")]
    return shlex.split(command.removeprefix("$ ")), lines


# The ranks of the example do not wait for one another in each step, as those of most trainings do: on a busy machine
# some are at the end before another comes to the step at which it is lost. The interpreter imports this at its start.
IN_STEP = """
import os, sys, time

if "RANK" in os.environ:
    asleep, others = time.sleep, range(int(os.environ["WORLD_SIZE"]))
    place = "steps-{TORCHELASTIC_RUN_ID}-{TORCHELASTIC_RESTART_COUNT}-".format(**os.environ)

    def steps_of(rank):
        try:
            return os.path.getsize(f"{place}{rank}")
        except FileNotFoundError:
            return 0

    def sleep(seconds):
        asleep(seconds)
        if sys._getframe(1).f_globals["__name__"] == "__main__":  # which sleeps once in each step
            with open(place + os.environ["RANK"], "a") as mine:
                mine.write(".")
            while min(map(steps_of, others)) < steps_of(os.environ["RANK"]):
                asleep(0.005)

    time.sleep = sleep
"""


def run(words: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        cwd=folder,
        env={**os.environ, **EXPORTED, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
    )


def test_the_first_command_shows_what_is_written_there_and_does_so_again(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "sitecustomize.py").write_text(IN_STEP)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    words, lines = transcript(0)
    for _ in range(2):
        done = run(words, tmp_path, PYTHONPATH=path)
        assert done.returncode == 0, done.stdout
        assert_shown(lines, done.stdout.splitlines())  # the order of two streams is the scheduler's business
        assert set(map(_kind, done.stdout.splitlines())) == set(map(_kind, lines))


def _kind(line: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "n", line)


FAILING = """
import os, time
def fit(batch):
    # a batch that nobody
    # can fit



    raise ValueError(f"bad batch {batch}")
batch = 17
if os.environ["RANK"] == "0":
    time.sleep(60)

fit(batch)
"""


def test_the_failing_command_shows_what_is_written_there(tmp_path: Path) -> None:
    words, lines = transcript(1)
    (tmp_path / "train.py").write_text(FAILING.removeprefix("\n").replace("import os", "\nimport os"))
    done = run(words, tmp_path)
    assert f"{done.returncode}" == lines[-1]
    shown = [_without_places(line, tmp_path) for line in done.stdout.splitlines()]
    assert_shown([_without_places(line, Path("/home/me")) for line in lines[:-2] if line != "[…]"], shown)
    assert shown[0] == lines[0]


def _without_places(line: str, folder: Path) -> str:
    line = re.sub(r"/\S*torchelastic_\S+?(?=/attempt|$)", "/logs", line.replace(f"{folder}/", ""))
    return re.sub(r"pid: \d+", "pid: n", line).rstrip()


def assert_shown(promised: list[str], shown: list[str]) -> None:
    missing = [line for line in promised if line not in shown]
    assert not missing, (missing, shown)


def test_the_python_program_works_as_written_where_no_extra_is_installed(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", section("From Python"), re.DOTALL | re.MULTILINE)
    (tmp_path / "readme.py").write_text(program)
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (packages / "phalanx.pth").write_text(f"{ROOT / 'src'}\n")
    python = tmp_path / "venv/bin/python"
    lacking = subprocess.run([python, "-c", "import cloudpickle"], capture_output=True, timeout=PATIENCE_S)
    assert lacking.returncode == 1
    done = subprocess.run(
        [python, "readme.py"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == program.rpartition("# ")[2], done.stderr
    assert done.returncode == 0


LINK = re.compile(r"\]\(([\w./-]+\.md)")


def test_the_training_that_is_shown_is_the_one_in_the_examples() -> None:
    (shown,) = re.findall(
        r"^```py\n(.*?)^```$", section("A training that goes on where it was"), re.DOTALL | re.MULTILINE
    )
    lines = [line for line in shown.splitlines() if line.strip() != "..."]
    places = [(ROOT / "examples/ddp/train.py").read_text().splitlines().index(line) for line in lines]
    assert len(lines) > 10
    assert places == sorted(places)


def test_each_page_is_linked_from_the_readme_and_from_another_page() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert pages <= {Path(link).name for link in LINK.findall(README)}
    linked = {
        link
        for path in (ROOT / "docs").glob("*.md")
        for link in LINK.findall(path.read_text())
        if link != path.name
    }
    assert pages <= linked


def test_one_machine_goes_on_where_both_were_when_the_other_is_told_to_stop(
    network: Network, tmp_path: Path
) -> None:
    commands = dict(re.findall(r"^(n\d)\$ (.*)$", section(), re.MULTILINE))
    assert list(commands) == ["n1", "n2"]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with ExitStack() as running:
        launchers = []
        for number, command in enumerate(commands.values(), start=1):
            words = shlex.split(command)
            assert words[0] == "phalanx"
            launcher = subprocess.Popen(
                [*network.host(number).entering(tmp_path), str(BIN / words[0]), *words[1:]],
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
