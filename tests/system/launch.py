"""Run a launcher as its users do, and watch it from outside.

A job is a subprocess in a session of its own whose output goes to files. Its workers tell the test what happens
through a named pipe (`worker_side/telling.py`), so that no test depends on the streams that it examines.
Every process of a job carries a random token in its environment (or command line): survivors are found by it.
All waits are blocking reads with one generous limit, but one for what is printed; no test looks at the clock to decide
that something is late.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import re
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

# "Never": far above what anything here takes on a busy two-core machine. Less of it is of use for runs that
# are meant to fail, against another launcher.
LIMIT_S = float(os.environ.get("BLACK_BOX_LIMIT_S", "90"))
WORKER_SIDE = Path(__file__).parent / "worker_side"

# What a user's shell, another launcher around the test run or this project's own tests may have set, and
# what would change the job.
_FOREIGN = re.compile(
    r"PET_|TORCHELASTIC_|TORCH_|PHALANX_|(MASTER|LOCAL|GROUP|ROLE)_|RANK$|WORLD_SIZE$|OMP_NUM_THREADS$|PYTHON_EXEC$|LOGLEVEL$"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Launcher:
    """A command that takes torchrun's flags."""

    name: str
    command: tuple[str, ...]


def launcher_under_test() -> Launcher:
    """Phalanx; or what `PHALANX_BIN` says, e.g. torchrun, to see that a test can fail."""
    named = os.environ.get("PHALANX_BIN")
    command = shlex.split(named) if named else [sys.executable, "-m", "phalanx", "run"]
    return Launcher("phalanx", tuple(command))


TORCHRUN = Launcher("torchrun", (sys.executable, "-m", "torch.distributed.run"))


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What a worker told: `facts` are the event's own, beside who told it and when (monotonic seconds)."""

    name: str
    rank: int
    restart: int
    pid: int
    at: float
    facts: Mapping[str, Any]

    @classmethod
    def from_line(cls, line: bytes) -> Event:
        facts = json.loads(line)
        return cls(
            name=facts.pop("event"),
            rank=facts.pop("rank", -1),
            restart=facts.pop("restart", -1),
            pid=facts.pop("pid", -1),
            at=facts.pop("at", time.monotonic()),
            facts=facts,
        )

    def __getitem__(self, key: str) -> Any:
        return self.facts[key]


@dataclasses.dataclass(frozen=True, slots=True)
class Survivor:
    """A live process that carries a job's token."""

    pid: int
    command: str


