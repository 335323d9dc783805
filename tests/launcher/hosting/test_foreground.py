"""What a hosted job's end raises in its program, and how signals reach the job while the program waits."""

from __future__ import annotations

import pickle
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.hosting.house import GRACEFUL, SLEEPER, House
from tests.system.launch import two_free_ports

from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, judge
from phalanx.errors import ChildFailedError
from phalanx.launcher import Outcome
from phalanx.launcher.hosting.foreground import failure_of, wait_in_foreground
from phalanx.multiprocessing.stopping import SignalException
from phalanx.records import changed
from phalanx.rendezvous.errors import RendezvousError


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path) as house:
        yield house
        assert not house.survivors()


def _signal_main_thread(number: int) -> None:
    """Not the process: a signal that the system hands to another thread leaves the main one, which waits, asleep."""
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)


def _failed(*failures: Failure) -> Outcome:
    verdict = judge(failures, reason="no restart is left")
    return Outcome(exit_code=verdict.exit_code, ending=Ending.FAILED, report="", verdict=verdict)


ELSEWHERE = Failure(
    rank=5,
    local_rank=1,
    pid=77,
    exit_code=3,
    exited_at=2.0,
    signed_at=1.0,
    wall_at=1_700_000_000.5,
    exception="ValueError",
    message="ValueError: bad batch 17",
    traceback="Traceback (most recent call last):\nValueError: bad batch 17",
    error_file="/a/folder/of/another/node/error.json",
    host="node-1",
    group_rank=1,
)


def test_success_raises_nothing() -> None:
    verdict = Verdict(ending=Ending.SUCCEEDED, exit_code=0)
    outcome = Outcome(exit_code=0, ending=Ending.SUCCEEDED, report="", verdict=verdict)
    assert failure_of(outcome, "train.py") is None


def test_the_failure_of_another_nodes_worker_has_what_was_told_of_it() -> None:
    error = failure_of(_failed(ELSEWHERE), "train.py")

    assert isinstance(error, ChildFailedError)
    rank, failure = error.get_first_failure()
    assert (error.name, rank, failure.local_rank, failure.exitcode, failure.pid) == ("train.py", 5, 1, 3, 77)
    assert failure.timestamp == 1_700_000_000
    assert failure.message["message"] == "ValueError: bad batch 17"
    assert failure.error_file_data == {"message": failure.message}
    assert "Traceback (most recent call last):" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_what_the_report_says_beside_the_block_is_a_note() -> None:
    block = str(failure_of(_failed(ELSEWHERE), "train.py"))
    lines = "phalanx: logs: /logs\nphalanx: train.py failed: rank 5"
    error = failure_of(changed(_failed(ELSEWHERE), report=f"\n{block}\n{lines}\n"), "train.py")
    assert error is not None
    assert (str(error), error.__notes__) == (block, [lines])


def test_ranks_that_the_launcher_stopped_are_not_among_the_failures() -> None:
    stopped = Failure(rank=0, local_rank=0, pid=78, exit_code=-15, exited_at=3.0, stopped_at=2.5)
    killed = Failure(rank=6, local_rank=2, pid=79, exit_code=-9, exited_at=2.2, summary="SIGKILL")
    error = failure_of(_failed(ELSEWHERE, stopped, killed), "train.py")

    assert isinstance(error, ChildFailedError)
    assert list(error.failures) == [5, 6]
    assert error.get_first_failure()[0] == 5
    assert error.failures[6].message == "SIGKILL"
    assert error.failures[6].signal_name() == "SIGKILL"


@pytest.mark.parametrize(
    ("code", "ending", "kind"),
    [
        (143, Ending.STOPPED, SignalException),
        (2, Ending.FAILED, ValueError),
        (70, Ending.FAILED, RuntimeError),
        (75, Ending.FAILED, RendezvousError),
        (137, Ending.FAILED, RuntimeError),
    ],
)
def test_an_end_without_a_failed_worker_has_the_type_of_its_reason(
    code: int, ending: Ending, kind: type[Exception]
) -> None:
    outcome = Outcome(exit_code=code, ending=ending, report="phalanx: why it was so\n")
    error = failure_of(outcome, "train.py")
    assert type(error) is kind
    if isinstance(error, SignalException):
        assert error.sigval is signal.SIGTERM
    else:
        assert str(error) == "phalanx: why it was so"


