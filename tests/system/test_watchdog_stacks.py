"""A job that hangs, seen from outside: where all ranks stood is in files before the slow one is ended."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from tests.system.launch import Job, Launch, Script, two_free_ports

KILLED = 137

# In these scripts one line begins the countdown and hangs: wherever a rank is when its time is over, it is in that one.
HANGS = """
    import os, sys, time
    from phalanx import timer
    from telling import tell

    def sign(rank):
        return os.path.join(os.path.dirname(__file__), f"hangs-{{attempt}}-{{rank}}")

    def all_reduce(after):
        with timer.expires(after, "forward"): open(sign(rank), "w").close(); time.sleep(1000)  # {name}

    tell("ready")
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == os.environ.get("HEALTHY_FROM"):
        sys.exit()
    rank, others = int(os.environ["RANK"]), {{*range(int(os.environ["WORLD_SIZE"]))}} - {{{slow}}}
    # Its half of a second begins when the others hang: their stacks are to be found there.
    while rank == {slow} and not all(os.path.exists(sign(one)) for one in others):
        time.sleep(0.01)
    all_reduce(0.5 if rank == {slow} else 1000)
"""


def stacks(log_dir: Path, attempt: int = 0) -> dict[int, str]:
    """Local rank → what was saved."""
    found = log_dir.glob(f"*/attempt_{attempt}/*/stacks.txt")
    return {int(one.parent.name): one.read_text() for one in found}


def line_of(script: Path, text: str) -> str:
    number = next(at for at, line in enumerate(script.read_text().splitlines(), 1) if text in line)
    return f'"{script}", line {number} in '


def only_ours(text: str) -> None:
    assert "phalanx/errors" not in text
    assert "boot.py" not in text


def test_both_ranks_tell_where_they_hang_and_the_job_ends_with_the_signal(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(HANGS.format(name="here", slow=1))
    job = launch("--watchdog", "--nproc-per-node", 2, "--log-dir", tmp_path / "logs", train)

    assert job.wait() == KILLED

    saved = stacks(tmp_path / "logs")
    assert set(saved) == {0, 1}
    for rank, text in saved.items():
        heading = text.splitlines()[0]
        assert re.search(rf", rank {rank} on .*, saved because rank 1 is too slow in forward:$", heading)
        assert line_of(Path(train), "# here") + "all_reduce" in text
        only_ours(text)
    last = job.stderr.decode().rstrip().splitlines()[-1]
    assert "its timer ended it, because it was too slow in forward; stacks of all ranks: " in last
    assert str(tmp_path / "logs") in last
    assert last.index("attempt_0") > 0


def test_a_restart_follows_as_after_any_failure_and_each_attempt_keeps_its_stacks(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(HANGS.format(name="here", slow=0))
    words = ("--watchdog", "--nproc-per-node", 2, "--max-restarts", 2, "--log-dir", tmp_path / "logs", train)
    job = launch(*words, env={"HEALTHY_FROM": "2"})

    assert job.wait() == 0

    assert [set(stacks(tmp_path / "logs", attempt)) for attempt in range(3)] == [{0, 1}, {0, 1}, set()]
    assert job.stderr.count(b"rank 0 is too slow in forward") >= 2


def test_without_a_log_folder_the_files_of_a_failed_job_are_kept_where_the_report_says(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(HANGS.format(name="here", slow=0))
    job = launch("--watchdog", "--nproc-per-node", 1, train, env={"TMPDIR": str(tmp_path)})

    assert job.wait() == KILLED

    folder = re.findall(rb"stacks of all ranks: (\S+)", job.stderr)[-1].decode()
    assert "# here" not in (Path(folder) / "0" / "stacks.txt").read_text()
    assert line_of(Path(train), "# here") in (Path(folder) / "0" / "stacks.txt").read_text()


def test_all_ranks_of_two_nodes_tell_where_they_hang(launch: Launch, script: Script, tmp_path: Path) -> None:
    train = script(HANGS.format(name="here", slow=3))
    endpoint = f"127.0.0.1:{two_free_ports()}"
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "job", "--nnodes", 2)
    words = ("--watchdog", "--nproc-per-node", 2, "--max-restarts", 1)
    jobs: list[Job] = [
        launch(*meeting, *words, "--log-dir", tmp_path / name, train, env={"HEALTHY_FROM": "1"})
        for name in "ab"
    ]

    assert [one.wait() for one in jobs] == [0, 0]

    texts = [text for name in "ab" for text in stacks(tmp_path / name).values()]
    ranks = sorted(re.findall(r", rank (\d) on ", "".join(texts)))
    assert ranks == ["0", "1", "2", "3"]
    for text in texts:
        assert "saved because rank 3 is too slow in forward" in text
        assert line_of(Path(train), "# here") + "all_reduce" in text


GIL = """
    import ctypes, os, queue, threading, time
    from phalanx import timer

    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)

    def wait_for_ever():  # and not in sleep(3), which ends when a signal comes
        with timer.expires(0.5, "collective"): libc.pthread_mutex_lock(mutex)  # holds the interpreter's lock

    begun = queue.SimpleQueue()

    def idle():
        begun.put(True)
        time.sleep(1000)

    for _ in range(20):
        threading.Thread(target=idle, daemon=True).start()
    # start() waits until the thread runs, and not until it is in its function: without the lock it never gets there.
    for _ in range(20):
        begun.get()
    libc.pthread_mutex_lock(mutex)
    wait_for_ever()
