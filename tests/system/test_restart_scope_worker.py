"""``--restart-scope worker``: the failed process is started again alone, and nothing of the others is touched."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Event, Job, Launch, Script

# Each worker has two children, one of them in a session of its own, and does what a file tells it.
WORKER = """
    import os, signal, subprocess, sys, time
    from telling import tell

    rank = os.environ["RANK"]
    near = subprocess.Popen(["sleep", "1000"])
    far = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    names = ("LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "PHALANX_ROUND", "PHALANX_RESTART_REASON",
             "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE")
    print("here is", os.getpid(), flush=True)
    tell("begun", near=near.pid, far=far.pid, **{name: os.environ[name] for name in names})
    while True:
        try:
            verb, _, rest = open(f"order-{rank}").read().partition(" ")
            os.unlink(f"order-{rank}")
            break
        except FileNotFoundError:
            time.sleep(0.02)
    if verb == "raise":
        raise RuntimeError(rest)
    if verb == "die":
        os.kill(os.getpid(), int(rest))
    for one in (near, far):
        one.kill()
    sys.exit(int(rest))
"""
SCOPE = ("--standalone", "--restart-scope", "worker", "--restart-backoff", "0")


def order(job: Job, rank: int, text: str) -> None:
    new = job.folder / f"new-{rank}"
    new.write_text(text)
    new.rename(job.folder / f"order-{rank}")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def begun(job: Job, count: int) -> dict[int, Event]:
    """The first life of each rank."""
    told = job.told("begun", count)
    return {event.rank: event for event in told if event.restart == 0}


def finish(job: Job, *ranks: int) -> None:
    for rank in ranks:
        order(job, rank, "exit 0")


@pytest.mark.parametrize("how", ["raise no server", "exit 3", "die 9", "die 11"])
def test_the_failed_worker_comes_back_alone_and_what_it_left_is_gone_before(
    launch: Launch, script: Script, how: str
) -> None:
    job = launch(*SCOPE, "--nproc-per-node", 3, "--max-restarts", 5, script(WORKER))
    first = begun(job, 3)

    order(job, 1, how)

    again = job.until("begun", rank=1, restart=1)
    assert again.pid != first[1].pid
    for name in ("LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT", "PHALANX_ROUND", "TORCHELASTIC_MAX_RESTARTS"):
        assert again[name] == first[1][name], name
    assert again["PHALANX_RESTART_REASON"].startswith("rank 1 ")
    assert "(restart 1 of 5)" in again["PHALANX_RESTART_REASON"]
    assert not any(map(is_alive, (first[1]["near"], first[1]["far"]))), "before the successor began"
    for rank in (0, 2):
        assert all(map(is_alive, (first[rank].pid, first[rank]["near"], first[rank]["far"])))
    job.printed(f"phalanx: {again['PHALANX_RESTART_REASON']}; started again alone\n")
    finish(job, 0, 1, 2)
    assert job.wait() == 0
    assert len(job.told("begun")) == 4
    assert job.stderr.count(b"started again alone") == 1


def test_each_life_has_logs_and_an_error_file_of_its_own_and_the_same_prefix(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    job = launch(
        *SCOPE, "--nproc-per-node", 2, "--max-restarts", 5, "--tee", 3, "--log-dir", logs, script(WORKER)
    )
    begun(job, 2)
    for number in (1, 2):
        order(job, 1, f"raise failure {number}")
        job.until("begun", rank=1, restart=number)
    finish(job, 0, 1)

    assert job.wait() == 0
    (run,) = logs.iterdir()
    attempt = run / "attempt_0"
    folders = sorted(path.name for path in attempt.iterdir() if path.is_dir())
    assert folders == ["0", "1", "1.1", "1.2"]
    lives = [event for event in job.told("begun") if event.rank == 1]
    for life, folder in zip(lives, ("1", "1.1", "1.2"), strict=True):
        assert (attempt / folder / "stdout.log").read_text() == f"here is {life.pid}\n"
        assert life["TORCHELASTIC_ERROR_FILE"] == str(attempt / folder / "error.json")
        assert f"[default1]:here is {life.pid}\n".encode() in job.stdout
    for number, folder in ((1, "1"), (2, "1.1")):
        error = json.loads((attempt / folder / "error.json").read_text())
        assert error["message"]["message"] == f"RuntimeError: failure {number}"
        assert f"[default1]:RuntimeError: failure {number}\n".encode() in job.stderr
    assert not (attempt / "1.2" / "error.json").exists()


def test_all_that_fail_at_once_come_back_and_each_is_charged(launch: Launch, script: Script) -> None:
    job = launch(*SCOPE, "--nproc-per-node", 4, "--max-restarts", 9, script(WORKER))
    begun(job, 4)
    for rank in range(3):
        order(job, rank, f"exit {rank + 1}")
    told = job.told("begun", 7)
    assert sorted(event.restart for event in told) == [0, 0, 0, 0, 1, 2, 3]
    assert sorted(event.rank for event in told) == [0, 0, 1, 1, 2, 2, 3]
    finish(job, *range(4))
    assert job.wait() == 0


def test_twenty_fast_failures_are_twenty_lives(launch: Launch, script: Script) -> None:
    quick = script("""
        import os, sys
        from telling import tell, stay
        tell("begun")
        count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if os.environ["RANK"] == "1":
            sys.exit(5 if count < 20 else 0)
        while not os.path.exists("done"):
            import time; time.sleep(0.02)
    """)
    job = launch(*SCOPE, "--nproc-per-node", 2, "--max-restarts", 20, quick)
    job.until("begun", rank=1, restart=20)
    (job.folder / "done").touch()
    assert job.wait() == 0
    told = job.told("begun")
    assert [event.restart for event in told if event.rank == 1] == list(range(21))
    assert [event.restart for event in told if event.rank == 0] == [0]


def test_when_the_restarts_are_used_up_the_last_failure_ends_the_job(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    job = launch(*SCOPE, "--nproc-per-node", 3, "--max-restarts", 1, "--report-file", report, script(WORKER))
    begun(job, 3)
    order(job, 2, "exit 4")
    job.until("begun", rank=2, restart=1)

    order(job, 0, "raise the last one")

    assert job.wait() == 1
    assert re.search(r"rank +: 0 ", job.summary)
    assert "RuntimeError: the last one" in job.summary
    assert "exitcode  : 1 " in job.summary
    assert "stopped because of it: ranks 1, 2" in " ".join(job.stderr.decode().split())
    told = json.loads(report.read_text())
    assert (told["failed_ranks"], told["stopped_ranks"]) == ([0], [1, 2])
    line = rb"rank 0 failed: RuntimeError: the last one at \S+; the one restart is used: asked 2 workers to stop, "
    assert re.search(line, job.stderr)
    assert len(job.told("begun")) == 4


def test_a_worker_that_has_succeeded_stays_so(launch: Launch, script: Script) -> None:
    job = launch(*SCOPE, "--nproc-per-node", 2, "--max-restarts", 3, script(WORKER))
    begun(job, 2)
    finish(job, 0)
    order(job, 1, "exit 3")
    job.until("begun", rank=1, restart=1)
    order(job, 1, "exit 3")
    job.until("begun", rank=1, restart=2)
    finish(job, 1)
    assert job.wait() == 0
    assert [event.rank for event in job.told("begun")].count(0) == 1


def test_a_stop_signal_while_a_worker_waits_for_its_next_life_ends_the_job_quietly(
    launch: Launch, script: Script
) -> None:
    job = launch(
        *("--standalone", "--restart-scope", "worker", "--restart-backoff", "1000:2000"),
        *("--nproc-per-node", 2, "--max-restarts", 3, script(WORKER)),
    )
    begun(job, 2)
    order(job, 1, "exit 3")
    job.until("begun", rank=1, restart=1)
    order(job, 1, "exit 3")
    job.printed("is started again alone in ")

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert len(job.told("begun")) == 3
    assert job.summary == ""


def test_a_launcher_that_is_killed_leaves_nothing_of_any_life(launch: Launch, script: Script) -> None:
    job = launch(*SCOPE, "--nproc-per-node", 2, "--max-restarts", 3, script(WORKER))
    begun(job, 2)
    order(job, 1, "exit 3")
    job.until("begun", rank=1, restart=1)

    job.send(signal.SIGKILL)

    job.wait_nobody()


def test_the_keeper_knows_the_next_life_by_its_number_alone(launch: Launch, tmp_path: Path) -> None:
    """It has no mark in its environment then, and no parent-death signal: a program is no Python script of ours."""
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "from telling import tell\n"
        "tell('begun')\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    sys.exit(3)\n"
        "os.execve('/bin/sleep', ['sleep', '1000'], {})\n"
    )
    program.chmod(0o755)
    job = launch(*SCOPE, "--max-restarts", 3, "--no-python", program)
    pid = job.until("begun", restart=1).pid
    pidfd = os.pidfd_open(pid)
    while b"1000" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        time.sleep(0.01)

    job.send(signal.SIGKILL)

    assert select.select([pidfd], [], [], LIMIT_S)[0], "it lives"
    os.close(pidfd)


def test_stdin_is_rank_0s_in_each_of_its_lives(launch: Launch, script: Script) -> None:
    source = script("""
        import os, sys
        from telling import tell
        tell("begun", line=sys.stdin.readline().strip())
        sys.exit(0 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "2" else 1)
    """)
    read, write = os.pipe()
    os.write(write, b"one\n")
    job = launch(*SCOPE, "--nproc-per-node", 1, "--max-restarts", 3, source, streams={"stdin": read})
    os.close(read)
    lines = []
    for number, text in enumerate((b"two\n", b"three\n", b"")):
        lines.append(job.until("begun", restart=number)["line"])
        os.write(write, text)
    os.close(write)
    assert job.wait() == 0
    assert lines == ["one", "two", "three"]


def test_the_next_life_hears_over_the_channel_that_it_is_to_stop(launch: Launch, script: Script) -> None:
    source = script("""
        import os, signal, sys, time
        from telling import tell
        from phalanx.errors.channel import should_stop

        signal.signal(signal.SIGTERM, lambda *_: None)
        tell("begun")
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(3)
        assert not should_stop()
        tell("connected")
        while not should_stop():
            time.sleep(0.02)
        tell("heard")
    """)
    job = launch(*SCOPE, "--nproc-per-node", 1, "--max-restarts", 3, source)
    job.until("connected")
    job.send(signal.SIGTERM)
    assert job.wait() == 143
    job.told("heard")


def test_a_command_that_vanishes_between_two_lives_is_a_failure_of_its_own(
    launch: Launch, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(f"#!{sys.executable}\nimport os, sys\nos.unlink({str(program)!r})\nsys.exit(3)\n")
    program.chmod(0o755)
    job = launch(*SCOPE, "--max-restarts", 3, "--no-python", program)
    assert job.wait() == 127
    assert b"could not be started" in job.stderr


def test_children_that_breed_and_are_deaf_die_with_their_worker_and_no_others_do(
    launch: Launch, script: Script
) -> None:
    """Grandchildren that ignore TERM, in sessions of their own, born while the worker dies."""
    source = script("""
        import os, subprocess, sys, time
        from telling import tell
        deaf = "trap '' TERM; while true; do setsid sleep 1000 & sleep 0.05; done"
        one = subprocess.Popen(["setsid", "sh", "-c", deaf])
        tell("begun", one=one.pid)
        while not os.path.exists(f"fail-{os.environ['RANK']}"):
            time.sleep(0.02)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
            sys.exit(3)
    """)
    job = launch(*SCOPE, "--nproc-per-node", 2, "--max-restarts", 3, source)
    first = begun(job, 2)
    (job.folder / "fail-1").touch()
    job.until("begun", rank=1, restart=1)
    assert not is_alive(first[1]["one"])
    assert not _first_lives(job, rank=1), "of the first life"
    assert len(_first_lives(job, rank=0)) > 1
    assert is_alive(first[0]["one"])
    (job.folder / "fail-0").touch()
    assert job.wait() == 0


def _first_lives(job: Job, *, rank: int) -> list[int]:
    """Processes of the first life of a worker, by the environment that they were started with."""
    wanted = {f"RANK={rank}".encode(), b"TORCHELASTIC_RESTART_COUNT=0"}
    found = []
    for one in job.survivors():
        with contextlib.suppress(OSError):  # it ended meanwhile
            if wanted <= set(Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")):
                found.append(one.pid)
    return found


def test_the_default_restarts_the_group(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, script(WORKER))
    begun(job, 2)
    order(job, 1, "exit 3")
    job.until("begun", rank=0, restart=1)
    finish(job, 0, 1)
    assert job.wait() == 0


def test_a_wrong_scope_is_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "--restart-scope", "node", "x.py"], capture_output=True
    )
    assert done.returncode == 2
    assert b"--restart-scope" in done.stderr
