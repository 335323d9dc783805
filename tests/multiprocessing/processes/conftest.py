"""Means to start real processes and to see, by other means than the code under test, which of them live."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
from phalanx.multiprocessing.context import PContext

LIMIT_S = 30


@pytest.fixture
def soon() -> Callable[[Callable[[], object]], None]:
    """Wait until something holds; a test that needs it in less time measures it itself."""

    def wait(holds: Callable[[], object], what: str = "it") -> None:
        give_up_at = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < give_up_at, f"{what} did not happen within {LIMIT_S} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def nap() -> Iterator[str]:
    """A number of seconds that no other process sleeps: `sleep <nap>` is found by it, whoever its parent is."""
    name = f"8{random.SystemRandom().randrange(10**4):04}.{random.SystemRandom().randrange(10**9):09}"
    yield name
    for pid in sleepers_of(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def sleepers_of(nap: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.joinpath("cmdline").read_bytes() == b"sleep\0" + nap.encode() + b"\0":
                found.append(int(folder.name))
    return found


@pytest.fixture
def sleepers(nap: str) -> Callable[[], list[int]]:
    """The live processes that run `sleep <nap>`."""
    return lambda: sleepers_of(nap)


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[Callable[..., SubprocessContext]]:
    """Make (not start) a context whose workers each run one shell script; closed at the end of the test."""
    made: list[PContext] = []

    def make(
        *scripts: str, env: dict[str, str] | None = None, logs: DefaultLogsSpecs | None = None
    ) -> SubprocessContext:
        ranks = range(len(scripts))
        context = SubprocessContext(
            "shells",
            "sh",
            {local_rank: ("-c", scripts[local_rank]) for local_rank in ranks},
            {local_rank: dict(env or {}) for local_rank in ranks},
            logs or DefaultLogsSpecs(log_dir=str(tmp_path / "logs")),
        )
        made.append(context)
        return context

    yield make
    for context in made:
        context.close(signal.SIGKILL, timeout=5)