"""


def test_a_rank_in_a_call_of_c_that_holds_the_interpreters_lock_is_seen_with_all_its_threads(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(GIL)
    job = launch("--watchdog", "--nproc-per-node", 1, "--log-dir", tmp_path / "logs", train)

    assert job.wait() == KILLED

    text = stacks(tmp_path / "logs")[0]
    assert line_of(Path(train), "# holds") + "wait_for_ever" in text
    assert text.count("in idle") == 20
    assert "told by py-spy" not in text


OWN_FAULTHANDLER = """
    import faulthandler, os, signal, time
    from phalanx import timer

    faulthandler.disable()
    own = open(os.environ["OWN"], "w")
    faulthandler.enable(own)
    faulthandler.register(signal.SIGUSR1, own)
    os.kill(os.getpid(), signal.SIGUSR1)
    with timer.expires(after=0.5, scope="s"): time.sleep(1000)  # here
"""


def test_what_a_script_does_with_faulthandler_and_what_we_do_are_two_things(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(OWN_FAULTHANDLER)
    own = tmp_path / "own"
    job = launch("--watchdog", "--log-dir", tmp_path / "logs", train, env={"OWN": str(own)})

    assert job.wait() == KILLED

    assert line_of(Path(train), "# here") in stacks(tmp_path / "logs")[0]
    assert own.read_text().count("(most recent call first)") == 1
    assert b"Fatal Python error" not in job.stderr


OTHER_PROGRAM = """#!/bin/sh
exec {python} {script}
"""


def test_of_a_program_that_does_not_tell_py_spy_does(launch: Launch, script: Script, tmp_path: Path) -> None:
    """It has been replaced by exec: the signal would kill it, and is not sent."""
    train = script(HANGS.format(name="here", slow=0))
    program = tmp_path / "program"
    program.write_text(OTHER_PROGRAM.format(python=sys.executable, script=train))
    program.chmod(0o755)
    job = launch("--watchdog", "--no-python", "--log-dir", tmp_path / "logs", program)

    assert job.wait() == KILLED

    text = stacks(tmp_path / "logs")[0]
    assert (
        "told by py-spy" in text or "py-spy says" in text
    )  # some systems let nobody look at other processes
    assert "py-spy says" in text or f"all_reduce ({train}:" in text


STOPPED = """
    import os, signal
    from phalanx import timer

    with timer.expires(after=0.5, scope="s"):
        os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_process_is_ended_all_the_same(launch: Launch, script: Script, tmp_path: Path) -> None:
    job = launch("--watchdog", "--log-dir", tmp_path / "logs", script(STOPPED))

    assert job.wait() == KILLED

    assert stacks(tmp_path / "logs")[0].splitlines()[0].endswith("saved because rank 0 is too slow in s:")


@pytest.mark.torch
def test_torchs_own_client_is_heard(launch: Launch, script: Script, tmp_path: Path) -> None:
    train = script("""
        import os, time
        import torch.distributed.elastic.timer as timer

        timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
        with timer.expires(after=1.0, scope="theirs"): time.sleep(1000)  # here
    """)
    job = launch("--watchdog", "--log-dir", tmp_path / "logs", train)

    assert job.wait() == KILLED

    text = stacks(tmp_path / "logs")[0]
    assert "too slow in theirs" in text
    assert line_of(Path(train), "# here") in text


FIFO_GONE = """
    import os, time
    from phalanx import timer

    fifo = os.environ["TORCHELASTIC_TIMER_FILE"]

    def is_read():
        try:
            os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            return False
        return True

    with timer.expires(after=100, scope="before"):
        os.unlink(fifo)
        while not is_read():  # a client tries for a second only
            time.sleep(0.01)
        with timer.expires(after=0.5, scope="after"):
            time.sleep(1000)
"""


def test_a_fifo_that_is_removed_while_the_job_runs_is_made_anew(launch: Launch, script: Script) -> None:
    job = launch("--watchdog", script(FIFO_GONE))

    assert job.wait() == KILLED

    assert b"too slow in after" in job.stderr
    assert b"made anew" in job.stderr
