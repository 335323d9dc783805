"""Case 3: USR1 and USR2 to the launcher are warnings for the workers, and stop nothing."""

from __future__ import annotations

import signal

import pytest
from tests.system.launch import Launch, Script


def listener(warning: signal.Signals, fence: signal.Signals) -> str:
    return f"""
        import os, signal, time
        from telling import tell

        signal.signal(signal.{warning.name}, lambda *_: tell("warned"))
        signal.signal(signal.{fence.name}, lambda *_: tell("fence"))
        tell("ready")
        while not os.path.exists("go"):
            time.sleep(0.05)
        """


@pytest.mark.parametrize(
    ("warning", "fence"),
    [(signal.SIGUSR1, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGUSR1)],
    ids=["SIGUSR1", "SIGUSR2"],
)
def test_each_rank_is_warned_once_and_comes_to_its_normal_end(
    launch: Launch, script: Script, warning: signal.Signals, fence: signal.Signals
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(listener(warning, fence)))
    job.told("ready", 2)

    job.send(warning)
    job.told("warned", 2)
    job.send(fence)
    job.told("fence", 2)  # a second warning would have come before it
    (job.folder / "go").touch()

    assert job.wait() == 0
    assert sorted(event.rank for event in job.told("warned", 2)) == [0, 1]


def test_a_rank_that_does_not_listen_is_spared_and_named(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, time
        from telling import tell

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGUSR1, lambda *_: tell("warned"))
            signal.signal(signal.SIGUSR2, lambda *_: tell("fence"))
        tell("ready")
        while not os.path.exists("go"):
            time.sleep(0.05)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("ready", 2)

    job.send(signal.SIGUSR1)
    job.told("warned")
    job.printed("SIGUSR1")
    job.send(signal.SIGUSR2)
    job.told("fence")  # a second warning would have come before it
    (job.folder / "go").touch()

    assert job.wait() == 0
    assert [event.rank for event in job.told("warned")] == [0]
    assert b"SIGUSR1" in job.stderr
