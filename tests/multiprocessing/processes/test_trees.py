from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.system.freezing import Freezer, a_freezer  # noqa: F401 # fixture

from phalanx.multiprocessing import trees
from phalanx.multiprocessing.pidfd import has_ended
from phalanx.multiprocessing.procfs import now_ticks, start_ticks_of
from phalanx.multiprocessing.trees import JobProcess, ProcessTree

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="trees are read from /proc")

Soon = Callable[..., None]
Sleepers = Callable[[], list[int]]
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a shell script in a session of its own, as a worker starts; killed and reaped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, **environment: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            ["sh", "-c", script],
            start_new_session=True,
            stdin=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def job(nap: str) -> str:
    """A token of its own for each test: they run side by side, and a tree finds whoever carries its token."""
    return f"job-{nap}"


@pytest.fixture
def tree(job: str) -> Iterator[ProcessTree]:
    tree = ProcessTree(job)
    time.sleep(2 * TICK_S)
    yield tree
    tree.close()


def pids(tree: ProcessTree) -> set[int]:
    return {member.pid for member in tree.members()}


def test_a_signal_may_be_taken_back_when_the_members_are_known(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree
) -> None:
    worker = start("read _")
    tree.add(worker.pid)
    known: list[bool] = []

    def not_any_more() -> bool:
        known.append(not tree.is_empty)
        return False

    assert tree.send(signal.SIGKILL, is_wanted=not_any_more) == []
    assert known == [True]
    assert worker.poll() is None
    assert worker.pid in {one.pid for one in tree.send(signal.SIGKILL, is_wanted=lambda: True)}
    assert worker.wait() == -signal.SIGKILL


def test_children_of_a_worker_are_members_by_descent(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, soon: Soon, nap: str, sleepers: Sleepers
) -> None:
    worker = start(f"sleep {nap} & setsid sleep {nap} & wait")
    tree.add(worker.pid)
    soon(lambda: len(sleepers()) == 2)

    assert pids(tree) == {worker.pid, *sleepers()}


def test_an_orphan_in_a_session_of_its_own_is_known_by_its_mark(
    start: Callable[..., subprocess.Popen[bytes]],
    tree: ProcessTree,
    soon: Soon,
    nap: str,
    sleepers: Sleepers,
    job: str,
) -> None:
    worker = start(f"(setsid sleep {nap} &) ; exit 0", PHALANX_JOB=job)
    tree.add(worker.pid)
    worker.wait()
    tree.ended(worker.pid)
    soon(lambda: len(sleepers()) == 1)

    assert pids(tree) == set(sleepers())


