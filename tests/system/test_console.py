"""The launcher's own streams may be a terminal, closed, or blocked: the job does not suffer from it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Launch, Script


class Pipe:
    """A pipe whose writing end is for the launcher."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def close_writer(self) -> None:
        os.close(self.writer)
        self.writer = -1

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def read_line(self) -> bytes:
        """One line, which may come in pieces, and nothing of what follows it."""
        line = b""
        while not line.endswith(b"\n"):
            assert select.select([self.reader], [], [], LIMIT_S)[0], line
            byte = os.read(self.reader, 1)
            assert byte, line
            line += byte
        return line

    def read_all(self) -> bytes:
        """What is left until all writers are gone."""
        chunks: list[bytes] = []
        while True:
            assert select.select([self.reader], [], [], LIMIT_S)[0], "somebody keeps the pipe open"
            if not (chunk := os.read(self.reader, 1 << 16)):
                return b"".join(chunks)
            chunks.append(chunk)

    def close(self) -> None:
        for end in self.reader, self.writer:
            if end >= 0:
                os.close(end)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


WRITER = """
    import os, sys, time
    from telling import tell

    stream = sys.stdout if sys.argv[1] == "stdout" else sys.stderr
    print("first", file=stream, flush=True)
    tell("begun")
    while not os.path.exists("go"):
        time.sleep(0.01)
    for number in range(20_000):
        print("line", number, file=stream)
    stream.flush()
    tell("written")
"""
WRITTEN = b"first\n" + b"".join(b"line %d\n" % number for number in range(20_000))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_teed_job_goes_on_when_the_reader_of_the_console_is_gone(
    launch: Launch, script: Script, tmp_path: Path, pipe: Pipe, stream: str
) -> None:
    """`phalanx run … | head` must not end a training job, nor cost a byte of its logs."""
    job = launch(
        *(
            "--standalone",
            "--nproc-per-node",
            2,
            "-t",
            3,
            "--log-dir",
            tmp_path / "logs",
            script(WRITER),
            stream,
        ),
        streams={stream: pipe.writer},
    )
    pipe.close_writer()
    job.told("begun", 2)
    pipe.close_reader()
    (job.folder / "go").touch()

    assert job.wait() == 0
    for rank in 0, 1:
        (log,) = tmp_path.glob(f"logs/*/attempt_0/{rank}/{stream}.log")
        assert bool(log.read_bytes() == WRITTEN)


def test_a_plain_job_goes_on_when_the_reader_of_stderr_is_gone(
    launch: Launch, script: Script, pipe: Pipe
) -> None:
    job = launch(
        "--standalone", "--nproc-per-node", 2, script(WRITER), "stderr", streams={"stderr": pipe.writer}
    )
    pipe.close_writer()
    job.told("begun", 2)
    pipe.close_reader()
    (job.folder / "go").touch()

    assert job.wait() == 0
    assert len(job.told("written", 2)) == 2


def test_a_teed_line_is_shown_while_its_worker_runs_on(launch: Launch, script: Script, pipe: Pipe) -> None:
    train = script(
        """
        import os, time
        print("step 1", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        print("step 2")
        """
    )
    job = launch("--standalone", "-t", 1, train, streams={"stdout": pipe.writer})
    pipe.close_writer()

    assert pipe.read_line() == b"[default0]:step 1\n"
    (job.folder / "go").touch()
    assert pipe.read_all() == b"[default0]:step 2\n"
    assert job.wait() == 0


BLOCKED = """
    import os, signal, sys, time
    from telling import stay, tell

    def stop(*_):
        tell("asked")
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if os.environ["RANK"] == "0":
        tell("ready")
        stay()
    stream = sys.stdout if sys.argv[1] == "stdout" else sys.stderr
    stream.writelines("line %d\\n" % number for number in range(200_000))
    stream.flush()
    tell("written")
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(7)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_failure_is_acted_on_while_the_console_is_blocked(
    launch: Launch, script: Script, tmp_path: Path, pipe: Pipe, stream: str
) -> None:
    """Nobody reads: 2 MB cannot fit into the pipe. The files take all, and the loop keeps its duties."""
    job = launch(
        *(
            "--standalone",
            "--nproc-per-node",
            2,
            "-t",
            3,
            "--log-dir",
            tmp_path / "logs",
            script(BLOCKED),
            stream,
        ),
        streams={stream: pipe.writer},
    )
    pipe.close_writer()
    job.told("ready")
    job.told("written")
    (job.folder / "go").touch()

    assert [event.rank for event in job.told("asked")] == [0]

    lines = [line for line in pipe.read_all().splitlines(keepends=True) if line.startswith(b"[default1]:")]
    assert job.wait() == 7
    assert bool(lines == [b"[default1]:line %d\n" % number for number in range(200_000)])


def test_a_stop_signal_is_obeyed_while_workers_wait_for_a_blocked_stderr(
    launch: Launch, script: Script, pipe: Pipe
) -> None:
    train = script(
        """
        import os, signal, sys
        from telling import stay, tell

        signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), os._exit(0)))
        tell("ready")
        for _ in range(2000):  # 2 MB: more than a pipe holds
            sys.stderr.write("x" * 1000 + "\\n")
        stay()
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train, streams={"stderr": pipe.writer})
    pipe.close_writer()
    job.told("ready", 2)

    job.send(signal.SIGTERM)

    assert len(job.told("asked", 2)) == 2
    pipe.read_all()
    assert job.wait() == 143


