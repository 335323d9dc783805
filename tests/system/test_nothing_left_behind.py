"""Cases 5 and 6: nothing that a job started outlives it, and other jobs' processes are none of its business."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Launch, Script, survivors_with

# Each rank starts a plain child, one in a session of its own, and a daemon (double fork, own session).
FAMILY = """
    import os, subprocess, sys, time
    from telling import tell

    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["setsid", "sleep", "1000"])
    subprocess.run(["sh", "-c", "(setsid sleep 1000 >/dev/null 2>&1 &)"], check=True)
"""

SLEEPERS = {
    "plain": FAMILY + '    tell("ready")\n    time.sleep(1000)\n',
    "deaf": FAMILY
    + "    import signal\n"
    + "    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
    + '    tell("ready")\n    time.sleep(1000)\n',
}


@pytest.mark.parametrize("streams", [(), ("-r", "3"), ("-t", "3")], ids=["plain", "redirected", "teed"])
@pytest.mark.parametrize("source", SLEEPERS.values(), ids=SLEEPERS)
def test_nobody_outlives_a_killed_launcher(
    launch: Launch, script: Script, source: str, streams: tuple[str, ...]
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, *streams, script(source))
    job.told("ready", 2)

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


@pytest.mark.parametrize("streams", [(), ("-r", "3")], ids=["plain", "redirected"])
def test_a_killed_launcher_leaves_nothing_in_the_temporary_folder(
    launch: Launch, script: Script, streams: tuple[str, ...]
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, *streams, script(SLEEPERS["plain"]))
    job.told("ready", 2)
    assert list(job.temp.iterdir()) != []

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()
    assert list(job.temp.iterdir()) == []


def test_of_a_killed_launcher_the_logs_stay_if_something_is_in_them(launch: Launch, script: Script) -> None:
    train = script('from telling import *\nprint("step 1", flush=True)\ntell("ready")\nstay()')
    job = launch("--standalone", "-r", 3, train)
    job.told("ready")

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()
    (root,) = job.temp.iterdir()
    (log,) = root.rglob("stdout.log")
    assert log.read_text() == "step 1\n"


def test_programs_that_are_not_python_do_not_outlive_a_killed_launcher(launch: Launch) -> None:
    program = (
        'sleep 1000 & setsid sleep 1000 & echo \'{"event": "ready"}\' > $BLACK_BOX_PIPE; exec sleep 1000'
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--no-python", "sh", "-c", program)
    job.told("ready", 2)

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


def test_a_launcher_that_is_killed_while_it_starts_workers_leaves_nobody(
    launch: Launch, script: Script
) -> None:
    train = script("from telling import tell\ntell('begun')\nimport time\ntime.sleep(1000)")
    job = launch("--standalone", "--nproc-per-node", 24, train)
    job.told("begun")

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


def test_a_killed_process_group_of_the_launcher_leaves_nobody(launch: Launch, script: Script) -> None:
    """What `timeout -s KILL` and many cluster agents do; the workers have sessions of their own."""
    job = launch("--standalone", "--nproc-per-node", 2, script(SLEEPERS["plain"]))
    job.told("ready", 2)

    job.send_to_group(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


def test_a_killed_launcher_that_was_stopping_leaves_nobody(launch: Launch, script: Script) -> None:
    train = script(
        """
        import signal, time
        from telling import tell

        signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
        tell("ready")
        while True:
            time.sleep(1)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("ready", 2)
    job.send(signal.SIGTERM)
    job.told("asked", 2)

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


HOW_RANK_0_ENDS = {
    "raises": 'raise RuntimeError("out of memory")',
    "is killed": "os.kill(os.getpid(), 9)",
    "ends well": "sys.exit(0)",
}


@pytest.mark.parametrize("how", HOW_RANK_0_ENDS.values(), ids=HOW_RANK_0_ENDS)
def test_the_children_of_a_rank_are_gone_when_the_launcher_has_exited(
    launch: Launch, script: Script, how: str
) -> None:
    train = script(FAMILY + f'    if os.environ["RANK"] == "0":\n        {how}\n')

    job = launch("--standalone", "--nproc-per-node", 2, train)

    job.wait()
    assert job.survivors() == []


def test_a_child_that_hides_from_session_and_environment_is_gone_too(launch: Launch, script: Script) -> None:
    """It is still a descendant: orphans of a worker come to the launcher."""
    train = script(
        """
        import os, subprocess, sys

        token = os.environ["BLACK_BOX_TOKEN"]
        hidden = f"(env -i setsid sh -c 'sleep 1000; exit' {token} >/dev/null 2>&1 &)"
        subprocess.run(["sh", "-c", hidden], check=True)
        sys.exit(7)
        """
    )
    job = launch("--standalone", train)

    assert job.wait() == 7
    assert job.survivors() == []


