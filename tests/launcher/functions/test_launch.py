"""``phalanx.launch`` and ``phalanx.start`` in the program that calls them: real agents, real workers."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import LIMIT_S

import phalanx
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Ending

pytestmark = pytest.mark.system


class Diverged(Exception):
    """An exception of the calling program's own."""


@pytest.fixture(autouse=True)
def _temporary_folders_are_below(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))


def rank() -> int:
    return int(os.environ["RANK"])


def wait_for(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen"
        time.sleep(0.02)


def waiting(folder: Path) -> Callable[[], None]:
    """A function that says that it is there, and stays."""
    path = str(folder)

    def stay() -> None:
        signal.signal(signal.SIGUSR1, lambda *_: open(f"{path}/{os.environ['RANK']}.told", "w").close())
        open(f"{path}/{os.environ['RANK']}.there", "w").close()
        while True:
            time.sleep(0.05)  # in naps: a signal right before a long sleep would be heard at its end

    return stay


# Values


def test_every_rank_returns_its_value() -> None:
    def train(factor: int, *, bias: int) -> tuple[int, int]:
        return int(os.environ["RANK"]) * factor + bias, int(os.environ["WORLD_SIZE"])

    result = phalanx.launch(train, 10, kwargs={"bias": 1}, nproc=3)

    assert result.values == ((1, 3), (11, 3), (21, 3))
    assert (result[2], len(result), next(iter(result)), result[1:]) == (
        (21, 3),
        3,
        (1, 3),
        ((11, 3), (21, 3)),
    )
    assert (result.restarts, result.outcome.ending) == (0, Ending.SUCCEEDED)
    assert result.run_id
    assert repr(result) == "<LaunchResult of 3 ranks: [(1, 3), (11, 3), (21, 3)]>"


def test_a_restart_is_counted_and_its_values_are_those_of_the_last_round() -> None:
    def train() -> str:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("once more")
        return os.environ["PHALANX_ROUND"]

    result = phalanx.launch(train, nproc=2, max_restarts=1)
    assert (result.values, result.restarts) == (("2", "2"), 1)


def test_a_script_is_launched_by_its_path(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, sys\nos.write(1, f'{sys.argv[1:]}\\n'.encode())\n")

    result = phalanx.launch(script, "--lr", 0.1, nproc=2)

    assert (result.values, result.outcome.exit_code) == ((None, None), 0)
    lines = capfd.readouterr().out.splitlines()
    assert sorted(lines) == ["[rank0]: ['--lr', '0.1']", "[rank1]: ['--lr', '0.1']"]


def test_environment_and_folder_are_the_ones_that_were_asked_for(tmp_path: Path) -> None:
    def look() -> tuple[str, str]:
        return os.environ["COLOUR"], os.getcwd()

    assert phalanx.launch(look, env={"COLOUR": "green"}, cwd=tmp_path)[0] == ("green", str(tmp_path))


def test_as_many_workers_as_there_are_cpus() -> None:
    from phalanx.launcher.hardware.cpus import cpu_slots

    assert len(phalanx.launch(rank, nproc="cpu")) == cpu_slots()


# Failures


def test_the_exception_of_the_first_worker_that_failed_is_raised_with_its_frames_below_ours() -> None:
    def step() -> None:
        raise Diverged("loss is nan")

    def train() -> None:
        if os.environ["RANK"] == "1":
            step()
        signal.pause()

    with pytest.raises(Diverged) as caught:
        phalanx.launch(train, nproc=2)

    names = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert names[1:] == ["launch", "train", "step"]
    lines = [frame.line for frame in traceback.extract_tb(caught.tb)]
    assert lines[-1] == 'raise Diverged("loss is nan")'
    failed = phalanx.worker_failed(caught.value)
    assert failed is not None
    assert (failed.rank, failed.exit_code, failed.others) == (1, 1, None)
    assert str(failed).startswith("train failed: rank 1: Diverged: loss is nan at ")
    assert caught.value.__notes__[0].startswith("rank 1 (local rank 1, pid ")
    assert caught.value.__notes__[1].startswith("logs: /")


def test_those_that_failed_beside_it_are_attached_as_an_exception_group(tmp_path: Path) -> None:
    folder = str(tmp_path)

    def train() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # told to stop, they go on to their own end
        me = os.environ["RANK"]
        open(f"{folder}/{me}", "w").close()
        while len(os.listdir(folder)) < 3:
            time.sleep(0.01)
        raise Diverged(f"rank {me}") if me == "0" else KeyError(me)

    with pytest.raises((Diverged, KeyError)) as caught:
        phalanx.launch(train, nproc=3)

    failed = phalanx.worker_failed(caught.value)
    assert failed is not None
    assert failed.outcome.verdict is not None
    others = () if failed.others is None else failed.others.exceptions
    own = [one.rank for one in failed.outcome.verdict.failures if not one.is_collateral]
    assert len(others) == len(own) - 1
    assert all(type(one) in (Diverged, KeyError) for one in others)


def test_a_chain_arrives_as_a_chain() -> None:
    def train() -> None:
        try:
            int("no number")
        except ValueError as reason:
            raise Diverged("no number") from reason

    with pytest.raises(Diverged) as caught:
        phalanx.launch(train)
    assert isinstance(caught.value.__cause__, ValueError)
    assert 'int("no number")' in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("prints_report", [True, False])
def test_the_report_is_in_the_exception_and_printed_if_that_is_asked_for(
    prints_report: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.launch(os._exit, 3, prints_report=prints_report)
    assert "_exit failed: rank 0: exit code 3" in caught.value.outcome.report
    assert ("_exit failed" in capfd.readouterr().err) is prints_report


def test_a_death_by_a_signal_is_a_failed_worker() -> None:
    def train() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(phalanx.WorkerFailed, match=r"train failed: rank 0: killed by SIGKILL") as caught:
        phalanx.launch(train)
    assert (caught.value.rank, caught.value.exit_code) == (0, 137)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.exit_code) == (str(caught.value), 137)


@pytest.mark.parametrize("end", [sys.exit, os._exit])
def test_an_exit_code_is_a_failed_worker(end: Callable[[int], Any]) -> None:
    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.launch(end, 7)
    assert caught.value.exit_code == 7


def test_ten_thousand_frames_are_told_by_their_ends() -> None:
    def dive() -> None:
        dive()

    with pytest.raises(RecursionError) as caught:
        phalanx.launch(dive)
    assert 100 < len(traceback.extract_tb(caught.tb)) < 1000


def test_a_result_may_be_asked_for_again() -> None:
    def train() -> None:
        raise Diverged("once")

    with phalanx.start(train) as job:
        job.wait()
    lengths = []
    for _ in range(3):
        with pytest.raises(Diverged) as caught:
            job.result()
        lengths.append(len(traceback.extract_tb(caught.tb)))
    assert len(set(lengths)) == 1


# Where it is called


def test_inside_a_running_loop_it_blocks_and_returns() -> None:
    async def main() -> Any:
        return phalanx.launch(rank, nproc=2)

    assert list(asyncio.run(main())) == [0, 1]


def test_a_job_is_awaited_beside_other_tasks(tmp_path: Path) -> None:
    """It ends only after another task has gone on while it is awaited."""

    def train(gate: str) -> int:
        ends_at = time.monotonic() + LIMIT_S
        while not os.path.exists(gate):
            if time.monotonic() > ends_at:
                raise TimeoutError("no other task has gone on")
            time.sleep(0.01)
        return int(os.environ["RANK"])

    async def tick() -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
        (tmp_path / "gate").touch()

    async def main() -> list[int]:
        async with phalanx.start(train, str(tmp_path / "gate"), nproc=2) as job:
            ticking = asyncio.create_task(tick())
            result = await job
        await ticking
        return list(result)

    assert asyncio.run(main()) == [0, 1]


def test_threads_launch_at_the_same_time() -> None:
    found: dict[int, list[Any]] = {}

    def one(number: int) -> None:
        found[number] = list(phalanx.launch(lambda: number, nproc=2))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert found == {number: [number, number] for number in range(3)}


def test_a_worker_launches_workers_of_its_own() -> None:
    def outer() -> list[int]:
        return list(phalanx.launch(lambda: int(os.environ["RANK"]) + 10, nproc=2))

    assert list(phalanx.launch(outer, nproc=2)) == [[10, 11], [10, 11]]


def test_output_reaches_a_stdout_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def talk() -> None:
        print("grüße", flush=True)
        print("oh", file=sys.stderr)

    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    phalanx.launch(talk, nproc=2)

    assert sorted(out.getvalue().splitlines()) == ["[rank0]: grüße", "[rank1]: grüße"]
    assert sorted(err.getvalue().splitlines()) == ["[rank0]: oh", "[rank1]: oh"]


def test_a_success_leaves_no_folder_and_a_failure_says_where_its_logs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    phalanx.launch(print, "printed")
    assert not list(tmp_path.iterdir())

    def fail() -> None:
        print("some output")
        raise Diverged

    with pytest.raises(Diverged) as caught:
        phalanx.launch(fail)
    folder = caught.value.__notes__[1].removeprefix("logs: ")
    assert "some output" in "".join(path.read_text() for path in Path(folder).rglob("stdout.log"))


# A job that goes on beside the program


def test_a_job_is_watched_signalled_and_stopped(tmp_path: Path) -> None:
    with phalanx.start(waiting(tmp_path), nproc=2, name="wait", stop_signals=["TERM"]) as job:
        wait_for(lambda: len(list(tmp_path.glob("*.there"))) == 2)
        wait_for(lambda: [one.state for one in job.status().workers] == ["running", "running"])
        assert (job.status().phase, job.status().world_size) == ("running", 2)
        assert not job.wait(0.0)
        with pytest.raises(TimeoutError, match="wait still runs after 0 s"):
            job.result(0.0)
        assert job.signal(signal.SIGUSR1)
        wait_for(lambda: len(list(tmp_path.glob("*.told"))) == 2)
        with pytest.raises(ValueError, match="SIGINT is not passed on"):
            job.signal(signal.SIGINT)
        assert job.stop()
        assert job.wait(LIMIT_S)
    with pytest.raises(phalanx.JobStopped, match="wait was stopped by SIGTERM") as caught:
        job.result()
    assert caught.value.outcome.ending is Ending.STOPPED
    assert job.status().phase == "ended"
    assert not job.stop()


def test_a_block_that_is_left_stops_the_job(tmp_path: Path) -> None:
    with phalanx.start(waiting(tmp_path)) as job:
        wait_for((tmp_path / "0.there").exists)
    assert job.status().ending == "stopped"


# Mistakes


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"nprocs": 2}, "launch has no option 'nprocs'; did you mean nproc?"),
        ({"nproc": "two"}, "nproc: 'two' is no number of workers"),
        ({"nproc": 0}, "nproc=0: it is to be from 1 to 32768"),
        ({"nproc": 2.0}, "nproc is to be a number of workers"),
        ({"nnodes": "4:2"}, "nnodes='4:2': at least 1 node, and the smaller number first"),
        ({"nnodes": "many"}, "nnodes is to be a number of nodes"),
        ({"max_restarts": -1}, "max_restarts is to be a number of restarts"),
        ({"restarts": 3}, "restarts is to be RestartPolicy, and is 3"),
        ({"grace": -1}, "grace=-1: it is to be 0 or more"),
        ({"grace": float("nan")}, "grace=nan"),
        ({"grace": "soon"}, "grace is to be float, and is 'soon'"),
        ({"tee": 4}, "tee=4: '4' does not match"),
        ({"stop_signals": ["SIGNONE"]}, "stop_signals: this system has no signal 'SIGNONE'"),
        ({"stop_signals": [9]}, "stop_signals: no program can take SIGKILL over"),
        ({"stop_signals": ["USR1"]}, "stop_signals: no signal is left that would stop the job"),
        ({"restart_scope": "node"}, "restart_scope='node': it is to be one of 'group', 'worker'"),
        ({"env": {"A": 1}}, r"env\['A'\] is to be str, and is 1"),
        ({"kwargs": [1]}, "kwargs is to be a dictionary"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence) as caught:
        phalanx.launch(rank, **options)
    assert "\n" not in str(caught.value)


