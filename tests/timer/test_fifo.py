"""A FIFO that has lost its name while clients have it open: what they write into it is heard all the same."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.timer.waiting import LIMIT_S, soon

from phalanx.timer import FileTimerServer
from phalanx.timer.fifo import Fifo
from phalanx.timer.requests import FileTimerRequest


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    return str(tmp_path / "watchdog")


@pytest.fixture
def made_anew() -> threading.Event:
    return threading.Event()


@pytest.fixture
def server(fifo: str, made_anew: threading.Event) -> Iterator[FileTimerServer]:
    def told(event: str, _request: FileTimerRequest | None) -> None:
        if event == "watchdog file made anew":
            made_anew.set()

    one = FileTimerServer(fifo, "job", max_interval=60, log_event=told)
    one.start()
    yield one
    one.stop()


def opened(fifo: str) -> int:
    return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def write(fd: int, scope: str, at: float) -> None:
    os.write(fd, FileTimerRequest(os.getppid(), scope, at, 9).to_json().encode() + b"\n")


def scopes(server: FileTimerServer) -> list[str]:
    found = server.get_expired_timers(time.time() + 2000).get(os.getppid(), [])
    return sorted(one.scope_id for one in found)


def descriptors_of_removed(fifo: str) -> int:
    count = 0
    for one in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{one}") == f"{fifo} (deleted)"
        except FileNotFoundError:  # of the listing itself, or of another thread
            continue
    return count


# A client that stands still when it has found the FIFO, and writes when it is told to.
CLIENTS = {
    "ours that opens it for each word": (
        "import phalanx.timer as timer",
        "{}",
        "client._open = held(client._open)",
    ),
    "ours that keeps it open": (
        "import phalanx.timer as timer",
        "{'PHALANX_TIMER_FILE': fifo}",
        "with timer.expires(after=100, client=client): pass\nclient._write = held(client._write, is_after=False)",
    ),
    "torch's": (
        "import torch.distributed.elastic.timer as timer",
        "{}",
        "client._open_non_blocking = held(client._open_non_blocking)",
    ),
}
HELD = """
import os, sys, time
{package}
fifo = sys.argv[1]
os.environ.update({variables})
client = timer.FileTimerClient(fifo)

def held(real, is_after=True):
    words = ["found"]
    def waits(*arguments):
        found = real(*arguments) if is_after else None
        if words:
            print(words.pop(), flush=True)
            input()
        return found if is_after else real(*arguments)
    return waits

{hold}
with timer.expires(after=0.2, client=client):
    time.sleep(1000)
"""


@pytest.mark.parametrize(
    "client",
    [pytest.param(one, marks=pytest.mark.torch) if one == "torch's" else one for one in CLIENTS],
)
def test_a_worker_that_had_found_the_fifo_before_it_was_removed_is_watched(
    fifo: str, server: FileTimerServer, made_anew: threading.Event, client: str
) -> None:
    package, variables, hold = CLIENTS[client]
    program = HELD.format(package=package, variables=variables, hold=hold)
    with subprocess.Popen(
        [sys.executable, "-c", program, fifo], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "found\n"
            os.unlink(fifo)
            server.look()
            assert made_anew.wait(LIMIT_S)
            worker.communicate("\n", timeout=2 * LIMIT_S)
        finally:
            worker.kill()
    assert worker.returncode == -signal.SIGKILL


def test_a_removed_fifo_is_closed_when_the_last_client_has_closed_it(
    fifo: str, server: FileTimerServer, made_anew: threading.Event
) -> None:
    late = opened(fifo)
    os.unlink(fifo)
    server.look()
    assert made_anew.wait(LIMIT_S)
    assert descriptors_of_removed(fifo) == 2  # the server's and ours
    write(late, "late", time.time() + 1000)
    os.close(late)
    soon(lambda: descriptors_of_removed(fifo) == 0)
    assert scopes(server) == ["late"]


def test_a_removed_fifo_that_nobody_has_open_is_closed_at_once(
    fifo: str, server: FileTimerServer, made_anew: threading.Event
) -> None:
    os.unlink(fifo)
    server.look()
    assert made_anew.wait(LIMIT_S)
    soon(lambda: descriptors_of_removed(fifo) == 0)


def test_a_server_that_is_stopped_leaves_no_removed_fifo_open(fifo: str) -> None:
    server = FileTimerServer(fifo, "job", max_interval=60)
    server.start()
    fds: list[int] = []
    try:
        fds.append(opened(fifo))
        os.unlink(fifo)
        server.stop()
        assert descriptors_of_removed(fifo) == 1
        with pytest.raises(BrokenPipeError):  # which our client takes for a server that has gone
            write(fds[0], "late", time.time() + 1000)
    finally:
        server.stop()
        for fd in fds:
            os.close(fd)


class Between(logging.Handler):
    """Has something happen between two reads of the server: at its first complaint, in its thread."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens: list[Callable[[], None]] = [happens]

    def emit(self, record: logging.LogRecord) -> None:
        if "is ignored" in record.getMessage() and self._happens:
            self._happens.pop()()


