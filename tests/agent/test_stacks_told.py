"""What a real process tells of its threads, and what the file says when that is not all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.agent.evidence.stacks import FILE_NAME, Asked, py_spy, save
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
            assert one.can_answer
            process.send_signal(one.signal)
            one.is_asked = True
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
    # Some systems let nobody look at other processes, and a busy machine takes longer than its limit.
    assert "in_the_collective (" in rest or "py-spy says" in rest or "py-spy did not tell" in rest


def test_few_threads_are_all_told_and_nothing_is_added(file: NamelessFile, tmp_path: Path) -> None:
    text = told(file, tmp_path, 20, py_spy())
    assert text.count("in idle") == 20
    assert "in in_the_collective" in text
    assert "py-spy" not in text
    assert "newest" not in text
