"""What a real process tells of its threads, and what the file says when that is not all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.agent.evidence.stacks import FILE_BYTES_MAX, FILE_NAME, Asked, py_spy, save
from phalanx.multiprocessing import pidfd
from phalanx.multiprocessing.nameless import NamelessFile

THREADS = """
import sys, threading
from phalanx.errors._boot import write_stacks_to

write_stacks_to(int(sys.argv[1]))
begun = threading.Semaphore(0)

def idle():
    begun.release()
    threading.Event().wait()

def in_the_collective():
    print("ready", flush=True)
    threading.Event().wait()

for _ in range(int(sys.argv[2])):
    threading.Thread(target=idle, daemon=True).start()
for _ in range(int(sys.argv[2])):
    begun.acquire()
in_the_collective()
"""


@pytest.fixture(autouse=True)
def _there_is_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the tests here is about a limit."""
    for limit in ("ANSWER_S", "PY_SPY_S"):
        monkeypatch.setattr(f"phalanx.agent.evidence.stacks.{limit}", 60.0)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[NamelessFile]:
    fd = os.open(tmp_path / "crash", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    one = NamelessFile.of(fd)
    yield one
    one.close()


def told(file: NamelessFile, folder: Path, threads: int, spy: str | None) -> str:
    """What is written down of a process with so many threads beside its main one."""
    words = (sys.executable, "-c", THREADS, str(file.fd), str(threads))
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=(file.fd,)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            one = Asked.of(0, process.pid, str(folder), file)
            assert save([one], "a test wants it", spy, lambda _pid: None) == []
            one.close()
        finally:
            process.send_signal(signal.SIGKILL)
    return (folder / FILE_NAME).read_text()


def test_of_more_threads_than_are_told_the_file_says_so_and_what_to_install(
    file: NamelessFile, tmp_path: Path
) -> None:
    text = told(file, tmp_path, 120, None)
    assert (
        "only the newest 100 threads are shown, of which the main thread mostly is none; install py-spy"
        in text
    )


@pytest.mark.skipif(py_spy() is None, reason="py-spy is not installed")
def test_of_more_threads_than_are_told_py_spy_is_asked_as_well(file: NamelessFile, tmp_path: Path) -> None:
    text = told(file, tmp_path, 120, py_spy())
    head, words, rest = text.partition("only the newest 100 threads are shown")
    assert words
    assert "in idle" in head
    # Some systems let nobody look at other processes.
    assert "in_the_collective (" in rest or "py-spy says" in rest


def test_few_threads_are_all_told_and_nothing_is_added(file: NamelessFile, tmp_path: Path) -> None:
    text = told(file, tmp_path, 20, py_spy())
    assert text.count("in idle") == 20
    assert "in in_the_collective" in text
    assert "py-spy" not in text
    assert "newest" not in text


def test_where_there_are_no_pidfds_workers_are_asked_all_the_same(
    file: NamelessFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pidfd_open", refused)
        pidfd.is_supported.cache_clear()
        text = told(file, tmp_path, 2, None)
        with subprocess.Popen(["sleep", "1000"]) as process:
            one = Asked.of(0, process.pid, str(tmp_path), file)
            was_gone = [one.is_gone]
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            was_gone.append(one.is_gone)
            process.wait(60)
            was_gone.append(one.is_gone)
            one.close()
    pidfd.is_supported.cache_clear()
    assert "in in_the_collective" in text
    assert was_gone == [False, True, True]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def no_spy(folder: Path) -> str:
    """A program in the place of py-spy, which says what nobody may be told."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\ntouch {folder}/was_run\necho 'a stack of a stranger'\n")
    path.chmod(0o700)
    return str(path)


def test_who_has_ended_is_not_waited_for_and_whoever_has_its_number_is_not_looked_at(
    sleeper: subprocess.Popen[bytes], file: NamelessFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.agent.evidence.stacks.ANSWER_S", 1000.0)
    one = Asked.of(0, sleeper.pid, str(tmp_path), file)
    sleeper.kill()
    sleeper.wait(60)
    one.pid = os.getppid()  # as if it had got the number
    monkeypatch.setattr(Asked, "ask", lambda self: setattr(self, "is_asked", True))
    assert save([one], "a test wants it", no_spy(tmp_path), lambda _pid: None) == []
    one.close()
    assert "the process has ended" in (tmp_path / FILE_NAME).read_text()
    assert not (tmp_path / "was_run").exists()


def test_who_ends_while_py_spy_looks_is_not_told_of(
    sleeper: subprocess.Popen[bytes], file: NamelessFile, tmp_path: Path
) -> None:
    one = Asked.of(0, sleeper.pid, str(tmp_path), file)

    def spare(_pid: int) -> None:
        sleeper.kill()
        sleeper.wait(60)

    assert save([one], "a test wants it", no_spy(tmp_path), spare) == []
    one.close()
    assert (tmp_path / "was_run").exists()
    assert "a stack of a stranger" not in (tmp_path / FILE_NAME).read_text()


def test_what_a_worker_tells_in_one_round_has_a_bound(
    sleeper: subprocess.Popen[bytes], file: NamelessFile, tmp_path: Path
) -> None:
    os.ftruncate(file.fd, FILE_BYTES_MAX)
    one = Asked.of(0, sleeper.pid, str(tmp_path), file)
    assert save([one], "a test wants it", None, lambda _pid: None) == []
    one.close()
    assert "has told 32 MiB of stacks in this round already" in (tmp_path / FILE_NAME).read_text()
