"""Who is too slow is ended, and nobody else: real processes, and a console and a watchdog that keep what they hear."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.agent.processes.stacks import Stacks
from phalanx.agent.stacks import EndSlow
from phalanx.multiprocessing import pidfd
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.procfs import start_ticks_of

LATE = "process 7, which is no rank, has not ended by SIGTERM within 30 s: it is killed"


class Place:
    """What the performer of stacks has around it. ``process`` runs, and is a worker if ``local_rank`` is given."""

    def __init__(self, process: subprocess.Popen[bytes], local_rank: int | None = None) -> None:
        self.process = process
        self.said: list[str] = []
        self.reasons: list[tuple[int, str, str]] = []
        pids = {} if local_rank is None else {local_rank: process.pid}
        workers = SimpleNamespace(
            live=set(pids),
            pids=pids,
            stacks_folder=lambda local_rank: f"/logs/attempt_0/{local_rank}",
            send_to=self._send_to,
        )
        console: Any = SimpleNamespace(say=self.said.append)
        watchdog: Any = SimpleNamespace(
            is_of_the_job=lambda _pid: True, ends=lambda *what: self.reasons.append(what)
        )
        processes: Any = SimpleNamespace(workers=workers)
        driver: Any = None
        self._end = Stacks(processes, driver, console, watchdog).perform[EndSlow]

    def _send_to(self, _local_rank: int, number: int) -> bool:
        """As a child that is not reaped, of whichever kind."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if self.process.returncode is not None or os.waitid(os.P_PID, self.process.pid, flags) is not None:
            return False
        os.kill(self.process.pid, number)
        return True

    def end(self, *, started: int | None = None, late: str = "", number: int = signal.SIGKILL) -> None:
        began = start_ticks_of(self.process.pid) if started is None else started
        assert began is not None
        self._end(EndSlow(self.process.pid, number, "forward", began, late))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_who_has_not_ended_in_time_is_named_and_killed(sleeper: subprocess.Popen[bytes]) -> None:
    place = Place(sleeper)
    place.end(late=LATE)
    assert sleeper.wait(60) == -signal.SIGKILL
    assert place.said == [LATE]


def test_who_has_ended_is_not_said_to_run_on(sleeper: subprocess.Popen[bytes]) -> None:
    place = Place(sleeper)
    began = start_ticks_of(sleeper.pid)
    assert began is not None
    sleeper.kill()
    ended(sleeper)
    place.end(started=began, late=LATE)
    sleeper.wait(60)
    place.end(started=began, late=LATE)
    assert place.said == []


def ended(process: subprocess.Popen[bytes]) -> None:
    """Without reaping it: its number is still its own."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("local_rank", [None, 0])
def test_another_process_that_has_got_the_number_is_left_alone(
    sleeper: subprocess.Popen[bytes], local_rank: int | None
) -> None:
    place = Place(sleeper, local_rank)
    began = start_ticks_of(sleeper.pid)
    assert began is not None
    place.end(started=began - 1, late=LATE)
    assert sleeper.poll() is None
    assert (place.said, place.reasons) == ([], [])


def test_the_reason_of_a_workers_end_is_remembered_only_if_the_signal_was_sent(
    sleeper: subprocess.Popen[bytes],
) -> None:
    place = Place(sleeper, local_rank=3)
    began = start_ticks_of(sleeper.pid)
    place.end()
    assert place.reasons == [(sleeper.pid, "forward", "/logs/attempt_0")]
    ended(sleeper)
    place.end(started=began)
    assert len(place.reasons) == 1


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """From now on this process gets no pidfd."""

    def refused(*_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refused)


@pytest.fixture
def no_pidfds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A system that has none: an old kernel, or a filter of a sandbox."""
    with monkeypatch.context() as patched:
        refuse(patched, errno.ENOSYS)
        pidfd.is_supported.cache_clear()
        yield
    pidfd.is_supported.cache_clear()


@pytest.mark.usefixtures("no_pidfds")
@pytest.mark.parametrize("local_rank", [None, 0])
def test_where_there_are_no_pidfds_who_is_too_slow_is_ended_all_the_same(
    sleeper: subprocess.Popen[bytes], local_rank: int | None
) -> None:
    place = Place(sleeper, local_rank)
    began = start_ticks_of(sleeper.pid)
    assert began is not None
    place.end(started=began - 1)
    assert sleeper.poll() is None, "another one, with that number"
    place.end(late=LATE)
    assert sleeper.wait(60) == -signal.SIGKILL
    place.end(started=began, late=LATE)
    assert place.said == [LATE]


def test_an_agent_without_descriptors_ends_its_ranks_and_says_whom_it_cannot_end(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pidfd.is_supported()
    refuse(monkeypatch, errno.EMFILE)
    stranger = Place(sleeper)
    stranger.end(late=LATE)
    assert sleeper.poll() is None
    assert stranger.said == [f"process {sleeper.pid} could not be ended: Too many open files"]
    began = start_ticks_of(sleeper.pid)
    monkeypatch.setattr("phalanx.agent.processes.stacks.start_ticks_of", lambda _pid: None)
    Place(sleeper, local_rank=0).end(started=began)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_a_worker_that_cannot_be_asked_does_not_cost_the_stacks_of_the_others(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = NamelessFile.of(os.open(tmp_path / "crash", os.O_RDWR | os.O_CREAT))
    real, is_first = os.pidfd_open, iter([True])

    def opened(*arguments: int) -> int:
        if next(is_first, False):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments)

    assert pidfd.is_supported()
    monkeypatch.setattr(os, "pidfd_open", opened)
    monkeypatch.setattr("phalanx.agent.evidence.stacks.py_spy", lambda: None)
    workers: Any = SimpleNamespace(
        live=[0, 1],
        pids={0: sleeper.pid, 1: sleeper.pid},
        round=SimpleNamespace(rank=lambda local_rank: 4 + local_rank),
        stacks_folder=lambda local_rank: str(tmp_path / str(local_rank)),
        crash_file=lambda _local_rank: file,
    )
    processes: Any = SimpleNamespace(tree=SimpleNamespace(spare=None))
    nobody: Any = None
    said = asyncio.run(Stacks(processes, nobody, nobody, nobody)._saved(workers, "a test wants it"))
    file.close()
    assert said == ["the stacks of rank 4 could not be saved: Too many open files"]
    assert "rank 5 on" in (tmp_path / "1" / "stacks.txt").read_text()
