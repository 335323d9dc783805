"""Case 1: whoever reads only the launcher's last words learns which rank failed, of what, and where."""

from __future__ import annotations

import json
import os
import pty
import signal
import termios
import venv
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

BAD_BATCH = """
    import os, time

    def fit(step):
        raise ValueError("bad batch 17")

    if os.environ["RANK"] == "1":
        fit(3)
    time.sleep(1000)
"""
LINE_OF_RAISE = 4


@pytest.mark.parametrize("streams", [(), ("-r", "3"), ("-t", "3")], ids=["plain", "redirected", "teed"])
def test_an_exception_is_in_the_summary_with_its_rank_and_place(
    launch: Launch, script: Script, tmp_path: Path, streams: tuple[str, ...]
) -> None:
    train = script(BAD_BATCH)

    job = launch("--standalone", "--nproc-per-node", 2, "--log-dir", tmp_path / "logs", *streams, train)

    assert job.wait() == 1
    summary = job.summary
    assert "rank" in summary
    assert "1 (local_rank: 1)" in summary
    assert "ValueError" in summary
    assert "bad batch 17" in summary
    assert f'train.py", line {LINE_OF_RAISE}' in summary or f"train.py:{LINE_OF_RAISE}" in summary
    assert "phalanx/" not in summary, "frames of the launcher's own files are no help to the user"


def test_the_exception_is_in_the_summary_though_the_agent_sees_the_end_first(
    launch: Launch, script: Script
) -> None:
    """No log folder, so the worker's last words are all there is; the agent stands still until the worker has ended."""
    train = script(
        """
        import os, signal, subprocess

        agent, status = os.getppid(), f"/proc/{os.getpid()}/status"
        until_the_end = f"while ! grep -q 'State:.Z' {status}; do sleep 0.02; done; kill -CONT {agent}"
        subprocess.Popen(["sh", "-c", until_the_end], start_new_session=True)
        os.kill(agent, signal.SIGSTOP)
        raise ValueError("bad batch 17")
        """
    )

    job = launch("--standalone", "--log-dir", os.devnull, train)

    assert job.wait() == 1
    assert b"train.py failed: rank 0: ValueError: bad batch 17" in job.stderr.splitlines()[-1]


def test_a_failure_prints_no_traceback_of_the_launcher(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, script("import os; os._exit(3)"))

    assert job.wait() == 3
    assert job.summary
    assert b"Traceback" not in job.stderr


def test_the_first_of_two_failures_is_the_root_cause(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, signal, time
        from telling import stay, tell

        def late(*_):
            raise KeyError("second failure")

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, late)
            tell("ready")
            stay()
        while not os.path.exists("go"):
            time.sleep(0.01)
        raise ValueError("first failure")
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("ready")
    (job.folder / "go").touch()

    assert job.wait() == 1
    root_cause = job.summary.partition("Root Cause")[2]
    assert "first failure" in root_cause
    assert "second failure" not in root_cause


