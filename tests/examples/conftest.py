"""Fixtures of the tests that train: `training` makes one, `undisturbed` is how it goes when nothing happens."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.examples.training import NUMPY, Training
from tests.system.machines import Network, why_no_hosts

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("system")


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    numbers = itertools.count()
    with contextlib.ExitStack() as started:

        def make(script: Path = NUMPY, *arguments: object, gates: tuple[int, ...] = ()) -> Training:
            one = Training(tmp_path / f"training{next(numbers)}", script, arguments, gates=gates)
            started.callback(one.close)
            return one

        yield make


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    if (reason := why_no_hosts()) is not None:
        pytest.skip(reason)
    found = Network(tmp_path / "network")
    yield found
    found.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Training]]:
    """The numpy job with so many workers, from its first step to its last without a failure."""
    known: dict[int, Training] = {}

    def of(workers: int) -> Training:
        if workers not in known:
            known[workers] = Training(tmp_path_factory.mktemp("undisturbed"), NUMPY, ["--steps", STEPS])
            known[workers].run("--nproc-per-node", workers)
        return known[workers]

    yield of
    for one in known.values():
        one.close()


STEPS = 120
