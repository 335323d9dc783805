"""Case 4: grace is what `--shutdown-timeout` says on every path, and a second signal ends the wait.

Lower bounds count from before the signal is sent to an end that is seen: a slow machine can only make that longer. The
only upper bound is that an end comes long before the default grace of 30 s would have brought it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time

import pytest
from tests.system.launch import LIMIT_S, Launch, Script

LONG_BEFORE_DEFAULT_GRACE_S = 20.0


def finishing_in(seconds: float) -> str:
    """Workers whose SIGTERM handler needs `seconds` to save what they have."""
    return f"""
        import signal, sys, time
        from telling import stay, tell

        def save(*_):
            tell("saving")
            time.sleep({seconds})
            tell("saved")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        tell("ready")
        stay()
        """


STUBBORN = """
    import signal
    from telling import stay, tell

    def ignore(*_):
        tell("asked")

    signal.signal(signal.SIGTERM, ignore)
    signal.signal(signal.SIGINT, ignore)
    tell("ready")
    stay()
"""


def test_a_handler_finishes_within_the_grace(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 60, script(finishing_in(6)))
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert len(job.told("saved", 2)) == 2


@pytest.mark.slow
def test_a_handler_that_needs_more_than_the_default_grace_finishes(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 45, script(finishing_in(33)))
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert len(job.told("saved", 2)) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_stubborn_workers_live_for_the_grace_and_no_longer(
    launch: Launch, script: Script, number: signal.Signals
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 3, script(STUBBORN))
    workers = [os.pidfd_open(event.pid) for event in job.told("ready", 2)]

    asked_at = time.monotonic()
    job.send(number)
    job.told("asked", 2)

    assert select.select(workers, [], [], LIMIT_S)[0]
    lived_s = time.monotonic() - asked_at
    assert job.wait() == 128 + number
    took_s = time.monotonic() - asked_at
    job.wait_nobody()
    assert 3 <= lived_s <= took_s < LONG_BEFORE_DEFAULT_GRACE_S
    for pidfd in workers:
        os.close(pidfd)


@pytest.mark.compat(
    "flag --shutdown-timeout", "better", "holds for every stop, where a failure has 30 s there"
)
def test_the_same_grace_holds_when_a_rank_fails(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, sys, time
        from telling import tell

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
            tell("ready")
            while True:
                time.sleep(0.1)
        while not os.path.exists("go"):
            time.sleep(0.01)
        tell("failing")
        sys.exit(7)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 3, train)
    job.told("ready")
    (job.folder / "go").touch()

    assert job.wait() == 7
    took_s = time.monotonic() - job.told("failing")[0].at
    assert 3 <= took_s < LONG_BEFORE_DEFAULT_GRACE_S
    assert job.told("asked")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_second_signal_ends_the_wait(launch: Launch, script: Script, number: signal.Signals) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 80, script(STUBBORN))
    job.told("ready", 2)
    job.send(number)
    job.told("asked", 2)
    time.sleep(1)  # sooner than 0.5 s the second would count as the first's double

    job.send(number)
    again_at = time.monotonic()

    assert job.wait() == 128 + number
    assert time.monotonic() - again_at < LONG_BEFORE_DEFAULT_GRACE_S
    job.wait_nobody()


def test_a_signal_that_a_wrapper_sends_twice_at_once_counts_once(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 60, script(finishing_in(4)))
    job.told("ready", 2)

    # Held meanwhile: however late the second one is sent, both come at once. One that is for the process and one for
    # its thread do not become one, as two for the process would.
    job.send(signal.SIGSTOP)
    job.send(signal.SIGTERM)
    assert ctypes.CDLL(None).tgkill(job.process.pid, job.process.pid, signal.SIGTERM) == 0
    job.send(signal.SIGCONT)

    assert job.wait() == 143
    assert len(job.told("saved", 2)) == 2
    assert len(job.told("saving", 2)) == 2, "the workers are asked once"


def test_a_worker_that_ends_well_when_asked_does_not_wait_for_the_grace(
    launch: Launch, script: Script
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 80, script(finishing_in(0)))
    job.told("ready", 2)

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at < LONG_BEFORE_DEFAULT_GRACE_S


def test_children_of_an_asked_worker_are_left_to_the_worker_while_it_lives(
    launch: Launch, script: Script
) -> None:
    """A data loader that dies of the launcher's own TERM would ruin the last checkpoint."""
    train = script(
        """
        import signal, subprocess, sys, time
        from telling import stay, tell

        child = subprocess.Popen(["sleep", "1000"])

        def save(*_):
            time.sleep(2)
            tell("saved", child_is_alive=child.poll() is None)
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        tell("ready")
        stay()
        """
    )
    job = launch("--standalone", "--shutdown-timeout", 60, train)
    job.told("ready")

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert job.told("saved")[0]["child_is_alive"]


BEGINNER = """
    import time
    from telling import tell

    tell("begun")
    time.sleep(1000)
"""


def test_a_signal_during_start_leaves_nobody(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 16, script(BEGINNER))
    job.told("begun")

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    job.wait_nobody()


def test_a_frozen_worker_ends_with_the_grace(launch: Launch, script: Script) -> None:
    """A stopped process cannot run its handler: only SIGKILL reaches it."""
    train = script(
        """
        import os, signal
        from telling import tell

        signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
        tell("freezing")
        os.kill(os.getpid(), signal.SIGSTOP)
        """
    )
    job = launch("--standalone", "--shutdown-timeout", 2, train)
    job.told("freezing")

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    job.wait_nobody()