def test_where_only_a_symptom_came_first_an_exception_from_after_the_stop_is_listed(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, signal, time
        from telling import tell

        if os.environ["RANK"] == "0":
            while not os.path.exists("go"):
                time.sleep(0.01)
            raise ConnectionResetError("peer")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        tell("ready")
        signal.sigwait([signal.SIGTERM])
        raise ValueError("bad batch 17")
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("ready")
    (job.folder / "go").touch()

    assert job.wait() == 1
    others, _, root_cause = job.summary.partition("Root Cause")
    assert "ValueError: bad batch 17 at train.py:11, after it was asked to stop" in others.replace(
        f"{job.folder}/", ""
    ).replace(str(train.parent) + "/", "")
    assert "ConnectionResetError: peer" in root_cause


def test_an_error_file_that_somebody_else_has_made_does_not_blame_its_worker(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import json, os
        from telling import stay, tell

        path = os.environ["TORCHELASTIC_ERROR_FILE"]
        if os.environ["RANK"] == "1":
            open("ready", "w").write(path)
            tell("ready")
            stay()
        while not os.path.exists("go"):
            pass
        info = {"timestamp": "1", "wall_ns": 1, "monotonic_ns": 1}
        with open(open("ready").read(), "w") as file:
            json.dump({"message": {"message": "FAKE", "extraInfo": info}}, file)
        os._exit(3)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)
    job.told("ready")
    (job.folder / "go").touch()

    assert job.wait() == 3
    assert "rank      : 0 (local_rank: 0)" in job.summary.partition("Root Cause")[2]


def test_what_the_scripts_own_parser_refused_is_in_the_last_line(launch: Launch, script: Script) -> None:
    train = script("import argparse\nargparse.ArgumentParser().parse_args()")

    job = launch("--standalone", "--nproc-per-node", 2, train, "--foo")

    assert job.wait() == 2
    said = "exit code 2: train.py: error: unrecognized arguments: --foo"
    assert job.stderr.decode().splitlines()[-1].endswith(said)


def test_an_exception_in_a_thread_that_ends_the_process_is_in_the_summary(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, threading

        def load():
            raise OSError("shard 9 is gone")

        thread = threading.Thread(target=load, name="loader")
        thread.start()
        thread.join()
        os._exit(4)
        """
    )
    job = launch("--standalone", train)

    assert job.wait() == 4
    assert "shard 9 is gone" in job.summary


def test_the_python_stack_of_a_native_crash_is_in_the_summary(launch: Launch, script: Script) -> None:
    train = script(
        """
        import ctypes

        def native_kernel():
            ctypes.string_at(0)

        native_kernel()
        """
    )
    job = launch("--standalone", train)

    assert job.wait() == 128 + signal.SIGSEGV
    assert "SIGSEGV" in job.summary
    assert "native_kernel" in job.summary


@pytest.mark.parametrize("streams", [(), ("-r", "3"), ("-t", "3")], ids=["plain", "redirected", "teed"])
def test_the_last_stderr_of_a_program_that_is_not_python_is_in_the_summary(
    launch: Launch, tmp_path: Path, streams: tuple[str, ...]
) -> None:
    job = launch(
        *("--standalone", "--log-dir", tmp_path / "logs", *streams, "--no-python"),
        *("sh", "-c", "echo disk on fire >&2; exit 3"),
    )

    assert job.wait() == 3
    assert "disk on fire" in job.summary


def test_without_a_stderr_tail_the_worker_inherits_stderr_and_the_summary_does_not_repeat_it(
    launch: Launch,
) -> None:
    job = launch(
        "--standalone", "--stderr-tail", 0, "--no-python", "sh", "-c", "echo disk on fire >&2; exit 3"
    )

    assert job.wait() == 3
    assert job.stderr.count(b"disk on fire") == 1
    assert "disk on fire" not in job.summary


def test_a_summary_carries_a_bounded_end_of_stderr(launch: Launch, script: Script) -> None:
    """16 KiB of the first failing rank: enough to understand, and no flood from a thousand ranks."""
    train = script(
        """
        import os
        os.write(2, b"".join(b"line %d\\n" % number for number in range(100_000)))
        os._exit(3)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "-r", 3, train)

    assert job.wait() == 3
    assert "line 99999" in job.summary
    assert len(job.summary) < 24 * 1024


def test_a_rank_that_raised_first_gives_the_exit_code_though_another_exits_first(
    launch: Launch, script: Script
) -> None:
    """Rank 0 hangs in its shutdown, so the launcher ends it; that signal is not what the job died of."""
    train = script(
        """
        import atexit, os, sys, time
        from telling import tell

        if os.environ["RANK"] == "0":
            atexit.register(time.sleep, 1000)
            atexit.register(open, "raised", "w")
            raise ValueError("bad batch 17")
        while not os.path.exists("raised"):
            time.sleep(0.01)
        sys.exit(9)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train)

    assert job.wait() == 1
    assert "bad batch 17" in job.summary.partition("Root Cause")[2]
    assert "cut that short; exit code 1 counts" in job.summary


def test_ranks_that_exit_at_the_same_moment_give_their_own_code(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 8, script("import sys; sys.exit(3)"))

    assert job.wait() == 3


def test_an_interpreter_without_phalanx_still_has_its_exception_in_the_summary(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    """The launcher may live in an environment of its own; `PYTHON_EXEC` names the workers' interpreter."""
    venv.create(tmp_path / "bare", with_pip=False)

    job = launch(
        *("--standalone", "--nproc-per-node", 2, script(BAD_BATCH)),
        env={"PYTHON_EXEC": str(tmp_path / "bare" / "bin" / "python")},
    )

    assert job.wait() == 1
    assert "ValueError: bad batch 17" in job.summary


def test_the_launchers_own_error_file_gets_the_root_cause(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    outer = tmp_path / "outer.json"

    job = launch(
        *("--standalone", "--nproc-per-node", 2, script(BAD_BATCH)),
        env={"TORCHELASTIC_ERROR_FILE": str(outer)},
    )

    assert job.wait() == 1
    assert json.loads(outer.read_text())["message"]["message"] == "ValueError: bad batch 17"


def test_the_launchers_own_error_file_tells_of_a_silent_death_too(launch: Launch, tmp_path: Path) -> None:
    outer = tmp_path / "outer.json"

    job = launch("--standalone", "--error-file", outer, "--no-python", "sh", "-c", "kill -9 $$")

    assert job.wait() == 137
    message = json.loads(outer.read_text())["message"]
    assert message["errorCode"] == 137
    assert "SIGKILL" in message["message"]
    assert message["extraInfo"]["rank"] == 0


@pytest.mark.parametrize("option", ["--error-file", "--report-file"])
def test_a_file_that_cannot_be_written_is_one_line_and_the_exit_code_stays(
    launch: Launch, option: str, tmp_path: Path
) -> None:
    path = tmp_path / "no such folder" / "x.json"

    job = launch("--standalone", option, path, "--no-python", "sh", "-c", "exit 7")

    assert job.wait() == 7
    assert job.stderr.decode().count(str(path)) == 1
    assert f"phalanx: could not write '{path}': No such file or directory\n" in job.stderr.decode()
    assert job.stderr.decode().splitlines()[-1].endswith("failed: rank 0: exit code 7")


@pytest.mark.parametrize("option", ["--error-file", "--report-file"])
def test_a_report_on_standard_error_leaves_the_file_that_it_goes_to_whole(
    launch: Launch, option: str
) -> None:
    job = launch(
        "--standalone", option, "/dev/stderr", "--no-python", "sh", "-c", "echo disk on fire >&2; exit 7"
    )

    assert job.wait() == 7
    lines = job.stderr.decode().splitlines()
    assert lines[0] == "disk on fire"
    assert [line for line in lines if line.startswith("{")] != []
    assert lines[-1].endswith("failed: rank 0: exit code 7")


def test_a_report_file_has_the_content_of_the_report(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    job = launch("--standalone", "--nproc-per-node", 4, "--report-file", path, script(BAD_BATCH))

    assert job.wait() == 1
    data = json.loads(path.read_text())
    first = data["first_failure"]
    assert (data["exit_code"], first["rank"], first["exception"]) == (1, 1, "ValueError")
    assert first["message"] == "ValueError: bad batch 17"
    assert first["place"].endswith(f"train.py:{LINE_OF_RAISE}")
    assert (data["failed_ranks"], data["stopped_ranks"]) == ([1], [0, 2, 3])
    assert "stopped because of it: ranks 0, 2, 3" in job.summary
    beside = Path(data["node"]["log_dir"]) / "report.json"
    assert json.loads(beside.read_text()) == data
    assert (beside.parent / "flight.jsonl").exists()


@pytest.mark.parametrize("ending", ["succeeded", "stopped"])
def test_a_report_file_is_there_however_the_job_ends(
    launch: Launch, script: Script, tmp_path: Path, ending: str
) -> None:
    train = script("import sys\nfrom telling import *\ntell('ready')\nstay() if sys.argv[1:] else None")
    path = tmp_path / "report.json"

    job = launch("--standalone", "--report-file", path, train, *(["stay"] if ending == "stopped" else []))
    if ending == "stopped":
        job.told("ready")
        job.send(signal.SIGTERM)

    code = job.wait()
    data = json.loads(path.read_text())
    assert (data["ending"], data["exit_code"], data["first_failure"]) == (ending, code, None)
    assert data["stopped_ranks"] == ([0] if ending == "stopped" else [])
    assert data["node"]["log_dir"] is None, "nothing was written there, so it is gone"


def test_a_report_file_of_a_job_that_has_logs_says_where(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"

    job = launch("--standalone", "-r", 3, "--report-file", path, script("print('x')"))

    assert job.wait() == 0
    (log,) = Path(json.loads(path.read_text())["node"]["log_dir"]).rglob("stdout.log")
    assert log.read_text() == "x\n"


@pytest.mark.parametrize("name", ["PHALANX_REPORT_FILE", "PET_REPORT_FILE", "PET_ERROR_FILE"])
def test_a_launcher_inside_of_a_worker_does_not_write_into_the_outer_jobs_files(
    launch: Launch, script: Script, tmp_path: Path, name: str
) -> None:
    train = script(f"import os, sys\nsys.exit({name!r} in os.environ)")
    job = launch("--standalone", train, env={name: str(tmp_path / "outer.json")})
    assert job.wait() == 0


def test_an_exception_of_a_thread_is_told_with_its_name(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, threading

        def load():
            raise OSError("shard 9 is gone")

        thread = threading.Thread(target=load, name="loader")
        thread.start()
        thread.join()
        os._exit(4)
        """
    )
    job = launch("--standalone", train)

    assert job.wait() == 4
    assert "train.py:4 in thread loader (exit code 4)" in job.stderr.decode().splitlines()[-1]


@pytest.mark.parametrize("decorated", ["phalanx", "torch.distributed.elastic.multiprocessing.errors"])
def test_the_traceback_of_a_function_with_the_decorator_is_shown_live_and_in_the_report(
    launch: Launch, script: Script, decorated: str
) -> None:
    train = script(
        f"""
        from {decorated} import record

        @record
        def main():
            raise ValueError("bad batch 17")

        main()
        """
    )
    job = launch("--standalone", train, env={"PHALANX_COMPAT": "1"})

    assert job.wait() == 1
    assert job.stderr.count(b"\nValueError: bad batch 17\n") == 1, "as the interpreter writes it"
    assert job.stderr.count(b"\n  ValueError: bad batch 17\n") == 1, "in the report"
    assert b"standard error:" not in job.stderr
    assert b"_record.py" not in job.stderr


def test_on_a_terminal_of_80_columns_no_line_of_ours_is_wider(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, sys
        sys.stderr.write("\\x1b[2J\\x1b]0;owned\\x07" + "wide " * 40 + "\\n")
        raise ValueError("a batch of records that nobody would call good " * 4)
        """
    )
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    job = launch("--standalone", "--nproc-per-node", 2, "-r", 3, train, streams={"stderr": slave})
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    os.close(master)

    assert job.wait() == 1
    text = shown.decode().replace("\r\n", "\n")
    assert "\x1b" not in text
    report = text.partition("Root Cause")[2].rpartition("=====\n")[2]
    said = report[report.index("phalanx: stopped") if "phalanx: stopped" in report else 0 :]
    own = [line for line in said.splitlines() if line.startswith(("phalanx: ", " " * 9))]
    assert len(own) > 5
    assert [line for line in own if len(line) > 80 and " " in line[9:].strip()] == [], "a path is one word"
    assert "a batch of records that nobody would call good " * 4 in " ".join(said.split())


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # EIO: the last holder of the other end has gone
        return b""


# A worker may leave anything where its error file should be: the job's end is the worker's exit code all the same.
LEFT_BEHIND = {
    "nothing at all": "pass",
    "an empty file": "open(path, 'w').close()",
    "half of a JSON text": "open(path, 'w').write('{\"message\": {\"mess')",
    "a JSON list": "open(path, 'w').write('[1, 2]')",
    "JSON null inside": "open(path, 'w').write('{\"message\": null}')",
    "deeply nested JSON": "open(path, 'w').write('[' * 100_000)",
    "binary": "open(path, 'wb').write(bytes(range(256)) * 100)",
    "30 MB": "open(path, 'w').write('x' * 30_000_000)",
    "a folder": "os.mkdir(path)",
    "a pipe that nobody writes to": "os.mkfifo(path)",
    "a link to an endless file": "os.symlink('/dev/zero', path)",
}


@pytest.mark.parametrize("leave", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
def test_a_malformed_error_file_costs_neither_the_restart_nor_the_exit_code(
    launch: Launch, script: Script, leave: str
) -> None:
    train = script(
        f"""
        import os
        from telling import tell

        path = os.environ["TORCHELASTIC_ERROR_FILE"]
        {leave}
        tell("left")
        os._exit(7)
        """
    )
    job = launch("--standalone", "--max-restarts", 1, train)

    assert job.wait() == 7
    assert [event.restart for event in job.told("left", 2)] == [0, 1]
    assert job.summary
    assert b"Traceback" not in job.stderr
    assert len(job.stderr) < 200_000, "a huge error file is not printed"
