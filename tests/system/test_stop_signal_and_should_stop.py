"""Who calls `should_stop` leaves by itself: the stop signal does not end it, the end of the grace does."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

TRAINING = (Path(__file__).parents[2] / "docs/training.md").read_text()
GRACE_S = 80
LONG_BEFORE_HALF_OF_THE_GRACE_S = 30.0
SAVES_AND_LEAVES = """
    import os, sys, time
    import phalanx
    from telling import tell

    for step in range(1_000_000):
        wanted, leaving = phalanx.should_checkpoint(step), phalanx.should_stop(step)
        if wanted:
            tell("saved", step=step)
        if leaving:
            sys.exit(0)
        if step == 0:
            phalanx.values().set(f"here/{os.environ['RANK']}", b"")  # the agent has read what was said before
            tell("ready")
        time.sleep(0.01)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loop_without_a_handler_saves_and_leaves(launch: Launch, script: Script, ranks: int) -> None:
    job = launch(
        "--standalone",
        "--nproc-per-node",
        ranks,
        "--shutdown-timeout",
        GRACE_S,
        script(SAVES_AND_LEAVES),
    )
    job.told("ready", ranks)

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at < LONG_BEFORE_HALF_OF_THE_GRACE_S
    saved = [event["step"] for event in job.told("saved", ranks)]
    assert saved == [saved[0]] * ranks


def test_who_asks_and_does_not_leave_is_killed_when_the_grace_ends(launch: Launch, script: Script) -> None:
    train = script(
        """
        import time
        import phalanx
        from telling import tell

        is_told = False
        while True:
            if phalanx.should_stop() != is_told:
                is_told = True
                tell("told")
            elif not is_told:
                tell("ready")
            time.sleep(0.1)
        """
    )
    job = launch("--standalone", "--shutdown-timeout", 3, train)
    job.told("ready")

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at >= 2.9
    assert job.told("told")


def test_who_does_not_ask_dies_of_the_stop_signal_as_ever(launch: Launch, script: Script) -> None:
    train = script(
        """
        import phalanx
        from telling import stay, tell

        phalanx.progress(0)
        phalanx.should_checkpoint()
        tell("ready")
        stay()
        """
    )
    job = launch("--standalone", "--shutdown-timeout", GRACE_S, train)
    job.told("ready")

    asked_at = time.monotonic()
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert time.monotonic() - asked_at < LONG_BEFORE_HALF_OF_THE_GRACE_S


CHILDREN = {
    "forked": 'multiprocessing.get_context("fork")',
    "spawned": 'multiprocessing.get_context("spawn")',
}


@pytest.mark.parametrize("how", CHILDREN)
def test_children_of_who_asks_die_of_terminate_also_at_once(launch: Launch, script: Script, how: str) -> None:
    train = script(
        f"""
        import multiprocessing, signal, sys, time
        import phalanx
        from telling import tell

        def wait():
            phalanx.should_stop()
            time.sleep(600)

        if __name__ == "__main__":
            phalanx.should_stop()
            assert callable(signal.getsignal(signal.SIGTERM))
            for _ in range({20 if how == "forked" else 1}):
                child = {CHILDREN[how]}.Process(target=wait)
                child.start()
                child.terminate()
                child.join(60)
                assert child.exitcode == -signal.SIGTERM, child.exitcode
            assert callable(signal.getsignal(signal.SIGTERM))
            assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            tell("done")
        """
    )
    job = launch("--standalone", train)
    assert job.wait() == 0, job.stderr
    assert job.told("done")


def test_a_child_that_runs_and_asks_dies_of_terminate(launch: Launch, script: Script) -> None:
    train = script(
        """
        import multiprocessing, signal, time
        import phalanx
        from telling import tell

        def wait(asked):
            phalanx.should_stop()
            asked.set()
            time.sleep(600)

        phalanx.should_stop()
        context = multiprocessing.get_context("fork")
        asked = context.Event()
        child = context.Process(target=wait, args=(asked,))
        child.start()
        assert asked.wait(60)
        child.terminate()
        child.join(60)
        assert child.exitcode == -signal.SIGTERM, child.exitcode
        tell("done")
        """
    )
    job = launch("--standalone", train)
    assert job.wait() == 0, job.stderr


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_handler_of_the_script_is_called(launch: Launch, script: Script, when: str) -> None:
    own = 'signal.signal(signal.SIGTERM, lambda *_: (tell("handled"), sys.exit(0)))'
    asks = "phalanx.should_stop()"
    train = script(
        f"""
        import signal, sys
        import phalanx
        from telling import stay, tell

        {own if when == "before" else asks}
        {asks if when == "before" else own}
        phalanx.should_stop()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        tell("ready")
        stay()
        """
    )
    job = launch("--standalone", "--shutdown-timeout", GRACE_S, train)
    job.told("ready")
    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert job.told("handled")


def test_a_thread_that_asks_installs_nothing_and_the_main_thread_does_later(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import signal, threading
        import phalanx

        thread = threading.Thread(target=phalanx.should_stop)
        thread.start()
        thread.join()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        phalanx.should_stop()
        assert callable(signal.getsignal(signal.SIGTERM))
        """
    )
    assert launch("--standalone", train).wait() == 0


def test_without_an_agent_nothing_is_installed() -> None:
    source = (
        "import phalanx, signal; phalanx.should_stop(); phalanx.should_checkpoint(1);"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL"
    )
    subprocess.run([sys.executable, "-c", source], check=True, start_new_session=True, timeout=60)


@pytest.mark.parametrize("has_handler", [False, True])
def test_a_neighbour_of_a_failed_rank_that_hangs_does_not_take_the_grace(
    launch: Launch, script: Script, has_handler: bool
) -> None:
    """It asks whether it should stop, and hangs in a collective of a round that is over: nothing is to be waited for.

    A script with a handler of its own is asked as ever.
    """
    train = script(
        f"""
        import os, signal, sys, time
        import phalanx
        from telling import stay, tell

        phalanx.should_stop()
        if {has_handler}:
            signal.signal(signal.SIGTERM, lambda *_: (tell("own handler"), os._exit(0)))
            phalanx.should_stop()
        phalanx.values().set(f"here/{{os.environ['RANK']}}", b"")  # the agent has read what was said before
        tell("ready")
        while os.environ["RANK"] == "1":
            if os.path.exists("fail"):
                sys.exit(3)
            time.sleep(0.01)
        stay()
        """
    )
    job = launch("--standalone", "--nproc-per-node", 3, "--shutdown-timeout", GRACE_S, train)
    job.told("ready", 3)

    failed_at = time.monotonic()
    (job.folder / "fail").touch()

    assert job.wait() == 3
    assert time.monotonic() - failed_at < LONG_BEFORE_HALF_OF_THE_GRACE_S
    if has_handler:
        assert len(job.told("own handler", 2)) == 2


def test_with_one_line_ranks_leave_at_one_step_when_ctrl_c_is_pressed(launch: Launch, script: Script) -> None:
    (line,) = re.findall(r"^```py\n(.*)\n```$", TRAINING, re.MULTILINE)
    train = script(
        f"""
        import signal
        {line}
        import itertools, sys, time
        import phalanx
        from telling import tell
        for step in itertools.count(1):
            if step == 3:
                tell("trains")
            if phalanx.should_stop(step):
                tell("leaves", step=step)
                sys.exit(0)
            time.sleep(0.01)
        """
    )
    job = launch("--nproc-per-node", 2, train)
    job.told("trains", 2)
    job.process.send_signal(signal.SIGINT)
    left = job.told("leaves", 2)
    assert len({event["step"] for event in left}) == 1
    assert job.wait() == 130