@pytest.mark.parametrize("is_between", [False, True])
def test_what_a_worker_has_written_into_the_removed_fifo_is_heard_before_what_it_writes_into_the_new_one(
    fifo: str, is_between: bool
) -> None:
    """Also when it does both between the server's reads of the two, whichever the server reads first."""
    fds: list[int] = []

    def told(event: str, _request: FileTimerRequest | None) -> None:
        if event == "watchdog file made anew":
            fds.append(opened(fifo))
            if is_between:
                for fd in fds:
                    os.write(fd, b"nonsense\n")
            else:
                write_to_both()

    def write_to_both() -> None:
        write(fds[0], "block", time.time() + 1000)
        write(fds[1], "block", -1.0)
        write(fds[1], "last", time.time() + 1000)

    between, logger = Between(write_to_both), logging.getLogger("phalanx.timer.file_server")
    server = FileTimerServer(fifo, "job", max_interval=60, log_event=told)
    logger.addHandler(between)
    try:
        server.start()
        fds.append(opened(fifo))
        os.unlink(fifo)
        server.look()
        soon(lambda: "last" in scopes(server))
        os.close(fds.pop(0))
        soon(lambda: descriptors_of_removed(fifo) == 0)  # all that was in it is heard
        assert scopes(server) == ["last"]
    finally:
        server.stop()
        logger.removeHandler(between)
        for fd in fds:
            os.close(fd)


def test_half_a_line_in_a_removed_fifo_spoils_no_line_of_the_new_one(fifo: str) -> None:
    with ExitStack() as stack:
        old = Fifo(fifo)
        stack.callback(old.close)
        late = stack.enter_context(open(opened(fifo), "wb", buffering=0))
        os.unlink(fifo)
        old.let_go()
        new = Fifo(fifo)
        stack.callback(new.close)
        late.write(b"half")
        assert (old.read(), new.read()) == (b"half", b"")
        assert not old.is_at_end
        late.close()
        assert (old.read(), new.read()) == (b"", b"")
        assert (old.is_at_end, new.is_at_end) == (True, False)
        assert new.is_at(fifo)
        assert not old.is_at(fifo)


@pytest.mark.parametrize("other", ["a file", "a FIFO"])
@pytest.mark.parametrize("opened", ["for reading", "for writing"])
def test_whatever_takes_its_place_before_it_is_open_stays(
    fifo: str, other: str, opened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, precious = os.open, f"{fifo}.other"
    at = os.O_RDONLY if opened == "for reading" else os.O_WRONLY

    def taken(path: str, flags: int, **further: int) -> int:
        if path == fifo and flags & os.O_ACCMODE == at and os.path.lexists(precious):
            os.rename(precious, fifo)
        return real(path, flags, **further)

    if other == "a file":
        Path(precious).write_text("precious")
    else:
        os.mkfifo(precious)
    identity = os.lstat(precious)
    monkeypatch.setattr(os, "open", taken)
    # Nobody reads the other FIFO: then it cannot be opened for writing.
    with pytest.raises(OSError, match=r"something else has taken its place|No such device"):
        Fifo(fifo)
    assert os.path.samestat(os.lstat(fifo), identity)
