"""The parts below the acts: the guard, sockets, progress, which jobs are one."""

from __future__ import annotations

import errno
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from phalanx.chaos import injector, watch
from phalanx.chaos.acts import Acts
from phalanx.chaos.faults import Opened, Wait
from phalanx.chaos.guard import Guard, _let_go
from phalanx.chaos.hold import Held, hold
from phalanx.chaos.jobs import Agent, Process, Worker, descendants, open_process, same_job
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, NotHere, Step
from phalanx.chaos.progress import Progress
from phalanx.chaos.sockets import ESTABLISHED, LISTENING, connections, sockets_of
from phalanx.chaos.waiting import Signals
from phalanx.cli.chaos import main
from phalanx.multiprocessing import pidfd
from phalanx.multiprocessing.procfs import start_ticks_of

LIMIT_S = 60.0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until_it_runs(pid: int) -> None:
    wait_for_state(pid, lambda state: state != "T")


def wait_until_it_is_stopped(pid: int) -> None:
    wait_for_state(pid, lambda state: state == "T")


def wait_for_state(pid: int, is_right: Callable[[str], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_right(state_of(pid)):
        assert time.monotonic() < deadline, f"{pid} is in state {state_of(pid)}"
        time.sleep(0.01)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "1000"])
    yield process
    process.kill()
    process.wait()


def test_a_guard_continues_what_it_was_given_when_it_is_let_go(sleeper: subprocess.Popen[bytes]) -> None:
    fd = os.pidfd_open(sleeper.pid)
    with Guard(LIMIT_S) as guard:
        assert guard.take(fd)
        sleeper.send_signal(signal.SIGSTOP)
    wait_until_it_runs(sleeper.pid)
    os.close(fd)


