"""The keeper at work: an agent of its own process is killed, and nothing of its job may stay."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.system.freezing import Freezer, a_freezer  # noqa: F401 # fixture

from phalanx.agent.processes.keeper import _PACKET, Keeper, _KeeperProcess, _Op
from phalanx.multiprocessing.pidfd import has_ended
from phalanx.multiprocessing.procfs import start_ticks_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the keeper reads /proc")

LIMIT_S = 30

# An agent: keeps a job with one worker per script given, says "up", and waits to be killed (or told to be done).
IMPORTS = """
import os, signal, sys, time
from phalanx.agent.processes.keeper import Keeper
"""
AGENT = """
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
keeper = Keeper.start("job-" + sys.argv[1])
ranks = range(len(sys.argv) - 2)
context = SubprocessContext(
    "test", "sh", {i: ("-c", sys.argv[2 + i]) for i in ranks},
    {i: {"PHALANX_JOB": "job-" + sys.argv[1]} for i in ranks}, DefaultLogsSpecs(),
)
context.start()
for local_rank, pid in context.pids().items():
    keeper.watch(pid, context.sentinels()[local_rank])
print(keeper.pid, flush=True)
"""


def soon(holds: Callable[[], object]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def sleepers_of(nap: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.joinpath("cmdline").read_bytes() == b"sleep\0" + nap.encode() + b"\0":
                found.append(int(folder.name))
    return found


@pytest.fixture
def nap() -> Iterator[str]:
    name = f"7{random.SystemRandom().randrange(10**4):04}.{random.SystemRandom().randrange(10**9):09}"
    yield name
    for pid in sleepers_of(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Agent:
    """An agent in a process of its own, with the pidfd of its keeper."""

    def __init__(self, nap: str, *scripts: str, first: str = "", then: str = "time.sleep(1000)") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", IMPORTS + first + AGENT + then, nap, *scripts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        self.keeper_pid = int(self.process.stdout.readline())
        self.keeper_fd = os.pidfd_open(self.keeper_pid)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def keeper_has_begun(self) -> bool:
        """It has left the session and named itself; workers may run before."""
        return "phalanx-keeper" in Path(f"/proc/{self.keeper_pid}/comm").read_text()

    def keeper_is_gone(self) -> bool:
        return has_ended(self.keeper_fd)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        os.close(self.keeper_fd)


@pytest.fixture
def agent(nap: str) -> Iterator[Callable[..., Agent]]:
    started: list[Agent] = []

    def start(*scripts: str, **code: str) -> Agent:
        started.append(Agent(nap, *scripts, **code))
        return started[-1]

    yield start
    for one in started:
        one.close()


# A worker, its child, a child in another session, and two that were left by a double fork; all deaf.
FAMILY = (
    "trap '' TERM INT HUP; sleep {0} & setsid sleep {0} & "
    "(setsid sh -c 'sleep {0} & exec sleep {0}' &) ; exec sleep {0}"
)


def test_nothing_of_the_job_lives_after_its_agent_was_killed(agent: Callable[..., Agent], nap: str) -> None:
    one = agent(FAMILY.format(nap), FAMILY.format(nap))
    soon(lambda: len(sleepers_of(nap)) == 10)

    one.process.kill()
    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


def test_signals_that_end_jobs_do_not_end_the_keeper(agent: Callable[..., Agent], nap: str) -> None:
    one = agent(f"exec sleep {nap}")
    soon(lambda: len(sleepers_of(nap)) == 1)
    soon(one.keeper_has_begun)
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.pidfd_send_signal(one.keeper_fd, number)
    signal.pidfd_send_signal(one.keeper_fd, signal.SIGTSTP)
    assert os.getsid(one.keeper_pid) == one.keeper_pid  # so a signal to the agent's group does not come here

    os.killpg(one.process.pid, signal.SIGKILL)
    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


def test_children_without_the_mark_are_found_by_descent_and_by_session(
    agent: Callable[..., Agent], nap: str
) -> None:
    one = agent(f"env -i sleep {nap} & (env -i sleep {nap} &) ; env -i setsid sleep {nap} & exec sleep {nap}")
    soon(lambda: len(sleepers_of(nap)) == 4)

    one.process.kill()
    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


def test_an_orphan_that_waits_in_the_kernel_is_ended_when_it_can_be_told_whose_it_is(
    agent: Callable[..., Agent], nap: str, freezer: Freezer
) -> None:
    """Its mark cannot be read in this state, and nothing else than the mark tells of it."""
    one = agent(f"(setsid sh -c 'sleep {nap} &' &) ; exec sleep 1000")
    soon(lambda: len(sleepers_of(nap)) == 1)
    [orphan] = sleepers_of(nap)
    freezer.freeze(orphan)

    one.process.kill()
    assert not has_ended(one.keeper_fd, 0.5)
    freezer.thaw()
    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


@pytest.mark.parametrize("killed", ["before the keeper runs", "when the keeper runs"])
def test_a_keeper_that_is_late_knows_the_workers_that_are_older_than_it(
    agent: Callable[..., Agent], nap: str, killed: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    one = agent(
        f"env -i setsid sleep {nap} & exec env -i sleep {nap}",
        first=f"def wait():\n    {wait}\nos.register_at_fork(after_in_child=wait)\n",
    )
    soon(lambda: len(sleepers_of(nap)) == 2)
    time.sleep(0.05)  # some clock ticks
    if killed == "when the keeper runs":
        go.touch()
        soon(one.keeper_has_begun)
    one.process.kill()
    one.process.wait()
    go.touch()

    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


def test_what_a_worker_that_has_ended_left_behind_is_ended_too(agent: Callable[..., Agent], nap: str) -> None:
    then = """
