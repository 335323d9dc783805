"""What becomes of what workers write: real processes, pipes, terminals and files."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.multiprocessing.logs.conftest import PATIENCE_S

from phalanx.multiprocessing import inotify, outlets
from phalanx.multiprocessing.logs import DefaultLogsSpecs
from phalanx.multiprocessing.std import Std
from phalanx.multiprocessing.streams import StreamEnds, WorkerStreams

# Begins a worker's script: w(bytes) writes to stdout, e(bytes) to stderr; all of it, also when a write is cut short.
_SAY = (
    "import sys; w, e = (lambda b, f=open(n, 'wb', closefd=False): (f.write(b), f.flush()) for n in (1, 2));"
)


def log_threads() -> set[threading.Thread]:
    """Of this process. Those of other tests, which were there before, end when they like."""
    return {each for each in threading.enumerate() if each.name == "phalanx-logs"}


def descriptors() -> set[str]:
    """Of this process; what another test has left may be closed at any time."""
    return set(os.listdir("/proc/self/fd"))


def test_each_of_many_lines_is_shown_once_and_whole_and_files_are_exact(group, consoles) -> None:
    screen = consoles("stdout").read()
    script = "for i in range(50_000): print(f'{i:06d}' + 'x' * 84)"
    done = group(2, tee=Std.OUT).start(script, script).finish()
    lines = screen.everything().splitlines()
    expected = [f"{i:06d}".encode() + b"x" * 84 for i in range(50_000)]
    for rank in (0, 1):
        prefix = b"[w%d]:" % rank
        assert [line.removeprefix(prefix) for line in lines if line.startswith(prefix)] == expected
        assert done.written(rank, "stdout").splitlines() == expected
    assert len(lines) == 100_000


def test_a_line_written_in_parts_is_shown_once_and_a_last_line_without_newline_is_not_joined(
    group, consoles
) -> None:
    screen = consoles("stdout").read()
    script = (
        _SAY + "import time; w(b'one '); time.sleep(0.05); w(b'two '); time.sleep(0.05); w(b'three\\nend')"
    )
    done = group(2, tee=Std.ALL).start(script, script).finish()
    shown = Counter(screen.everything().splitlines())
    assert shown == Counter([b"[w0]:one two three", b"[w0]:end", b"[w1]:one two three", b"[w1]:end"])
    assert done.written(0, "stdout") == b"one two three\nend"


def test_a_progress_bar_shows_its_last_state_and_no_empty_lines(group, consoles) -> None:
    screen = consoles("stdout").read()
    script = (
        _SAY
        + "[w(b'\\rstep %d' % i) for i in range(500)]; w(b'\\n'); [w(b'\\rpart %d' % i) for i in range(500)]"
    )
    done = group(tee=Std.OUT).start(script).finish()
    assert screen.everything() == b"[w0]:step 499\n[w0]:part 499\n"
    assert done.written(0, "stdout").count(b"\r") == 1000


def test_bytes_that_are_no_text_stop_nothing_and_are_exact_in_the_file(group, consoles) -> None:
    screen = consoles("stdout").read()
    done = group(tee=Std.OUT).start(_SAY + "w(b'\\xff\\xfe\\0\\n'); w(b'after \\xc3\\xa9\\n')").finish()
    assert screen.everything().decode() == "[w0]:��\0\n[w0]:after é\n"
    assert done.written(0, "stdout") == b"\xff\xfe\0\nafter \xc3\xa9\n"


def test_a_line_is_shown_while_the_worker_still_runs(group, consoles) -> None:
    screen = consoles("stdout").read()
    running = group(tee=Std.OUT).start("import sys; print('ready'); sys.stdin.read()", stdin=subprocess.PIPE)
    screen.wait_for(b"[w0]:ready\n")
    assert running.workers[0].poll() is None
    running.workers[0].stdin.close()
    running.finish()


def test_prefixes_are_those_given(group, consoles) -> None:
    screen = consoles("stdout").read()
    group(tee=Std.OUT, streams={"prefixes": {0: "rank 7| "}}).start("print('x')").finish()
    assert screen.everything() == b"rank 7| x\n"


def test_stdout_and_stderr_go_each_to_its_own_console(group, consoles) -> None:
    out, err = consoles("stdout").read(), consoles("stderr").read()
    group(tee=Std.ALL).start(_SAY + "w(b'o\\n'); e(b'e\\n')").finish()
    assert (out.everything(), err.everything()) == (b"[w0]:o\n", b"[w0]:e\n")


def test_lines_stay_whole_when_both_consoles_are_one_pipe(group, consoles, monkeypatch) -> None:
    screen = consoles("stdout")
    monkeypatch.setattr(sys, "stderr", screen.stream)
    script = _SAY + "[(w(b'o' * 3000 + b'\\n'), e(b'e' * 3000 + b'\\n')) for _ in range(300)]"
    started = group(2, tee=Std.ALL).start(script, script).wait()
    assert not started.streams.drain(0.1)  # nobody reads, so both streams wait with half-written blocks
    screen.read()
    started.finish()
    lines = Counter(line for line in screen.everything().splitlines())
    assert lines == {b"[w%d]:" % rank + letter * 3000: 300 for rank in (0, 1) for letter in (b"o", b"e")}


def test_redirected_streams_are_files_that_the_worker_appends_to_and_the_console_stays_silent(
    group, consoles
) -> None:
    screen, errors = consoles("stdout").read(), consoles("stderr").read()
    script = (
        _SAY
        + "import fcntl, os; w(b'append' if fcntl.fcntl(1, fcntl.F_GETFL) & os.O_APPEND else b'not'); e(b'err')"
    )
    done = group(redirects=Std.ALL).start(script).finish()
    assert (screen.everything(), errors.everything()) == (b"", b"")
    assert (done.written(0, "stdout"), done.written(0, "stderr")) == (b"append", b"err")
    assert done.streams.stderr_tail(0) == b"err"


def test_nothing_redirected_needs_no_thread_and_opens_nothing(group, consoles) -> None:
    consoles("stdout").read(), consoles("stderr").read()
    streams = group(stderr_tail=0).streams
    before = log_threads()
    assert streams.open_for(0) == StreamEnds(None, None)
    streams.spawned(0)
    streams.worker_ended(0)
    assert streams.drain(0)
    assert streams.stderr_tail(0) == b""
    assert not log_threads() - before


def test_inherited_stderr_arrives_unchanged_and_its_last_bytes_are_kept(group, consoles) -> None:
    screen = consoles("stderr").read()
    consoles("stdout").read()
    data = b"".join(b"\xff%07d" % i for i in range(40_000)) + b"\r50%\nlast"
    done = (
        group(stderr_tail=1000)
        .start(_SAY + "e(b''.join(b'\\xff%07d' % i for i in range(40_000)) + b'\\r50%\\nlast')")
        .finish()
    )
    assert done.streams.stderr_tail(0) == data[-1000:]
    assert screen.everything() == data


def test_a_prompt_on_inherited_stderr_is_shown_though_its_line_does_not_end(group, consoles) -> None:
    screen = consoles("stderr").read()
    consoles("stdout").read()
    running = group(2).start(*[_SAY + "e(b'continue? '); sys.stdin.read()"] * 2, stdin=subprocess.PIPE)
    screen.wait_for(b"continue? continue? ")
    for worker in running.workers.values():
        worker.stdin.close()
    running.finish()


def test_the_tail_of_a_redirected_stderr_is_the_end_of_its_file(group, consoles) -> None:
    done = group(redirects=Std.ERR, stderr_tail=5).start(_SAY + "e(b'0123456789')").finish()
    assert done.streams.stderr_tail(0) == b"56789"


def test_a_worker_sees_a_terminal_of_the_same_size_when_our_stderr_is_one(group, consoles) -> None:
    screen = consoles("stderr", os.openpty).read()
    consoles("stdout").read()
    fcntl.ioctl(screen.stream.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", 33, 111, 0, 0))
    # The terminal of the console would turn "\n" into "\r\n" and so would one between; here neither may.
    mode = termios.tcgetattr(screen.stream.fileno())
    mode[1] &= ~termios.OPOST
    termios.tcsetattr(screen.stream.fileno(), termios.TCSANOW, mode)
    script = (
        _SAY + "import os; e(b'%r %r\\n\\xfe\\rx\\x03\\x04' % (os.isatty(2), tuple(os.get_terminal_size(2))))"
    )
    done = group().start(script).finish()
    shown = b"True (111, 33)\n\xfe\rx\x03\x04"
    assert done.streams.stderr_tail(0) == shown
    screen.wait_for(shown)


def test_a_terminal_keeps_the_bottom_row_for_a_progress_bar(group, consoles, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = consoles("stdout", os.openpty).read()
    running = group(2, tee=Std.OUT).start(
        _SAY + "w(b'\\r10%'); sys.stdin.read(); w(b'\\r99%\\n')",
        "import sys; sys.stdin.read(); print('hello')",
        stdin=subprocess.PIPE,
    )
    screen.wait_for(b"[w0]:10%")
    running.workers[1].stdin.close()
    shown = screen.wait_for(b"[w1]:hello\r\n")
    assert b"\r\x1b[K[w1]:hello" in shown  # the bar was wiped away before
    shown = screen.wait_for(b"[w1]:hello\r\n\r\x1b[K\x1b[?7l[w0]:10%")  # and is back below
    running.workers[0].stdin.close()
    running.finish()
    assert screen.wait_for(b"[w0]:99%\r\n").count(b"hello") == 1


def test_colour_is_asked_for_when_a_tee_goes_to_a_terminal(group, consoles, monkeypatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    consoles("stdout").read(), consoles("stderr", os.openpty).read()
    assert group(tee=Std.OUT).streams.environment() == {}
    assert group(tee=Std.ERR).streams.environment() == {"FORCE_COLOR": "1"}
    assert group(redirects=Std.ALL).streams.environment() == {}
    monkeypatch.setenv("NO_COLOR", "1")
    assert group(tee=Std.ERR).streams.environment() == {}


@pytest.mark.parametrize("options", [{}, {"tee": Std.ALL}, {"tee": Std.ALL, "max_bytes": 1000}], ids=str)
@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_child_that_keeps_the_stream_open_does_not_hold_up_the_drain(
    group, consoles, tmp_path: Path, options, kind
) -> None:
    consoles("stdout").read()
    screen = consoles("stderr", os.pipe if kind == "pipe" else os.openpty).read()
    pid_file = tmp_path / "child"
    script = (
        "import subprocess, sys\nchild = subprocess.Popen(['sleep', '1000'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\nsys.stderr.write('bye')"
    )
    try:
        done = group(**options).start(script).finish()
        assert done.streams.stderr_tail(0) == b"bye"
        screen.wait_for(b"bye")
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_what_a_child_writes_after_its_worker_is_still_shown(group, consoles) -> None:
    screen = consoles("stdout").read()
    script = (
        "import subprocess, sys; subprocess.Popen(['sh', '-c', 'read x; echo late']); sys.stdout.write('end')"
    )
    running = group(tee=Std.OUT).start(script, stdin=subprocess.PIPE).wait()
    assert running.streams.drain(30)
    screen.wait_for(b"[w0]:end\n")
    running.workers[0].stdin.close()
    screen.wait_for(b"[w0]:late\n")


def test_a_console_that_is_gone_stops_neither_workers_nor_files(group, consoles) -> None:
    consoles("stdout").leave()
    consoles("stderr").leave()
    script = _SAY + "[(w(b'o' * 89 + b'\\n'), e(b'e' * 89 + b'\\n')) for i in range(5000)]"
    done = group(2, tee={0: Std.OUT, 1: Std.ALL}, max_bytes=None).start(script, script).finish()
    for rank in (0, 1):
        assert done.written(rank, "stdout") == (b"o" * 89 + b"\n") * 5000
    assert done.written(1, "stderr") == (b"e" * 89 + b"\n") * 5000
    assert done.streams.stderr_tail(0) == ((b"e" * 89 + b"\n") * 5000)[-65536:]
    assert [worker.returncode for worker in done.workers.values()] == [0, 0]


def test_a_blocked_console_does_not_stop_workers_and_shows_everything_later(group, consoles) -> None:
    screen = consoles("stdout")
    errors = consoles("stderr").read()
    script = _SAY + "[w(b'%06d' % i + b'x' * 84 + b'\\n') for i in range(20_000)]; e(b'through\\n')"
    started = group(tee=Std.ALL).start(script).wait()
    errors.wait_for(b"[w0]:through\n")  # the other console goes on
    assert not started.streams.drain(0.2)
    screen.read()
    started.finish()
    assert [line[5:11] for line in screen.everything().splitlines()] == [b"%06d" % i for i in range(20_000)]


def test_closing_does_not_wait_for_a_blocked_console(group, consoles) -> None:
    screen = consoles("stdout")
    before = log_threads()
    started = group(tee=Std.OUT).start("for i in range(5000): print('x' * 89)").wait()
    [thread] = log_threads() - before
    started.streams.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert started.written(0, "stdout") == (b"x" * 89 + b"\n") * 5000
    screen.read()


def test_filters_copy_matching_lines_of_teed_streams(group, consoles) -> None:
    consoles("stdout").read(), consoles("stderr").read()
    filters = {"stdout_filters": ["loss", "\xe9"], "stderr_filters": ["WARN"]}
    script = _SAY + "w(b'loss=1\\nother\\n\\xc3\\xa9\\nlo'); w(b'ss=2'); e(b'WARN a\\nloss\\n')"
    done = (
        group(3, tee={0: Std.ALL, 1: Std.ALL}, redirects=Std.ALL, streams=filters)
        .start(*[script] * 3)
        .finish()
    )
    out = Counter(Path(done.dest.filtered_stdout).read_text().splitlines())
    assert out == Counter(f"[w{rank}]:{line}" for rank in (0, 1) for line in ("loss=1", "\xe9", "loss=2"))
    assert sorted(Path(done.dest.filtered_stderr).read_text().splitlines()) == ["[w0]:WARN a", "[w1]:WARN a"]


def test_without_filters_there_are_no_filtered_files(group, consoles) -> None:
    consoles("stdout").read()
    done = group(tee=Std.OUT).start("print('x')").finish()
    assert not Path(done.dest.filtered_stdout).exists()


def test_a_rank_that_is_filtered_out_is_silent_but_keeps_its_files(group, consoles) -> None:
    screen, errors = consoles("stdout").read(), consoles("stderr").read()
    script = _SAY + "w(b'o\\n'); e(b'e\\n')"
    done = group(2, tee=Std.OUT, local_ranks_filter={1}).start(script, script).finish()
    assert (screen.everything(), errors.everything()) == (b"[w1]:o\n", b"e\n")
    assert done.written(0, "stdout") == b"o\n"


def test_a_capped_log_keeps_its_head_and_its_tail_and_the_screen_everything(group, consoles) -> None:
    screen = consoles("stdout").read()
    consoles("stderr").read()
    script = "for i in range(20_000): print(f'{i:09d}')"
    done = group(tee=Std.OUT, max_bytes=40_000).start(script).finish()
    everything = b"".join(b"%09d\n" % i for i in range(20_000))
    head = done.written(0, "stdout")
    folder = Path(done.dest.stdouts[0]).parent
    tail = (folder / "stdout.log.tail.1").read_bytes() + (folder / "stdout.log.tail").read_bytes()
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert len(head) + len(tail) <= 40_000
    assert min(len(head), len(tail)) >= 10_000
    assert screen.everything().replace(b"[w0]:", b"") == everything


def test_a_capped_stderr_still_has_its_tail(group, consoles) -> None:
    done = group(redirects=Std.ERR, max_bytes=1000).start(_SAY + "e(b'x' * 100_000 + b'end')").finish()
    assert done.streams.stderr_tail(0) == b"x" * (65536 - 3) + b"end"


def test_a_full_disk_under_a_cap_ends_the_file_and_not_the_worker(group, consoles, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    screen = consoles("stdout").read()
    monkeypatch.setattr("phalanx.multiprocessing.rotation.CappedFile.take", fail)
    done = group(tee=Std.OUT, max_bytes=1000).start(_SAY + "w(b'x' * 200_000 + b'\\n')").finish()
    assert screen.everything() == b"[w0]:" + b"x" * 200_000 + b"\n"
    assert done.workers[0].returncode == 0


def test_without_inotify_files_are_still_followed(group, consoles, monkeypatch) -> None:
    def fail(self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify.Inotify, "__init__", fail)
    screen = consoles("stdout").read()
    running = group(tee=Std.OUT).start(
        "import sys; print('first'); sys.stdin.read(); print('second')", stdin=subprocess.PIPE
    )
    screen.wait_for(b"[w0]:first\n")
    running.workers[0].stdin.close()
    running.finish()
    assert screen.everything() == b"[w0]:first\n[w0]:second\n"


def test_lost_notices_make_every_file_be_looked_at(group, consoles, monkeypatch) -> None:
    monkeypatch.setattr(
        inotify.Inotify, "read", lambda self: (os.read(self.fileno(), 1 << 16), {-1: inotify.OVERFLOW})[1]
    )
    screen = consoles("stdout").read()
    running = group(tee=Std.OUT).start("import sys; print('ready'); sys.stdin.read()", stdin=subprocess.PIPE)
    screen.wait_for(b"[w0]:ready\n")
    running.workers[0].stdin.close()
    running.finish()


def test_a_log_that_is_cut_short_is_followed_from_its_start(group, consoles) -> None:
    screen = consoles("stdout").read()
    running = group(tee=Std.OUT).start(
        "import sys; print('before' * 50); sys.stdin.read(); print('after')", stdin=subprocess.PIPE
    )
    screen.wait_for(b"before\n")
    os.truncate(running.dest.stdouts[0], 0)
    running.workers[0].stdin.close()
    running.finish()
    assert screen.everything().endswith(b"before\n[w0]:after\n")


def test_a_bug_of_ours_lets_workers_run_and_is_told_at_the_drain(group, consoles, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    told: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", told.append)
    monkeypatch.setattr(outlets.ConsoleCopy, "take", fail)
    consoles("stderr").read()
    consoles("stdout").read()
    started = group().start(_SAY + "e(b'x' * 1_000_000)").wait()
    assert started.workers[0].returncode == 0
    with pytest.raises(RuntimeError, match="log thread"):
        started.streams.drain(30)
    assert told[0].exc_type is ZeroDivisionError


def test_forked_workers_are_all_spawned_before_a_thread_starts(group, consoles) -> None:
    consoles("stdout").read()
    streams = group(2, tee=Std.OUT, streams={"forks": True}).streams
    before = log_threads()
    for rank in (0, 1):
        assert not log_threads() - before
        streams.open_for(rank)
        streams.spawned(rank)
    assert len(log_threads() - before) == 1


def test_everything_is_closed_in_the_end(group, consoles) -> None:
    consoles("stdout").read(), consoles("stderr").read()
    before = descriptors()
    threads = log_threads()
    options = {"stdout_filters": ["x"]}
    done = (
        group(3, tee={0: Std.ALL}, redirects={1: Std.ALL}, streams=options)
        .start(*["print('x')"] * 3)
        .finish()
    )
    done.streams.close()
    assert descriptors() <= before
    assert not log_threads() - threads


def test_a_worker_that_could_not_be_started_leaves_nothing_open(group, consoles) -> None:
    consoles("stdout").read(), consoles("stderr").read()
    before = descriptors()
    streams = group(2, tee={0: Std.ALL}).streams
    streams.open_for(0)
    streams.open_for(1)
    streams.close()
    assert descriptors() <= before


def test_a_log_that_cannot_be_opened_is_an_error_that_leaves_nothing_open(group, consoles) -> None:
    before = descriptors()
    made = group(redirects=Std.ALL)
    os.mkdir(made.dest.stderrs[0])
    with pytest.raises(IsADirectoryError):
        made.streams.open_for(0)
    assert descriptors() <= before


_QUIET = """
import os, subprocess, sys, threading, time
from phalanx.multiprocessing.logs import DefaultLogsSpecs
from phalanx.multiprocessing.std import Std
from phalanx.multiprocessing.streams import WorkerStreams
dest = DefaultLogsSpecs(log_dir=sys.argv[1], tee=Std.OUT).reify({0: {}})
streams = WorkerStreams(dest, local_ranks=[0], name="w")
ends = streams.open_for(0)
worker = subprocess.Popen(["sh", "-c", "echo hello; exec sleep 1000"], stdout=ends.stdout, stderr=ends.stderr)
streams.spawned(0)
def switches():
    thread = next(t for t in threading.enumerate() if t.name == "phalanx-logs")
    text = open(f"/proc/self/task/{thread.native_id}/status").read()
    return int(text.split("\\nvoluntary_ctxt_switches:")[1].split()[0])