class Job:
    """One run of a launcher; use it in a `with` block, which leaves no process behind."""

    def __init__(
        self,
        launcher: Launcher,
        arguments: tuple[str, ...],
        *,
        folder: Path,
        env: Mapping[str, str],
        wrapper: tuple[str, ...] = (),
        streams: Mapping[str, int] | None = None,
    ) -> None:
        """`streams`: descriptors for stdin, stdout or stderr instead of /dev/null and the two files."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.token = secrets.token_hex(16)
        # Short, as on most machines: pytest's own folders are too deep for the names of Unix sockets.
        self._temp = tempfile.TemporaryDirectory(prefix="black-box-", ignore_cleanup_errors=True)
        self.temp = Path(self._temp.name)
        self.events: list[Event] = []
        self._half_line = b""
        pipe = folder / "told"
        os.mkfifo(pipe)
        # Read and write: the pipe then has a writer at all times, and a read never meets its end.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._outputs: list[IO[bytes]] = []
        given = streams or {}
        self.process = subprocess.Popen(
            [*wrapper, *launcher.command, *arguments],
            cwd=folder,
            env=self._environment(pipe, env),
            stdin=given.get("stdin", subprocess.DEVNULL),
            stdout=given.get("stdout") or self._output("stdout"),
            stderr=given.get("stderr") or self._output("stderr"),
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self.process.pid)

    def _environment(self, pipe: Path, env: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}
        path = [str(WORKER_SIDE), *filter(None, [inherited.get("PYTHONPATH")])]
        own = {
            "BLACK_BOX_TOKEN": self.token,
            "BLACK_BOX_PIPE": str(pipe),
            "PYTHONPATH": os.pathsep.join(path),
            "TMPDIR": str(self.temp),
        }
        return {**inherited, **own, **env}

    def _output(self, name: str) -> int:
        self._outputs.append(open(self.folder / name, "wb"))  # noqa: SIM115 (closed with the job)
        return self._outputs[-1].fileno()

    # What the launcher printed

    @property
    def stdout(self) -> bytes:
        return (self.folder / "stdout").read_bytes()

    @property
    def stderr(self) -> bytes:
        return (self.folder / "stderr").read_bytes()

    @property
    def summary(self) -> str:
        """The launcher's own last words: its stderr from the headline `… FAILED` on, prefixed worker lines left out."""
        own = [
            line
            for line in self.stderr.decode(errors="replace").splitlines()
            if not re.match(r"\[\w+?\d+\]:", line)
        ]
        headlines = [number for number, line in enumerate(own) if line.rstrip().endswith("FAILED")]
        return "\n".join(own[headlines[-1] :]) if headlines else ""

    # Waiting

    def told(self, name: str, count: int = 1) -> list[Event]:
        """Wait until workers told event `name` at least `count` times in the job's life; return all of these."""

        def so_far() -> list[Event]:
            return [event for event in self.events if event.name == name]

        self._read_until(lambda: len(so_far()) >= count, f"{count} × {name!r}", needs_launcher=True)
        return so_far()

    def until(self, name: str, *, after: float = 0.0, **facts: object) -> Event:
        """Wait until a worker tells event `name` with these facts, perhaps with others too.

        Returns the first one of the job's life, or that was told later than `after`.
        """

        def found() -> list[Event]:
            return [
                event
                for event in self.events
                if event.name == name
                and event.at > after
                and all(getattr(event, key, event.facts.get(key)) == value for key, value in facts.items())
            ]

        self._read_until(lambda: bool(found()), f"{name!r} with {facts}", needs_launcher=True)
        return found()[0]

    def printed(self, text: str) -> None:
        """Wait until the launcher, or a worker, has printed this to stderr."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            has_ended = self._has_ended()  # asked before the file is read: its last words may be the ones
            if text.encode() in self.stderr:
                return
            # The output is a file, of whose growth nobody tells: the one place that looks again and again.
            assert time.monotonic() < deadline, f"{text!r} was not printed\n{self.so_far()}"
            assert not has_ended, f"the launcher ended without printing {text!r}\n{self.so_far()}"
            time.sleep(0.05)

    def wait(self) -> int:
        """Wait until the launcher has ended; its return code as `subprocess` gives it (negative: a signal)."""
        self._read_until(self._has_ended, "the launcher's end")
        code = self.process.wait()
        self.look()
        return code

    def wait_nobody(self, *, but: frozenset[int] = frozenset()) -> None:
        """Wait until no process with the job's token is alive, except the pids in `but`."""
        deadline = time.monotonic() + LIMIT_S
        while alive := [survivor for survivor in self.survivors() if survivor.pid not in but]:
            ended = has_ended(alive[0].pid, max(0.0, deadline - time.monotonic()))
            assert ended, f"still alive: {alive}\n{self.so_far()}"

    @property
    def descriptors(self) -> tuple[int, int]:
        """One of them is readable when workers have told something, or the launcher has ended."""
        return self._pipe, self._pidfd

    def _has_ended(self) -> bool:
        return bool(select.select([self._pidfd], [], [], 0)[0])

    def _read_until(self, is_done: Callable[[], bool], awaited: str, *, needs_launcher: bool = False) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not is_done():
            remaining = deadline - time.monotonic()
            ready = select.select(self.descriptors, [], [], max(0.0, remaining))[0]
            self.look()
            if is_done():
                return
            assert ready, f"waited {LIMIT_S:g} s in vain for {awaited}\n{self.so_far()}"
            if self._pidfd in ready and needs_launcher:
                raise AssertionError(
                    f"the launcher ended with {self.process.wait()} before {awaited}\n{self.so_far()}"
                )

    def look(self) -> None:
        """Take in what workers have told by now."""
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._pipe, 1 << 16):
                *lines, self._half_line = (self._half_line + chunk).split(b"\n")
                self.events.extend(Event.from_line(line) for line in lines)

    def so_far(self) -> str:
        """What has happened, for the message of a test that fails."""
        shown = [
            "events:",
            *(f"{event.at:.3f} {event.name} rank {event.rank} {event.facts}" for event in self.events),
        ]
        for name in ("stdout", "stderr"):
            if (self.folder / name).exists():
                text = (self.folder / name).read_bytes()[-6000:].decode(errors="replace")
                shown.append(f"-- {name} --\n{text}")
        return "\n".join(shown)

    # Acting

    def send(self, number: int) -> None:
        """Send a signal to the launcher alone."""
        self.process.send_signal(number)

    def send_to_group(self, number: int) -> None:
        """Send a signal to the launcher's process group, as a terminal does at Ctrl-C."""
        os.killpg(self.process.pid, number)

    def survivors(self) -> list[Survivor]:
        """All live processes of the job, the launcher's own included."""
        return survivors_with(self.token)

    # Leaving

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while alive := self.survivors():
                for survivor in alive:
                    _kill(survivor.pid)
                if self.process.poll() is None:
                    self.process.kill()
                self.process.wait(LIMIT_S)
        finally:
            self.process.wait(LIMIT_S)
            os.close(self._pidfd)
            os.close(self._pipe)
            self._temp.cleanup()
            for output in self._outputs:
                output.close()


