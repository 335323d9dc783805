"""A stop signal is obeyed in each phase of a launcher's life: one quiet line at most, and 128+N.

While workers run: ``test_stopping``. While the evidence of a failure is read there is too little time to hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Job, Launch, Launcher, Script, two_free_ports

SLEEPER = "from telling import stay, tell; tell('ready'); stay()"
# The launcher sleeps where it has read its command line and has not started anything; as a slow file system would.
# In naps, as `telling.stay` does: a signal that comes right before a long one would be heard at its end.
STARTING = """
import os, sys, time
import phalanx.cli
import phalanx.cli.run

def slow(options):
    with open(os.environ["BLACK_BOX_PIPE"], "w") as pipe:
        pipe.write('{"event": "starting"}\\n')
    for _ in range(20_000):
        time.sleep(0.05)

import phalanx.launcher
phalanx.launcher.run_command = slow
phalanx.cli.command(["run", *sys.argv[1:]])
"""
# It does so in a callback, where Python loses exceptions.
STARTING_IN_A_CALLBACK = STARTING.replace(
    "phalanx.launcher.run_command = slow",
    """
import weakref

def slower(options):
    class Thing: pass
    thing = Thing()
    held = weakref.ref(thing, slow)
    del thing
    time.sleep(1000)

phalanx.launcher.run_command = slower
""",
)
# It does so where a class is made, and Python turns any exception into another.
STARTING_IN_A_CLASS = STARTING.replace(
    "phalanx.launcher.run_command = slow",
    """
class Name:
    def __set_name__(self, owner, name):
        slow(None)

def slower(options):
    class Thing:
        name = Name()

phalanx.launcher.run_command = slower
""",
)
STOP_SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name
)


def own_lines(job: Job) -> list[bytes]:
    return [line for line in job.stderr.splitlines() if not line.startswith(b"[default")]


@STOP_SIGNALS
@pytest.mark.parametrize(
    "starting",
    [STARTING, STARTING_IN_A_CALLBACK, STARTING_IN_A_CLASS],
    ids=["called", "called back", "making a class"],
)
def test_before_anything_was_started(
    launch: Launch, script: Script, starting: str, number: signal.Signals
) -> None:
    slow = Launcher("slow", (sys.executable, "-c", starting))
    job = launch("--standalone", script(SLEEPER), launcher=slow)
    job.told("starting")

    job.send(number)

    assert job.wait() == 128 + number
    assert own_lines(job) == [f"phalanx: stopped by {number.name} before anything was started".encode()]


@STOP_SIGNALS
def test_while_the_store_is_waited_for(launch: Launch, script: Script, number: signal.Signals) -> None:
    with socket.socket() as nobody:  # listens and never answers
        nobody.bind(("127.0.0.1", 0))
        nobody.listen()
        endpoint = f"127.0.0.1:{nobody.getsockname()[1]}"
        job = launch(
            *("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job"),
            *("--rdzv-conf", "is_host=false", script(SLEEPER)),
        )
        nobody.settimeout(60)
        nobody.accept()[0].close()

        job.send(number)

        assert job.wait() == 128 + number
    said = [line for line in own_lines(job) if b": waiting for the store: " not in line]  # after five seconds
    assert len(said) <= 1


@STOP_SIGNALS
@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_while_other_nodes_are_waited_for(
    launch: Launch, script: Script, backend: str, number: signal.Signals
) -> None:
    port = two_free_ports()
    meeting = {
        "c10d": ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"),
        "static": ("--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", port),
    }
    job = launch("--nnodes", 2, *meeting[backend], script(SLEEPER))
    job.printed("waiting: ")

    job.send(number)

    assert job.wait() == 128 + number
    assert len(own_lines(job)) <= 2, "the one about waiting was there before"


@STOP_SIGNALS
def test_in_the_pause_between_two_attempts(launch: Launch, script: Script, number: signal.Signals) -> None:
    train = script("from telling import tell; tell('ready'); raise SystemExit(7)")
    job = launch("--standalone", "--max-restarts", 9, "--restart-backoff", "1000s:1000s", train)
    job.printed("before it starts")

    job.send(number)

    assert job.wait() == 128 + number
    assert b"FAILED" not in job.stderr
    assert b"Traceback" not in job.stderr


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """The end for the launcher of a pipe that is full, and that nobody reads."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writer, b"." * select.PIPE_BUF):
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(writer)
    os.close(reader)


@STOP_SIGNALS
def test_while_nobody_reads_the_report(
    launch: Launch, script: Script, full_pipe: int, number: signal.Signals
) -> None:
    """The report waits for its reader as any program does, and the verdict stands."""
    job = launch("--standalone", "-r", 3, script("raise SystemExit(7)"), streams={"stderr": full_pipe})
    deadline = time.monotonic() + LIMIT_S
    while not is_writing_to_stderr(job.process.pid):
        assert time.monotonic() < deadline, "it does not write"
        time.sleep(0.05)  # nobody tells

    job.send(number)

    assert job.wait() == 7


def is_writing_to_stderr(pid: int) -> bool:
    """Whether it sleeps in a system call whose first argument is 2."""
    return Path(f"/proc/{pid}/syscall").read_text().split()[1:2] == ["0x2"]


@STOP_SIGNALS
def test_while_nobody_reads_what_the_launcher_says(
    launch: Launch, script: Script, full_pipe: int, number: signal.Signals
) -> None:
    """One signal is enough: its line is lost, and the job has ended."""
    job = launch("--standalone", "-r", 3, script(SLEEPER), streams={"stderr": full_pipe})
    job.told("ready")

    job.send(number)

    assert job.wait() == 128 + number


def _is_lost_by_the_interpreter(job: Job) -> bool:
    """Before our command has begun, Python may lose a KeyboardInterrupt in a callback of an import, and says so."""
    while job.process.poll() is None:
        if b"Exception ignored in" in job.stderr and b"KeyboardInterrupt" in job.stderr:
            return True
        time.sleep(0.02)  # until one or the other: the test's own limit ends it
    return False


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_at_whatever_moment_of_the_start(launch: Launch, number: signal.Signals) -> None:
    """The moments are spread over the time that a start takes here; nothing depends on where exactly they fall."""
    for moment in range(40):  # a Python worker would say KeyboardInterrupt, which is its own business
        flags = ("--standalone", "--nproc-per-node", 2, "--omp-threads", 1)
        job = launch(*flags, "--no-python", "sleep", "1000")
        time.sleep(moment * 0.01)

        job.send(number)

        is_lost = _is_lost_by_the_interpreter(job)
        if is_lost:
            job.send(number)
        code = job.wait()
        so_early = (-number, 1) if number == signal.SIGINT else (-number,)  # not even our command had begun
        assert code in (128 + number, *so_early), job.stderr.decode()
        if code == 128 + number and not is_lost:
            assert b"Traceback" not in job.stderr
            assert len(own_lines(job)) <= 1
            assert os.listdir(job.temp) == []
        job.wait_nobody()
