"""`phalanx chaos` as tests run it, and the states of the processes that it meets. The fixture is `chaos`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.system.launch import LIMIT_S, Job

__all__ = ["Chaos", "Start", "is_stopped", "pids", "planned_and_done", "runs", "state_of", "wait_state"]


class Chaos:
    """`phalanx chaos` as a process, whose lines are read from a file."""

    def __init__(self, *words: object, folder: Path, wrapper: tuple[str, ...] = ()) -> None:
        self._file = folder / f"chaos-{time.monotonic_ns()}"
        with self._file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "phalanx", "chaos", *map(str, words)],
                stdin=subprocess.DEVNULL,
                stderr=stderr,
                stdout=stderr,
            )

    @property
    def lines(self) -> list[str]:
        return self._file.read_text().splitlines()

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until a line matches; the file's growth is told by nobody."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            has_ended = self.process.poll() is not None
            for line in self.lines:
                if match := re.search(pattern, line):
                    return match
            assert not has_ended, f"chaos ended without {pattern!r}: {self.lines}"
            assert time.monotonic() < deadline, f"chaos did not say {pattern!r}: {self.lines}"
            time.sleep(0.02)

    def wait(self) -> int:
        return self.process.wait(LIMIT_S)


class Start(Protocol):
    def __call__(self, *words: object, wrapper: tuple[str, ...] = ()) -> Chaos: ...


def planned_and_done(chaos: Start, *words: object) -> tuple[list[str], list[str]]:
    """Which ranks a plan has, in order, and which are killed when it is done."""
    plan = chaos(*words, "--dry-run")
    assert plan.wait() == 0
    killer = chaos(*words)
    assert killer.wait() == 0
    planned = [found[1] for line in plan.lines if (found := re.search(r" s: kill (rank \d)$", line))]
    done = [found[1] for line in killer.lines if (found := re.search(r" s: killed (rank \d) ", line))]
    return planned, done


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_state(pid: int, is_right: Callable[[str], bool]) -> None:
    """Wait until a process is in such a state; nobody tells of a change."""
    deadline = time.monotonic() + LIMIT_S
    while not is_right(state_of(pid)):
        assert time.monotonic() < deadline, f"{pid} is in state {state_of(pid)!r}"
        time.sleep(0.005)


def is_stopped(state: str) -> bool:
    return state == "T"


def runs(state: str) -> bool:
    return state != "" and state not in "TZX"


def pids(job: Job, restart: int = 0, count: int = 2) -> dict[int, int]:
    """The pid of each rank in a round, all of which have begun."""
    while (
        len(found := {e.rank: e.pid for e in job.events if e.name == "begun" and e.restart == restart})
        < count
    ):
        job.told("begun", len([e for e in job.events if e.name == "begun"]) + 1)
    return found
