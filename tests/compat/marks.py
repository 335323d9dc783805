"""The marker ``compat(item, verdict, how)``: a test that shows one item of the drop-in says which, and how it compares.

``item`` is ``flag --nnodes``, ``variable PET_NNODES``, ``name torch.distributed.run.main`` or ``extension <point>``;
``verdict`` is "same", "better" or "not offered"; the last two need ``how``, which says how, or why not. Many tests may
show one item: "better" in one of them is the verdict. A test that is skipped or expected to fail shows nothing.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

VERDICTS = ("same", "better", "not offered")
KINDS = ("flag", "variable", "name", "extension")


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


class BadMarks(ValueError):
    """Marks that say nothing, or contradict each other; one line for each."""


def merged(marks: Iterable[tuple[str, tuple[object, ...]]]) -> dict[str, Item]:
    """Name of the item → its line, from (test, arguments of its mark); BadMarks tells all mistakes at once."""
    items: dict[str, Item] = {}
    problems = []
    for test, arguments in marks:
        try:
            name, verdict, how = _read(arguments)
            _add(items, name, verdict, how)
        except ValueError as problem:
            problems.append(f"{test}: {problem}")
    if problems:
        raise BadMarks("\n".join(sorted(set(problems))))
    return items


def _read(arguments: tuple[object, ...]) -> tuple[str, str, str]:
    if not 2 <= len(arguments) <= 3 or not all(isinstance(each, str) for each in arguments):
        raise ValueError(f"compat takes (item, verdict) or (item, verdict, how), all texts: {arguments!r}")
    name, verdict, how = (*map(str, arguments), "")[:3]
    kind, _, title = name.partition(" ")
    if kind not in KINDS or not title:
        raise ValueError(f"{name!r} does not begin with one of {', '.join(KINDS)} and a blank")
    if verdict not in VERDICTS:
        raise ValueError(f"the verdict of {name!r} is {verdict!r}, and none of {', '.join(VERDICTS)}")
    if verdict != "same" and not how:
        raise ValueError(f"{name!r} is {verdict!r}, but how or why is missing")
    return name, verdict, how


def _add(items: dict[str, Item], name: str, verdict: str, how: str) -> None:
    item = items.setdefault(name, Item(name, verdict))
    if "not offered" in (item.verdict, verdict) and item.verdict != verdict:
        raise ValueError(f"{name!r} is {verdict!r} here, and {item.verdict!r} elsewhere")
    if verdict == "better":
        item.verdict = verdict
    if how and how not in item.hows:
        item.hows.append(how)


class Collector:
    """A pytest plugin that keeps the marks of all tests that it collects."""

    def __init__(self) -> None:
        self.marks: list[tuple[str, tuple[object, ...]]] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for test in session.items:
            if any(test.get_closest_marker(name) for name in ("skip", "xfail")):
                continue
            self.marks += [(test.nodeid, mark.args) for mark in test.iter_markers("compat")]


def collect(*paths: str) -> dict[str, Item]:
    """What the tests in ``paths``, by default all of them, say. BadMarks; RuntimeError if they cannot be collected."""
    collector = Collector()
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        code = pytest.main(
            ["--collect-only", "-qq", "-p", "no:randomly", "-p", "no:cacheprovider", *paths],
            plugins=[collector],
        )
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"the tests could not be collected:\n{told.getvalue()[-4000:]}")
    return merged(collector.marks)
