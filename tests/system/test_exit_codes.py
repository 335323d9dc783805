"""Case 2: the launcher's exit code is the code of the rank that failed first, or of the signal that stopped the job."""

from __future__ import annotations

import signal

import pytest
from tests.system.launch import Launch, Script


def ending(how: str) -> str:
    """A script whose rank 1 ends by the statement `how` while rank 0 sleeps."""
    return f"""
        import os, signal, sys, time

        if os.environ["RANK"] == "1":
            {how}
        time.sleep(1000)
        """


@pytest.mark.parametrize("limit", [12, 20, 30])
@pytest.mark.parametrize("store", ["own", "served"])
def test_a_launcher_without_free_descriptors_says_so_in_one_sentence(
    launch: Launch, script: Script, limit: int, store: str
) -> None:
    served = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")

    job = launch(
        *(served if store == "served" else ("--standalone",)),
        script("from telling import tell; tell('ran')"),
        wrapper=("sh", "-c", f'ulimit -n {limit} && exec "$@"', "sh"),
    )

    assert job.wait() == 75
    (line,) = job.stderr.decode().splitlines()
    assert "could not be run: this launcher needs 32 descriptors: Too many open files" in line
    assert f"the limit is {limit} and 1 worker may need 512: run 'ulimit -n 512' first" in line
    assert not job.told("ran", 0)


# 2, 70 and 75 have meanings of the launcher's own, and pass through all the same when they are a rank's.
@pytest.mark.parametrize("code", [1, 2, 7, 70, 75, 255])
def test_the_code_of_the_failing_rank_passes_through(launch: Launch, script: Script, code: int) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(ending(f"sys.exit({code})")))

    assert job.wait() == code
    assert f"exitcode  : {code}" in job.summary


def test_a_message_as_exit_status_is_code_1(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(ending("sys.exit('out of patience')")))

    assert job.wait() == 1
    assert b"out of patience" in job.stderr


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT], ids=lambda number: number.name
)
def test_a_rank_that_dies_of_a_signal_gives_128_and_its_number(
    launch: Launch, script: Script, number: signal.Signals
) -> None:
    how = f"os.kill(os.getpid(), signal.{number.name})"

    job = launch("--standalone", "--nproc-per-node", 2, script(ending(how)))

    assert job.wait() == 128 + number
    assert number.name in job.summary


def test_after_a_restart_the_code_is_the_last_attempts(launch: Launch, script: Script) -> None:
    train = script(ending("sys.exit({'0': 5, '1': 7}[os.environ['TORCHELASTIC_RESTART_COUNT']])"))

    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, train)

    assert job.wait() == 7


def test_a_job_that_heals_by_a_restart_exits_0_without_a_failure_summary(
    launch: Launch, script: Script
) -> None:
    train = script("import os, sys; sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')")

    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, train)

    assert job.wait() == 0
    assert not job.summary


def test_ranks_that_end_well_at_different_times_are_a_success(launch: Launch, script: Script) -> None:
    train = script("import os, time; time.sleep(2 * int(os.environ['RANK']))")

    job = launch("--standalone", "--nproc-per-node", 2, train)

    assert job.wait() == 0


SLEEPER = """
    from telling import stay, tell

    tell("ready")
    stay()
"""


def test_ctrl_c_gives_130(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(SLEEPER))
    job.told("ready", 2)

    job.send_to_group(signal.SIGINT)

    assert job.wait() == 130
    assert b"phalanx/" not in job.stderr, "no traceback of the launcher"


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM], ids=lambda n: n.name
)
def test_a_launcher_that_is_asked_to_stop_gives_128_and_the_signals_number(
    launch: Launch, script: Script, number: signal.Signals
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script(SLEEPER))
    job.told("ready", 2)

    job.send(number)

    assert job.wait() == 128 + number
    job.wait_nobody()


def test_a_stopped_job_is_not_restarted(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, script(SLEEPER))
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert len(job.told("ready", 2)) == 2


def test_a_signal_that_is_not_in_signals_to_handle_keeps_its_default(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--signals-to-handle", "SIGTERM,SIGINT", script(SLEEPER))
    job.told("ready")

    job.send(signal.SIGHUP)

    assert job.wait() in (-signal.SIGHUP, 128 + signal.SIGHUP)
    assert job.stderr == b""
    job.wait_nobody()
