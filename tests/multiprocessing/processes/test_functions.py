"""Function workers. The functions are the standard library's: spawned interpreters import them without our help."""

from __future__ import annotations

import builtins
import faulthandler
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.multiprocessing import (
    DefaultLogsSpecs,
    SpawnError,
    Std,
    functions,
    start_processes,
)
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.pidfd import has_ended

Soon = Callable[..., None]
Sleepers = Callable[[], list[int]]
Start = Callable[..., PContext]
METHODS = ("spawn", "fork", "forkserver")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start(method: str, tmp_path: Path) -> Iterator[Start]:
    """Start a function, once for each tuple of arguments."""
    started: list[PContext] = []

    def run(function: Callable[..., Any], *args: tuple[Any, ...], **options: Any) -> PContext:
        logs = options.pop("logs", None) or DefaultLogsSpecs(
            log_dir=str(tmp_path / "logs"), redirects=Std.ALL
        )
        envs: dict[int, dict[str, str]] = {i: dict(options.get("env", {})) for i in range(len(args))}
        context = start_processes("test", function, dict(enumerate(args)), envs, logs, start_method=method)
        started.append(context)
        return context

    yield run
    for context in started:
        context.close(signal.SIGKILL, timeout=5)


def failures_of(context: PContext) -> dict[int, Any]:
    result = context.wait(60)
    assert result is not None
    assert result.return_values == {}
    return dict(result.failures)


def text_of(failure: Any) -> str:
    return str(failure.message["message"] if isinstance(failure.message, dict) else failure.message)


def test_each_rank_returns_what_its_function_returned(start: Start) -> None:
    result = start(operator.add, (1, 2), ("a", "b"), ([], [None])).wait(60)

    assert result is not None
    assert result.return_values == {0: 3, 1: "ab", 2: [None]}
    assert list(result.return_values) == [0, 1, 2]


def test_results_larger_than_any_pipe_arrive_whole(start: Start) -> None:
    size = 50_000_000
    result = start(operator.mul, (b"x", size), (b"y", size)).wait(60)

    assert result is not None
    assert [(len(value), value[-1:]) for value in result.return_values.values()] == [
        (size, b"x"),
        (size, b"y"),
    ]


def test_an_exception_is_known_by_the_error_file(start: Start) -> None:
    failures = failures_of(start(operator.truediv, (1, 0), (1, 1)))

    assert list(failures) == [0]
    assert failures[0].exitcode == 1
    assert text_of(failures[0]) == "ZeroDivisionError: division by zero"


def test_an_exit_code_of_the_function_is_the_workers(start: Start) -> None:
    assert failures_of(start(sys.exit, (7,)))[0].exitcode == 7


def test_an_exit_with_zero_is_a_normal_end(start: Start) -> None:
    result = start(sys.exit, (0,)).wait(60)

    assert result is not None
    assert result.return_values == {0: None}


def test_a_function_that_ends_its_process_without_returning_has_no_result(start: Start) -> None:
    result = start(os._exit, (0,)).wait(60)

    assert result is not None
    assert result.return_values == {0: None}


def test_death_by_a_signal_is_a_negative_code_with_the_stack(start: Start) -> None:
    # A forked worker of a program that watches for crashes, as pytest does, keeps to that program's choice.
    faulthandler.disable()
    try:
        failure = failures_of(start(os.abort, ()))[0]
    finally:
        faulthandler.enable()

    assert failure.exitcode == -signal.SIGABRT
    assert "function_worker" in failure.crash


def test_a_result_that_cannot_be_pickled_is_one_sentence_with_rank_and_type(start: Start) -> None:
    failure = failures_of(start(threading.Lock, ()))[0]

    assert text_of(failure).startswith(
        "TypeError: local rank 0: the result of allocate_lock cannot be sent back: type 'lock' cannot be pickled"
    )


