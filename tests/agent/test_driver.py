"""The driver with real processes: what it does when our own code is wrong, and when the world around it is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

LIMIT_S = 60


def start(tmp_path: Path, script: str, *flags: str, before: str = "") -> subprocess.Popen[str]:
    """Run ``phalanx run`` on a script in a process of its own; ``before`` is code that runs first in the launcher."""
    worker = tmp_path / "worker.py"
    worker.write_text(textwrap.dedent(script))
    launcher = (
        textwrap.dedent(before) + "\nimport sys\nfrom phalanx.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", launcher, "run", *flags, str(worker)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)


def test_a_pair_that_nobody_listed_is_recorded_and_ends_the_job_in_order_with_70(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (open("stopped", "w").close(), sys.exit(0)))
        if os.environ["RANK"] == "0":
            while not os.path.exists("ready"):
                time.sleep(0.01)
            sys.exit(0)
        open("ready", "w").close()
        time.sleep(600)
        """,
        "--nproc-per-node=2",
        f"--log-dir={tmp_path}/logs",
        before="""
        from phalanx.agent.group import GroupMachine, GroupState, WorkersExited
        del GroupMachine.table[WorkersExited][GroupState.RUNNING]
        """,
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 70
    assert "nobody listed WorkersExited in state RUNNING" in err
    assert (tmp_path / "stopped").exists(), "the other worker was asked to stop and not just killed"
    found = re.search(r"the flight record is (\S+)", err)
    assert found is not None
    events = [json.loads(line)["event"] for line in Path(found[1]).read_text().splitlines()]
    assert events[0] == "JobBegan()"
    assert events[-1].startswith("WorkersExited(")


def test_a_keeper_that_was_killed_is_told_and_the_job_goes_on(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, pathlib, signal, time
        children = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
        keeper = next(int(one) for one in children if "keeper" in pathlib.Path(f"/proc/{one}/comm").read_text())
        os.kill(keeper, signal.SIGKILL)
        while os.path.exists(f"/proc/{keeper}/exe"):
            time.sleep(0.01)
        print("done")
        """,
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "done\n")
    assert "the keeper process is gone" in err


def test_a_failed_job_leaves_its_flight_record_beside_its_logs(tmp_path: Path) -> None:
    process = start(tmp_path, "raise SystemExit(3)", f"--log-dir={tmp_path}/logs", "--max-restarts=1")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 3
    assert "restart 1 of 1" in err
    (record,) = (tmp_path / "logs").rglob("flight.jsonl")
    events = [json.loads(line)["event"] for line in record.read_text().splitlines()]
    assert sum(one.startswith("RoundSettled(") for one in events) == 2


def test_orphans_that_end_during_the_job_do_not_pile_up_as_zombies(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, pathlib, subprocess, sys, time
        agent = os.getppid()
        for _ in range(20):
            subprocess.run([sys.executable, "-c", "import os\\nif os.fork() == 0: os._exit(0)"], check=True)
        def zombies():
            states = []
            for pid in pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
                try:
                    states.append(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
                except OSError:
                    pass
            return states.count("Z")
        while zombies():
            time.sleep(0.01)
        """,
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")


def test_a_hang_up_is_ignored_when_it_was_ignored_at_the_start_and_stops_the_job_otherwise(
    tmp_path: Path,
) -> None:
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getppid(), signal.SIGHUP)
        time.sleep(float(os.environ["STAY_S"]))
        """
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    os.environ["STAY_S"] = "0.5"
    try:
        process = start(tmp_path, script, before=ignoring)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
        os.environ["STAY_S"] = "600"
        process = start(tmp_path, script)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 128 + signal.SIGHUP
    finally:
        del os.environ["STAY_S"]


def test_nothing_of_ours_stays_in_the_temporary_folder(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start(
        tmp_path, "print('hello')", before=f"import os; os.environ['TMPDIR'] = {str(temporary)!r}"
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (0, "hello\n", "")
    assert list(temporary.iterdir()) == []
