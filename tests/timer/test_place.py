"""The place of a server's FIFO: taken, lost with its folder, and no reason to let a slow worker live."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.timer.waiting import LIMIT_S

from phalanx.timer import FileTimerServer
from phalanx.timer.requests import FileTimerRequest


class Told(logging.Handler):
    """What the server says, for a test that waits until it has been said."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._news = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._news:
            self.lines.append(record.getMessage())
            self._news.notify_all()

    def wait_for(self, text: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: any(text in one for one in self.lines), LIMIT_S), self.lines


@pytest.fixture
def told() -> Iterator[Told]:
    handler = Told()
    logger = logging.getLogger("phalanx.timer.file_server")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def write(fd: int, request: FileTimerRequest) -> None:
    os.write(fd, request.to_json().encode() + b"\n")


def test_without_its_folder_a_slow_worker_is_ended_all_the_same_and_the_fifo_comes_back_with_it(
    tmp_path: Path, told: Told
) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    fifo = str(folder / "watchdog")
    ended = threading.Event()
    server = FileTimerServer(fifo, "job", 0.1, end_worker=lambda _request: ended.set())
    asked_before = FileTimerRequest(os.getppid(), "forward", time.time() + 1000.0, 9)
    server.register_timers([asked_before])
    server.start()
    try:
        # At once: in a folder that is only being removed the server makes its FIFO anew, and the folder stays.
        folder.rename(tmp_path / "elsewhere")
        server.look()
        told.wait_for("No such file or directory: nothing is in the place of the timers' FIFO")
        assert not ended.is_set()
        asked_before.expiration_time = time.time()  # the book is the thread's: nothing is entered from here
        assert ended.wait(LIMIT_S)
        folder.mkdir()
        told.wait_for("was removed by somebody, and is made anew")
        ended.clear()
        fd = os.open(fifo, os.O_WRONLY)
        write(fd, FileTimerRequest(os.getppid(), "forward", time.time(), 9))
        os.close(fd)
        assert ended.wait(LIMIT_S)
    finally:
        server.stop()
    assert not any("goes on after an error" in one for one in told.lines)
    assert sum("cannot tell of their timers" in one for one in told.lines) == 1


def test_a_fifo_that_could_not_be_opened_leaves_its_name_free(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = str(tmp_path / "watchdog")
    real, is_short = os.open, threading.Event()

    def opened(path: str, *arguments: int, **further: int) -> int:
        if path == fifo and is_short.is_set():
            raise OSError(24, "Too many open files")
        return real(path, *arguments, **further)

    monkeypatch.setattr(os, "open", opened)
    server = FileTimerServer(fifo, "job", 0.1)
    server.start()
    try:
        is_short.set()
        os.unlink(fifo)
        told.wait_for("Too many open files")
        is_short.clear()
        told.wait_for("was removed by somebody")
        assert os.path.exists(fifo)
    finally:
        server.stop()


def test_a_fifo_that_another_server_reads_is_not_taken_away(tmp_path: Path) -> None:
    fifo = str(tmp_path / "watchdog")
    first, second = FileTimerServer(fifo, "outer"), FileTimerServer(fifo, "inner")
    first.start()
    was = os.stat(fifo).st_ino
    with pytest.raises(FileExistsError, match="another timer server reads from it"):
        second.start()
    assert os.stat(fifo).st_ino == was
    first.stop()
    second.start()
    second.stop()


DIES = """
import os, signal, sys
from phalanx.timer import FileTimerServer
server = FileTimerServer(sys.argv[1], "job")
server.start()
told, tell = os.pipe()
if os.fork() == 0:
    server.stop()  # of its parent, whose it stays
    assert os.path.exists(sys.argv[1])
    os.write(tell, b"x")
    sys.stdin.read()
    os._exit(0)
os.close(tell)
assert os.read(told, 1) == b"x"
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_child_of_a_killed_server_does_not_keep_the_next_one_away(tmp_path: Path) -> None:
    fifo = str(tmp_path / "watchdog")
    words = [sys.executable, "-c", DIES, fifo]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as killed:
        assert killed.wait(LIMIT_S) == -signal.SIGKILL
        server = FileTimerServer(fifo, "job")
        server.start()
        server.stop()


def test_a_fifo_of_which_it_cannot_be_known_whether_it_is_read_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = str(tmp_path / "watchdog")
    first, second = FileTimerServer(fifo, "outer"), FileTimerServer(fifo, "inner")
    first.start()
    was = os.stat(fifo).st_ino
    real, is_first = os.open, iter([True])

    def opened(path: str, *arguments: int, **further: int) -> int:
        if path == fifo and next(is_first, False):
            raise OSError(24, "Too many open files")
        return real(path, *arguments, **further)

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(OSError, match="Too many open files"):
        second.start()
    assert os.stat(fifo).st_ino == was
    first.stop()


MANY = """
import os, resource, sys, threading, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
from phalanx.timer import FileTimerClient, FileTimerServer
from phalanx.timer.requests import FileTimerRequest
fifo = sys.argv[1]
"""

SERVES = """
ended = threading.Event()
server = FileTimerServer(fifo, "job", 0.1, end_worker=lambda request: ended.set())
server.start()
with open(fifo, "w") as line:
    print(FileTimerRequest(os.getppid(), "forward", time.time(), 9).to_json(), file=line)
assert ended.wait(60)
server.stop()
"""

TELLS = """
os.mkfifo(fifo)
reader = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)
client = FileTimerClient(fifo)
filler = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
try:
    while True:
        os.write(filler, b"x" * 4096)
except BlockingIOError:
    threading.Timer(0.1, os.read, (reader, 1 << 20)).start()
client.acquire("forward", time.time() + 100)
"""


@pytest.mark.parametrize("body", [SERVES, TELLS], ids=["server", "client"])
def test_descriptors_beyond_a_thousand_are_as_good_as_any(tmp_path: Path, body: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this machine gives a process no such descriptors")
    done = subprocess.run(
        [sys.executable, "-c", MANY + body, str(tmp_path / "watchdog")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