from phalanx.multiprocessing.pidfd import has_ended
assert has_ended(context.fileno(), 30)
print(context.reap(), flush=True)
time.sleep(1000)
"""
    one = agent(f"(env -i sleep {nap} &) ; setsid sleep {nap} & read line; exit 5", then=then)
    soon(lambda: len(sleepers_of(nap)) == 2)
    time.sleep(0.05)  # some clock ticks: a child that is as old as its worker's end is as safe as a stranger
    one.go_on()
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"{0: 5}\n"

    one.process.kill()
    assert has_ended(one.keeper_fd, LIMIT_S)
    assert sleepers_of(nap) == []


def test_other_jobs_are_left_alone(agent: Callable[..., Agent], nap: str) -> None:
    bystanders = [
        subprocess.Popen(["sleep", nap], env={**os.environ, "PHALANX_JOB": mark})
        for mark in ("another", f"job-{nap}x", "")
    ]
    try:
        one = agent("exec sleep 1000")
        one.process.kill()
        assert has_ended(one.keeper_fd, LIMIT_S)
        assert [bystander.poll() for bystander in bystanders] == [None] * 3
    finally:
        for bystander in bystanders:
            bystander.kill()
            bystander.wait()


def test_a_stranger_with_the_number_of_a_worker_is_left_alone(agent: Callable[..., Agent], nap: str) -> None:
    stranger = subprocess.Popen(["sleep", nap], start_new_session=True)
    try:
        # The packet of a worker that had the stranger's number and started in the first second of the machine.
        watched = f"keeper._send(_Op.WATCH, {stranger.pid}, 1)"
        then = f"from phalanx.agent.processes.keeper import _Op\n{watched}\nprint('sent', flush=True)\ntime.sleep(1000)"
        one = agent("exec sleep 1000", then=then)
        assert one.process.stdout is not None
        assert one.process.stdout.readline() == b"sent\n"  # and whoever is killed then is heard to the end
        one.process.kill()
        assert has_ended(one.keeper_fd, LIMIT_S)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_when_all_is_done_the_keeper_goes_and_kills_nobody(agent: Callable[..., Agent], nap: str) -> None:
    one = agent(
        f"setsid sleep {nap} & exec sleep {nap}",
        then="sys.stdin.readline(); keeper.done(); keeper.done(); print(keeper.fileno(), flush=True); time.sleep(1000)",
    )
    soon(lambda: len(sleepers_of(nap)) == 2)
    one.go_on()
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"-1\n"

    assert one.keeper_is_gone()
    assert len(sleepers_of(nap)) == 2


def test_a_fence_that_falls_kills_the_job_and_neither_the_agent_nor_the_keeper(
    agent: Callable[..., Agent], nap: str
) -> None:
    then = """
sys.stdin.readline()
now = time.clock_gettime(time.CLOCK_BOOTTIME)
keeper.fence(now + 1000)
keeper.fence(None)
keeper.fence(now + 0.5)
context.wait(30)
print(time.clock_gettime(time.CLOCK_BOOTTIME) >= now + 0.5, flush=True)
time.sleep(1000)
"""
    one = agent(FAMILY.format(nap), then=then)
    soon(lambda: len(sleepers_of(nap)) == 5)
    one.go_on()
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"True\n"

    soon(lambda: sleepers_of(nap) == [])
    assert not has_ended(one.keeper_fd, 0.3), "the agent was perhaps only frozen, and may start workers anew"
    assert one.process.poll() is None


def test_workers_that_are_started_behind_a_new_fence_live_until_that_falls(
    agent: Callable[..., Agent], nap: str
) -> None:
    then = """
