"""Exit codes 135, 137 and 139 with their reason: memory that ran out, a full /dev/shm, a native crash, a stranger."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.cgroups import MemoryCgroup, memory_cgroup, why_no_cgroups
from tests.system.launch import Job, Launch, Script, two_free_ports

LIMIT = 72 << 20  # a launcher, a small worker and a worker that grows; less is not enough for the first two
SMALL_SHM = ("unshare", "--mount", "sh", "-ec", 'mount -t tmpfs -o size=1m none /dev/shm; exec "$@"', "sh")
# There the numbers in the kernel's log are not ours, as in a container.
CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
GREEDY = """
    import os, time

    if os.environ["RANK"] == "1":
        hold = []
        while True:
            hold.append(bytearray(b"x" * (1 << 20)))
    time.sleep(1000)
"""
CRASH = """
    import {module}

    def native_kernel():
        {crash}

    native_kernel()
"""


def _need(reason: str | None) -> None:
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(f"these tests must not be skipped here: {reason}")
        pytest.skip(reason)


def _why_no_namespaces(*command: str) -> str | None:
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    return (tried.stderr.strip() or "unshare failed") if tried.returncode else None


@pytest.fixture
def cgroup() -> Iterator[MemoryCgroup]:
    _need(why_no_cgroups())
    with memory_cgroup(LIMIT) as made:
        yield made


def _reads_log() -> bool:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"


def test_a_job_that_ran_out_of_the_memory_of_its_cgroup(
    cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(GREEDY), wrapper=cgroup.entering)

    assert job.wait() == 128 + signal.SIGKILL
    said = job.stderr.decode()
    why = "because its cgroup was out of memory (limit 72 MiB; the worker had up to "
    assert why in " ".join(said.split()), said
    assert "docker run --memory" in said
    if _reads_log():
        last = said.splitlines()[-1]
        assert "rank 1: killed by SIGKILL: out of memory (limit 72 MiB; the worker had up to " in last


# Rank 2's sweep takes longer than rank 1's death: when that one is started again, this one is still to be examined.
TWO_AT_ONCE = """
    import os, subprocess, time

    def is_alive(pid):
        try:
            return bool(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return False

    rank, is_first = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if rank == "2" and is_first:  # a successor's number would be taken for that of one who has not ended
        open("new", "w").write(str(os.getpid()))
        os.rename("new", "second")
        subprocess.Popen(["sh", "-c", "trap '' TERM; touch deaf; while true; do sleep 1000; done"])
        while not os.path.exists("deaf"):
            time.sleep(0.01)
    if rank == "1" and is_first:
        while not os.path.exists("second"):
            time.sleep(0.01)
        while is_alive(int(open("second").read())):
            time.sleep(0.01)
    hold = []
    while rank != "0" and is_first:
        hold.append(bytearray(b"x" * (1 << 20)))
    time.sleep(1000)
"""


def _two_at_once(launch: Launch, script: Script, max_restarts: int, *wrapper: str) -> Job:
    scope = ("--restart-scope", "worker", "--max-restarts", max_restarts, "--shutdown-timeout", 5)
    return launch("--standalone", "--nproc-per-node", 3, *scope, script(TWO_AT_ONCE), wrapper=wrapper)


@pytest.fixture
def larger_cgroup() -> Iterator[MemoryCgroup]:
    _need(why_no_cgroups())
    with memory_cgroup(2 * LIMIT) as made:
        yield made


def test_two_single_workers_that_ran_out_of_memory_together_are_both_explained(
    larger_cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    if not _reads_log():
        pytest.skip("only the kernel's log makes it certain, so that the line of the restart says it")
    job = _two_at_once(launch, script, 5, *larger_cgroup.entering)

    for rank in (1, 2):
        job.printed(f"rank {rank} failed: killed by SIGKILL: out of memory (limit 144 MiB; ")
    job.send(signal.SIGTERM)
    assert job.wait() == 128 + signal.SIGTERM


def test_the_second_of_two_is_explained_by_the_counters_too(
    larger_cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    _need(_why_no_namespaces(*CONTAINER))
    job = _two_at_once(launch, script, 1, *larger_cgroup.entering, *CONTAINER)

    assert job.wait() == 128 + signal.SIGKILL
    said = " ".join(job.stderr.decode().split())
    assert "probably the kernel killed it because its cgroup was out of memory (limit 144 MiB" in said


def test_only_a_worker_in_a_cgroup_of_its_own_ran_out_of_its_memory(
    cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    if cgroup.is_v1 and not _reads_log():
        pytest.skip("cgroup v1 moves its dead to the root: only the kernel's log knows where this one was")
    command = (*cgroup.entering, sys.executable, script(GREEDY))
    job = launch("--standalone", "--nproc-per-node", 2, "--no-python", *command)

    assert job.wait() == 128 + signal.SIGKILL
    assert "its cgroup was out of memory (limit 72 MiB" in " ".join(job.stderr.decode().split())


def test_without_the_kernels_log_a_counter_says_probably(
    cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    _need(_why_no_namespaces(*CONTAINER))
    job = launch(
        "--standalone", "--nproc-per-node", 2, script(GREEDY), wrapper=(*cgroup.entering, *CONTAINER)
    )

    assert job.wait() == 128 + signal.SIGKILL
    said = " ".join(job.stderr.decode().split())
    assert "probably the kernel killed it because its cgroup was out of memory (limit 72 MiB" in said
    assert job.stderr.decode().splitlines()[-1].endswith("rank 1: killed by SIGKILL (exit code 137)")


def test_a_worker_that_failed_because_its_child_was_killed(
    cgroup: MemoryCgroup, launch: Launch, script: Script
) -> None:
    train = script(
        """
        import subprocess, sys

        eater = "hold = []\\nwhile True: hold.append(bytearray(b'x' * (1 << 20)))"
        ended = subprocess.run([sys.executable, "-c", eater]).returncode
        raise RuntimeError(f"data loader ended with {ended}")
        """
    )
    job = launch("--standalone", train, wrapper=cgroup.entering)

    assert job.wait() == 1
    said = " ".join(job.stderr.decode().split())
    assert "data loader ended with -9" in said
    assert (
        "the kernel killed a process of its cgroup because its cgroup was out of memory (limit 72 MiB)"
        in said
    )


def test_a_stranger_with_kill_9(launch: Launch, script: Script) -> None:
    job = launch("--standalone", script("import os\nos.kill(os.getpid(), 9)"))

    assert job.wait() == 128 + signal.SIGKILL
    said = " ".join(job.stderr.decode().split())
    assert "this launcher did not kill it" in said
    assert "kill -9" in said
    assert "probably" not in said
    assert job.stderr.decode().splitlines()[-1].endswith("rank 0: killed by SIGKILL (exit code 137)")


def test_a_bus_error_with_a_full_shared_memory(launch: Launch, script: Script) -> None:
    _need(_why_no_namespaces(*SMALL_SHM))
    train = script(
        """
        import mmap, os

        def fill():
            with open("/dev/shm/tensor", "w+b") as file:
                file.truncate(8 << 20)
                view = mmap.mmap(file.fileno(), 8 << 20)
            for page in range(0, 8 << 20, 4096):
                view[page] = 1

        fill()
        """
    )
    job = launch("--standalone", train, wrapper=SMALL_SHM)

    assert job.wait() == 128 + signal.SIGBUS
    said = " ".join(job.stderr.decode().split())
    assert "rank 0: killed by SIGBUS: /dev/shm is full (1 MiB)" in said
    assert "--shm-size" in said
    assert "in fill" in said, "the stack of the crash"


CRASHES = {
    "SIGSEGV": ("ctypes", "ctypes.string_at(0)"),
    "SIGABRT": ("os", "os.abort()"),
    "SIGFPE": ("os", "os.kill(os.getpid(), 8); os.read(0, 1)"),
    "SIGBUS": ("os", "os.kill(os.getpid(), 7); os.read(0, 1)"),
    "SIGILL": ("os", "os.kill(os.getpid(), 4); os.read(0, 1)"),
}


@pytest.fixture
def no_cores() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.mark.usefixtures("no_cores")
@pytest.mark.parametrize("name", CRASHES)
def test_a_native_crash_shows_its_stack_and_how_to_get_a_core(
    launch: Launch, script: Script, name: str
) -> None:
    module, crash = CRASHES[name]
    job = launch("--standalone", script(CRASH.format(module=module, crash=crash)))

    assert job.wait() == 128 + signal.Signals[name]
    assert "in native_kernel" in job.summary
    said = " ".join(job.stderr.decode().split())
    if not Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        assert "no core dump was written: the limit is 0" in said
        assert "ulimit -c unlimited" in said
    assert f"rank 0: killed by {name}" in said


def test_a_core_that_was_written_is_told(launch: Launch, script: Script) -> None:
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("the kernel gives cores to somebody else here")
    if resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("no core can be had here (ulimit -H -c)")
    job = launch(
        *("--standalone", script(CRASH.format(module="os", crash="os.abort()"))),
        wrapper=("sh", "-c", 'ulimit -S -c "$(ulimit -H -c)" && exec "$@"', "sh"),
    )

    assert job.wait() == 128 + signal.SIGABRT
    said = " ".join(job.stderr.decode().split())
    assert "a core dump was written in the folder that the worker was in" in said
    assert (job.folder / "core").stat().st_size


@pytest.mark.usefixtures("no_cores")
def test_another_node_shows_the_stack_and_the_explanation_too(launch: Launch, script: Script) -> None:
    train = script(
        """
        import ctypes, os, time
        from telling import stay, tell

        def native_kernel():
            ctypes.string_at(0)

        tell("ready")
        while not os.path.exists(os.environ["GO"]):
            time.sleep(0.01)
        if os.environ["GROUP_RANK"] == "1":
            native_kernel()
        stay()
        """
    )
    meeting = ("--nnodes", 2, "--rdzv-id", "job", "--rdzv-endpoint", f"127.0.0.1:{two_free_ports()}")
    go = script("", name="not-yet").with_name("go")
    nodes = [
        launch("--rdzv-backend", "c10d", *meeting, "--max-restarts", 0, train, env={"GO": str(go)})
        for _ in range(2)
    ]
    for node in nodes:
        node.told("ready")
    go.touch()

    for node in nodes:
        assert node.wait() == 128 + signal.SIGSEGV
        said = " ".join(node.stderr.decode().split())
        assert "in native_kernel" in said, node.so_far()
        assert "SIGSEGV: it touched memory that is not its own" in said, node.so_far()
        assert "rank 1" in said