def test_what_is_no_function_and_no_script_is_refused() -> None:
    with pytest.raises(TypeError, match="a function or the path of a script is to be launched, not 3"):
        phalanx.launch(3)  # type: ignore[call-overload]
    with pytest.raises(FileNotFoundError, match=r"there is no script 'missing\.py'"):
        phalanx.launch("missing.py")
    with pytest.raises(TypeError, match="the arguments of a script are texts"):
        phalanx.launch(__file__, object())


def test_without_options_a_job_is_as_the_command_has_it() -> None:
    from phalanx.cli.run import run_options
    from phalanx.launcher.functions.keywords import options_of

    ours = options_of({}, entrypoint="true", args=())
    command = run_options(["--no-python", "true"])
    differing = {name for name in command.__struct_fields__ if getattr(ours, name) != getattr(command, name)}
    assert differing == {"no_python", "tee", "log_line_prefix_template", "prints_report"}


def test_every_field_of_a_job_can_be_asked_for() -> None:
    from phalanx.launcher import RunOptions

    known = {
        *phalanx.LaunchOptions.__annotations__,
        "grace_s",
        "min_nodes",
        "max_nodes",
        "entrypoint",
        "args",
        "debug_rank",  # this program keeps its terminal
        "sent_handler",  # objects of torchelastic's functions
        "sent_logs",
    }
    assert set(RunOptions.__struct_fields__) - known == set()


