"""``close()`` on real processes: who gets which signal, what is left behind, and what is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.multiprocessing import SubprocessContext, machine, pidfd
from phalanx.multiprocessing.machine import (
    SAME_REQUEST_S,
    DeadlinePassed,
    NameStuck,
    StopMachine,
    StopRequested,
    StopState,
    SweepRequested,
    TreeEmptied,
)
from phalanx.multiprocessing.stopping import SignalException, Stopper
from phalanx.multiprocessing.trees import JobProcess, ProcessTree

Shells = Callable[..., SubprocessContext]
Soon = Callable[..., None]
Sleepers = Callable[[], list[int]]


def count(path: Path, line: str) -> int:
    return path.read_text().splitlines().count(line) if path.exists() else 0


def test_closing_before_the_start_and_twice_is_no_error(shells: Shells) -> None:
    shells("exit 0").close()

    context = shells("exec sleep 1000")
    context.start()
    context.close()
    context.close()
    assert context.reap() == {0: -signal.SIGTERM}


def test_the_worker_alone_gets_the_signal_and_its_children_get_term_when_it_has_ended(
    shells: Shells, tmp_path: Path, soon: Soon, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A child on a busy machine is not killed before it has written.
    monkeypatch.setattr(machine, "TREE_TERM_S", 30.0)
    log = tmp_path / "log"
    child = (
        f"trap 'echo child INT >> {log}' INT; trap 'echo child TERM >> {log}; exit' TERM; echo up >> {log}"
    )
    context = shells(
        f"trap 'sleep 0.5; echo worker INT >> {log}; exit 0' INT\n"
        f'setsid sh -c "{child}; while :; do sleep 0.02; done" &\n'
        "while :; do sleep 0.02; done"
    )
    context.start()
    soon(lambda: count(log, "up") == 1)
    context.close(signal.SIGINT, timeout=30)

    assert log.read_text().splitlines() == ["up", "worker INT", "child TERM"]
    assert context.reap() == {0: 0}


def test_a_worker_that_needs_the_grace_gets_it(shells: Shells, tmp_path: Path, soon: Soon) -> None:
    log = tmp_path / "log"
    context = shells(
        f"trap 'sleep 1.5; echo saved >> {log}; exit 0' TERM; echo up >> {log}; while :; do sleep 0.02; done"
    )
    context.start()
    soon(lambda: count(log, "up") == 1)
    context.close(timeout=60)

    assert count(log, "saved") == 1
    assert context.reap() == {0: 0}


def test_workers_and_children_that_ignore_everything_are_killed(
    shells: Shells, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    deaf = "trap '' TERM INT HUP QUIT"
    context = shells(
        f"{deaf}; sleep {nap} & setsid sleep {nap} & (setsid sleep {nap} &) ; exec sleep {nap}",
        f"{deaf}; exec sleep {nap}",
    )
    context.start()
    soon(lambda: len(sleepers()) == 5)
    began = time.monotonic()
    context.close(timeout=1)

    assert sleepers() == []
    assert time.monotonic() - began >= 1.5  # the grace, and the tree's half second
    assert context.reap() == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert context.stuck() == []


def test_what_a_failed_worker_started_is_ended_before_the_failure_is_reported(
    shells: Shells, nap: str, sleepers: Sleepers
) -> None:
    context = shells(
        f"sleep {nap} & setsid sleep {nap} & (setsid sh -c 'sleep {nap} & sleep {nap}' &); sleep 0.3; exit 1",
        f"setsid sleep {nap} & exec sleep {nap}",
    )
    context.start()

    result = context.wait(60)
    assert result is not None
    assert list(result.failures) == [0]
    assert sleepers() == []


def test_what_workers_that_ended_well_left_behind_is_ended_too(
    shells: Shells, nap: str, sleepers: Sleepers
) -> None:
    context = shells(f"setsid sleep {nap} & (trap '' TERM; setsid sleep {nap} &); exit 0")
    context.start()

    result = context.wait(60)
    assert result is not None
    assert not result.is_failed()
    assert sleepers() == []


def test_a_tree_that_multiplies_while_it_is_ended_is_ended(
    shells: Shells, nap: str, sleepers: Sleepers, soon: Soon, tmp_path: Path
) -> None:
    script = tmp_path / "heir.sh"
    # Each generation leaves a heir when it is asked to end.
    script.write_text(f"trap 'setsid sh {script} & sleep {nap} & exit' TERM\nwhile :; do sleep 0.02; done\n")
    context = shells(f"setsid sh {script} & sleep {nap} & echo up > {tmp_path}/up; wait")
    context.start()
    soon((tmp_path / "up").exists)
    soon(lambda: len(sleepers()) == 1)
    context.close(timeout=30)

    assert sleepers() == []
    assert context.tree.members() == []


def test_strangers_and_their_children_are_left_alone(
    shells: Shells, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    bystander = subprocess.Popen(
        ["sh", "-c", f"sleep {nap} & wait"],
        env={**os.environ, "PHALANX_JOB": "another"},
        start_new_session=True,
    )
    try:
        context = shells("trap '' TERM; setsid sleep 1000 & exec sleep 1000")
        context.start()
        soon(lambda: len(sleepers()) == 1)
        context.close(timeout=0.2)

        assert len(sleepers()) == 1
        assert bystander.poll() is None
    finally:
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)
        bystander.wait(30)


def test_a_handler_that_raises_cuts_the_grace_and_is_heard_after_the_end(
    shells: Shells, soon: Soon, tmp_path: Path
) -> None:
    deaf = f"trap 'touch {tmp_path}/asked' TERM INT; touch {tmp_path}/up; while :; do sleep 0.02; done"
    context = shells(deaf)
    context.start()
    soon((tmp_path / "up").exists)

    def raise_it(signum: int, frame: object) -> None:
        raise SignalException("stop", signal.Signals(signum))

    main = threading.get_ident()

    def interrupt() -> None:
        soon((tmp_path / "asked").exists)  # so the close has begun
        time.sleep(SAME_REQUEST_S + 0.2)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, raise_it)
    interrupting = threading.Thread(target=interrupt)
    try:
        interrupting.start()
        with pytest.raises(SignalException) as caught:
            context.close(timeout=10_000)
    finally:
        interrupting.join()
        signal.signal(signal.SIGUSR1, before)

    assert caught.value.sigval == signal.SIGUSR1
    assert context.reap() == {0: -signal.SIGKILL}


def test_ctrl_c_during_a_close_leaves_nobody(
    nap: str, sleepers: Sleepers, soon: Soon, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    deaf = f"trap 'touch {asked}' TERM; trap '' INT; (trap '' TERM; exec sleep {nap}) & while :; do sleep 0.02; done"
    script = f"""
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
args = {{0: ("-c", {deaf!r})}}
context = SubprocessContext("test", "sh", args, {{0: {{}}}}, DefaultLogsSpecs())
context.start()
input()
context.close(timeout=10_000)
"""
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as host:  # type: ignore[call-overload]
        assert host.stdin is not None
        soon(lambda: len(sleepers()) == 1)  # it is deaf by now
        host.stdin.write(b"\n")
        host.stdin.flush()
        soon(asked.exists)  # so the close has begun
        time.sleep(SAME_REQUEST_S + 0.2)
        host.send_signal(signal.SIGINT)
        _, errors = host.communicate(timeout=60)

    assert errors.rstrip().endswith(b"KeyboardInterrupt")
    assert sleepers() == []


def test_a_system_without_pidfds_leaves_nothing_behind_either(
    shells: Shells, nap: str, sleepers: Sleepers, soon: Soon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    pidfd.is_supported.cache_clear()
    try:
        context = shells(f"trap '' TERM; setsid sleep {nap} & exec sleep {nap}", "exit 3")
        context.start()
        soon(lambda: len(sleepers()) == 2)
        assert context.send_signal(signal.SIGCONT, {0}) == [0]
        soon(lambda: 1 in context.reap() or 1 not in context.sentinels())
        context.close(timeout=0.2)

        assert sleepers() == []
    finally:
        monkeypatch.undo()
        pidfd.is_supported.cache_clear()


class Immortal:
    """Workers of which one never ends: what a process in uninterruptible sleep looks like from outside."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def fileno(self) -> int:
        return self.read

    def collect(self) -> set[int]:
        return {0}

    def send_signal(self, signum: int) -> list[int]:
        return [0]


