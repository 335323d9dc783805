"""Who starts a launcher decides what signals mean to it: a container, `nohup`, `timeout`, a shell's background."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Job, Launch, Script

SLEEPER = "from telling import stay, tell; tell('ready'); stay()"
COUNTER = """
    import os, signal
    from telling import stay, tell

    def stop(number, _):
        tell("asked", number=number)
        os._exit(0)

    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
        signal.signal(number, stop)
    tell("ready")
    stay()
"""
# The first process of a container. The wrapper dies with its parent, and takes the whole container with it.
FIRST = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")

first_process = pytest.mark.skipif(os.geteuid() != 0, reason="making a process namespace needs root")


def inner(job: Job) -> int:
    """The launcher itself, behind a wrapper that started it."""
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children").read_text().split()
    assert len(children) == 1, children
    return int(children[0])


def is_first_in_its_namespace(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (numbers,) = [line.split()[1:] for line in status if line.startswith("NSpid:")]
    return len(numbers) > 1 and numbers[-1] == "1"


@first_process
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT], ids=lambda number: number.name
)
def test_the_first_process_of_a_container_hears_stop_signals(
    launch: Launch, script: Script, number: signal.Signals
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(SLEEPER), wrapper=FIRST)
    job.told("ready", 2)
    launcher = inner(job)
    assert is_first_in_its_namespace(launcher)

    os.kill(launcher, number)

    assert job.wait() == 128 + number


@first_process
def test_the_first_process_of_a_container_hears_sigterm_as_soon_as_its_command_has_begun(
    launch: Launch, script: Script
) -> None:
    """No default action exists there: a signal without a handler would be lost, and the launcher go on."""
    train = script(SLEEPER)
    job = launch("--standalone", train, wrapper=FIRST)
    deadline = time.monotonic() + LIMIT_S
    while not _catches(job, signal.SIGTERM):
        assert time.monotonic() < deadline
        time.sleep(0.001)

    os.kill(inner(job), signal.SIGTERM)

    assert job.wait() == 143


def _catches(job: Job, number: int) -> bool:
    try:
        status = Path(f"/proc/{inner(job)}/status").read_text().splitlines()
    except (AssertionError, OSError):  # the wrapper has not come so far
        return False
    (mask,) = [line.split()[1] for line in status if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


@first_process
def test_the_first_process_of_a_container_reaps_the_zombies_of_strangers_and_touches_none_that_lives(
    launch: Launch, script: Script
) -> None:
    """Orphans of what somebody started beside the job come to the first process, and nobody else can reap them."""
    train = script(
        """
        import os, sys, time
        from telling import tell

        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        tell("ready")
        while not os.path.exists(f"go-{attempt}"):
            time.sleep(0.01)
        sys.exit(7 if attempt == "0" else 0)
        """
    )
    job = launch("--standalone", "--max-restarts", 1, train, wrapper=FIRST)
    job.until("ready", restart=0)
    launcher = inner(job)
    # As `docker exec` does: into the namespace from outside, and gone before its children are.
    enter = (
        "nsenter",
        "--target",
        str(launcher),
        "--pid",
        "--",
        "env",
        "-i",
        "setsid",
        "bash",
        "-c",
    )
    orphans = "for i in 1 2 3 4; do sleep 1000 & done; exit 0"
    subprocess.run([*enter, orphans], check=True, timeout=LIMIT_S)
    _until(lambda: len(children(launcher, "sleep")) == 4)
    for pid in children(launcher, "sleep")[:3]:
        os.kill(pid, signal.SIGKILL)
    _until(lambda: len(children(launcher, "sleep")) == 1)

    (job.folder / "go-0").touch()

    job.until("ready", restart=1)
    assert len(children(launcher, "sleep")) == 1, "it is not of the job"
    (job.folder / "go-1").touch()
    assert job.wait() == 0


def children(pid: int, command: str) -> list[int]:
    """Children that run this command, zombies too."""
    found = []
    for one in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{one}/comm").read_text().strip() == command:
                found.append(one)
    return found


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_so():  # the kernel tells nobody but the launcher
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_under_nohup_a_hang_up_stops_nothing_and_sigterm_does(launch: Launch, script: Script) -> None:
    job = launch("--standalone", script(COUNTER), "x", wrapper=("nohup",))
    job.told("ready")

    job.send(signal.SIGHUP)
    job.send(signal.SIGUSR1)  # a sign of life: its line comes after the hang-up was, or was not, heard
    job.printed("SIGUSR1")
    assert not [event for event in job.events if event.name == "asked"]
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert [event["number"] for event in job.told("asked")] == [signal.SIGTERM]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=lambda number: number.name)
def test_in_the_background_of_a_shell_ctrl_c_is_not_meant_for_the_job(
    launch: Launch, script: Script, number: signal.Signals
) -> None:
    """A shell without job control starts what it does not wait for with SIGINT and SIGQUIT ignored."""
    told = 'echo $$ > launcher && exec "$@"'  # by the process itself, before it is the launcher
    in_background = ("sh", "-c", f"sh -c '{told}' sh \"$@\" & wait $!", "sh")
    job = launch("--standalone", script(SLEEPER), wrapper=in_background)
    job.told("ready")
    launcher = int((job.folder / "launcher").read_text())

    os.kill(launcher, number)
    os.kill(launcher, signal.SIGUSR1)
    job.printed("SIGUSR1")
    os.kill(launcher, signal.SIGTERM)

    assert job.wait() == 143
    assert number.name.encode() not in job.stderr


def test_timeout_stops_the_job_once_and_in_order(launch: Launch, script: Script) -> None:
    """`timeout` signals its child and then its whole group, of which the launcher is: two signals, one request."""
    train = script(
        """
        import signal, sys, time
        from telling import stay, tell

        def save(*_):
            tell("asked")
            time.sleep(2)
            tell("saved")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        tell("ready")
        stay()
        """
    )
    job = launch("--standalone", train, wrapper=("timeout", "--preserve-status", "1000"))
    job.told("ready")

    job.send(signal.SIGTERM)  # what its timer would do

    assert job.wait() == 143
    assert len(job.told("asked")) == len(job.told("saved")) == 1


def test_under_setsid_a_launcher_is_stopped_by_its_number(launch: Launch, script: Script) -> None:
    job = launch("--standalone", script(SLEEPER), wrapper=("setsid", "--wait"))
    job.told("ready")

    os.kill(inner(job), signal.SIGTERM)

    assert job.wait() == 143


def test_a_start_whose_words_nobody_reads_can_be_stopped() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 65536)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.set_blocking(writer, True)
    words = ("run", "--nproc-per-node", "2", "--no-python", "sleep", "1000")
    launcher = subprocess.Popen([sys.executable, "-m", "phalanx", *words], stderr=writer)
    try:
        give_up_at = time.monotonic() + LIMIT_S
        while "pipe_write" not in Path(f"/proc/{launcher.pid}/wchan").read_text():
            assert time.monotonic() < give_up_at, "it has not come to its first words"
            time.sleep(0.01)
        launcher.terminate()
        assert launcher.wait(60) == 143
    finally:
        launcher.kill()
        launcher.wait()
        os.close(reader)
        os.close(writer)
