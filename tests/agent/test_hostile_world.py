"""What workers, shells and users can do to a launcher, and what must come of it all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.agent.launching import LIMIT_S, last_line, start

pytestmark = pytest.mark.system


def sleepers(name: str) -> list[int]:
    """Live processes that were started as ``sleep <name>``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes() == f"sleep\0{name}\0".encode():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def soon(holds: object) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


@pytest.fixture
def nap() -> str:
    """An argument of sleep that nobody else uses."""
    return f"98{int.from_bytes(os.urandom(4)) % 10**6:06}.{os.getpid()}"


def test_the_first_failing_ranks_code_is_passed_through_although_our_signal_cut_its_way_out_short(
    tmp_path: Path,
) -> None:
    process = start(
        tmp_path,
        """
        import atexit, os, sys, time
        if os.environ["RANK"] == "1":
            atexit.register(lambda: (open("leaving", "w").close(), time.sleep(600)))
            sys.exit(7)
        while not os.path.exists("leaving"):
            time.sleep(0.01)
        sys.exit(5)
        """,
        "--nproc-per-node=2",
    )
    assert "rank 1: exit code 7" in last_line(process)
    assert process.returncode == 7


def test_a_fifo_where_a_log_was_hangs_nobody(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, sys
        path = os.readlink("/proc/self/fd/2")
        os.unlink(path)
        os.mkfifo(path)
        sys.exit(4)
        """,
        f"--log-dir={tmp_path}/logs",
        "-t3",
    )
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 4


def test_a_warning_signal_at_any_moment_never_ends_the_launcher(tmp_path: Path) -> None:
    for _ in range(5):
        process = start(
            tmp_path, "print('done', flush=True)", before="import signal; signal.signal(10, signal.SIG_IGN)"
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "done\n"
        while process.poll() is None:  # through the end of the worker, of the loop and of the interpreter
            process.send_signal(signal.SIGUSR1)
            time.sleep(0.002)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0


def test_a_storm_of_signals_wakes_the_launcher_and_never_hangs_it(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        """
        import os, signal
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        for _ in range(200_000):
            os.kill(os.getppid(), signal.SIGUSR1)
        """,
    )
    process.communicate(timeout=2 * LIMIT_S)
    assert process.returncode == 0


def test_a_stop_signal_that_was_blocked_when_we_began_is_heard(tmp_path: Path) -> None:
    process = start(
        tmp_path,
        "import time; print('up', flush=True); time.sleep(600)",
        before="import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.terminate()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143


def test_children_that_the_launchers_shell_had_before_are_strangers(tmp_path: Path, nap: str) -> None:
    """``daemon & exec phalanx run …``: what was our child before we became a launcher is not the job's."""
    script = (
        f"(while [ ! -e up ]; do sleep 0.05; done; (setsid sh -c 'touch born; exec sleep {nap}' &); exec sleep 600)"
        " >/dev/null 2>&1 & echo $!;"
        f' exec {sys.executable} -m phalanx run --no-python sh -c "touch up; while [ ! -e born ]; do sleep 0.05; done"'
    )
    process = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    sibling = int(process.stdout.readline())
    try:
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
        soon(lambda: len(sleepers(nap)) == 1)  # it was born, and may not be called so yet
    finally:
        for pid in [sibling, *sleepers(nap)]:
            os.kill(pid, signal.SIGKILL)


def test_a_job_inside_a_job_ends_when_both_launchers_are_killed(tmp_path: Path, nap: str) -> None:
    run = f"{sys.executable} -m phalanx run --nproc-per-node 2 --no-python"
    inner = f'exec {run} sh -c "setsid sleep {nap} & sleep {nap}"'
    (tmp_path / "inner.sh").write_text(f"#!/bin/sh\necho $$ >> inner.pids\n{inner}\n")
    (tmp_path / "inner.sh").chmod(0o755)
    command = [sys.executable, "-m", "phalanx", "run", "--nproc-per-node=2", "--no-python", "./inner.sh"]
    outer = subprocess.Popen(command, cwd=tmp_path)
    soon(lambda: len(sleepers(nap)) == 8)
    inner_ones = [*map(int, (tmp_path / "inner.pids").read_text().split())]
    # Else it would end and reap the second one of them when the first one is gone.
    outer.send_signal(signal.SIGSTOP)
    for pid in [*inner_ones, outer.pid]:
        os.kill(pid, signal.SIGKILL)
    outer.wait(LIMIT_S)
    soon(lambda: not sleepers(nap))


def test_a_launcher_without_descriptors_still_ends_its_job(tmp_path: Path, nap: str) -> None:
    process = start(
        tmp_path,
        f"""
        import os, signal, socket, subprocess, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        naps = [subprocess.Popen(["setsid", "sleep", "{nap}"]) for _ in range(10)]
        greedy = []
        for _ in range(100):
            one = socket.socket(socket.AF_UNIX)
            greedy.append(one)
            try:
                one.connect(os.environ["PHALANX_AGENT"])
                one.sendall(b'{{"type":"hello","v":1,"round":1,"local_rank":0,"pid":1}}\\n')
            except OSError:
                pass  # refused: there are too many already
        time.sleep(0.3)
        print("up", flush=True)
        time.sleep(600)
        """,
        "--nproc-per-node=2",
        "--shutdown-timeout=1",
        before="import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))",
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
    process.terminate()
    process.communicate(timeout=LIMIT_S)
    soon(lambda: not sleepers(nap))
    assert process.returncode == 143