def test_workers_lead_sessions_and_have_the_given_environment(start: Start) -> None:
    assert_each = start(os.getsid, (0,), (0,))
    pids = assert_each.pids()
    result = assert_each.wait(60)
    assert result is not None
    assert result.return_values == pids

    result = start(
        os.getenv, ("GIVEN",), ("PHALANX_JOB",), env={"GIVEN": "yes", "PHALANX_JOB": "token"}
    ).wait(60)
    assert result is not None
    assert result.return_values == {0: "yes", 1: "token"}


def test_output_goes_to_the_workers_own_files(start: Start) -> None:
    context = start(builtins.print, ("from zero",), ("from one",))
    context.wait(60)

    assert [Path(context.stdouts[i]).read_text() for i in (0, 1)] == ["from zero\n", "from one\n"]


def test_a_function_that_does_not_end_is_stopped(start: Start) -> None:
    context = start(time.sleep, (1000,), (1000,))
    assert context.wait(0.1) is None
    context.close(timeout=60)

    assert context.reap() == {0: -signal.SIGTERM, 1: -signal.SIGTERM}


def test_what_a_function_started_is_ended_with_it(
    start: Start, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    context = start(os.system, (f"setsid sleep {nap} & trap '' TERM; sleep {nap}",))
    soon(lambda: len(sleepers()) == 2)
    context.close(timeout=0.2)

    assert sleepers() == []


def test_the_exit_code_survives_that_multiprocessing_reaps_first(start: Start, soon: Soon) -> None:
    import multiprocessing

    context = start(sys.exit, (5,))
    assert has_ended(context.fileno(), 60)
    multiprocessing.active_children()  # reaps all that have ended, as each start of a process does

    soon(lambda: context.reap() == {0: 5})


@pytest.fixture
def stopped_server(start: Start) -> Iterator[PContext]:
    """A worker that was killed while the fork server, which has its exit code, is stopped."""
    from multiprocessing import forkserver

    context = start(time.sleep, (1000,))
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    os.kill(server, signal.SIGSTOP)
    try:
        assert context.send_signal(signal.SIGKILL) == [0]
        assert has_ended(context.fileno(), 60)
        yield context
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.parametrize("method", ["forkserver"], indirect=True)
def test_a_code_that_is_late_is_not_waited_for_and_not_lost(
    stopped_server: PContext, soon: Soon, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multiprocessing import forkserver

    monkeypatch.setattr(functions, "CODE_TIMEOUT_S", 60.0)  # it is late by what this machine takes, too
    assert stopped_server.reap() == {}
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGCONT)  # type: ignore[attr-defined]

    soon(lambda: stopped_server.reap() == {0: -signal.SIGKILL})


@pytest.mark.parametrize("method", ["forkserver"], indirect=True)
def test_a_code_that_does_not_come_is_given_up(
    stopped_server: PContext, soon: Soon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "CODE_TIMEOUT_S", 0.1)

    soon(lambda: stopped_server.reap() == {0: 255})


def test_a_function_has_the_limit_of_open_files_that_its_launcher_was_given(
    method: str, tmp_path: Path
) -> None:
    script = f"""
import resource
from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4000))
    args = {{i: (resource.RLIMIT_NOFILE,) for i in range(3)}}
    logs = DefaultLogsSpecs({str(tmp_path)!r})
    envs = {{i: {{}} for i in args}}
    context = start_processes("test", resource.getrlimit, args, envs, logs, start_method="{method}")
    print(context.wait(60).return_values, resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    limits, raised = eval(done.stdout.replace("} ", "}, "))
    assert raised
    # A forked worker has all the descriptors of the launcher, which may have no room within the smaller limit.
    assert all((limit == 64) == (method != "fork") for limit, _ in limits.values())


def test_a_function_for_which_no_descriptor_is_left_is_one_sentence(method: str, tmp_path: Path) -> None:
    script = f"""
import os, resource
from phalanx.multiprocessing import DefaultLogsSpecs, SpawnError, start_processes
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    args = {{i: ("exec sleep 1000",) for i in range(20)}}
    logs = DefaultLogsSpecs({str(tmp_path)!r})
    try:
        start_processes("test", os.system, args, {{i: {{}} for i in args}}, logs, start_method="{method}")
    except SpawnError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)

    assert done.stdout.startswith("cannot start 'system' (local rank "), done.stderr
    assert "the limit is 160 and 20 workers may need 512: run 'ulimit -n 512' first" in done.stdout


