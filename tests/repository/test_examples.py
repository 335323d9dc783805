"""Examples are run as they stand: in docstrings, and on the page about Python. Public names have one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
LIMIT_S = 120.0  # of one page's block: some start workers several times

PUBLIC = (ROOT / "docs/public-modules.txt").read_text().split()  # .ci/api watches them, too
# Who adds a name adds an example; who adds an example to one of these takes it out of the list.
WITHOUT: frozenset[str] = frozenset()

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _with_examples() -> Iterator[str]:
    for path in sorted((SOURCE / "phalanx").rglob("*.py")):
        if ">>> " in path.read_text():
            name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
            yield name.removesuffix(".__init__")


def _public() -> Iterator[tuple[str, object]]:
    for name in PUBLIC:
        module = importlib.import_module(name)
        for public in module.__all__:
            found = getattr(module, public)
            if (inspect.isclass(found) or callable(found)) and _is_ours(found):
                yield f"{name}.{public}", found


def _is_ours(found: object) -> bool:
    return str(getattr(found, "__module__", "")).partition(".")[0] == "phalanx"


@pytest.mark.system  # some of them launch workers
@pytest.mark.parametrize("name", list(_with_examples()))
def test_the_examples_of_a_module_do_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = importlib.import_module(name)
    failed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # as users have it; here they would be errors
        for test in _examples_in(module):
            runner.run(test, out=failed.append)
    assert not runner.failures, "".join(failed)
    assert runner.tries, "there are examples, and none was found"


def _examples_in(module: ModuleType) -> list[doctest.DocTest]:
    # Python's finder leaves out what a decorator wraps; whatever has examples is to be found all the same.
    return [test for test in doctest.DocTestFinder(exclude_empty=True).find(module) if test.examples]


def test_a_public_name_has_an_example() -> None:
    lacking = {name for name, found in _public() if ">>> " not in (inspect.getdoc(found) or "")}
    assert lacking - WITHOUT == set(), "public names without an example in the docstring"
    assert WITHOUT - lacking == set(), "these have an example by now, or are gone: take them out of WITHOUT"


# The page


def _blocks(page: Path) -> list[tuple[str, str, str]]:
    """Each Python block of a page, with the text block right behind it, if there is one."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", page.read_text(), re.MULTILINE | re.DOTALL
    )
    return [(f"{page.stem}-{number}", code, text) for number, (code, text) in enumerate(found, 1)]


PAGES = [*_blocks(ROOT / "docs/python.md"), *_blocks(ROOT / "README.md")]


@pytest.mark.system
@pytest.mark.parametrize(("name", "code", "text"), PAGES, ids=[name for name, _, _ in PAGES])
def test_a_block_of_the_page_runs_and_prints_what_stands_below_it(
    name: str, code: str, text: str, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    if text:
        assert done.stdout == text


@pytest.mark.system
def test_the_example_of_a_launch_fits_its_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/launch.py"), "2"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("rank 0 fitted y = 3.00x + 1.00\nrank 1 fitted y = 3.00x + 1.00\n")
