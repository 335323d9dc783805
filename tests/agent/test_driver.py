"""The driver with real processes: what it does when our own code is wrong, and when the world around it is."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent.launching import LIMIT_S, last_line, start

pytestmark = pytest.mark.system


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
        while True:  # in naps: a signal that comes just before one long sleep would be heard after it
            time.sleep(0.05)
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
        children = pathlib.Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
        def keepers():
            comms = {one: pathlib.Path(f"/proc/{one}/comm").read_text() for one in children.read_text().split()}
            return [int(one) for one, comm in comms.items() if "keeper" in comm]
        while not (found := keepers()):  # it names itself, which may be after the start of workers
            time.sleep(0.01)
        [keeper] = found
        os.kill(keeper, signal.SIGKILL)
        def lives():
            try:
                return pathlib.Path(f"/proc/{keeper}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            except OSError:
                return False
        while lives():  # only then its descriptors are closed, and the agent sees that
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
    assert sum(one.startswith("WorkersSpawned(") for one in events) == 2


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


def test_a_worker_cannot_silence_the_agent_with_a_long_reason(tmp_path: Path) -> None:
    """Nobody reads the launcher's stderr; a pipe takes 64 KiB, and the agent must go on all the same."""
    process = start(
        tmp_path,
        """
        import phalanx
        phalanx.exclude_node("x" * 900_000 + "\\n\\x1b[31m")
        for _ in range(100):
            phalanx.exclude_node("again" * 500)
        print("done", flush=True)
        """,
        "--stderr-tail=0",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert len(max(err.splitlines(), key=len)) < 5000
    assert "\x1b" not in err


def test_sums_beyond_64_bits_are_refused_and_end_nothing(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import phalanx
        shared = phalanx.values()
        for digits in (b"9" * 4300, b"9" * 5000, b"9223372036854775807"):
            shared.set("k", digits)
            try:
                shared.add("k", 1)
            except ValueError as refusal:
                print(refusal)
        """,
    )
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert out.count("does not fit into 64 bits") == 3


def test_a_current_folder_that_was_deleted_is_no_bug_of_ours(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    process = start(
        tmp_path,
        "import os; os.rmdir(os.getcwd()); raise KeyError(1)",
        before=f"import os; os.chdir({str(folder)!r})",
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert f"KeyError: 1 at {tmp_path}/worker.py:1" in err


def test_a_log_folder_that_was_deleted_between_rounds_is_a_sentence(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "import shutil, sys; shutil.rmtree('logs'); open('logs', 'w').close(); sys.exit(5)",
        f"--log-dir={tmp_path}/logs",
        "--max-restarts=1",
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert "logs" in err.splitlines()[-1]


PORT_OF_RANK_0 = """
import os, socket, sys
with open("tries", "a") as tries:
    tries.write(os.environ["MASTER_PORT"] + " " + os.environ["TORCHELASTIC_RESTART_COUNT"] + "\\n")
number = int(os.environ["MASTER_PORT"])
"""


def test_a_master_port_that_somebody_took_is_tried_again_without_charge(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        PORT_OF_RANK_0
        + """
if len(open("tries").readlines()) == 1:
    thief = socket.create_server(("", number))
    if os.fork() == 0:  # somebody who holds the port while rank 0 wants it
        import time
        time.sleep(600)
socket.create_server(("", number))
print("served")
""",
    )
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (0, "served\n"), err
    assert "its MASTER_PORT was taken (not charged)" in err
    (first, first_count), (second, second_count) = map(
        str.split, (tmp_path / "tries").read_text().splitlines()
    )
    assert first != second
    assert (first_count, second_count) == ("0", "0")


def test_a_port_of_the_scripts_own_that_is_taken_is_an_ordinary_failure(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        PORT_OF_RANK_0
        + """
own = socket.create_server(("127.0.0.1", 0))
socket.create_server(own.getsockname())
""",
    )
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert len((tmp_path / "tries").read_text().splitlines()) == 1


def test_workers_are_told_over_their_channel_when_another_rank_is_the_reason_to_stop(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, signal, sys, time
        import phalanx
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.environ["RANK"] == "0":
            open("ready", "w").close()
            while not phalanx.should_stop():
                time.sleep(0.01)
            print("told", flush=True)
            sys.exit(0)
        while not os.path.exists("ready"):
            time.sleep(0.01)
        sys.exit(9)
        """,
        "--nproc-per-node=2",
    )
    out, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (9, "told\n")


def test_a_bug_while_the_workers_are_ended_ends_the_job_all_the_same(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "import time; time.sleep(0.2)",
        "--log-dir=/dev/null",
        before="""
        from phalanx.agent.group import GroupMachine, GroupState, WorkersExited
        from phalanx.agent.processes.workers import Workers
        del GroupMachine.table[WorkersExited][GroupState.RUNNING]
        def end_at_once(self, grace_s):
            raise RuntimeError("a second bug")
        Workers.end_at_once = end_at_once
        """,
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 70
    found = re.search(r"the flight record is (\S+)", err)
    assert found is not None, "there is no log folder, so it is in the temporary one"
    Path(found[1]).unlink()


def test_a_report_that_nobody_reads_does_not_keep_a_launcher_from_leaving(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    while True:
        try:
            os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    worker = tmp_path / "worker.py"
    worker.write_text("raise SystemExit(3)")
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "run",
        "--stderr-tail=0",
        f"--log-dir={tmp_path}/logs",
        str(worker),
    ]
    process = subprocess.Popen(command, stderr=write, cwd=tmp_path)
    os.close(write)
    try:
        give_up_at = time.monotonic() + LIMIT_S
        while not list((tmp_path / "logs").rglob("flight.jsonl")):  # written just before the report
            assert time.monotonic() < give_up_at
            time.sleep(0.01)
        while process.poll() is None:
            assert time.monotonic() < give_up_at
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
    finally:
        os.close(read)
        process.kill()
        process.wait()


def test_a_line_that_had_to_wait_is_printed_in_the_end_of_a_job_that_healed(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, sys
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3)
        """,
        "--max-restarts=1",
        before="""
        from phalanx.agent.processes.console import Console
        Console._is_writable = lambda self: False
        """,
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert "restart 1 of 1" in err


@pytest.mark.parametrize("log_dir", ["logs", "/dev/null"])
def test_an_exception_is_in_the_summary_wherever_the_script_goes_and_whether_files_are_kept(
    tmp_path: Path, log_dir: str
) -> None:
    process = start(
        tmp_path, "import os; os.chdir('/'); raise ValueError('bad batch 17')", f"--log-dir={log_dir}"
    )
    line = last_line(process)
    assert "rank 0: ValueError: bad batch 17 at " in line
    assert "worker.py:1 (exit code 1)" in line


@pytest.mark.parametrize(
    ("statement", "shown"),
    [
        ("raise SystemExit('no data at /x')", "rank 0: exit code 1: no data at /x"),
        ("raise SystemExit(7)", "rank 0: exit code 7"),
        ("assert not True", "rank 0: AssertionError at worker.py:1 (exit code 1)"),
    ],
)
def test_the_last_line_says_what_the_script_said(tmp_path: Path, statement: str, shown: str) -> None:
    assert last_line(start(tmp_path, statement)).endswith(shown)


def test_the_wait_for_the_other_ranks_and_its_end_are_told(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, signal, sys, time
        if os.environ["RANK"] == "1":
            while not os.path.exists("deaf"):
                time.sleep(0.01)
            sys.exit(4)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open("deaf", "w").close()
        time.sleep(600)
        """,
        "--nproc-per-node=2",
        "--shutdown-timeout=1",
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 4
    assert "phalanx: rank 1 failed: asked 1 other worker to stop, 1 s of grace\n" in err
    assert "phalanx: rank 0 did not end within the grace and will be killed\n" in err


def test_logs_that_were_asked_for_without_a_folder_are_told_where_they_are(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start(
        tmp_path, "print('x')", "-r3", before=f"import os; os.environ['TMPDIR'] = {str(temporary)!r}"
    )
    folder = last_line(process).removeprefix("phalanx: logs: ")
    assert (Path(folder) / "attempt_0/0/stdout.log").read_text() == "x\n"


def test_no_place_for_temporary_files_is_a_sentence(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "print('x')",
        f"--log-dir={tmp_path}/logs",
        before="""
        from phalanx.multiprocessing import folders
        from phalanx.agent.channel import listening as channel
        channel.temporary_folder = lambda: "/proc/nowhere"
        """,
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2
    assert "cannot use the temporary folder '/proc/nowhere'" in err
    assert "TMPDIR" in err
    assert "Traceback" not in err