while open(dest.stdouts[0]).read() != "hello\\n":
    time.sleep(0.01)
found = []
while 0 not in found and len(found) < 8:  # until all of the start has settled, however slowly
    before = switches()
    time.sleep(6)
    found.append(switches() - before)
print("woken", min(found), "times", file=sys.stderr)
worker.kill(); worker.wait(); streams.worker_ended(0); streams.drain(30); streams.close()
"""


@pytest.mark.slow
def test_the_thread_never_wakes_while_workers_are_quiet(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", _QUIET, str(tmp_path)], capture_output=True, timeout=100)
    assert result.stdout == b"[w0]:hello\n"
    assert result.stderr == b"woken 0 times\n"


_LOUD = """
import os, resource, subprocess, sys
from phalanx.multiprocessing.logs import DefaultLogsSpecs
from phalanx.multiprocessing.std import Std
from phalanx.multiprocessing.streams import WorkerStreams
dest = DefaultLogsSpecs(log_dir=sys.argv[1], tee=Std.OUT).reify({0: {}, 1: {}})
streams = WorkerStreams(dest, local_ranks=range(2), name="w")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
workers = []
for rank, line in enumerate(("x" * 89, "y" * 200_000)):
    ends = streams.open_for(rank)
    script = f"yes {line[:1]} | tr -d '\\\\n' | fold -w {len(line)} | head -c 50000000"
    workers.append(subprocess.Popen(["sh", "-c", script], stdout=ends.stdout, stderr=ends.stderr))
    streams.spawned(rank)
