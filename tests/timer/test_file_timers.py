"""Real workers, a real FIFO, and torchelastic's own client and server at either end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compat.marks import shows_names
from tests.timer.waiting import soon

from phalanx.timer import FileTimerClient, FileTimerServer, configure, expires, file_client
from phalanx.timer.requests import FileTimerRequest

OURS = "phalanx.timer"
TORCHS = "torch.distributed.elastic.timer"


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    return str(tmp_path / "watchdog")


@pytest.fixture
def server(fifo: str) -> Iterator[FileTimerServer]:
    one = FileTimerServer(fifo, "job", max_interval=60)
    one.start()
    yield one
    one.stop()
    assert not os.path.exists(fifo)


def worker(fifo: str, body: str, *, package: str = OURS) -> subprocess.Popen[str]:
    """A process that runs `body`, with `timer` and a configured client."""
    program = (
        f"import sys, time, threading, os, importlib\ntimer = importlib.import_module({package!r})\n"
        f"timer.configure(timer.FileTimerClient({fifo!r}))\n{body}\nprint('end', flush=True)"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ended(process: subprocess.Popen[str]) -> int:
    try:
        process.communicate(timeout=120)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return process.returncode


def take_place_of(fifo: str, text: str) -> None:
    """At once: a server that finds the name free makes its FIFO anew, and it would be written to instead."""
    Path(f"{fifo}.new").write_text(text)
    os.rename(f"{fifo}.new", fifo)


@pytest.mark.parametrize("package", [OURS, pytest.param(TORCHS, marks=pytest.mark.torch)])
@pytest.mark.compat("name torch.distributed.elastic.timer.file_based_local_timer.FileTimerServer", "same")
def test_a_worker_that_is_too_slow_is_killed(fifo: str, server: FileTimerServer, package: str) -> None:
    body = "with timer.expires(after=0.2, scope='forward'): time.sleep(100)"
    assert ended(worker(fifo, body, package=package)) == -signal.SIGKILL


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.elastic.timer.file_based_local_timer.FileTimerClient", "same")
@shows_names("same", "elastic.timer", "FileTimerRequest")
def test_torchs_server_kills_a_worker_of_ours(fifo: str) -> None:
    program = (
        "import sys, threading, importlib\n"
        f"from {TORCHS} import FileTimerServer\n"
        f"server = FileTimerServer({fifo!r}, run_id='job', max_interval=0.1)\nserver.start()\n"
        "print('ready', flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        # Its thread opens the FIFO some time after start() has returned, and a client gives up after a second.
        body = (
            "timer.file_client.OPEN_TRIES = 600\n"
            "with timer.expires(after=100): pass\nwith timer.expires(after=0.2): time.sleep(100)"
        )
        assert ended(worker(fifo, body)) == -signal.SIGKILL
    finally:
        process.kill()
        process.communicate()


def test_blocks_that_are_left_in_time_hurt_nobody(fifo: str, server: FileTimerServer) -> None:
    body = """
def loop():
    for number in range(200):
        with timer.expires(after=100, scope='step'):
            with timer.expires(after=100, scope='step'):
                pass
