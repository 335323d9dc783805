"""Start jobs under either launcher; workers stamp what happens with the machine-wide monotonic clock."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

WORKERS = Path(__file__).parent / "workers"
LIMIT_S = 600.0  # a job that tells nothing for so long is stuck


@dataclasses.dataclass(frozen=True, slots=True)
class Launcher:
    """A command that takes torchrun's flags."""

    name: str
    command: tuple[str, ...]


PHALANX = Launcher("phalanx", (sys.executable, "-m", "phalanx", "run"))
TORCHRUN = Launcher("torchrun", (sys.executable, "-m", "torch.distributed.run"))


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """A worker's line `name rank restart pid`, and when it wrote it, in seconds of the monotonic clock."""

    name: str
    rank: int
    restart: int
    pid: int
    at: float


class Job:
    """
    A running launcher. Workers write stamps into the named pipe `$BENCH_PIPE`, see `workers/`.

    A stamp without a time of its own (from a shell) gets the time at which it was read.
    """

    def __init__(self, launcher: Launcher, *arguments: object, stdout: int = subprocess.DEVNULL) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bench-")
        pipe = Path(self._folder.name, "stamps")
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._half_line = b""
        self.stamps: list[Stamp] = []
        self._stderr = Path(self._folder.name, "stderr")
        self.started_at = time.monotonic()
        with self._stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*launcher.command, *map(str, arguments)],
                cwd=self._folder.name,
                env=_environment(BENCH_PIPE=str(pipe), TMPDIR=self._folder.name),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._pidfd = os.pidfd_open(self.process.pid)

    @property
    def pid(self) -> int:
        """The launcher's."""
        return self.process.pid

    def stamped(self, name: str, count: int, *, restart: int = 0) -> list[Stamp]:
        """Wait until `count` workers of this attempt have stamped `name`."""
        while len(found := [s for s in self.stamps if (s.name, s.restart) == (name, restart)]) < count:
            ready = select.select([self._pipe, self._pidfd], [], [], LIMIT_S)[0]
            if self._pipe not in ready:
                what = f"ended with {self.process.poll()}" if ready else "hangs"
                raise RuntimeError(
                    f"{self.process.args!r} {what} before {count} x {name!r}: {self.stamps}\n{self._stderr.read_text()}"
                )
            self._read()
        return found

    def _read(self) -> None:
        now = time.monotonic()
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                *lines, self._half_line = (self._half_line + chunk).split(b"\n")
                for line in lines:
                    name, rank, restart, pid, *at = line.decode().split()
                    self.stamps.append(
                        Stamp(name, int(rank), int(restart), int(pid), int(at[0]) / 1e9 if at else now)
                    )

    def wait(self) -> float:
        """Wait for the launcher's end; returns when it was, in seconds of the monotonic clock."""
        self.process.wait(LIMIT_S)
        return time.monotonic()

    def stop(self) -> float:
        """Ask the launcher to stop; returns how long that took, in seconds."""
        asked_at = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        return self.wait() - asked_at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            os.close(self._pidfd)
            os.close(self._pipe)
            self._folder.cleanup()


def _environment(**own: str) -> dict[str, str]:
    """
    What both launchers get.

    pip compiles what it installs, torch too. A checkout is compiled when it first runs, in the warm-up; a variable
    that forbids to keep the byte code would make every start of ours compile sixty files.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Set, so that torchrun prints no banner about it.
    return {**inherited, "OMP_NUM_THREADS": "1", **own}