import subprocess
keeper.fence(0.0)
context.wait(30)
keeper.fence(time.clock_gettime(time.CLOCK_BOOTTIME) + 1000)
environment = {**os.environ, "PHALANX_JOB": "job-" + sys.argv[1]}
again = subprocess.Popen(["sleep", sys.argv[1]], env=environment)
keeper.watch(again.pid, os.pidfd_open(again.pid))
print("again", flush=True)
sys.stdin.readline()
keeper.fence(0.0)
again.wait()
print(again.returncode, flush=True)
time.sleep(1000)
"""
    one = agent(f"exec sleep {nap}", then=then)
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"again\n"
    time.sleep(0.5)
    assert len(sleepers_of(nap)) == 1
    one.go_on()
    assert one.process.stdout.readline() == b"-9\n"
    assert not one.keeper_is_gone()


def test_a_fence_in_the_past_has_fallen(agent: Callable[..., Agent], nap: str) -> None:
    one = agent(f"exec sleep {nap}", then="sys.stdin.readline(); keeper.fence(0.0); time.sleep(1000)")
    soon(lambda: len(sleepers_of(nap)) == 1)
    one.go_on()

    soon(lambda: sleepers_of(nap) == [])
    assert not one.keeper_is_gone()


def test_a_fence_that_was_taken_away_does_not_fall(agent: Callable[..., Agent], nap: str) -> None:
    # The keeper stands still meanwhile: it would let the fence fall if the agent paused between the two words.
    then = """
os.kill(keeper.pid, signal.SIGSTOP)
os.waitid(os.P_PID, keeper.pid, os.WSTOPPED)
keeper.fence(time.clock_gettime(time.CLOCK_BOOTTIME) + 0.3)
keeper.fence(None)
os.kill(keeper.pid, signal.SIGCONT)
print("taken away", flush=True)
time.sleep(1000)
"""
    one = agent(f"exec sleep {nap}", then=then)
    soon(lambda: len(sleepers_of(nap)) == 1)
    assert one.process.stdout is not None
    assert one.process.stdout.readline() == b"taken away\n"

    assert not has_ended(one.keeper_fd, 0.8)
    assert len(sleepers_of(nap)) == 1


def test_a_frozen_agent_does_not_hold_the_fence_up(agent: Callable[..., Agent], nap: str) -> None:
    then = """
sys.stdin.readline()
keeper.fence(time.clock_gettime(time.CLOCK_BOOTTIME) + 2)
print("fenced", flush=True)
time.sleep(1000)
"""
    one = agent(FAMILY.format(nap), then=then)
    soon(lambda: len(sleepers_of(nap)) == 5)
    one.go_on()
    assert one.process.stdout is not None
    one.process.stdout.readline()
    one.process.send_signal(signal.SIGSTOP)

    soon(lambda: sleepers_of(nap) == [])
    one.process.kill()
    assert has_ended(one.keeper_fd, LIMIT_S), "and it still ends with its agent"


def test_the_agent_notices_the_loss_of_its_keeper_and_nothing_raises(
    agent: Callable[..., Agent], nap: str
) -> None:
    then = """
from phalanx.multiprocessing.pidfd import has_ended
assert has_ended(keeper.fileno(), 30)
keeper.watch(os.getpid(), context.sentinels()[0])
keeper.fence(5.0)
keeper.done()
print("fine", flush=True)
"""
    one = agent(f"exec sleep {nap}", then=then)
    signal.pidfd_send_signal(one.keeper_fd, signal.SIGKILL)
    assert one.process.stdout is not None

    assert one.process.stdout.readline() == b"fine\n"


def test_the_keeper_holds_nothing_open_that_others_wait_for(agent: Callable[..., Agent], nap: str) -> None:
    one = agent()
    soon(one.keeper_has_begun)
    folder = Path(f"/proc/{one.keeper_pid}/fd")

    def kinds() -> list[str]:
        found = []
        for entry in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                found.append(os.readlink(entry).split(":")[0])
        return sorted(found)

    # The agent's pidfd is the last: it has begun to watch.
    soon(lambda: kinds() == ["/dev/null"] * 6 + ["anon_inode", "socket"])


def test_the_keeper_is_small_and_sleeps(agent: Callable[..., Agent], nap: str) -> None:
    one = agent(f"exec sleep {nap}")
    soon(one.keeper_has_begun)
    soon(lambda: _slept_through(one.keeper_pid, 1.0))  # it may still be on its way to sleep

    memory = dict(
        line.split()[:2] for line in Path(f"/proc/{one.keeper_pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    assert int(memory["Private_Dirty:"]) < 10_000  # KiB that are not shared with the agent


def _slept_through(pid: int, period_s: float) -> bool:
    before = _switches(pid)
    time.sleep(period_s)
    return _switches(pid) == before


def _switches(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]


def test_a_worker_made_by_fork_does_not_hide_the_agents_death(nap: str) -> None:
    # It holds the agent's end of the socket; started by a thread, it has no parent-death signal either.
    script = f"""
