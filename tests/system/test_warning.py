"""Ahead of a stop that can wait, workers are warned: `--warn-signal`, `--warn-before`; and a grace for each cause."""

from __future__ import annotations

import signal
import time

import pytest
from tests.system.launch import Launch, Script
from tests.system.machines import SHORT_LEASE, TOGETHER, Agents, Network, begin_together, c10d

LONG_BEFORE_THE_END_OF_THE_WARNING_S = 40.0
SAVES_WHEN_WARNED = """
    import signal, sys, time
    import phalanx
    from telling import stay, tell

    def save(*_):
        tell("warned")
        while not phalanx.should_stop():
            time.sleep(0.01)
        tell("saved")
        sys.exit(0)

    signal.signal(signal.SIGUSR1, save)
    signal.signal(signal.SIGTERM, lambda *_: tell("asked"))
    tell("ready")
    stay()
"""
WARNED = ("--warn-signal", "SIGUSR1", "--warn-before", "90s")


def test_workers_that_end_after_the_warning_are_never_asked(launch: Launch, script: Script) -> None:
    job = launch(
        "--standalone", "--nproc-per-node", 2, "--omp-threads", 1, *WARNED, script(SAVES_WHEN_WARNED)
    )
    job.told("ready", 2)

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at < LONG_BEFORE_THE_END_OF_THE_WARNING_S
    assert len(job.told("warned", 2)) == len(job.told("saved", 2)) == 2
    assert not [event for event in job.events if event.name == "asked"]
    (line,) = job.stderr.decode().splitlines()
    assert "SIGTERM: SIGUSR1 to 2 workers, 90 s to end by themselves, then SIGTERM" in line


def test_a_worker_that_would_die_of_the_warning_is_spared_named_and_asked_when_it_is_over(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, signal, sys
        from telling import stay, tell

        def stop(number, _):
            tell("asked", number=number)
            if number == signal.SIGTERM:
                sys.exit(0)

        signal.signal(signal.SIGTERM, stop)
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGUSR2, stop)
        tell("ready")
        stay()
        """
    )
    warned = ("--warn-signal", "SIGUSR2", "--warn-before", "2s")
    job = launch("--standalone", "--nproc-per-node", 2, *warned, train)
    job.told("ready", 2)

    warned_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    asked = {rank: [e["number"] for e in job.told("asked", 3) if e.rank == rank] for rank in (0, 1)}
    assert asked == {0: [signal.SIGUSR2, signal.SIGTERM], 1: [signal.SIGTERM]}
    assert max(event.at for event in job.told("asked")) - warned_at >= 1.9
    assert b"SIGUSR2 was not passed to local rank 1" in job.stderr


def test_workers_that_hear_of_the_warning_by_their_channel_are_not_named_and_the_others_in_one_line(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, sys, time
        import phalanx
        from telling import stay, tell

        if int(os.environ["RANK"]) % 2:
            tell("ready")
            stay()
        phalanx.should_stop()
        phalanx.values().set("here", b"")  # answered: the agent has read what this worker said before
        tell("ready")
        while not phalanx.should_stop():
            time.sleep(0.01)
        while not os.path.exists("named"):
            time.sleep(0.01)
        sys.exit(0)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 4, "--warn-before", "2s", train)
    job.told("ready", 4)

    job.send(signal.SIGTERM)
    job.printed("was not passed")
    (job.folder / "named").touch()

    assert job.wait() == 143
    (line,) = [one for one in job.stderr.decode().splitlines() if "was not passed" in one]
    assert line == "phalanx: SIGUSR1 was not passed to local ranks 1, 3, which have no handler for it"


def test_a_worker_that_asks_for_the_first_time_after_the_warning_is_not_named(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, sys, time
        import phalanx, phalanx.errors.channel
        from telling import tell

        tell("ready")
        while not os.path.exists("ask"):
            time.sleep(0.01)
        step = 0
        while not phalanx.should_stop(step):
            step += 1  # ranks agree on one that none has come to: who never gets there waits for half of the grace
            time.sleep(0.01)
        sys.exit(0)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, *WARNED, train)
    job.told("ready", 2)
    job.send(signal.SIGTERM)
    job.printed("SIGUSR1 to 2 workers")

    (job.folder / "ask").touch()

    assert job.wait() == 143
    assert b"not passed" not in job.stderr


def test_a_second_signal_cuts_the_warning_short(launch: Launch, script: Script) -> None:
    train = script(
        """
        import signal
        from telling import stay, tell

        signal.signal(signal.SIGUSR1, lambda *_: tell("warned"))
        signal.signal(signal.SIGTERM, lambda *_: None)
        tell("ready")
        stay()
        """
    )
    job = launch("--standalone", *WARNED, train)
    job.told("ready")
    job.send(signal.SIGTERM)
    job.told("warned")
    time.sleep(1)  # sooner than 0.5 s the second would count as the first's double

    job.send(signal.SIGTERM)

    again_at = time.monotonic()
    assert job.wait() == 143
    assert time.monotonic() - again_at < LONG_BEFORE_THE_END_OF_THE_WARNING_S


def test_a_failure_is_not_warned_of_and_has_a_grace_of_its_own(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, sys, time
        from telling import stay, tell

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGUSR1, lambda *_: tell("warned"))
            signal.signal(signal.SIGTERM, lambda *_: None)
            tell("ready")
            stay()
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(7)
        """
    )
    graces = ("--shutdown-timeout", 80, "--restart-timeout", 1)
    job = launch("--standalone", "--nproc-per-node", 2, *graces, *WARNED, train)
    job.told("ready")

    failed_at = time.monotonic()
    (job.folder / "go").touch()

    assert job.wait() == 7
    assert time.monotonic() - failed_at < LONG_BEFORE_THE_END_OF_THE_WARNING_S, "no grace of 80 s"
    assert not [event for event in job.events if event.name == "warned"]
    assert b"1 s of grace" in job.stderr


