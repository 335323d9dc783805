"""Requests to a job's timer server that name somebody else than one of its workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.system.launch import Job, launcher_under_test

pytestmark = pytest.mark.system

NAMING = """
import json, os, sys, time
def ask(pid, seconds):
    with open(os.environ["TORCHELASTIC_TIMER_FILE"], "w") as fifo:
        at = time.time() + seconds
        print(json.dumps({"version": 1, "pid": pid, "scope_id": "s", "expiration_time": at, "signal": 9}), file=fifo)
ask(int(sys.argv[1]), 0)
ask(os.getpid(), 0.1)
time.sleep(1000)
"""


def test_a_request_of_a_worker_ends_nobody_but_the_jobs_own_processes(tmp_path: Path) -> None:
    script = tmp_path / "naming.py"
    script.write_text(NAMING)
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            words = (str(script), str(stranger.pid))
            env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
            with Job(launcher_under_test(), words, folder=tmp_path, env=env) as job:
                assert job.wait() == 137
                assert b"its timer ended it" in job.stderr
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_beside_a_debugger_nobody_is_too_slow(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import time\nfrom phalanx import timer\nwith timer.expires(after=0.1): time.sleep(2)\n"
    )
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    with Job(launcher_under_test(), ("--debug-rank", "0", str(script)), folder=tmp_path, env=env) as job:
        assert job.wait() == 0
