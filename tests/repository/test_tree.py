"""What the source tree may look like: names, sizes, and where the words of this project come from."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))

# A name says what is in a module. These say "anything".
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "managers", "api"}

# More lines are a sign to look again, not a law. Who looked writes down here why it is right as it is.
FILE_LIMIT = 400
FUNCTION_LIMIT = 60
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}


def _name(path: Path) -> str:
    return path.relative_to(ROOT / "src/phalanx").as_posix()


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{_name(path)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1


def test_no_module_has_a_name_that_says_nothing() -> None:
    parts = {part for path in SOURCES for part in path.relative_to(ROOT / "src").with_suffix("").parts}
    assert not parts & EMPTY_NAMES


def test_a_long_file_is_in_the_list_with_its_reason() -> None:
    long = {_name(path) for path in SOURCES if len(path.read_text().splitlines()) > FILE_LIMIT}
    assert long == set(LONG_FILES)


def test_a_long_function_is_in_the_list_with_its_reason() -> None:
    long = {name for path in SOURCES for name, lines in _functions(path) if lines > FUNCTION_LIMIT}
    assert long == set(LONG_FUNCTIONS)


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_a_module_says_what_it_is_for_in_at_most_twelve_lines(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "a module without a docstring"
    assert len(docstring.splitlines()) <= 12


def test_tests_mirror_the_source_tree() -> None:
    packages = {path.parent.name for path in SOURCES if path.parent.parent == ROOT / "src/phalanx"}
    beside = {"examples", "repository", "side_by_side", "system"}
    folders = {
        path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert folders - beside <= packages


def test_no_file_of_the_repository_is_large_or_made_by_a_tool() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).exists()]
    assert len(files) > 50
    assert not [path for path in files if path.stat().st_size > 200_000]
    assert not [path for path in files if path.suffix in {".pyc", ".so", ".whl", ".log"}]
