"""Who is too slow is ended, and nobody else: real processes, and a console and a watchdog that keep what they hear."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.agent.processes.stacks import Stacks
from phalanx.agent.stacks import EndSlow
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
            live=set(pids), pids=pids, stacks_folder=lambda local_rank: f"/logs/attempt_0/{local_rank}"
        )
        console: Any = SimpleNamespace(say=self.said.append)
        watchdog: Any = SimpleNamespace(
            is_of_the_job=lambda _pid: True, ends=lambda *what: self.reasons.append(what)
        )
        processes: Any = SimpleNamespace(workers=workers)
        driver: Any = None
        self._end = Stacks(processes, driver, console, watchdog).perform[EndSlow]

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