def test_a_policy_of_restarts_is_taken_whole() -> None:
    from phalanx.launcher.functions.keywords import options_of

    policy = RestartPolicy(max_restarts=2, give_up_after=3)
    assert options_of({"restarts": policy}, entrypoint="", args=()).restarts == policy


def test_what_is_known_of_a_failure_is_there_for_type_checkers_too() -> None:
    with pytest.raises(phalanx.WorkerFailed) as caught:
        phalanx.launch(os._exit, 7)
    assert phalanx.worker_failed(caught.value) is caught.value
    assert phalanx.worker_failed(ValueError("of nobody's worker")) is None


async def _coroutine() -> int:
    return 5


def _generator() -> Iterator[int]:
    yield 5


async def _asynchronous_generator() -> AsyncIterator[int]:
    yield 5


class _Asynchronous:
    async def __call__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (_coroutine, r"_coroutine is an async function, .* asyncio\.run\(_coroutine\(…\)\)"),
        (functools.partial(_coroutine), "_coroutine is an async function"),
        (_Asynchronous(), "_Asynchronous is an async function"),
        (_generator, "_generator is a generator function"),
        (_asynchronous_generator, "_asynchronous_generator is a generator function"),
    ],
)
def test_a_function_that_a_call_does_not_run_is_refused_before_anything_starts(
    function: Any, sentence: str
) -> None:
    with pytest.raises(TypeError, match=sentence):
        phalanx.launch(function)


def test_a_lambda_is_called_by_its_place() -> None:
    with phalanx.start(lambda: 1) as job:
        assert re.fullmatch(r"<lambda> at test_launch\.py:\d+", job.name)
        assert job.result().values == (1,)