TELL_TERMINALS = """
    import os, sys
    from telling import tell

    size = os.get_terminal_size(2) if sys.stderr.isatty() else None
    tell("streams", out=sys.stdout.isatty(), err=sys.stderr.isatty(), size=size)
    print("one\\ntwo", file=sys.stderr)
"""


class Terminal:
    """A pseudo-terminal: `screen` is for the launcher, the test sits at the keyboard."""

    def __init__(self, *, rows: int = 24, columns: int = 80) -> None:
        self.keyboard, self.screen = pty.openpty()
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read_all(self) -> bytes:
        """All that is shown until the last process has closed its end."""
        self._close_screen()
        chunks: list[bytes] = []
        while True:
            assert select.select([self.keyboard], [], [], LIMIT_S)[0], "somebody keeps the terminal open"
            try:
                chunks.append(os.read(self.keyboard, 1 << 16))
            except OSError:  # EIO: nobody is left
                return b"".join(chunks)

    def close(self) -> None:
        self._close_screen()
        if self.keyboard >= 0:
            os.close(self.keyboard)
            self.keyboard = -1

    def _close_screen(self) -> None:
        if self.screen >= 0:  # once: the number may be another's by now
            os.close(self.screen)
            self.screen = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(rows=33, columns=131)
    yield terminal
    terminal.close()


def test_a_script_finds_a_terminal_where_the_launcher_has_one(
    launch: Launch, script: Script, terminal: Terminal
) -> None:
    job = launch("--standalone", script(TELL_TERMINALS), streams={"stderr": terminal.screen})

    shown = terminal.read_all()

    assert job.wait() == 0
    (streams,) = job.told("streams")
    assert (streams["out"], streams["err"]) == (False, True)
    assert streams["size"] == [131, 33]
    assert shown == b"one\r\ntwo\r\n", "the terminal turns \\n into \\r\\n once, and nobody else does"


def test_a_flood_of_lines_to_a_terminal_is_shown_to_the_end(
    launch: Launch, script: Script, terminal: Terminal
) -> None:
    job = launch("--standalone", script(WRITER), "stderr", streams={"stderr": terminal.screen})
    job.told("begun")
    (job.folder / "go").touch()

    shown = terminal.read_all()

    assert job.wait() == 0
    assert bool(shown.replace(b"\r\n", b"\n") == WRITTEN)


def test_a_failure_on_a_terminal_has_the_stderr_tail_in_its_summary(
    launch: Launch, terminal: Terminal
) -> None:
    program = ("--no-python", "sh", "-c", "echo disk on fire >&2; exit 3")
    job = launch("--standalone", *program, streams={"stderr": terminal.screen})

    shown = terminal.read_all()

    assert job.wait() == 3
    before, _, summary = shown.partition(b"FAILED")
    assert b"disk on fire" in before
    assert b"disk on fire" in summary


# Make the terminal on stdin the controlling one of the session, as a login does.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"

AT_A_TERMINAL = """
    import signal, sys
    from telling import stay, tell

    def stop(number, frame):
        tell("asked", number=number)
        sys.exit(0)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, stop)
    tell("ready")
    stay()
"""


def test_ctrl_c_at_the_keyboard_asks_each_worker_once_and_gives_130(
    launch: Launch, script: Script, terminal: Terminal
) -> None:
    on_terminal = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.screen)
    train = script(AT_A_TERMINAL)
    job = launch(
        "--standalone",
        "--nproc-per-node",
        2,
        train,
        wrapper=(sys.executable, "-c", LOGIN),
        streams=on_terminal,
    )
    job.told("ready", 2)

    os.write(terminal.keyboard, b"\x03")

    terminal.read_all()
    assert job.wait() == 130
    assert [event["number"] for event in job.told("asked", 2)] == [signal.SIGINT, signal.SIGINT]


def test_a_closed_terminal_stops_the_job_in_order(launch: Launch, script: Script, terminal: Terminal) -> None:
    on_terminal = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.screen)
    train = script(AT_A_TERMINAL)
    job = launch(
        "--standalone",
        "--nproc-per-node",
        2,
        train,
        wrapper=(sys.executable, "-c", LOGIN),
        streams=on_terminal,
    )
    job.told("ready", 2)

    terminal.close()

    assert job.wait() == 129
    assert [event["number"] for event in job.told("asked", 2)] == [signal.SIGHUP, signal.SIGHUP]


def test_a_script_finds_no_terminal_where_the_launcher_has_none(launch: Launch, script: Script) -> None:
    job = launch("--standalone", script(TELL_TERMINALS))

    assert job.wait() == 0
    (streams,) = job.told("streams")
    assert (streams["out"], streams["err"]) == (False, False)
    assert job.stderr == b"one\ntwo\n"


def test_closed_standard_streams_do_not_stop_a_job(launch: Launch, script: Script) -> None:
    """Some cluster agents start commands with descriptors 0, 1 and 2 closed."""
    train = script("from telling import tell; tell('ran')")

    job = launch(
        "--standalone", "--nproc-per-node", 2, train, wrapper=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
    )

    assert job.wait() == 0
    assert len(job.told("ran", 2)) == 2


def test_the_first_worker_reads_the_launchers_input_and_the_others_read_nothing(
    launch: Launch, script: Script, pipe: Pipe
) -> None:
    train = script("import sys; from telling import tell; tell('read', text=sys.stdin.read())")
    job = launch("--standalone", "--nproc-per-node", 2, train, streams={"stdin": pipe.reader})

    os.write(pipe.writer, b"typed")
    pipe.close_writer()

    assert job.wait() == 0
    assert {event.rank: event["text"] for event in job.told("read", 2)} == {0: "typed", 1: ""}
