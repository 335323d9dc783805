"""Fixtures of the system tests: `script` writes a worker's program, `launch` runs a job and cleans up after it."""

from __future__ import annotations

import contextlib
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.system.launch import Job, Launch, Launcher, Script, launcher_under_test

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("system")


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(source: str, name: str = "train.py") -> Path:
        path = tmp_path / name
        # Line 1 of the dedented source is line 1 of the file: some tests look for line numbers.
        path.write_text(textwrap.dedent(source).lstrip("\n"))
        return path

    return write


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Whatever else a test asserts: a launcher that ended by itself must have left nothing of its job alive."""
    numbers = itertools.count()
    started: list[Job] = []
    with contextlib.ExitStack() as jobs:

        def start(
            *arguments: object,
            launcher: Launcher | None = None,
            env: Mapping[str, str] | None = None,
            wrapper: tuple[str, ...] = (),
            streams: Mapping[str, int] | None = None,
        ) -> Job:
            job = Job(
                launcher or launcher_under_test(),
                tuple(map(str, arguments)),
                folder=tmp_path / f"job{next(numbers)}",
                env=env or {},
                wrapper=wrapper,
                streams=streams,
            )
            started.append(job)
            return jobs.enter_context(job)

        yield start
        for job in started:
            if job.process.poll() is not None:
                job.wait_nobody()
