"""What the tests of library use share: a job whose agent this very process hosts, and what its workers tell."""

from __future__ import annotations

import json
import os
import secrets
import select
import textwrap
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.system.launch import LIMIT_S, WORKER_SIDE, Survivor, survivors_with

from phalanx.cli.run import run_options
from phalanx.launcher import AgentProcess, RunOptions, start_agent

SLEEPER = """
    from telling import stay, tell

    tell("ready")
    stay()
"""
GRACEFUL = """
    import signal, sys
    from telling import stay, tell

    def leave(number, frame):
        tell("asked", signal=number)
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    signal.signal(signal.SIGUSR1, lambda number, frame: tell("passed", signal=number))
    tell("ready")
    stay()
"""
STUBBORN = """
    import signal
    from telling import stay, tell

    signal.signal(signal.SIGTERM, lambda number, frame: tell("asked"))
    tell("ready")
    stay()
"""
WAITS_FOR_GO = """
    import os, time
    from telling import tell

    tell("ready")
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


class House:
    """A folder with a pipe in which the workers of hosted jobs tell, and what it takes to start such a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        pipe = folder / "told"
        os.mkfifo(pipe)
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._text = b""
        self.told: list[dict[str, Any]] = []
        self.env = {
            **os.environ,
            "BLACK_BOX_TOKEN": self.token,
            "BLACK_BOX_PIPE": str(pipe),
            "PYTHONPATH": os.pathsep.join([str(WORKER_SIDE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }

    def script(self, source: str, name: str = "train.py") -> str:
        (self.folder / name).write_text(textwrap.dedent(source).lstrip("\n"))
        return str(self.folder / name)

    def options(self, *words: object) -> RunOptions:
        return run_options([*map(str, words)])

    def start(self, *words: object, **given: Any) -> AgentProcess:
        """Start an agent on the words of ``phalanx run``; what is printed goes to the files ``out`` and ``err``."""
        with open(self.folder / "out", "ab") as out, open(self.folder / "err", "ab") as err:
            streams = {"stdout": out, "stderr": err, "env": self.env, "cwd": self.folder, **given}
            return start_agent(self.options(*words), **streams)

    def hear(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until workers have told this event so often; return all of these."""
        deadline = time.monotonic() + LIMIT_S
        while len(found := [one for one in self.told if one["event"] == event]) < count:
            left_s = max(0.0, deadline - time.monotonic())
            assert select.select([self._pipe], [], [], left_s)[0], (
                f"{event!r} was not told; {self.told}, {self.err}"
            )
            *lines, self._text = (self._text + os.read(self._pipe, 65536)).split(b"\n")
            self.told += map(json.loads, lines)
        return found

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "err").read_text()

    def survivors(self) -> list[Survivor]:
        return survivors_with(self.token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._pipe)