@pytest.mark.system
def test_nodes_that_do_not_meet_are_a_rendezvous_error(house: House) -> None:
    conf = "join_timeout=1,close_timeout=1"
    endpoint = f"127.0.0.1:{two_free_ports()}"
    flags = ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", conf)
    options = house.options(*flags, house.script("pass"))
    error = failure_of(wait_in_foreground(house.start(*flags, house.script("pass")), options), "train.py")
    assert type(error) is RendezvousError


@pytest.mark.system
def test_a_signal_reaches_the_job_and_the_programs_handlers_are_back(house: House) -> None:
    took: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: took.append(number))
    try:
        mine = signal.getsignal(signal.SIGTERM)
        script = house.script(GRACEFUL)
        agent = house.start("--standalone", script)

        def act() -> None:
            house.hear("ready")
            while signal.getsignal(signal.SIGTERM) is mine:  # nobody waits yet
                time.sleep(0.01)
            _signal_main_thread(signal.SIGTERM)

        stopper = threading.Thread(target=act, daemon=True)
        stopper.start()
        outcome = wait_in_foreground(agent, house.options("--standalone", script))
        stopper.join()
        assert (outcome.exit_code, outcome.ending) == (143, Ending.STOPPED)
        assert house.hear("asked")[0]["signal"] == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is mine
        assert not took
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.system
def test_no_signal_goes_to_a_thread_that_cannot_wake_the_one_that_waits(house: House) -> None:
    script = house.script(GRACEFUL)
    agent = house.start("--standalone", script)
    blocked: list[int] = []

    def is_sender(thread: threading.Thread) -> bool:
        return (
            thread.name == "phalanx-signals" and thread.native_id is not None
        )  # none while it is being started

    def act() -> None:
        house.hear("ready")
        try:
            while not (found := [one.native_id for one in threading.enumerate() if is_sender(one)]):
                time.sleep(0.01)  # nobody waits yet
            status = Path(f"/proc/self/task/{found[0]}/status").read_text()
            (mask,) = re.findall(r"^SigBlk:\s+(\w+)$", status, re.MULTILINE)
            blocked.extend(number for number in (1, 2, 10, 12, 15) if int(mask, 16) >> (number - 1) & 1)
        finally:
            agent.stop()

    stopper = threading.Thread(target=act, daemon=True)
    stopper.start()
    wait_in_foreground(agent, house.options("--standalone", script))
    stopper.join()
    assert blocked == [1, 2, 10, 12, 15]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the program hears them"


@pytest.mark.system
def test_the_programs_own_handler_of_a_warning_and_an_ignored_signal_stay(house: House) -> None:
    warned = threading.Event()
    before = {
        signal.SIGUSR1: signal.signal(signal.SIGUSR1, lambda *_: warned.set()),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    }
    try:
        script = house.script(GRACEFUL)
        agent = house.start("--standalone", script)

        def act() -> None:
            house.hear("ready")
            _signal_main_thread(signal.SIGHUP)
            _signal_main_thread(signal.SIGUSR1)
            warned.wait()
            agent.stop()

        actor = threading.Thread(target=act, daemon=True)
        actor.start()
        assert wait_in_foreground(agent, house.options("--standalone", script)).exit_code == 143
        actor.join()
        assert not [one for one in house.told if one["event"] == "passed"]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.system
def test_a_thread_may_wait_and_signals_stay_the_programs(house: House) -> None:
    script = house.script(SLEEPER)
    agent = house.start("--standalone", script)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    codes: list[int] = []
    waiter = threading.Thread(
        target=lambda: codes.append(
            wait_in_foreground(agent, house.options("--standalone", script)).exit_code
        )
    )
    waiter.start()
    house.hear("ready")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    agent.stop()
    waiter.join()
    assert codes == [143]


@pytest.mark.system
def test_a_wait_that_is_broken_off_stops_the_job(house: House) -> None:
    class Enough(Exception):
        pass

    def enough(*_: object) -> None:
        raise Enough

    before = signal.signal(signal.SIGUSR2, enough)  # of a warning, for which a program's own handler stays
    try:
        script = house.script(SLEEPER)
        agent = house.start("--standalone", script)
        house.hear("ready")
        options = house.options("--standalone", script)
        with pytest.raises(Enough):  # there is an event by now, so it comes within the wait
            wait_in_foreground(agent, options, on_event=lambda _: signal.raise_signal(signal.SIGUSR2))
        outcome = agent.wait(0)
        assert outcome is not None
        assert outcome.ending is Ending.STOPPED
    finally:
        signal.signal(signal.SIGUSR2, before)
