"""Timers in workers that an agent watches over, with torch's own client in the workers."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from tests.side_by_side.pair import SideBySide, shows
from tests.system.launch import Job, launcher_under_test

ENABLED = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
TELL_FIFO = """
    import os, stat
    from telling import tell

    path = os.environ["TORCHELASTIC_TIMER_FILE"]
    tell("timer", file=path, is_fifo=stat.S_ISFIFO(os.stat(path).st_mode))
"""


@shows("same", "variable TORCHELASTIC_ENABLE_FILE_TIMER", "variable TORCHELASTIC_TIMER_FILE")
@pytest.mark.parametrize("env", [ENABLED, {**ENABLED, "TORCHELASTIC_TIMER_FILE": "mine"}], ids=str)
def test_workers_are_told_of_a_fifo_when_it_was_asked_for(
    side_by_side: SideBySide, env: dict[str, str]
) -> None:
    for seen in side_by_side(TELL_FIFO, "--standalone", env=env):
        timer = seen.told("timer")[0]
        assert timer["is_fifo"]
        name = Path(timer["file"]).name
        assert name.startswith("watchdog_timer_") if env == ENABLED else name == "mine"
        assert not Path(seen.logs.parent, timer["file"]).is_fifo(), "it is removed with the job"


TOO_SLOW_ONCE = """
    import os, time
    from telling import tell
    from torch.distributed.elastic import timer

    timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    slow = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" or "ALWAYS" in os.environ
    with timer.expires(after=0.5 if slow else 1000, scope="the step"):
        time.sleep(1000 if slow else 0)
    tell("in time")
"""


@shows(
    "better",
    "variable TORCHELASTIC_ENABLE_FILE_TIMER",
    how="a worker that is too slow is ended and restarted, and named; there the agent dies with it",
)
def test_a_worker_that_is_too_slow_is_ended_and_named_and_its_job_is_tried_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TOO_SLOW_ONCE))
    report = tmp_path / "report.json"

    words = ("--standalone", "--report-file", str(report), str(script))
    again = ("--max-restarts", "1", *words)
    with Job(launcher_under_test(), again, folder=tmp_path / "once", env=ENABLED) as job:
        assert job.wait() == 0, job.stderr
        assert [event.restart for event in job.told("in time")] == [1]
    with Job(launcher_under_test(), words, folder=tmp_path / "ever", env={**ENABLED, "ALWAYS": "1"}) as job:
        assert job.wait() == 137
        assert b"its timer ended it, because it was too slow in the step" in job.stderr
    first = json.loads(report.read_text())["first_failure"]
    (explanation,) = first["explanation"]
    assert explanation.startswith(
        "its timer ended it, because it was too slow in the step; stacks of all ranks: "
    )


def test_a_fifo_that_cannot_be_made_is_one_sentence_before_anything_starts(tmp_path: Path) -> None:
    env = {**ENABLED, "TORCHELASTIC_TIMER_FILE": "/no/such/folder/fifo"}
    with Job(launcher_under_test(), ("--no-python", "true"), folder=tmp_path, env=env) as job:
        assert job.wait() == 2
    said = "TORCHELASTIC_TIMER_FILE: the timer server cannot make '/no/such/folder/fifo': No such file or directory"
    assert job.stderr.decode() == f"phalanx: error: {said}\n"