threads = [threading.Thread(target=loop) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
try:
    with timer.expires(after=100):
        raise KeyError('of the block')
except KeyError:
    pass
"""
    body += "with timer.expires(after=100, scope='last'): sys.stdin.read()"
    process = worker(fifo, body)

    def known() -> list[str]:
        found = server.get_expired_timers(time.time() + 1000)
        return [one.scope_id for requests in found.values() for one in requests]

    try:
        limit_at = time.monotonic() + 60
        while "last" not in known() and time.monotonic() < limit_at:  # in the FIFO it is behind all others
            time.sleep(0.01)
        assert known() == ["last"]
    finally:
        code = ended(process)  # whose input is closed by that
    assert code == 0


def test_the_outer_countdown_goes_on_when_an_inner_one_of_the_same_name_ends(
    fifo: str, server: FileTimerServer
) -> None:
    body = """
with timer.expires(after=0.5, scope='step'):
    with timer.expires(after=100, scope='step'):
        pass
    time.sleep(100)
"""
    assert ended(worker(fifo, body)) == -signal.SIGKILL


def test_a_forked_child_is_watched_by_its_own_number(fifo: str, server: FileTimerServer) -> None:
    body = """
pid = os.fork()
if pid == 0:
    with timer.expires(after=0.2):
        time.sleep(100)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == -9
"""
    assert ended(worker(fifo, body)) == 0


def test_the_signal_is_the_clients_choice(fifo: str, server: FileTimerServer) -> None:
    body = f"with timer.expires(after=0.2, client=timer.FileTimerClient({fifo!r}, 15)): time.sleep(100)"
    assert ended(worker(fifo, body)) == -signal.SIGTERM


def test_what_the_server_does_is_told(fifo: str) -> None:
    told: list[tuple[str, FileTimerRequest | None]] = []
    server = FileTimerServer(fifo, "job", log_event=lambda name, request: told.append((name, request)))
    server.start()
    try:
        assert (
            ended(worker(fifo, "with timer.expires(after=0.1, scope='s'): time.sleep(99)")) == -signal.SIGKILL
        )
    finally:
        server.stop()
    assert [name for name, _ in told] == [
        "watchdog started",
        "timer expired",
        "kill worker process",
        "watchdog stopped",
    ]
    assert told[1][1] is not None
    assert told[1][1].scope_id == "s"


def test_an_observer_that_raises_stops_nothing(fifo: str) -> None:
    def fail(name: str, request: Any) -> None:
        raise RuntimeError(name)

    server = FileTimerServer(fifo, "job", log_event=fail)
    server.start()
    try:
        assert ended(worker(fifo, "with timer.expires(after=0.1): time.sleep(99)")) == -signal.SIGKILL
    finally:
        server.stop()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"no json\n",
        b"\xff" * 5000,
        b"\n\n\n",
        b'{"version": 1, "pid": 1, "scope_id": "s", "expiration_time": 0, "signal": 9}\n',
        b'{"version": 1, "pid": OURS, "scope_id": "s", "expiration_time": 0, "signal": 9}\n',
        b'{"version": 1, "pid": 4194304, "scope_id": "s", "expiration_time": 0, "signal": 9}\n',
        b'{"version": 1, "pid": 7, "scope',
    ],
)
def test_nonsense_on_the_fifo_harms_nobody(fifo: str, server: FileTimerServer, nonsense: bytes) -> None:
    nonsense = nonsense.replace(b"OURS", b"%d" % os.getpid())  # of the server
    with open(fifo, "wb", buffering=0) as pipe:
        pipe.writelines(nonsense for _ in range(100))
        pipe.write(b"\n")
    assert ended(worker(fifo, "with timer.expires(after=0.2): time.sleep(100)")) == -signal.SIGKILL


@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.binary(max_size=300), st.just(b"REQUEST"), st.just(b"HALF"), st.just(b"{" * 5000)))
)
def test_whatever_others_write_what_a_worker_asks_for_is_heard(parts: list[bytes]) -> None:
    """Each write is whole, as the kernel has it; between them anything may stand, but for an end of line."""
    with tempfile.TemporaryDirectory() as folder:
        server = FileTimerServer(f"{folder}/fifo", "job", is_worker=lambda _: False)
        server.run_once()
        try:
            asked = 0
            with open(f"{folder}/fifo", "wb", buffering=0) as pipe:
                for part in parts:
                    if part == b"REQUEST":
                        asked += 1
                        at = time.time() + 1000
                        line = FileTimerRequest(os.getppid(), f"scope {asked}", at, 9).to_json()
                        pipe.write(line.encode() + b"\n")
                    elif part == b"HALF":
                        pipe.write(b'{"version": 1, "pid": 7, "scope_id": "s", "expi')
                    else:
                        pipe.write(part)
                    server.run_once()
            found = server.get_expired_timers(time.time() + 2000).get(os.getppid(), [])
            assert {one.scope_id for one in found} >= {f"scope {one}" for one in range(1, asked + 1)}
        finally:
            server.stop()


def test_a_fifo_that_was_removed_is_made_anew_and_what_has_taken_its_place_is_left_alone(fifo: str) -> None:
    told: list[str] = []
    server = FileTimerServer(fifo, "job", max_interval=60, log_event=lambda name, _: told.append(name))
    server.start()
    try:
        os.unlink(fifo)
        server.look()
        soon(lambda: "watchdog file made anew" in told)  # a client gives up after a second
        assert ended(worker(fifo, "with timer.expires(after=0.2): time.sleep(100)")) == -signal.SIGKILL
        take_place_of(fifo, "somebody else's")
        server.look()
    finally:
        server.stop()
    assert Path(fifo).read_text() == "somebody else's"


def test_an_agent_can_take_the_ends_of_workers_upon_itself(fifo: str) -> None:
    taken: list[FileTimerRequest] = []
    progress: list[int] = []
    server = FileTimerServer(
        fifo, "job", end_worker=taken.append, on_requests=lambda: progress.append(1), max_interval=60
    )
    server.run_once()
    process = worker(fifo, "with timer.expires(after=0.01, scope='slow'): time.sleep(100)")
    try:
        while not taken:
            server.run_once()
            time.sleep(0.001)
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
        server.stop()
    assert [(one.worker_pid, one.scope_id, one.signal) for one in taken] == [(process.pid, "slow", 9)]
    assert progress


def test_a_worker_that_has_ended_within_a_block_is_forgotten(fifo: str) -> None:
    server = FileTimerServer(fifo, "job")
    server.run_once()
    process = worker(fifo, "timer.expires(after=100, scope='s').__enter__(); os._exit(0)")
    assert ended(process) == 0
    server.run_once()
    assert not server.get_expired_timers(time.time() + 1000)
    server.stop()


def test_the_last_progress_is_that_of_the_last_request(fifo: str) -> None:
    server = FileTimerServer(fifo, "job")
    before = int(time.time())
    assert server.get_last_progress_time() >= before  # nothing is watched: nobody is late
    server.register_timers([FileTimerRequest(os.getpid(), "s", time.time() + 100, 9)])
    told_at = server.get_last_progress_time()
    assert told_at >= before
    while int(time.time()) <= told_at:
        time.sleep(0.05)
    assert server.get_last_progress_time() == told_at
    server.clear_timers({os.getpid()})
    assert server.get_last_progress_time() > told_at


def test_a_client_without_a_server_says_so(fifo: str) -> None:
    client = FileTimerClient(fifo)
    with pytest.raises(BrokenPipeError, match="no timer server reads"):
        client.acquire("s", 1.0)
    os.mkfifo(fifo)
    with pytest.raises(BrokenPipeError, match="no timer server reads"), expires(after=1, client=client):
        pass


def test_a_client_goes_on_with_a_server_that_was_started_anew(fifo: str) -> None:
    client = FileTimerClient(fifo)
    for _ in range(2):
        server = FileTimerServer(fifo, "job")
        server.start()
        try:
            with expires(after=100, client=client):
                pass
        finally:
            server.stop()


def test_a_server_that_takes_nothing_does_not_hold_a_worker_for_ever(
    fifo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_client, "FULL_S", 0.5)
    server = FileTimerServer(fifo, "job")
    server.run_once()  # nobody reads from here on
    client = FileTimerClient(fifo)

    def fill() -> None:
        for number in range(2000):
            client.acquire(f"{number} {'x' * 500}", time.time() + 100)

    with pytest.raises(BrokenPipeError, match="takes no requests"):
        fill()
    server.stop()


def test_a_scope_that_fits_into_no_line_is_refused(fifo: str, server: FileTimerServer) -> None:
    with (
        pytest.raises(ValueError, match="too long"),
        expires(after=1, scope="x" * 5000, client=FileTimerClient(fifo)),
    ):
        pass


def test_a_time_that_is_over_before_it_begins_is_refused() -> None:
    for after in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="more than 0"), expires(after=after):
            pass


def test_a_file_of_somebody_else_is_left_alone(fifo: str) -> None:
    Path(fifo).write_text("precious")
    with pytest.raises(FileExistsError, match="no FIFO"):
        FileTimerServer(fifo, "job").start()
    assert Path(fifo).read_text() == "precious"


def test_a_file_that_has_taken_the_fifos_place_is_left_alone(fifo: str) -> None:
    server = FileTimerServer(fifo, "job")
    server.start()
    take_place_of(fifo, "precious")
    server.stop()
    assert Path(fifo).read_text() == "precious"


@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_a_client_writes_into_nothing_that_is_no_fifo(fifo: str, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    if kind == "file":
        Path(fifo).write_text("precious")
    elif kind == "link":
        os.symlink(other, fifo)
    else:
        os.mkdir(fifo)
    with pytest.raises(FileExistsError, match="something that is no FIFO has taken its place"):
        FileTimerClient(fifo).acquire("forward", time.time() + 100)
    assert other.read_text() == "precious"
    assert kind != "file" or Path(fifo).read_text() == "precious"


def test_a_server_whose_name_was_taken_says_so_once_and_hears_who_it_has(
    fifo: str, server: FileTimerServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = "with timer.expires(after=100): pass\nprint('once', flush=True)\ninput()\n"
    process = of_the_agent(fifo, f"{body}\nwith timer.expires(after=0.2): time.sleep(100)")
    assert process.stdout is not None
    assert process.stdout.readline() == "once\n"
    take_place_of(fifo, "somebody else's")
    try:
        for _ in range(3):
            server.look()
        # Before there is anybody to end: who is late in its look ends the worker first, and says so after.
        soon(lambda: "something else has taken the place" in caplog.text)
        process.communicate("\n", timeout=120)
        assert process.returncode == -signal.SIGKILL
        assert Path(fifo).read_text() == "somebody else's"
        assert caplog.text.count("something else has taken the place of the timers' FIFO") == 1
    finally:
        os.unlink(fifo)


def test_a_signal_that_ends_nobody_is_refused(fifo: str) -> None:
    with pytest.raises(ValueError, match="SIGSTOP ends no process"):
        FileTimerClient(fifo, signal=signal.SIGSTOP)


def test_people_are_told_of_a_timer_in_a_sentence_and_not_in_json(
    fifo: str, server: FileTimerServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert ended(worker(fifo, "with timer.expires(after=0.2): time.sleep(100)")) == -signal.SIGKILL
    assert "expiration_time" not in caplog.text


def test_who_is_no_worker_is_not_ended_whatever_a_request_says(
    fifo: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = FileTimerServer(fifo, "job", is_worker=lambda _pid: False)
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        server.register_timers([FileTimerRequest(stranger.pid, "s", 1.0, signal.SIGKILL)])
        server.run_once()
        assert stranger.poll() is None
        assert not server.get_expired_timers(time.time())
        stranger.kill()
    server.stop()
    assert f"process {stranger.pid} is no worker" in caplog.text


@pytest.mark.parametrize("is_reaped", [False, True])
def test_the_timer_of_a_worker_that_has_ended_is_no_complaint(
    fifo: str, is_reaped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = FileTimerServer(fifo, "job", is_worker=lambda _pid: False)
    worker = subprocess.Popen(["true"])
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    if is_reaped:
        worker.wait()
    server.register_timers([FileTimerRequest(worker.pid, "s", 1.0, signal.SIGKILL)])
    server.run_once()
    server.stop()
    worker.wait()
    assert "is ignored" not in caplog.text


def test_the_agents_server_is_found_without_a_word(fifo: str, server: FileTimerServer) -> None:
    program = "import time\nfrom phalanx import timer\nwith timer.expires(after=0.2): time.sleep(100)"
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "TORCHELASTIC_TIMER_FILE": fifo}, timeout=120
    )
    assert done.returncode == -signal.SIGKILL


def of_the_agent(fifo: str, body: str) -> subprocess.Popen[str]:
    """A worker as an agent of ours starts it."""
    env = {**os.environ, "TORCHELASTIC_TIMER_FILE": fifo, "PHALANX_TIMER_FILE": fifo}
    program = f"import os, sys, time\nfrom phalanx import timer\n{body}\nprint('end', flush=True)"
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", program],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


OPEN_FIFOS = """
def fifos():
    named = [os.path.join("/proc/self/fd", one) for one in os.listdir("/proc/self/fd")]
    path = os.environ["TORCHELASTIC_TIMER_FILE"]
    return sum(os.path.exists(one) and os.readlink(one).startswith(path) for one in named)
"""


def test_a_server_of_ours_is_told_through_a_descriptor_that_stays_open(
    fifo: str, server: FileTimerServer
) -> None:
    """And torchelastic's through one that is closed after each word."""
    loop = "for _ in range(3):\n    with timer.expires(after=100): pass\n"
    kept = of_the_agent(fifo, f"{OPEN_FIFOS}\n{loop}print(fifos())")
    assert kept.communicate(timeout=120) == ("1\nend\n", "")
    closed = of_the_agent(
        fifo, f"{OPEN_FIFOS}\nos.environ['PHALANX_TIMER_FILE'] += 'x'\n{loop}print(fifos())"
    )
    assert closed.communicate(timeout=120) == ("0\nend\n", "")


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_worker_with_an_open_descriptor_finds_the_fifo_that_was_made_anew(fifo: str, is_dead: bool) -> None:
    """By its own server that goes on, or by another one after a death that nobody has tidied up."""
    told: list[str] = []
    first = server = FileTimerServer(
        fifo, "job", max_interval=60, log_event=lambda name, _: told.append(name)
    )
    first.start()
    body = "with timer.expires(after=100): pass\nprint('once', flush=True)\ninput()\n"
    process = of_the_agent(
        fifo, f"{OPEN_FIFOS}\n{body}\nwith timer.expires(after=0.2, scope=str(fifos())): time.sleep(100)"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "once\n"
    if is_dead:
        os.rename(fifo, f"{fifo}.old")  # its server removes nothing, as one that is dead
        first.stop()
        os.rename(f"{fifo}.old", fifo)
        server = FileTimerServer(fifo, "job", max_interval=60)
        server.start()
    else:
        os.unlink(fifo)
        first.look()
        soon(lambda: "watchdog file made anew" in told)  # a client gives up after a second
    try:
        process.communicate("\n", timeout=120)
        assert process.returncode == -signal.SIGKILL
    finally:
        server.stop()


def test_a_descriptor_whose_number_is_another_files_by_now_is_not_written_to(
    fifo: str, server: FileTimerServer, tmp_path: Path
) -> None:
    """Who forks into the background closes all descriptors, and what is opened next has their numbers."""
    body = f"""
with timer.expires(after=100): pass
os.closerange(3, 1000)
others = [open({str(tmp_path)!r} + f"/other{{n}}", "w") for n in range(5)]
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]) + 100)
with timer.expires(after=0.2): time.sleep(100)
"""
    process = of_the_agent(fifo, body)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 100 - signal.SIGKILL, said
    assert [(tmp_path / f"other{n}").read_text() for n in range(5)] == [""] * 5


def test_who_is_in_a_block_when_the_clock_is_set_has_the_time_that_was_meant(
    fifo: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock of this machine is not ours to set: those that the server reads are, and stand still but for that."""
    now, ahead = time.time(), 0.0
    monkeypatch.setattr("phalanx.timer.file_server.wall_time", lambda: now + ahead)
    monkeypatch.setattr("phalanx.timer.file_server.time", SimpleNamespace(monotonic=lambda: 1000.0))
    taken: list[FileTimerRequest] = []
    server = FileTimerServer(fifo, "job", end_worker=taken.append)
    server.run_once()
    server.register_timers([FileTimerRequest(os.getppid(), "before", now + 100.0, 9)])
    told_at = server.get_last_progress_time()
    try:
        ahead = 3600.0
        server.run_once()
        assert not taken
        assert "the clock was set by +3600.0 s" in caplog.text
        # Not to the second: it is a whole number of them, as the step is.
        assert 3599 <= server.get_last_progress_time() - told_at <= 3600
        assert not server.get_expired_timers(now + 3600 + 99)
        assert server.get_expired_timers(now + 3600 + 101)
        ahead = -3600.0
        server.run_once()
        assert not server.get_expired_timers(now - 3600 + 99)
        assert server.get_expired_timers(now - 3600 + 101)
    finally:
        server.stop()


@pytest.mark.parametrize("held_up_s", [0.5, 30.0])
def test_who_is_in_a_block_has_its_time_when_the_server_is_held_up_between_its_clocks(
    fifo: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, held_up_s: float
) -> None:
    """Its request is read after that, when a step of the clock would be in its time already."""
    passed, stalls = 0.0, [0.0]

    def wall_time() -> float:
        nonlocal passed
        passed += stalls.pop() if stalls else 0.0
        return 1e9 + passed

    monkeypatch.setattr("phalanx.timer.file_server.wall_time", wall_time)
    monkeypatch.setattr("phalanx.timer.file_server.time", SimpleNamespace(monotonic=lambda: 1000.0 + passed))
    server = FileTimerServer(fifo, "job", end_worker=lambda _request: None)
    server.run_once()
    try:
        stalls.append(held_up_s)
        with open(fifo, "wb", buffering=0) as pipe:
            at = 1e9 + held_up_s + 100.0
            pipe.write(FileTimerRequest(os.getppid(), "block", at, 9).to_json().encode() + b"\n")
        server.run_once()
        assert not stalls
        server.run_once()
        found = server.get_expired_timers(at + 1000.0)[os.getppid()]
        assert [one.expiration_time for one in found] == [at]
        assert "the clock was set" not in caplog.text
    finally:
        server.stop()


def test_without_any_server_the_program_is_told_what_to_do() -> None:
    program = "from phalanx import timer\nwith timer.expires(after=1): pass"
    env = {name: value for name, value in os.environ.items() if name != "TORCHELASTIC_TIMER_FILE"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert "RuntimeError: no timer server is known: start the job with --watchdog" in done.stderr
    assert "timer.configure(client) first" in done.stderr


@pytest.mark.compat("name torch.distributed.elastic.timer.configure", "same")
def test_the_name_of_a_block_is_where_it_stands() -> None:
    seen: list[str] = []

    class Listening(FileTimerClient):
        def acquire(self, scope_id: str, expiration_time: float) -> None:
            seen.append(scope_id)

        def release(self, scope_id: str) -> None:
            seen.append(scope_id)

    configure(Listening(""))
    try:
        with expires(after=1):
            pass
    finally:
        configure(None)  # type: ignore[arg-type] # as it was
    assert seen[0] == seen[1]
    assert seen[0].startswith(f"{__file__}#")


def test_threads_do_not_take_each_others_names(fifo: str, server: FileTimerServer) -> None:
    inside = threading.Barrier(2)
    client = FileTimerClient(fifo)

    def wait() -> None:
        with expires(after=100, scope="s", client=client):
            inside.wait()
            inside.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    inside.wait()
    with expires(after=100, scope="s", client=client):
        pass
    while len(timers := server.get_expired_timers(time.time() + 1000).get(os.getpid(), [])) != 0:
        assert len(timers) <= 2  # of the server's own process they are refused
    inside.wait()
    thread.join()