def survivors_with(token: str) -> list[Survivor]:
    """Live processes with `token` in their environment or command line; zombies have neither and are dead."""
    wanted = token.encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            marked = wanted in command or wanted in (entry / "environ").read_bytes()
        except OSError:  # it ended while we looked, or is another user's
            continue
        if marked:
            found.append(
                Survivor(int(entry.name), command.replace(b"\0", b" ").decode(errors="replace").strip())
            )
    return found


def has_ended(pid: int, within_s: float = LIMIT_S) -> bool:
    """Wait until this process has ended, whether its parent reaps it or not; False: it has not in that time."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def _pairs_of_ports() -> Iterator[int]:
    """The first of two neighbours, for ever: below jobs' default port, and the range of outgoing connections.

    Tests that run beside this one, in other processes of xdist, have other ports, and in this process no pair comes
    again before all its others: one that was free when it was looked at is not taken by them until it is used.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = range(10_000 + 2 * (int(number) % count if number.isdecimal() else 0), 29_000, 2 * count)
    for at in itertools.count(secrets.randbelow(len(mine))):
        yield mine[at % len(mine)]


_ports = _pairs_of_ports()


def two_free_ports() -> int:
    """The first of two neighbours that nobody has, nor takes soon."""
    for port in _ports:
        try:
            for one in (port, port + 1):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port
    raise AssertionError("the pairs go round for ever")


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Launch(Protocol):
    """The fixture `launch`: start a job with these arguments; it is cleaned up at the end of the test."""

    def __call__(
        self,
        *arguments: object,
        launcher: Launcher | None = None,
        env: Mapping[str, str] | None = None,
        wrapper: tuple[str, ...] = (),
        streams: Mapping[str, int] | None = None,
    ) -> Job: ...


class Script(Protocol):
    """The fixture `script`: write a worker's program, dedented; it can `from telling import tell`."""

    def __call__(self, source: str, name: str = "train.py") -> Path: ...