class Nobody(Immortal):
    """Workers of whom none is left."""

    def collect(self) -> set[int]:
        return set()


class Recorder(StopMachine):
    """A machine that keeps what it was told."""

    def __init__(self) -> None:
        super().__init__(())
        self.events: list[object] = []

    def step(self, event: object, now: float) -> list[machine.Command]:
        self.events.append(event)
        return super().step(event, now)


class GoneAtOnce(ProcessTree):
    """A tree whose one member has died, and was reaped, when ``send`` returns."""

    member: subprocess.Popen[bytes]

    def send(self, signum: int, *, is_wanted: Callable[[], bool] = lambda: True) -> list[JobProcess]:
        signalled = super().send(signum, is_wanted=is_wanted)
        self.member.wait()
        return signalled


def test_a_tree_that_dies_before_it_is_watched_is_not_waited_for_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "TREE_TERM_S", 10.0)
    workers, tree = Nobody(), GoneAtOnce("no-job", born_ticks=0)
    tree.member = subprocess.Popen(["sleep", "1000"])
    tree.add(tree.member.pid)
    stopper = Stopper(Recorder(), workers, tree)
    stopper.run(SweepRequested())

    assert isinstance(stopper.machine, Recorder)
    assert stopper.machine.events == [SweepRequested(), TreeEmptied()]
    tree.close()
    os.close(workers.read)
    os.close(workers.write)


class Stuck(ProcessTree):
    def members(self) -> list[JobProcess]:
        self._last_scan = [JobProcess(4_000_000, 1, "D", "nfs-reader")]
        return self._last_scan


@pytest.mark.slow
def test_what_the_kernel_does_not_let_go_is_named_after_a_bounded_wait() -> None:
    workers, tree = Immortal(), Stuck("no-job")
    stopper = Stopper(StopMachine({0}), workers, tree)
    stopper.run(StopRequested(signal.SIGTERM, 0.0))

    assert stopper.machine.state is StopState.ENDED
    assert [one.command for one in stopper.stuck] == ["nfs-reader"]
    tree.close()
    os.close(workers.read)
    os.close(workers.write)


def test_the_last_command_of_a_hopeless_stop_is_to_name_the_stuck() -> None:
    machine = StopMachine({0})
    machine.step(StopRequested(signal.SIGTERM, 0.0), 0.0)
    machine.step(DeadlinePassed(), 0.0)
    machine.step(DeadlinePassed(), 0.5)

    assert machine.step(DeadlinePassed(), 5.5) == [NameStuck()]
