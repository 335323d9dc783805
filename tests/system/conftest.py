"""Fixtures of the system tests.

`script` writes a worker's program, `launch` runs a job and cleans up after it; `network` makes hosts, `agents` runs the
agents of a job on them; `chaos` runs `phalanx chaos`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.system.chaos import Chaos, Start
from tests.system.launch import Job, Launch, Launcher, Script, launcher_under_test
from tests.system.machines import Agent, Agents, Host, Network, why_no_hosts

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


@pytest.fixture(scope="session")
def _can_make_hosts() -> None:
    if (reason := why_no_hosts()) is not None:
        if os.environ.get("CI"):
            pytest.fail(f"these tests must not be skipped here: {reason}")
        pytest.skip(reason)


@pytest.fixture
def network(_can_make_hosts: None, tmp_path: Path) -> Iterator[Network]:
    network = Network(tmp_path / "network")
    yield network
    network.close()


@pytest.fixture
def agents(network: Network, tmp_path: Path) -> Iterator[Agents]:
    """Whatever else a test asserts: an agent that ended by itself must have left nothing alive on its host."""
    numbers = itertools.count()
    started: list[Agent] = []
    with contextlib.ExitStack() as running:

        def start(host: Host, *arguments: object, env: Mapping[str, str] | None = None) -> Agent:
            folder = tmp_path / f"agent{next(numbers)}-{host.name}"
            agent = Agent(host, network, tuple(map(str, arguments)), env=env or {}, folder=folder)
            started.append(agent)
            return running.enter_context(agent)

        yield start
        for agent in started:
            if agent.process.poll() is not None:
                agent.wait_nobody()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Start]:
    with contextlib.ExitStack() as started:

        def start(*words: object, wrapper: tuple[str, ...] = ()) -> Chaos:
            one = Chaos(*words, folder=tmp_path, wrapper=wrapper)
            started.callback(one.process.wait)
            started.callback(one.process.kill)
            return one

        yield start
