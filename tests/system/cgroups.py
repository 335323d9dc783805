"""Memory cgroups of a test's own, real ones of either version, with a limit that a program can run into."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.system.launch import LIMIT_S

__all__ = ["MemoryCgroup", "memory_cgroup", "why_no_cgroups"]

ROOTS = (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup"))  # version 1; version 2


class MemoryCgroup:
    """A cgroup below the root of its hierarchy. Raises ``OSError`` where none can be made."""

    def __init__(self, limit_bytes: int) -> None:
        root = next((one for one in ROOTS if (one / "cgroup.procs").exists()), ROOTS[-1])
        self.is_v1 = root.name == "memory"
        self.folder = root / f"phalanx-test-{uuid.uuid4().hex[:12]}"
        self.folder.mkdir()
        try:
            limit, with_swap = (
                ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
                if self.is_v1
                else ("memory.max", "memory.swap.max")
            )
            (self.folder / limit).write_text(str(limit_bytes))
            with contextlib.suppress(OSError):  # a machine without accounts of swap
                (self.folder / with_swap).write_text(str(limit_bytes if self.is_v1 else 0))
        except OSError:
            self.folder.rmdir()
            raise

    @property
    def entering(self) -> tuple[str, ...]:
        """Begin of a command that goes into the cgroup and becomes the rest of the command there."""
        return ("sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh")

    def close(self) -> None:
        """End what is left in it, and remove it."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            # Who has been started meanwhile forbids that, and who has not left yet; nobody tells.
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            assert time.monotonic() < deadline, f"{self.folder} cannot be removed"
            time.sleep(0.01)


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[MemoryCgroup]:
    """One that is removed at the end."""
    cgroup = MemoryCgroup(limit_bytes)
    try:
        yield cgroup
    finally:
        cgroup.close()


def why_no_cgroups() -> str | None:
    """Why no memory cgroup can be made here; None if one can."""
    try:
        with memory_cgroup(64 << 20):
            return None
    except OSError as error:
        return f"memory cgroups cannot be made here: {error}"