MEMBER = """
    import os, signal, sys
    from meeting import attend
    from telling import tell

    def leave(number, _):
        tell("asked", number=number, round=int(os.environ["PHALANX_ROUND"]))
        if number == signal.SIGUSR1:
            sys.exit(0)

    signal.signal(signal.SIGUSR1, leave)
    signal.signal(signal.SIGTERM, leave)
    attend()
"""


@pytest.mark.parametrize("way", ["leaves", "joins"])
def test_a_node_that_leaves_or_joins_is_warned_of_on_all_nodes(
    network: Network, agents: Agents, script: Script, way: str
) -> None:
    a, b = network.host(1), network.host(2)
    arguments = (*c10d(a, "1:2"), *WARNED, script(MEMBER))
    staying = agents(a, *arguments)
    if way == "joins":
        staying.begun(world=1)
        other = agents(b, *arguments)
        begin_together([staying, other], world=2)
        warned = {staying: 1}
    else:
        other = agents(b, *arguments)
        begin_together([staying, other], world=2)
        # Either of them may have been alone in a round before this one, and was warned of the other then.
        warned = {
            agent: 1 + len([event for event in agent.events if event.name == "asked"])
            for agent in (staying, other)
        }
        other.send(signal.SIGTERM)
        assert other.wait() == 143
        staying.until("begun", world=1, after=other.events[-1].at)
    for agent, count in warned.items():
        asked = [event["number"] for event in agent.events if event.name == "asked"]
        assert asked == [signal.SIGUSR1] * count
    network.order("exit 0")
    assert staying.wait() == 0


@pytest.mark.parametrize("way", ["is lost", "fails"])
def test_a_node_that_is_lost_or_fails_is_not_warned_of_and_each_has_its_grace(
    network: Network, agents: Agents, script: Script, way: str
) -> None:
    a, b = network.host(1), network.host(2)
    graces = ("--shutdown-timeout", 80, "--restart-timeout", 60, "--resize-timeout", 70)
    train = script(
        """
        import os, signal
        from meeting import attend
        from telling import tell

        def leave(number, _):
            tell("asked", number=number)
            os._exit(0)

        for number in signal.SIGUSR1, signal.SIGTERM:
            signal.signal(number, leave)
        attend()
        """
    )
    lease = SHORT_LEASE if way == "is lost" else {}
    arguments = (*c10d(a, "1:2", **lease, **TOGETHER), "--max-restarts", 1, *graces, *WARNED, train)
    staying, other = agents(a, *arguments), agents(b, *arguments)
    begun = begin_together([staying, other], world=2)

    if way == "is lost":
        other.send(signal.SIGKILL)
        staying.until("begun", world=1)
    else:
        network.order("exit 3", b)
        begin_together([staying, other], world=2, newer_than=begun)

    assert {event["number"] for event in staying.told("asked")} == {signal.SIGTERM}
    assert (b" 70 s of grace" if way == "is lost" else b" 60 s of grace") in staying.stderr
    network.order("exit 0")
    assert staying.wait() == 0