def test_an_orphan_that_waits_in_the_kernel_is_looked_at_until_it_can_be_told_whose_it_is(
    start: Callable[..., subprocess.Popen[bytes]],
    tree: ProcessTree,
    soon: Soon,
    nap: str,
    sleepers: Sleepers,
    job: str,
    freezer: Freezer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start(f"(setsid sleep {nap} &) ; exit 0", PHALANX_JOB=job).wait()
    soon(lambda: len(sleepers()) == 1)
    freezer.freeze(*sleepers())
    assert pids(tree) == set()
    assert tree.is_unsure
    # It looks again as long as this clock says that its patience lasts.
    monkeypatch.setattr(trees, "time", SimpleNamespace(sleep=lambda _: freezer.thaw(), monotonic=lambda: 0.0))
    assert pids(tree) == set(sleepers())


def test_nobody_is_believed_when_it_is_said_twice_by_those_who_could_ask_everybody(
    tree: ProcessTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited in the kernel in the first scan may fork, and end, within the second."""
    child = JobProcess(4_000_000, 1, "S", "child")
    scans = iter([(True, []), (False, []), (True, []), (False, [child])])

    def scan(tree: ProcessTree) -> list[JobProcess]:
        tree._is_unsure, found = next(scans)
        return found

    monkeypatch.setattr(ProcessTree, "_scan", scan)
    monkeypatch.setattr(trees, "_PATIENCE_S", 60.0)
    assert tree.members() == [child]


def test_an_orphan_without_the_mark_is_known_by_the_session_of_its_dead_worker(
    start: Callable[..., subprocess.Popen[bytes]],
    tree: ProcessTree,
    soon: Soon,
    nap: str,
    sleepers: Sleepers,
    job: str,
) -> None:
    worker = start(f"(env -u PHALANX_JOB sleep {nap} &) ; read line", PHALANX_JOB=job)
    tree.add(worker.pid)
    soon(lambda: len(sleepers()) == 1)
    time.sleep(2 * TICK_S)
    worker.communicate(b"\n", timeout=30)
    tree.ended(worker.pid)

    assert pids(tree) == set(sleepers())


@pytest.mark.parametrize("mark", ["that-job", "{job}0", "{cut}", ""])
def test_a_process_of_another_job_is_no_member_and_gets_no_signal(
    start: Callable[..., subprocess.Popen[bytes]],
    tree: ProcessTree,
    mark: str,
    nap: str,
    soon: Soon,
    sleepers: Sleepers,
    job: str,
) -> None:
    bystander = start(f"sleep {nap} & wait", PHALANX_JOB=mark.format(job=job, cut=job[:-1]))
    soon(lambda: len(sleepers()) == 1)

    assert tree.members() == []
    assert tree.send(signal.SIGKILL) == []
    assert bystander.poll() is None


def test_a_stranger_who_got_the_number_of_a_worker_is_no_member(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree
) -> None:
    stranger = start("read line")
    ticks = start_ticks_of(stranger.pid)
    assert ticks is not None
    tree.add_known(stranger.pid, ticks - 1)

    assert tree.members() == []
    assert tree.send(signal.SIGKILL) == []


def test_a_strangers_session_that_got_the_number_of_a_dead_worker_is_no_session_of_ours(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, nap: str, soon: Soon, sleepers: Sleepers
) -> None:
    stranger = start(f"read line; sleep {nap} & wait")
    tree.add_known(stranger.pid, 1)  # the worker had the same number in another time,
    tree.ended(stranger.pid)  # and was reaped before anyone in this session was born
    time.sleep(2 * TICK_S)
    assert stranger.stdin is not None
    stranger.stdin.write(b"\n")
    stranger.stdin.flush()
    soon(lambda: len(sleepers()) == 1)

    assert tree.members() == []


def test_who_is_older_than_the_job_is_no_member_whatever_the_mark_says(
    start: Callable[..., subprocess.Popen[bytes]], nap: str, soon: Soon, sleepers: Sleepers, job: str
) -> None:
    start(f"exec sleep {nap}", PHALANX_JOB=job)
    soon(lambda: len(sleepers()) == 1)
    time.sleep(5 * TICK_S)

    assert ProcessTree(job).members() == []


def test_a_tree_made_after_its_job_began_knows_who_is_older_than_itself(
    start: Callable[..., subprocess.Popen[bytes]], nap: str, soon: Soon, sleepers: Sleepers, job: str
) -> None:
    born_ticks = now_ticks()
    worker = start(f"env -i setsid sleep {nap} & (setsid sleep {nap} &) ; wait", PHALANX_JOB=job)
    soon(lambda: len(sleepers()) == 2)
    time.sleep(5 * TICK_S)

    tree = ProcessTree(job, born_ticks=born_ticks)
    tree.add(worker.pid)
    assert pids(tree) == {worker.pid, *sleepers()}


def test_spared_processes_are_left_out_and_their_children_are_not_followed(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, job: str
) -> None:
    worker = start("read line", PHALANX_JOB=job)
    tree.add(worker.pid)
    tree.spare(worker.pid)

    assert tree.members() == []


def test_zombies_are_no_members(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, job: str
) -> None:
    worker = start("exit 0", PHALANX_JOB=job)
    fd = os.pidfd_open(worker.pid)
    assert has_ended(fd, 30)
    os.close(fd)
    tree.add(worker.pid)

    assert tree.members() == []
    assert tree.is_empty


def test_a_name_with_spaces_parentheses_and_newlines_is_read_whole(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, tmp_path: Path, soon: Soon, job: str
) -> None:
    program = tmp_path / "a) S 1 (b\n"
    program.symlink_to("/bin/sleep")
    worker = start('exec "$PROGRAM" 1000', PHALANX_JOB=job, PROGRAM=str(program))
    tree.add(worker.pid)

    soon(lambda: [(one.pid, one.command) for one in tree.members()] == [(worker.pid, "a) S 1 (b\n")])


def test_each_member_gets_a_signal_once_and_a_kill_as_often_as_it_is_sent(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, tmp_path: Path, soon: Soon
) -> None:
    log = tmp_path / "log"
    worker = start(f"trap 'echo got >> {log}' TERM; echo up > {log}; while :; do sleep 0.02; done")
    tree.add(worker.pid)
    soon(lambda: log.exists() and log.read_text() == "up\n")

    assert worker.pid in {one.pid for one in tree.send(signal.SIGTERM)}
    soon(lambda: "got" in log.read_text())
    assert worker.pid not in {one.pid for one in tree.send(signal.SIGTERM)}
    assert worker.pid in {one.pid for one in tree.send(signal.SIGKILL)}
    assert log.read_text() == "up\ngot\n"


def test_the_descriptor_tells_of_deaths_and_one_scan_is_due_when_all_have_died(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree
) -> None:
    first, second = start("read line"), start("read line")
    tree.add(first.pid)
    tree.add(second.pid)
    tree.members()
    fd = tree.fileno()
    assert not has_ended(fd)
    assert not tree.all_ended()

    first.kill()
    assert has_ended(fd, 30)
    assert not tree.all_ended()
    assert not has_ended(fd)  # the death was noted: the descriptor is quiet again

    second.kill()
    assert has_ended(fd, 30)
    assert tree.all_ended()
    assert tree.members() == []


def test_those_who_died_before_the_first_question_for_the_descriptor_are_told_of(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree
) -> None:
    worker = start("read line")
    tree.add(worker.pid)
    assert [one.pid for one in tree.send(signal.SIGKILL)] == [worker.pid]
    worker.wait()

    assert has_ended(tree.fileno())
    assert tree.all_ended()
    assert not has_ended(tree.fileno())  # told once: who asks without an answer must not spin
    assert tree.members() == []
    assert not has_ended(tree.fileno())  # that nobody is left was the answer to members()


class QuickDeath(ProcessTree):
    """A tree whose only member dies, and is reaped, between each scan and whatever follows it."""

    victim: subprocess.Popen[bytes] | None = None

    def _scan(self) -> list[JobProcess]:
        found = super()._scan()
        if found and self.victim is not None:  # its environment may not be there yet when its start returns
            self.victim.kill()
            self.victim.wait()
        return found


def test_those_who_die_between_a_scan_and_the_watching_are_told_of(
    start: Callable[..., subprocess.Popen[bytes]], job: str
) -> None:
    tree = QuickDeath(job, born_ticks=0)
    fd = tree.fileno()
    tree.victim = start("read line", PHALANX_JOB=job)

    assert [one.pid for one in tree.members()] == [tree.victim.pid]
    assert has_ended(fd)
    assert tree.all_ended()
    assert tree.members() == []
    assert not has_ended(fd)
    tree.close()


def test_a_tree_of_more_processes_than_are_watched_at_once_is_followed_to_its_end(
    start: Callable[..., subprocess.Popen[bytes]], tree: ProcessTree, nap: str, soon: Soon, sleepers: Sleepers
) -> None:
    worker = start(f"for i in $(seq 150); do sleep {nap} & done; wait")
    tree.add(worker.pid)
    soon(lambda: len(sleepers()) == 150)
    fd = tree.fileno()
    tree.send(signal.SIGKILL)

    scans = 0
    while not tree.is_empty:
        assert has_ended(fd, 30)
        if tree.all_ended():
            tree.members()
            scans += 1
    assert sleepers() == []
    assert scans < 20


def run_in_a_process_of_its_own(script: str, *arguments: str) -> str:
    """Run a script that may become a subreaper, which a test process must not."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


ADOPTS = """
import os, signal, subprocess, sys, time
from phalanx.multiprocessing.pidfd import has_ended
from phalanx.multiprocessing.trees import ProcessTree, become_subreaper
assert become_subreaper()
tree = ProcessTree(sys.argv[1], include_own_children=True)
"""


def test_a_process_that_adopts_finds_every_orphan_marked_or_not(
    nap: str, sleepers: Sleepers, job: str
) -> None:
    found = run_in_a_process_of_its_own(
        ADOPTS
        + """
subprocess.run(["sh", "-c", f"(env -i setsid sleep {sys.argv[2]} &); exit 0"])
spared = subprocess.Popen(["sleep", "1000"])
tree.spare(spared.pid)
fd = tree.fileno()
while (found := [one.command for one in tree.members()]) in ([], ["sh"], ["env"], ["setsid"]):
    time.sleep(0.01)  # on its way from one exec to the next
print(*found)
tree.send(signal.SIGKILL)
assert has_ended(fd, 30) and tree.all_ended() and not tree.members()
assert spared.poll() is None
spared.kill()
spared.wait()
""",
        job,
        nap,
    )

    assert found.split() == ["sleep"]
    assert sleepers() == []


def test_adopted_zombies_are_reaped_and_those_of_others_are_not(job: str) -> None:
    run_in_a_process_of_its_own(
        ADOPTS
        + """
spared = subprocess.Popen(["sh", "-c", "exit 3"])
tree.spare(spared.pid)
worker = subprocess.Popen(["sh", "-c", "exit 4"])
tree.add(worker.pid)
orphans = subprocess.run(
    ["sh", "-c", "for i in 1 2 3; do (setsid sh -c 'echo $$; exec 1>&-; read line' &); done"],
    stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
)
orphans = {int(pid) for pid in orphans.stdout.split()}
assert len(orphans) == 3
for process in (spared, worker):
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
reaped = set()
give_up_at = time.monotonic() + 30
while reaped != orphans and time.monotonic() < give_up_at:
    reaped |= set(tree.reap_adopted())
    time.sleep(0.01)
assert reaped == orphans, (reaped, orphans)
assert (spared.wait(), worker.wait()) == (3, 4)
""",
        job,
    )


def test_a_process_without_a_free_descriptor_still_finds_and_kills_by_its_reserve(nap: str, job: str) -> None:
    found = run_in_a_process_of_its_own(
        """
import os, resource, signal, subprocess, sys
from phalanx.multiprocessing.trees import ProcessTree
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
tree = ProcessTree(sys.argv[1])
child = subprocess.Popen(["sleep", sys.argv[2]])
tree.add(child.pid)
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
signalled = [one.pid for one in tree.send(signal.SIGKILL)]
print(signalled == [child.pid], child.wait())
tree.members()
print(tree.is_empty)
""",
        job,
        nap,
    )
    assert found.split() == ["True", "-9", "True"]
