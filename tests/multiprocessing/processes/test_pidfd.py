from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.multiprocessing import pidfd
from phalanx.multiprocessing.pidfd import EXIT_CODE_LOST, Child, PidfdChild, ThreadedChild, has_ended

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds are Linux's")


@pytest.fixture(params=[PidfdChild, ThreadedChild])
def watch(request: pytest.FixtureRequest) -> Iterator[Callable[..., Child]]:
    """Start a command and watch it; nothing is left of it at the end."""
    children: list[Child] = []

    def start(*command: str) -> Child:
        process = subprocess.Popen(command)
        process.returncode = 0  # it is the watch's to wait for
        child: Child = request.param(process.pid)
        children.append(child)
        return child

    yield start
    for child in children:
        if child.fileno() >= 0:
            child.send_signal(signal.SIGKILL)
            has_ended(child.fileno(), 30)
            child.poll()
            child.close()


def test_the_descriptor_is_readable_from_the_end_on_and_the_code_is_the_exit_status(
    watch: Callable[..., Child],
) -> None:
    child = watch("sh", "-c", "exit 7")

    assert has_ended(child.fileno(), 30)
    assert child.poll() == 7
    assert has_ended(child.fileno())


def test_death_by_a_signal_is_a_negative_code(watch: Callable[..., Child]) -> None:
    child = watch("sleep", "1000")

    assert child.send_signal(signal.SIGKILL)
    assert has_ended(child.fileno(), 30)
    assert child.poll() == -signal.SIGKILL


def test_a_running_child_has_no_code_and_a_quiet_descriptor(watch: Callable[..., Child]) -> None:
    child = watch("sleep", "1000")

    assert child.poll() is None
    assert not has_ended(child.fileno(), 0.05)


def test_an_ended_child_is_not_signalled_before_or_after_it_is_reaped(watch: Callable[..., Child]) -> None:
    child = watch("true")
    assert has_ended(child.fileno(), 30)

    assert not child.send_signal(signal.SIGTERM)
    assert child.poll() == 0
    assert not child.send_signal(signal.SIGTERM)


def test_a_status_that_somebody_else_took_is_reported_as_lost(watch: Callable[..., Child]) -> None:
    child = watch("sleep", "1000")
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)

    assert has_ended(child.fileno(), 30)
    assert child.poll() == EXIT_CODE_LOST
    assert child.remains is None


def test_no_other_child_is_waited_for(watch: Callable[..., Child]) -> None:
    other = subprocess.Popen(["sh", "-c", "exit 5"])
    child = watch("true")
    assert has_ended(child.fileno(), 30)
    assert child.poll() == 0

    assert other.wait() == 5


def test_the_peak_of_memory_is_known_once_it_is_reaped(watch: Callable[..., Child]) -> None:
    child = watch(sys.executable, "-c", "bytearray(200 << 20)")
    before = child.remains
    assert has_ended(child.fileno(), 30)
    assert child.poll() == 0

    assert before is None
    assert child.remains is not None
    # Until it executed its program it had this process's memory, which other tests may have let grow.
    ours = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    assert 200 << 20 < child.remains.peak_bytes < max(300 << 20, ours + 1)
    assert child.remains.cgroups == "", "nothing is read of a death without a riddle"


def test_of_a_death_by_a_signal_its_cgroups_and_its_own_core_limit_are_known(
    watch: Callable[..., Child],
) -> None:
    child = watch("sh", "-c", "ulimit -S -c 0; kill -SEGV $$")
    assert has_ended(child.fileno(), 30)
    assert child.poll() == -signal.SIGSEGV

    assert child.remains is not None
    assert child.remains.core_limit == "0"
    assert not child.remains.has_core
    paths = [line.split(":", 2)[0] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    assert [line.split(":", 2)[0] for line in child.remains.cgroups.splitlines()] == paths


def test_a_core_that_was_written_is_known(watch: Callable[..., Child], tmp_path: Path) -> None:
    if Path("/proc/sys/kernel/core_pattern").read_text().strip() != "core":
        pytest.skip("the kernel gives cores to somebody else here")
    child = watch("sh", "-c", f"cd {tmp_path} && ulimit -c unlimited && kill -SEGV $$")
    assert has_ended(child.fileno(), 30)
    assert child.poll() == -signal.SIGSEGV

    assert child.remains is not None
    assert child.remains.has_core
    assert child.remains.core_limit == "unlimited"


def test_closing_twice_is_once(watch: Callable[..., Child]) -> None:
    child = watch("true")
    has_ended(child.fileno(), 30)
    child.poll()

    child.close()
    child.close()
    assert child.fileno() == -1


def test_without_pidfds_the_thread_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    pidfd.is_supported.cache_clear()
    try:
        process = subprocess.Popen(["true"])
        process.returncode = 0
        child = pidfd.watch_child(process.pid)
        assert isinstance(child, ThreadedChild)
        assert has_ended(child.fileno(), 30)
        assert child.poll() == 0
        child.close()
    finally:
        pidfd.is_supported.cache_clear()
