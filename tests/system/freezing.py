"""Processes in uninterruptible sleep, as a dead network file system makes them: members of a frozen cgroup.

In version 1 of cgroups a frozen process is in state D, and SIGKILL ends it only when it is thawed; in version 2 it dies
at once, so there is no such thing to be had.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S

__all__ = ["Freezer", "a_freezer"]

ROOT = Path("/sys/fs/cgroup/freezer")


class Freezer:
    """One frozen group; made by ``a_freezer``."""

    def __init__(self) -> None:
        self._path = ROOT / f"black-box-{uuid.uuid4().hex}"
        self._path.mkdir()

    def freeze(self, *pids: int) -> None:
        """From now on these processes are in state D, and cannot be killed."""
        for pid in pids:
            (self._path / "cgroup.procs").write_text(str(pid))
        self._set("FROZEN")
        for pid in pids:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "D", f"a frozen process is in state {state}"

    def thaw(self) -> None:
        """Let them go on, or die of what they have got meanwhile."""
        self._set("THAWED")

    def _set(self, state: str) -> None:
        (self._path / "freezer.state").write_text(state)
        deadline = time.monotonic() + LIMIT_S
        while (self._path / "freezer.state").read_text().strip() != state:  # nobody tells
            assert time.monotonic() < deadline, f"the group did not become {state}"
            time.sleep(0.01)

    def close(self) -> None:
        """Thaw, end who is left, and remove the group."""
        self.thaw()
        deadline = time.monotonic() + LIMIT_S
        while True:
            pids = (self._path / "cgroup.procs").read_text().split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
            # Whoever is in it forbids that, also the last thread of a process that is listed no more.
            with contextlib.suppress(OSError):
                self._path.rmdir()
                return
            assert time.monotonic() < deadline, f"the group cannot be removed; in it: {pids}"
            time.sleep(0.01)


@pytest.fixture(name="freezer")
def a_freezer() -> Iterator[Freezer]:
    """For tests that import it; those without such a hierarchy of cgroups are skipped."""
    try:
        freezer = Freezer()
    except OSError as error:
        pytest.skip(f"no freezer of cgroups version 1: {error}")
    yield freezer
    freezer.close()
