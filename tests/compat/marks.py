"""The marker ``compat(item, verdict, how)``: a test that shows one item of the drop-in says which, and how it compares.

``item`` is ``flag --nnodes``, ``variable PET_NNODES``, ``name torch.distributed.run.main`` or ``extension <point>``;
of the verdicts of many tests the one further behind in ``VERDICTS`` counts. "better" and "not offered" need ``how``,
which says how, or why not. A name is its object: whichever of its paths is marked, all of them have the verdict. A test
that is skipped or expected to fail shows nothing.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from phalanx.compat import names

TESTS = Path(__file__).parents[1]
VERDICTS = ("same signature", "same", "better", "not offered")
KINDS = ("flag", "variable", "name", "extension")
# Of each torch path, the object of ours that is there: one object, one verdict.
OBJECTS = {
    f"name {module}.{name}": home for module, found in names.homes().items() for name, home in found.items()
}

Test = Callable[..., Any]
Mark = tuple[str, tuple[object, ...]]  # test, arguments of its mark
# What a session has collected before anything is deselected: the files, and the marks of their tests.
COLLECTED = pytest.StashKey[tuple[set[Path], list[Mark]]]()


def shows(verdict: str, *items: str, how: str = "") -> Callable[[Test], Test]:
    """Mark a test with each of these items."""

    def marked(test: Test) -> Test:
        for item in items:
            test = pytest.mark.compat(item, verdict, *([how] if how else []))(test)
        return test

    return marked


def shows_names(verdict: str, module: str, *found: str, how: str = "") -> Callable[[Test], Test]:
    """Mark a test with each of these names of a module below ``torch.distributed``."""
    return shows(verdict, *(f"name torch.distributed.{module}.{name}" for name in found), how=how)


@dataclass
class Item:
    """One line of the table: what the tests of one item say together."""

    name: str
    verdict: str
    hows: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def title(self) -> str:
        return self.name.partition(" ")[2]

    def add(self, verdict: str, hows: Iterable[str]) -> None:
        """Take in what another test says; ValueError if the two contradict each other."""
        if "not offered" in (self.verdict, verdict) and self.verdict != verdict:
            raise ValueError(f"{self.name!r} is {verdict!r} here, and {self.verdict!r} elsewhere")
        self.verdict = max(self.verdict, verdict, key=VERDICTS.index)
        self.hows += [how for how in hows if how and how not in self.hows]


class BadMarks(ValueError):
    """Marks that say nothing, or contradict each other; one line for each."""


def merged(marks: Iterable[Mark]) -> dict[str, Item]:
    """Name of the item → its line, from (test, arguments of its mark); BadMarks tells all mistakes at once."""
    items: dict[str, Item] = {}
    objects: dict[str, Item] = {}
    problems = []
    for test, arguments in marks:
        try:
            name, verdict, how = _read(arguments)
            items.setdefault(name, Item(name, verdict)).add(verdict, [how])
            if name in OBJECTS:
                objects.setdefault(OBJECTS[name], Item(name, verdict)).add(verdict, [how])
        except ValueError as problem:
            problems.append(f"{test}: {problem}")
    if problems:
        raise BadMarks("\n".join(sorted(set(problems))))
    for name, item in items.items():
        if name in OBJECTS:
            whole = objects[OBJECTS[name]]
            item.verdict, item.hows = whole.verdict, whole.hows
    _variables_as_flags(items)
    return items


def _variables_as_flags(items: dict[str, Item]) -> None:
    """A ``PET_`` variable does what its flag does, so it is what the flag is, unless its own tests say more."""
    for flag in [item for item in items.values() if item.kind == "flag"]:
        name = "variable PET_" + flag.title.removeprefix("--").replace("-", "_").upper()
        if name in items and not items[name].hows and flag.hows:
            items[name].add(flag.verdict, ["as the flag"])


def _read(arguments: tuple[object, ...]) -> tuple[str, str, str]:
    if not 2 <= len(arguments) <= 3 or not all(isinstance(each, str) for each in arguments):
        raise ValueError(f"compat takes (item, verdict) or (item, verdict, how), all texts: {arguments!r}")
    name, verdict, how = (*map(str, arguments), "")[:3]
    kind, _, title = name.partition(" ")
    if kind not in KINDS or not title:
        raise ValueError(f"{name!r} does not begin with one of {', '.join(KINDS)} and a blank")
    if verdict not in VERDICTS:
        raise ValueError(f"the verdict of {name!r} is {verdict!r}, and none of {', '.join(VERDICTS)}")
    if verdict in ("better", "not offered") and not how:
        raise ValueError(f"{name!r} is {verdict!r}, but how or why is missing")
    return name, verdict, how


def marks_of(tests: Iterable[pytest.Item]) -> Iterator[Mark]:
    """The marks of those of ``tests`` that are to pass."""
    for test in tests:
        if not any(test.get_closest_marker(name) for name in ("skip", "xfail")):
            yield from ((test.nodeid, mark.args) for mark in test.iter_markers("compat"))


def files_with_marks() -> set[Path]:
    """The test files that have marks."""
    files = {path: path.read_text() for path in TESTS.rglob("test_*.py")}
    return {path for path, text in files.items() if "mark.compat(" in text or "@shows" in text}


class Collector:
    """A pytest plugin that keeps the marks of all tests that it collects."""

    def __init__(self) -> None:
        self.marks: list[Mark] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.marks += marks_of(session.items)


def collect(*paths: str) -> dict[str, Item]:
    """What the tests in ``paths``, by default all of them, say. BadMarks; RuntimeError if they cannot be collected."""
    collector = Collector()
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = pytest.main(
            ["--collect-only", "-qq", "-p", "no:randomly", "-p", "no:cacheprovider"]
            + (list(paths) or sorted(map(str, files_with_marks()))),
            plugins=[collector],
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"the tests could not be collected:\n{told.getvalue()[-4000:]}")
    return merged(collector.marks)
