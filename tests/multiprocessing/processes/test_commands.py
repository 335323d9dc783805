from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.errors import boot_file
from phalanx.multiprocessing import DefaultLogsSpecs, SpawnError, Std, SubprocessContext
from phalanx.multiprocessing.machine import Command, SweepRequested
from phalanx.multiprocessing.pidfd import Child, has_ended

Shells = Callable[..., SubprocessContext]
Soon = Callable[..., None]
Sleepers = Callable[[], list[int]]


def context_of(
    command: str, *args: object, n: int = 1, env: dict[str, str] | None = None
) -> SubprocessContext:
    ranks = range(n)
    return SubprocessContext(
        "test", command, dict.fromkeys(ranks, args), {i: dict(env or {}) for i in ranks}, DefaultLogsSpecs()
    )


# Waiting


def test_a_group_whose_workers_all_end_well_has_no_failure(shells: Shells) -> None:
    context = shells("exit 0", "exit 0")
    context.start()

    result = context.wait(30)
    assert result is not None
    assert not result.is_failed()
    assert result.return_values == {0: None, 1: None}


def test_the_first_failure_ends_the_others_which_are_no_failures(
    shells: Shells, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    context = shells("sleep 0.3; exit 3", f"exec sleep {nap}")
    context.start()

    result = context.wait(30)
    assert result is not None
    assert {local_rank: failure.exitcode for local_rank, failure in result.failures.items()} == {0: 3}
    assert result.return_values == {}
    assert sleepers() == []


def test_a_worker_that_dies_of_a_signal_has_its_negative_number(shells: Shells) -> None:
    context = shells("kill -SEGV $$")
    context.start()

    result = context.wait(30)
    assert result is not None
    assert result.failures[0].exitcode == -signal.SIGSEGV
    assert result.failures[0].signal_name() == "SIGSEGV"


def test_waiting_looks_returns_none_in_time_and_sleeps_through_no_event(
    shells: Shells, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    context = shells(f"while [ ! -e {go} ]; do sleep 0.01; done")
    context.start()

    assert context.wait(0) is None
    assert context.wait(0.05, period=1000) is None
    go.touch()
    assert context.wait(1000, period=1000) is not None  # the test's own timeout is far below


def test_the_result_stays_the_same_when_it_is_asked_for_again(shells: Shells) -> None:
    context = shells("exit 4")
    context.start()

    assert context.wait() is context.wait(0)


def test_a_context_is_started_once(shells: Shells) -> None:
    context = shells("exit 0")
    context.start()

    with pytest.raises(RuntimeError, match="a context is started once"):
        context.start()


@pytest.mark.parametrize(("args", "envs"), [({0: ()}, {}), ({}, {0: {}}), ({0: (), 2: ()}, {0: {}, 1: {}})])
def test_arguments_and_environments_must_be_of_the_same_ranks(
    args: dict[int, tuple[str, ...]], envs: dict[int, dict[str, str]]
) -> None:
    with pytest.raises(RuntimeError, match="needs one entry per local rank"):
        SubprocessContext("test", "true", args, envs, DefaultLogsSpecs())


# The face for event loops


def test_the_descriptor_is_readable_while_an_exit_is_unreported_and_each_is_reported_once(
    shells: Shells,
) -> None:
    context = shells("exit 5", "exec sleep 1000", "exit 0")
    context.start()
    seen: dict[int, int] = {}
    while len(seen) < 2:
        assert has_ended(context.fileno(), 30)
        reported = context.reap()
        assert not reported.keys() & seen.keys()
        seen |= reported

    assert seen == {0: 5, 2: 0}
    context.close()
    assert context.reap() == {1: -signal.SIGTERM}
    assert context.reap() == {}


def test_the_descriptor_is_quiet_while_all_workers_run(shells: Shells) -> None:
    context = shells("exec sleep 1000", "exec sleep 1000")
    context.start()

    assert not has_ended(context.fileno(), 0.05)
    assert context.reap() == {}


def test_each_live_worker_has_a_sentinel(shells: Shells) -> None:
    context = shells("exec sleep 1000", "exec sleep 1000")
    context.start()
    sentinels = context.sentinels()
    assert sentinels.keys() == {0, 1}

    os.kill(context.pids()[1], signal.SIGKILL)
    ready, _, _ = select.select(list(sentinels.values()), [], [], 30)
    assert ready == [sentinels[1]]
    assert context.reap() == {1: -signal.SIGKILL}
    assert context.sentinels().keys() == {0}


def test_a_signal_goes_to_the_chosen_live_workers_alone(shells: Shells, tmp_path: Path, soon: Soon) -> None:
    script = f"trap 'echo $LOCAL >> {tmp_path}/got' USR1; echo $LOCAL >> {tmp_path}/up; while :; do sleep 0.02; done"
    context = shells(f"LOCAL=0; {script}", f"LOCAL=1; {script}", "exit 0")
    context.start()
    soon(
        lambda: len(list((tmp_path / "up").read_text().split())) == 2 if (tmp_path / "up").exists() else False
    )
    soon(lambda: 2 in context.reap() or 2 not in context.sentinels())

    assert context.send_signal(signal.SIGUSR1, {1, 2}) == [1]
    soon(lambda: (tmp_path / "got").exists() and (tmp_path / "got").read_text() == "1\n")
    assert context.send_signal(signal.SIGUSR1) == [0, 1]


# What a worker finds


def test_a_worker_leads_its_own_session(shells: Shells) -> None:
    context = shells("exec sleep 1000")
    context.start()

    pid = context.pids()[0]
    assert os.getsid(pid) == pid


def test_the_environment_is_ours_overlaid_with_the_given_one(
    shells: Shells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEPT", "from us")
    monkeypatch.setenv("CHANGED", "from us")
    monkeypatch.setenv("PHALANX_BOOT", "an outer job's")
    monkeypatch.setenv("PHALANX_JOB", "an outer job's")
    context = shells(f"env > {tmp_path}/env", env={"CHANGED": "given"})
    context.start()
    context.wait(30)

    found = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert (found["KEPT"], found["CHANGED"]) == ("from us", "given")
    assert found["PHALANX_JOB"] == context.job != "an outer job's"
    assert "PHALANX_BOOT" not in found
    assert found["TORCHELASTIC_ERROR_FILE"] == context.error_files[0]


def test_a_given_job_token_is_kept(shells: Shells) -> None:
    assert shells("exit 0", "exit 0", env={"PHALANX_JOB": "given"}).job == "given"


def test_the_first_worker_reads_our_input_and_the_others_read_nothing(tmp_path: Path) -> None:
    script = f"""
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
args = {{i: ("-c", f"cat > {tmp_path}/{{i}}") for i in (0, 1)}}
context = SubprocessContext("test", "sh", args, {{0: {{}}, 1: {{}}}}, DefaultLogsSpecs())
context.start()
assert not context.wait(30).is_failed()
"""
    subprocess.run([sys.executable, "-c", script], input=b"a line\n", check=True, timeout=60)

    assert (tmp_path / "0").read_bytes() == b"a line\n"
    assert (tmp_path / "1").read_bytes() == b""


def test_arguments_are_given_as_text(shells: Shells, tmp_path: Path) -> None:
    context = context_of("sh", "-c", f'printf "%s|" "$@" > {tmp_path}/args', "sh", 1, 2.5, "", "a b", None)
    context.start()
    context.wait(30)

    assert (tmp_path / "args").read_text() == "1|2.5||a b|None|"


def test_a_worker_inherits_no_descriptor_but_its_streams(shells: Shells, soon: Soon) -> None:
    ours = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(ours, True)
    try:
        context = shells("exec sleep 1000", "exec sleep 1000")
        context.start()
        soon(
            lambda: all(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in context.pids().values())
        )
    finally:
        os.close(ours)

    for pid in context.pids().values():  # a program has its libraries open when it begins
        soon(lambda pid=pid: sorted(os.listdir(f"/proc/{pid}/fd")) == ["0", "1", "2"])


# Commands that cannot be started


def make(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def loop_of_links(folder: Path) -> str:
    (folder / "loop").symlink_to(folder / "loop")
    return str(folder / "loop")


def dangling(folder: Path) -> str:
    (folder / "dangling").symlink_to("nowhere")
    return str(folder / "dangling")


CANNOT_START: list[tuple[str, Callable[[Path], str], str, int]] = [
    ("no such name", lambda _: "no-such-command", "not found; give a path", 127),
    ("no such path", lambda folder: f"{folder}/no-such-file", "not found; give a path", 127),
    ("dangling link", dangling, "not found; .* is a link to 'nowhere', which does not exist", 127),
    ("loop of links", loop_of_links, "not found; .* is a link to", 127),
    (
        "no permission",
        lambda folder: make(folder / "train.sh", "#!/bin/sh\n", 0o644),
        "not executable; chmod",
        126,
    ),
    ("folder", str, "it is a folder", 126),
    (
        "no interpreter",
        lambda folder: make(folder / "x", "#!/no/such/python\n"),
        "bad interpreter: '/no/such/py",
        126,
    ),
    (
        "bad interpreter",
        lambda folder: make(folder / "x", "#! /etc/passwd -x\n"),
        "'/etc/passwd' .* is not exec",
        126,
    ),
    (
        "plain text",
        lambda folder: make(folder / "x", "echo hello\n"),
        "not a program; its first line must be",
        126,
    ),
    ("empty file", lambda folder: make(folder / "x", ""), "not a program", 126),
]


@pytest.mark.parametrize(
    ("command", "reason", "code"), [row[1:] for row in CANNOT_START], ids=[row[0] for row in CANNOT_START]
)
def test_a_command_that_cannot_be_started_is_named_with_the_reason(
    command: Callable[[Path], str], reason: str, code: int, tmp_path: Path
) -> None:
    name = command(tmp_path)
    with pytest.raises(SpawnError, match=reason) as caught:
        context_of(name).start()

    assert str(caught.value).startswith(f"cannot start {name!r} (local rank 0): ")
    assert (caught.value.local_rank, caught.value.command, caught.value.exit_code) == (0, name, code)


def test_a_command_on_the_path_of_the_worker_is_found_there(tmp_path: Path) -> None:
    make(tmp_path / "only-here", "#!/bin/sh\nexit 6\n")
    context = context_of("only-here", env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    context.start()

    result = context.wait(30)
    assert result is not None
    assert result.failures[0].exitcode == 6


def test_arguments_that_are_too_long_are_called_so() -> None:
    with pytest.raises(SpawnError, match="arguments and environment are too long"):
        context_of("true", "x" * 4_000_000).start()


def test_a_worker_that_cannot_be_started_ends_those_before_it(
    tmp_path: Path, nap: str, sleepers: Sleepers
) -> None:
    command = make(tmp_path / "worker", f"#!/bin/sh\nsetsid sleep {nap} &\nexec sleep {nap}\n")
    context = SubprocessContext(
        "test", command, {0: (), 1: ("x" * 4_000_000,)}, {0: {}, 1: {}}, DefaultLogsSpecs()
    )

    with pytest.raises(SpawnError) as caught:
        context.start()
    assert caught.value.local_rank == 1
    assert sleepers() == []
    context.close()


def test_a_failed_start_gives_deaf_workers_no_grace_and_waits_for_no_console(
    tmp_path: Path, nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    up = tmp_path / "up"
    # Starting the second one takes long enough for the first to make itself deaf.
    first = make(tmp_path / "worker", f"#!/bin/sh\ntrap '' TERM\ntouch {up}\nexec sleep {nap}\n")
    context = SubprocessContext("test", first, {0: (), 1: ()}, {0: {}, 1: {}}, DefaultLogsSpecs())
    asked: list[object] = []
    spawn, step = context._spawn, context._machine.step

    def fail_second(local_rank: int, stdout: int | None, stderr: int | None) -> Child:
        if local_rank == 0:
            return spawn(local_rank, stdout, stderr)
        soon(up.exists)
        raise SpawnError(1, "it", "no reason")

    context._spawn = fail_second  # type: ignore[method-assign]

    def record(event: object, now: float) -> list[Command]:
        asked.append(event)
        return step(event, now)

    context._machine.step = record  # type: ignore[method-assign]
    with pytest.raises(SpawnError):
        context.start()

    assert sleepers() == []
    assert asked[0] == SweepRequested()


def test_a_log_folder_that_has_gone_is_one_sentence_and_ends_those_before(
    tmp_path: Path, nap: str, sleepers: Sleepers
) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL)
    context = SubprocessContext("test", "sleep", {0: (nap,), 1: (nap,)}, {0: {}, 1: {}}, logs)
    shutil.rmtree(Path(context.stdouts[1]).parent)

    with pytest.raises(SpawnError) as caught:
        context.start()
    assert str(caught.value) == (
        f"cannot start 'sleep' (local rank 1): {context.stdouts[1]!r} cannot be opened: No such file or directory; "
        "its folder was there a moment ago: leave it until the job has ended"
    )
    assert (caught.value.local_rank, caught.value.exit_code) == (1, 1)
    assert sleepers() == []


LIMITED = """
import resource, sys
from pathlib import Path
from phalanx.multiprocessing import *
soft, hard, workers, script, logs = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
ranks = range(workers)
context = SubprocessContext(
    "test", "sh", {i: ("-c", script) for i in ranks}, {i: {} for i in ranks}, DefaultLogsSpecs(logs, Std.ALL, Std.ALL)
)
try:
    context.start()
except SpawnError as error:
    print("at last:", error)
else:
    Path(logs, "go").touch()
    assert not context.wait(120).is_failed()
    print("at last:", *sorted({Path(path).read_text() for path in context.stdouts.values()}))
"""


def with_limits(soft: int, hard: int, workers: int, script: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(soft), str(hard), str(workers), script, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("at last: ")[2]


def test_a_group_that_needs_more_files_than_the_soft_limit_gets_them_and_keeps_the_limit(
    tmp_path: Path,
) -> None:
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; ulimit -n"

    assert with_limits(40, 4000, 20, script, tmp_path) == "40\n\n"


def test_a_hard_limit_that_is_too_low_is_named_and_nobody_is_left(
    tmp_path: Path, nap: str, sleepers: Sleepers
) -> None:
    script = f"setsid sleep {nap} & exec sleep {nap}"

    message = with_limits(150, 150, 20, script, tmp_path)
    assert message.startswith("cannot start 'sh' (local rank ")
    assert (
        "Too many open files; the limit is 150 and 20 workers may need 512: run 'ulimit -n 512' first"
        in message
    )
    assert sleepers() == []


# What is known of a failure


def test_a_script_that_raises_is_known_by_its_error_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('bad batch 17')\n")
    logs = DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), redirects=Std.ALL)
    context = SubprocessContext(
        "test", sys.executable, {0: ("-u", boot_file(), str(tmp_path / "train.py"))}, {0: {}}, logs
    )
    context.start()
    result = context.wait(30)

    assert result is not None
    failure = result.failures[0]
    assert failure.exitcode == 1
    assert failure.error_file == context.error_files[0]
    assert "ValueError: bad batch 17" in str(failure.message)
    assert b"ValueError: bad batch 17" in context.stderr_tail(0)


def test_a_native_crash_leaves_its_stack(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os\ndef fit():\n    os.abort()\nfit()\n")
    context = context_of(sys.executable, "-u", boot_file(), str(tmp_path / "train.py"))
    context.start()
    result = context.wait(30)

    assert result is not None
    assert result.failures[0].exitcode == -signal.SIGABRT
    assert "in fit" in result.failures[0].crash


def test_a_failure_can_be_asked_for_after_everything_was_released(shells: Shells) -> None:
    context = shells("echo last words >&2; exit 3")
    context.start()
    assert has_ended(context.fileno(), 30)
    assert context.reap() == {0: 3}
    assert context.drain(30)
    context.release()

    failure = context.failure(0)
    assert failure.exitcode == 3
    assert context.stderr_tail(0) == b"last words\n"


# Threads, descriptors, neighbours


def test_a_worker_started_by_a_thread_outlives_the_thread(tmp_path: Path, soon: Soon) -> None:
    (tmp_path / "train.py").write_text(
        f"import time, pathlib\npathlib.Path({str(tmp_path / 'up')!r}).touch()\ntime.sleep(1000)"
    )
    context = context_of(sys.executable, "-u", boot_file(), str(tmp_path / "train.py"))
    thread = threading.Thread(target=context.start)
    thread.start()
    thread.join()
    soon((tmp_path / "up").exists)

    assert context.wait(0.2) is None
    context.close(timeout=30)


def test_a_worker_dies_with_its_parent_when_that_is_killed(
    tmp_path: Path, soon: Soon, nap: str, sleepers: Sleepers
) -> None:
    (tmp_path / "train.py").write_text(f"import os\nos.execvp('sleep', ['sleep', {nap!r}])")
    script = f"""
import sys, time
from phalanx.errors import boot_file
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
args = {{0: ("-u", boot_file(), {str(tmp_path / "train.py")!r})}}
SubprocessContext("test", sys.executable, args, {{0: {{}}}}, DefaultLogsSpecs()).start()
time.sleep(1000)
"""
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        soon(lambda: len(sleepers()) == 1)
        parent.kill()
    soon(lambda: sleepers() == [])


def test_a_group_costs_no_descriptor_after_its_end(shells: Shells, tmp_path: Path) -> None:
    def run() -> None:
        context = shells("exit 0", "exec sleep 1000", "exit 3")
        context.start()
        context.wait(30)
        with pytest.raises(SpawnError):
            context_of(f"{tmp_path}/nothing", n=2).start()

    run()  # what is opened once for the whole process
    before = len(os.listdir("/proc/self/fd"))
    run()
    # Fewer are no matter: what another test of this process has left may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= before


def test_other_children_are_left_to_those_who_started_them(shells: Shells) -> None:
    other = subprocess.Popen(["sh", "-c", "exit 9"])
    fd = os.pidfd_open(other.pid)
    assert has_ended(fd, 30)
    os.close(fd)
    context = shells("exit 0", "exit 1")
    context.start()
    context.wait(30)

    assert other.wait() == 9


def test_exit_codes_are_learnt_where_the_ignoring_of_sigchld_was_inherited() -> None:
    script = """
import signal
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
context = SubprocessContext("test", "sh", {0: ("-c", "exit 3")}, {0: {}}, DefaultLogsSpecs())
context.start()
assert context.wait(30).failures[0].exitcode == 3
"""
    ignoring = f"trap '' CHLD; exec {sys.executable} -c '{script}'"
    subprocess.run(["bash", "-c", ignoring], check=True, timeout=60)


def test_a_lost_exit_status_is_a_failure_and_not_a_success(shells: Shells) -> None:
    context = shells("read line; exit 0")
    context.start()
    pid = context.pids()[0]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    result = context.wait(30)
    assert result is not None
    assert result.failures[0].exitcode == 255


@pytest.mark.slow
def test_256_workers_start_and_stop(nap: str, sleepers: Sleepers) -> None:
    context = context_of("sleep", nap, n=256)
    context.start()
    assert len(context.pids()) == 256
    context.close(timeout=30)

    assert sleepers() == []
    assert sorted(context.reap()) == list(range(256))


def test_the_permission_bits_of_the_logs_are_the_umasks(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.OUT)
    context = SubprocessContext("test", "echo", {0: ("x",)}, {0: {}}, logs)
    context.start()
    context.wait(30)

    assert stat.S_IMODE(os.stat(context.stdouts[0]).st_mode) & 0o111 == 0
    assert Path(context.stdouts[0]).read_text() == "x\n"


def test_waiting_takes_no_processor_time(shells: Shells) -> None:
    context = shells("exec sleep 1000")
    context.start()
    context.wait(0.2)

    def sleeps_and_seconds() -> tuple[int, float]:
        before = resource.getrusage(resource.RUSAGE_THREAD)
        assert context.wait(1.0) is None
        after = resource.getrusage(resource.RUSAGE_THREAD)
        return (
            after.ru_nvcsw - before.ru_nvcsw,
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        )

    # Of this thread alone, whatever else runs here. Looking each 0.1 s would be ten sleeps; a spin would be a second.
    # A busy machine adds to them now and then (a lock, a page that has to be fetched), a look each 0.1 s always does.
    measured: list[tuple[int, float]] = []
    while not any(sleeps < 8 and seconds < 0.25 for sleeps, seconds in measured):
        assert len(measured) < 20, measured
        measured.append(sleeps_and_seconds())
