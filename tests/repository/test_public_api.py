"""``make api``: a break of the public API is told with what it is; a move, and what is added, is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGE = {
    "__init__.py": """
TYPE_CHECKING = False
if TYPE_CHECKING:
    from phalanx.launcher.start import Job, start
__all__ = ["Job", "start"]
""",
    "launcher/__init__.py": "",
    "launcher/start.py": """
class Job:
    def wait(self, timeout_s: float | None = None) -> int: ...
def start(command: str, *, nproc: int = 1) -> Job: ...
def internal() -> None: ...
""",
}
START = PACKAGE["launcher/start.py"]


class Repository:
    """A small repository with a package by our name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch", "main")
        self.write(PACKAGE)

    def git(self, *words: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(
            ["git", *identity, *words], cwd=self.folder, check=True, capture_output=True, timeout=60
        )

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / "src/phalanx" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "--message", "a change")

    def check(self) -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = subprocess.run(
            [sys.executable, ROOT / ".ci/api", self.folder],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout


@pytest.fixture
def released(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path)
    repository.git("tag", "v1.0")
    return repository


def test_without_a_tag_it_says_so_and_passes(tmp_path: Path) -> None:
    assert Repository(tmp_path).check() == (0, "no release tag yet: there is no public API to compare with\n")


def test_what_is_added_or_internal_or_moved_breaks_nothing(released: Repository) -> None:
    assert released.check() == (0, "the public API offers all that v1.0 does (2 names)\n")
    added = START.replace("nproc: int = 1", "nproc: int = 1, nnodes: int = 1").replace(
        "def internal() -> None: ...", ""
    )
    released.write(
        {
            "__init__.py": PACKAGE["__init__.py"].replace("launcher.start", "launcher.moved"),
            "launcher/start.py": "",
            "launcher/moved.py": added,
        }
    )
    assert released.check()[0] == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("__init__.py", '__all__ = ["Job", "start"]', '__all__ = ["Job"]', "start"),
        ("launcher/start.py", "nproc: int = 1", "workers: int = 1", "nproc"),
        ("launcher/start.py", "nproc: int = 1", "nproc: int", "nproc"),
        ("launcher/start.py", "nproc: int = 1", "nproc: int = 2", "nproc"),
        ("launcher/start.py", "command: str,", "command: str, host: str,", "host"),
        ("launcher/start.py", "def wait", "def wait_for_all", "wait"),
    ],
)
def test_a_break_is_told_with_the_tag_and_what_it_is(
    released: Repository, file: str, old: str, new: str, told: str
) -> None:
    changed = PACKAGE[file].replace(old, new)
    assert changed != PACKAGE[file]
    released.write({file: changed})
    code, said = released.check()
    assert code == 1
    first, *breaks = said.splitlines()
    assert first == "the public API breaks what v1.0 offers:"
    assert len(breaks) == 1, said
    assert told in breaks[0]


def test_the_last_tag_counts_not_the_first(released: Repository) -> None:
    released.write({"launcher/start.py": START.replace("nproc: int = 1", "workers: int = 1")})
    released.git("tag", "v2.0")
    assert released.check()[0] == 0


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_this_tree_breaks_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/api", ROOT], cwd=ROOT, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout + done.stderr