import os, sys, threading, time
from phalanx.agent.processes.keeper import Keeper
from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
keeper = Keeper.start("job-{nap}")
def start():
    context = start_processes("test", os.system, {{0: ("exec sleep {nap}",)}}, {{0: {{"PHALANX_JOB": "job-{nap}"}}}},
        DefaultLogsSpecs(), start_method="fork")
    keeper.watch(context.pids()[0], context.sentinels()[0])
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(keeper.pid, flush=True)
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        keeper_fd = os.pidfd_open(int(launcher.stdout.readline()))
        soon(lambda: len(sleepers_of(nap)) == 1)
        launcher.kill()
    assert has_ended(keeper_fd, LIMIT_S)
    os.close(keeper_fd)
    assert sleepers_of(nap) == []


def test_a_number_that_was_ready_for_another_is_not_taken_for_the_end_of_a_live_worker(nap: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = _KeeperProcess(f"job-{nap}", os.getpid(), theirs, 0)
    worker = subprocess.Popen(["sleep", nap])
    pidfd = os.pidfd_open(worker.pid)
    with ours, theirs:
        ticks = start_ticks_of(worker.pid)
        socket.send_fds(ours, [_PACKET.pack(_Op.WATCH, worker.pid, ticks)], [pidfd])
        keeper._take([])
        keeper._take(list(keeper._by_pidfd))
        assert [one.pid for one in keeper._tree.members()] == [worker.pid]

        worker.kill()
        worker.wait()
        keeper._take(list(keeper._by_pidfd))
        assert keeper._by_pidfd == {}
    for fd in (pidfd, keeper._agent_fd):
        assert fd is not None
        os.close(fd)


def test_a_keeper_can_be_started_and_let_go_by_any_process() -> None:
    keeper = Keeper.start("some-job")
    assert keeper.pid > 0
    assert not has_ended(keeper.fileno())
    keeper.done()

    assert keeper.fileno() == -1
    assert not Path(f"/proc/{keeper.pid}").exists()


TIDIES = """
keeper = Keeper.start("job-" + sys.argv[1])
import socket
there = socket.socket(socket.AF_UNIX)
there.bind(sys.argv[2] + "/sock/agent.sock")
keeper.tidy_logs(sys.argv[2] + "/older")
keeper.tidy_logs(sys.argv[2] + "/logs")
keeper.tidy_socket(sys.argv[2] + "/sock/agent.sock")
print(keeper.pid, flush=True)
sys.stdin.readline()
"""


def tidied(nap: str, folder: Path, then: str) -> list[str]:
    """What is left below the folder when an agent has ended so, and its keeper after it."""
    for name in ("older", "logs/attempt_0/0", "sock"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    code = IMPORTS + TIDIES + then
    with subprocess.Popen(
        [sys.executable, "-c", code, nap, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        keeper = os.pidfd_open(int(agent.stdout.readline()))
        agent.communicate(b"\n", LIMIT_S)  # it may end, and the keeper after it, no earlier
    assert has_ended(keeper, LIMIT_S)
    os.close(keeper)
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*"))


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
ALL = ["logs", "logs/attempt_0", "logs/attempt_0/0", "older", "sock", "sock/agent.sock"]


def test_a_killed_agents_folders_are_removed_by_its_keeper(nap: str, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "stdout.log").touch()
    assert tidied(nap, tmp_path, KILLED) == ["older"], "the latest logs count"


def test_what_somebody_has_put_into_a_killed_agents_folders_stays(nap: str, tmp_path: Path) -> None:
    for name in ("logs", "sock"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "notes").write_text("x")
    assert tidied(nap, tmp_path, KILLED) == sorted({*ALL, "logs/notes", "sock/notes"} - {"sock/agent.sock"})


def test_a_file_in_the_place_of_the_socket_stays(nap: str, tmp_path: Path) -> None:
    then = f"path = sys.argv[2] + '/sock/agent.sock'; os.unlink(path); open(path, 'w'); {KILLED}"
    assert "sock/agent.sock" in tidied(nap, tmp_path, then)


def test_the_keeper_of_an_agent_that_is_done_removes_nothing(nap: str, tmp_path: Path) -> None:
    assert tidied(nap, tmp_path, "keeper.done()") == ALL
