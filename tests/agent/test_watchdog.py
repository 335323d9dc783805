"""The server of timers beside an agent: whose FIFO it takes, and what it remembers of whom."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from phalanx.agent.watchdog import Watchdog, place_of
from phalanx.timer import FileTimerServer
from phalanx.timer.client import OUR_TIMER_FILE, TIMER_FILE
from phalanx.timer.requests import FileTimerRequest

LONG_S = 60.0


def test_the_place_is_where_a_person_says() -> None:
    assert place_of({TIMER_FILE: "/run/timers"}) == "/run/timers"
    assert place_of({TIMER_FILE: "/run/timers", OUR_TIMER_FILE: "/tmp/of_an_agent"}) == "/run/timers"


def test_a_launcher_within_a_worker_of_torchs_agent_leaves_that_agents_fifo() -> None:
    worker = {"TORCHELASTIC_RUN_ID": "outer", "LOCAL_RANK": "0", TIMER_FILE: "/tmp/of_torch"}
    assert place_of(worker) not in ("", "/tmp/of_torch")
    ours = {**worker, OUR_TIMER_FILE: "/tmp/of_an_agent", TIMER_FILE: "/run/timers"}
    assert place_of(ours) == "/run/timers", "a person says so within a worker of ours"


def test_a_launcher_within_a_worker_leaves_the_fifo_of_the_outer_job(tmp_path: Path) -> None:
    fifo = str(tmp_path / "outer")
    ended = threading.Event()
    outer = FileTimerServer(fifo, "outer", end_worker=lambda _request: ended.set())
    outer.start()
    environment = {TIMER_FILE: fifo, OUR_TIMER_FILE: fifo}  # as each worker of the outer job has it
    place = place_of(environment)
    inner = FileTimerServer(place, "inner")
    inner.start()
    try:
        assert place not in ("", fifo)
        with open(fifo, "w") as line:
            print(FileTimerRequest(os.getppid(), "forward", time.time(), 9).to_json(), file=line)
        assert ended.wait(LONG_S)
    finally:
        inner.stop()
        outer.stop()


def told_of(request: FileTimerRequest) -> list[Any]:
    """What the agent's loop is told of a request whose time is over."""

    class Loop:
        def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
            told.extend(arguments)

    told: list[Any] = []
    watchdog = Watchdog("/nowhere", run_id="job")
    loop: Any = Loop()
    watchdog._loop = loop
    watchdog._expired(request)
    return told


def test_whoever_is_too_slow_is_known_by_its_number_and_its_beginning() -> None:
    [expired] = told_of(FileTimerRequest(os.getpid(), "a\x1b[2Jb\n", 0.0, 9))
    assert (expired.pid, expired.scope) == (os.getpid(), r"a\x1b[2Jb\n")
    assert expired.started > 0


def test_of_whoever_has_ended_nothing_is_told() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait(LONG_S)
    assert told_of(FileTimerRequest(process.pid, "forward", 0.0, 9)) == []


def test_a_round_remembers_nobody_of_the_one_before() -> None:
    watchdog = Watchdog("/nowhere", run_id="job")
    watchdog.ends(7, "forward", "")
    assert watchdog._why
    watchdog.new_round()
    assert not watchdog._why