for rank, worker in enumerate(workers):
    worker.wait()
    streams.worker_ended(rank)
assert streams.drain(100)
streams.close()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)
"""


def test_a_hundred_megabytes_pass_in_bounded_memory(tmp_path: Path) -> None:
    with open(tmp_path / "shown", "wb") as shown:
        result = subprocess.run(
            [sys.executable, "-c", _LOUD, str(tmp_path)], stdout=shown, stderr=subprocess.PIPE, timeout=150
        )
    assert result.returncode == 0, result.stderr
    assert int(result.stderr) < 16 * 1024, f"{int(result.stderr)} KiB more than before"
    lengths: Counter[tuple[bytes, int]] = Counter()
    with open(tmp_path / "shown", "rb") as shown:
        for line in shown:
            lengths[line[:6], len(line)] += 1
    whole = {key: count for key, count in lengths.items() if count > 1}
    assert whole == {(b"[w0]:x", 5 + 90): 50_000_000 // 90, (b"[w1]:y", 5 + 200_001): 50_000_000 // 200_001}


def test_lines_reach_the_log_thread_with_every_signal_blocked_there(group, consoles) -> None:
    consoles("stdout").read()
    before = log_threads()
    running = group(tee=Std.OUT).start("import sys; sys.stdin.read()", stdin=subprocess.PIPE)
    [thread] = log_threads() - before
    running.workers[0].stdin.close()
    running.wait()
    status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    mask = int(status.split("SigBlk:")[1].split()[0], 16)
    assert all(
        mask >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGTTOU)
    )


def test_specs_and_streams_fit_torchelastics_null_folder(consoles) -> None:
    screen = consoles("stdout").read()
    consoles("stderr").read()
    dest = DefaultLogsSpecs(log_dir=os.devnull, tee=Std.ALL, stderr_tail=0).reify({0: {}})
    streams = WorkerStreams(dest, local_ranks=[0])
    assert streams.open_for(0) == StreamEnds(None, None)
    streams.close()
    assert screen.everything() == b""