def test_a_signal_reaches_the_function(start: Start, soon: Soon) -> None:
    context = start(time.sleep, (1000,))

    assert context.send_signal(signal.SIGUSR1) == [0]
    assert has_ended(context.fileno(), 60)
    soon(lambda: context.reap() == {0: -signal.SIGUSR1})
    assert context.send_signal(signal.SIGUSR1) == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"], indirect=True)
def test_arguments_that_cannot_be_pickled_are_named_with_rank_and_type(
    start: Start, tmp_path: Path, method: str
) -> None:
    with pytest.raises(SpawnError) as caught:
        start(operator.add, (1, 2), (1, threading.Lock()))

    assert caught.value.local_rank == 1
    assert str(caught.value).startswith(
        "cannot start 'add' (local rank 1): argument 1 of type 'lock' cannot be sent to a new process"
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"], indirect=True)
def test_a_function_without_an_importable_name_is_called_so(start: Start, method: str) -> None:
    with pytest.raises(
        SpawnError, match=r"cannot start .*<lambda>.* a function cannot be sent .* imported by its name"
    ):
        start(lambda: 1, ())


@pytest.mark.parametrize("method", ["fork"], indirect=True)
def test_a_forked_worker_needs_no_pickles_for_what_it_is_given(start: Start) -> None:
    result = start(lambda value: type(next(value)).__name__, ((x for x in "a"),)).wait(60)

    assert result is not None
    assert result.return_values == {0: "str"}


@pytest.mark.parametrize("method", ["fork"], indirect=True)
def test_a_forked_worker_is_stopped_although_its_parent_handles_the_signal(start: Start) -> None:
    before = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    try:
        context = start(time.sleep, (1000,))
        context.close(timeout=1000)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert context.reap() == {0: -signal.SIGTERM}


def test_a_result_that_cannot_be_read_here_is_a_failure_with_one_sentence(tmp_path: Path) -> None:
    # The worker can import the module that it made itself; the launching program cannot.
    source = "import sys; sys.path.insert(0, FOLDER); import only_there; return only_there.Thing()"
    (tmp_path / "only_there.py").write_text("class Thing: pass\n")
    body = "\n    ".join(source.replace("FOLDER", repr(str(tmp_path))).split("; "))
    (tmp_path / "main.py").write_text(
        f"""
from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
def work():
    {body}
if __name__ == "__main__":
    result = start_processes("test", work, {{0: ()}}, {{0: {{}}}}, DefaultLogsSpecs()).wait(60)
    print(result.failures[0].exitcode, result.failures[0].message)
"""
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "main.py").rename(tmp_path / "elsewhere" / "main.py")
    done = subprocess.run(
        [sys.executable, str(tmp_path / "elsewhere" / "main.py")], capture_output=True, text=True, timeout=60
    )

    assert done.stdout.startswith("1 local rank 0: work returned something that cannot be read here"), (
        done.stderr
    )
    assert "No module named 'only_there'" in done.stdout


@pytest.mark.parametrize("method", METHODS)
def test_function_workers_die_with_a_killed_launcher(
    method: str, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    script = f"""
import os, time
from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
if __name__ == "__main__":
    args = {{0: ("sleep", ["sleep", "{nap}"])}}
    start_processes("test", os.execvp, args, {{0: {{}}}}, DefaultLogsSpecs(), start_method="{method}")
    time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL) as launcher:
        soon(lambda: len(sleepers()) == 1)
        launcher.kill()
    soon(lambda: sleepers() == [])


def test_an_unknown_start_method_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="cannot find context for 'teleport'"):
        start_processes("test", os.getpid, {0: ()}, {0: {}}, DefaultLogsSpecs(), start_method="teleport")