def test_a_guard_continues_it_when_it_is_time(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def when_given_something(kept: Collection[int]) -> None:
        select.select(kept, [], [])
        _let_go(kept)

    # Else its time may be over before it is given the process.
    monkeypatch.setattr("phalanx.chaos.guard._let_go", when_given_something)
    fd = os.pidfd_open(sleeper.pid)
    sleeper.send_signal(signal.SIGSTOP)
    wait_until_it_is_stopped(sleeper.pid)
    with Guard(0.2) as guard:
        assert guard.take(fd)
        wait_until_it_runs(sleeper.pid)
    os.close(fd)


def test_a_guard_whose_time_is_over_says_that_nobody_is_to_be_stopped(
    sleeper: subprocess.Popen[bytes],
) -> None:
    fd = os.pidfd_open(sleeper.pid)
    with Guard(0.0) as guard:
        assert select.select([guard], [], [], LIMIT_S)[0]
        assert not guard.take(fd)
    os.close(fd)


def test_a_guard_outlives_its_killed_parent_and_heals(
    sleeper: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    program = """
import os, signal, sys
from phalanx.chaos.guard import Guard
from phalanx.chaos.hold import Held, hold
fd = os.pidfd_open(int(sys.argv[1]))
with Guard(1000.0, last=lambda: open(sys.argv[2], "x").close()) as guard:
    guard.take(fd)
    os.kill(int(sys.argv[1]), signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    mark = tmp_path / "last"
    done = subprocess.run([sys.executable, "-c", program, str(sleeper.pid), str(mark)])
    assert done.returncode == -signal.SIGKILL
    wait_until_it_runs(sleeper.pid)
    deadline = time.monotonic() + LIMIT_S
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_is_held_by_one_until_the_guard_of_a_dead_one_has_healed(
    sleeper: subprocess.Popen[bytes],
) -> None:
    process = Process(sleeper.pid, start_ticks_of(sleeper.pid) or 0)
    pidfd = os.pidfd_open(sleeper.pid)
    with Guard(LIMIT_S) as guard:
        lock = hold(process)
        guard.take(pidfd, lock)
        sleeper.send_signal(signal.SIGSTOP)
        os.close(lock)
        with pytest.raises(Held, match="another phalanx chaos"):
            hold(process)
    os.close(hold(process))
    os.close(pidfd)


def test_a_process_is_opened_by_number_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    ticks = start_ticks_of(sleeper.pid)
    assert ticks is not None
    fd = open_process(Process(sleeper.pid, ticks))
    assert fd is not None
    os.close(fd)
    assert open_process(Process(sleeper.pid, ticks + 1)) is None
    assert descendants(Process(sleeper.pid, ticks + 1)) == []
    assert descendants(Process(sleeper.pid, ticks)) == [Process(sleeper.pid, ticks)]


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_both_ends_of_a_connection_are_read_from_proc(family: int, address: str) -> None:
    with socket.socket(family) as server, socket.socket(family) as client:
        server.bind((address, 0))
        server.listen()
        client.connect(server.getsockname())
        own = sockets_of(os.getpid())
        rows = [row for row in connections(os.getpid()) if row.inode in own]

        port = client.getsockname()[1]
        (row,) = [row for row in rows if row.local_port == port]
        assert (row.local, row.remote, row.remote_port) == (address, address, server.getsockname()[1])
        assert (row.state, row.is_ipv6) == (ESTABLISHED, ":" in address)
        assert any(row.state == LISTENING and row.local_port == server.getsockname()[1] for row in rows)


def test_an_ipv6_socket_that_speaks_ipv4_is_told_as_ipv4() -> None:
    with socket.socket(socket.AF_INET) as server, socket.socket(socket.AF_INET6) as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect((f"::ffff:{server.getsockname()[0]}", server.getsockname()[1]))
        port = client.getsockname()[1]
        (row,) = [
            row
            for row in connections(os.getpid())
            if row.local_port == port and row.inode in sockets_of(os.getpid())
        ]
        assert (row.local, row.remote) == ("127.0.0.1", "127.0.0.1")


def test_a_process_that_cannot_be_opened_is_not_taken_for_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_room(_pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    own = Process(os.getpid(), start_ticks_of(os.getpid()) or 0)
    monkeypatch.setattr(os, "pidfd_open", no_room)
    with pytest.raises(OSError, match="Too many open files"):
        open_process(own)


def test_a_system_without_pidfds_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pidfd, "is_supported", lambda: False)
    assert main(["kill", "--", "touch", str(tmp_path / "begun")]) == 2
    assert capsys.readouterr().err == (
        "chaos: error: chaos needs pidfds: Linux 5.4 or newer, and no sandbox that forbids them\n"
    )
    assert not (tmp_path / "begun").exists()


def test_what_is_waited_for_is_said_while_it_lasts_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "_QUIET_S", 0.0)
    assert main(["kill", "--seed", "", "--", "sleep", "0.3"]) == 1
    waiting, last = (line.split(" s: ")[1] for line in capfd.readouterr().err.splitlines())
    assert waiting == "waiting: no job has workers below the command"
    assert last == "injected nothing (no job has workers below the command); the command ended with 0; seed "


def test_what_is_in_the_way_is_said_at_once_and_anew_when_it_is_something_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    being_started, held = "the job's workers are being started", Held("somebody has it")
    gone = NotHere("rank 3 is not here")
    reasons: list[str | Exception | None] = [
        being_started,
        being_started,
        held,
        held,
        being_started,
        gone,
        None,
    ]

    def next_reason(_step: Step) -> str | None:
        reason = reasons.pop(0)
        if isinstance(reason, Exception):
            raise reason
        return reason

    with Signals() as signals:
        one = injector._Injector(Orders(act=Act.STOP), signals)
        monkeypatch.setattr(one, "_try", next_reason)
        one._act(Step(number=1, wait_s=0.0, draw=1))
    said = [line.split(" s: ")[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["waiting: somebody has it", "waiting: rank 3 is not here"]


def test_a_killed_launcher_is_waited_for_as_it_may_be_seen_until_it_has_died(
    sleeper: subprocess.Popen[bytes],
) -> None:
    done: list[str] = []

    def waiting_for(found: list[Opened]) -> Wait:
        def wait(_until: float) -> bool:
            assert all(pidfd.has_ended(opened.pidfd, LIMIT_S) for opened in found)
            done.append("died")
            return False

        return wait

    acts = Acts(
        Orders(act=Act.KILL, is_agent=True), say=done.append, did=done.append, waiting_for=waiting_for
    )
    launcher = agent("x", 0, pid=sleeper.pid, start_ticks=start_ticks_of(sleeper.pid) or 0)
    assert acts.on_agent(launcher) is None
    assert re.match("killed the agent of node 0", done[0])
    assert done[1:] == ["died"]


@pytest.mark.parametrize(
    ("name", "is_over", "says"),
    [
        ("SIGTERM", False, ["still runs"]),
        ("SIGUSR1", False, ["still runs"]),
        ("SIGCONT", False, []),  # ends nobody
        ("SIGTERM", True, []),  # it has ended, or the job has
    ],
)
def test_who_outlives_a_signal_that_ends_a_process_is_told(name: str, is_over: bool, says: list[str]) -> None:
    ignoring = (
        "import signal; [signal.signal(one, signal.SIG_IGN) for one in (10, 15)]; print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", ignoring], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        said: list[str] = []
        orders = Orders(act=Act.KILL, signum=signal.Signals[name])
        acts = Acts(orders, say=said.append, did=lambda _: None, waiting_for=lambda _: lambda _: not is_over)
        process = Process(worker.pid, start_ticks_of(worker.pid) or 0)
        acts.on_workers([Worker(process, 0, 0, 0, 1, 1, 1, "x", "token", "a:1")])
        worker.communicate(b"\n")
    assert [found[0] for line in said if (found := re.search("still runs", line))] == says
    assert acts.outlived == len(says)


def test_progress_says_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    progress = Progress(str(file), only_new=False)
    progress.look()
    assert str(progress) == f"{file}: No such file or directory"
    file.write_text("{}\n")
    progress.look()
    assert str(progress) == f"{file} has none"
    file.write_text('{}\n{"event": "worker_progress", "step": 12}\n')
    progress.look()
    assert str(progress) == "the last one is 12"


def test_progress_is_that_of_the_last_job_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    progress = Progress(str(file), only_new=False)
    assert progress.look() == 0

    def add(text: str) -> None:
        with file.open("a") as end:
            end.write(text)

    def event(name: str, **facts: int) -> str:
        return json.dumps({"event": name, **facts}) + "\n"

    add(event("job_started") + event("worker_progress", step=70) + event("job_started"))
    add("no json\n[]\n" + event("worker_progress", step=5) + event("worker_progress", step=6)[:-4])
    assert progress.look() == 5
    add(event("worker_progress", step=6)[-4:])
    assert progress.look() == 6
    assert Progress(str(file), only_new=True).look() == 0


def agent(
    run_id: str, node: int, *, pid: int, start_ticks: int = 1, round_number: int = 1, master: str = "a:1"
) -> Agent:
    worker = Worker(Process(pid + 1, 1), node, 0, node, 1, 2, round_number, run_id, "token", master)
    return Agent(Process(pid, start_ticks), "run train.py", (worker,))


def test_agents_are_of_one_job_by_its_id_its_places_and_where_they_meet() -> None:
    first = agent("x", 0, pid=10)
    assert same_job([first], agent("x", 1, pid=20))
    assert not same_job([first], agent("x", 1, pid=20, round_number=2, master="b:1"))  # another round
    assert not same_job([first], agent("y", 1, pid=20))
    assert not same_job([first], agent("x", 0, pid=20))  # two nodes 0
    assert not same_job([first], agent("x", 1, pid=20, master="b:1"))  # the same round in another place


def test_a_line_is_one_write_also_where_nothing_is_buffered() -> None:
    """With PYTHONUNBUFFERED, as in many containers, `print` writes a line's end by itself."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = "from phalanx.chaos.watch import Watch; Watch(None).say('killed'); Watch(None).say('done')"
    with ours, theirs:
        subprocess.run(
            [sys.executable, "-u", "-c", code], stderr=theirs.fileno(), check=True, timeout=LIMIT_S
        )
        assert [ours.recv(4096).rpartition(b": ")[2] for _ in range(2)] == [b"killed\n", b"done\n"]