def test_the_children_of_the_first_attempt_are_gone_when_the_second_begins(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, subprocess, sys
        from telling import tell

        def start_ticks(pid):
            try:
                with open(f"/proc/{pid}/stat") as stat:
                    state, *fields = stat.read().rpartition(")")[2].split()
            except OSError:
                return None
            return None if state in "ZX" else fields[18]

        path = f"family-of-{os.environ['RANK']}"
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            family = [os.getpid(), subprocess.Popen(["sleep", "1000"]).pid]
            family.append(subprocess.Popen(["setsid", "sleep", "1000"]).pid)
            family.append(subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000; sleep 1000"]).pid)
            with open(path, "w") as file:
                for pid in family:
                    print(pid, start_ticks(pid), file=file)
            os.rename(path, path + ".done")
            if os.environ["RANK"] == "0":
                while not os.path.exists("family-of-1.done"):
                    pass
                raise RuntimeError("out of memory")
            import time
            time.sleep(1000)
        alive = []
        for rank in 0, 1:
            for line in open(f"family-of-{rank}.done"):
                pid, ticks = line.split()
                if start_ticks(pid) == ticks:
                    alive.append(pid)
        tell("second attempt", alive=alive)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, train)

    assert job.wait() == 0
    assert [event["alive"] for event in job.told("second attempt", 2)] == [[], []]


def test_children_that_multiply_when_they_are_asked_to_stop_are_gone_too(
    launch: Launch, script: Script
) -> None:
    """One look at the process table is not enough: each TERM brings forth two more, four times over."""
    train = script(
        """
        import os, signal, sys, time
        from telling import tell

        def multiply(generation):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, lambda *_: [multiply(generation + 1) for _ in "ab" if generation < 4])
                if generation == 0:
                    tell("born")
                while True:
                    time.sleep(1000)

        if os.environ["RANK"] == "0":
            multiply(0)
            time.sleep(1000)
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(7)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("born")
    (job.folder / "go").touch()

    assert job.wait() == 7
    assert job.survivors() == []


def test_processes_of_others_are_never_touched(launch: Launch, script: Script) -> None:
    """Neither a bystander of the launcher's own session, nor a job of another launcher."""
    other = launch(
        "--standalone", script("from telling import tell\ntell('ready')\nimport time\ntime.sleep(1000)")
    )
    other.told("ready")
    members_of_other = {survivor.pid for survivor in other.survivors()}
    crashing = script(FAMILY + "    sys.exit(7)\n", name="crash.py")
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        try:
            job = launch("--standalone", "--nproc-per-node", 2, crashing)
            assert job.wait() == 7
            job.wait_nobody()

            assert bystander.poll() is None
            assert other.process.poll() is None
            assert {survivor.pid for survivor in other.survivors()} == members_of_other
        finally:
            bystander.kill()


def test_a_child_that_the_launcher_had_before_it_was_the_launcher_is_spared(launch: Launch) -> None:
    """`sh -c 'tensorboard & exec phalanx run …'`: the launcher inherits a child that is not of its job."""
    sidecar = "sh -c 'sleep 1000; exit' sidecar-of-$BLACK_BOX_TOKEN & echo $! > sidecar; exec \"$@\""
    job = launch("--standalone", "--no-python", "false", wrapper=("sh", "-c", sidecar, "sh"))

    assert job.wait() == 1
    sidecar_pid = int((job.folder / "sidecar").read_text())
    alive = {survivor.pid for survivor in job.survivors()}
    left = alive
    deadline = time.monotonic() + LIMIT_S
    while left:
        assert time.monotonic() < deadline, f"still alive: {left}"
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # a shell ends by itself when its child has ended
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
        left = {survivor.pid for survivor in job.survivors()}  # it may have started one meanwhile
    assert sidecar_pid in alive


def test_a_job_in_a_job_is_ended_with_it(launch: Launch, script: Script) -> None:
    script("from telling import tell\ntell('inner')\nimport time\ntime.sleep(1000)", name="inner.py")
    outer = script(
        """
        import subprocess, sys
        subprocess.run([sys.executable, "-m", "phalanx", "run", "--standalone", "--nproc-per-node", "2", "../inner.py"])
        """
    )
    job = launch("--standalone", outer)
    job.told("inner", 2)

    job.send(signal.SIGKILL)

    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


def test_a_clean_run_leaves_nothing_in_the_temporary_folder_and_prints_nothing(
    launch: Launch, script: Script
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--omp-threads", 1, script("pass"))

    assert job.wait() == 0
    assert (job.stdout, job.stderr) == (b"", b"")
    assert os.listdir(job.temp) == []
    assert survivors_with(job.token) == []


def test_a_stopped_run_leaves_nothing_in_the_temporary_folder(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(SLEEPERS["plain"]))
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert os.listdir(job.temp) == []


def test_a_temporary_folder_with_a_long_name_is_no_obstacle(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """Unix sockets have names of at most 107 bytes; clusters have folders that are longer."""
    deep = tmp_path.joinpath(*["a-folder-of-a-cluster"] * 8)
    deep.mkdir(parents=True)

    flags = ("--standalone", "--nproc-per-node", 2, "--omp-threads", 1)
    job = launch(*flags, script("pass"), env={"TMPDIR": str(deep)})

    assert job.wait() == 0
    assert job.stderr == b""
    assert os.listdir(deep) == []


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_watchdog_that_kills_a_worker_with_its_whole_process_group_does_not_take_the_launcher_along(
    launch: Launch, script: Script, restarts: int
) -> None:
    """It is one failure like others: charged, told, and what the worker had started is gone before the next attempt."""
    train = script(
        FAMILY
        + """
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        tell("ready", group=os.getpgid(0))
        time.sleep(1000)
"""
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", restarts, train)
    ready = {event.rank: event for event in job.told("ready", 2)}
    group = ready[1]["group"]
    assert group not in (os.getpgid(job.process.pid), ready[0]["group"])

    os.killpg(group, signal.SIGKILL)

    assert job.wait() == (0 if restarts else 137)
    assert b"SIGKILL" in job.stderr
    assert job.survivors() == []
