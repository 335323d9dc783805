"""``--debug-rank``: a person sits at a terminal and debugs one worker of several with ``breakpoint()``."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Job, Launch, Script, two_free_ports

# Make the terminal on stdin the controlling one of the session, as a login does.
LOGIN = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


PRESS_AGAIN_S, QUIET_S = 5.0, 1.0


class Person:
    """Types at the keyboard of a pseudo-terminal, and reads its screen."""

    def __init__(self) -> None:
        self.keyboard, self.screen = pty.openpty()
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self.seen = b""

    def type(self, text: bytes) -> None:
        os.write(self.keyboard, text)

    def read_until(self, pattern: bytes) -> bytes:
        """What is shown from here on up to the pattern."""
        deadline = time.monotonic() + LIMIT_S
        while (found := re.search(pattern, self.seen)) is None:
            assert select.select([self.keyboard], [], [], deadline - time.monotonic())[0], self.seen
            self.seen += os.read(self.keyboard, 1 << 16)
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def press_until(self, key: bytes, pattern: bytes) -> None:
        """Press it, and again if nothing comes of it: readline may show its prompt before it listens to signals.

        Then wait until the screen is quiet: an answer to the first press may come after the second, and what is typed
        before a signal is answered is lost with it.
        """
        deadline = time.monotonic() + LIMIT_S
        pressed_at = 0.0
        while re.search(pattern, self.seen) is None:
            assert time.monotonic() < deadline, self.seen
            if time.monotonic() - pressed_at > PRESS_AGAIN_S:
                self.type(key)
                pressed_at = time.monotonic()
            self._look(0.1)
        while self._look(QUIET_S):
            pass

    def _look(self, limit_s: float) -> bool:
        is_news = bool(select.select([self.keyboard], [], [], limit_s)[0])
        if is_news:
            self.seen += os.read(self.keyboard, 1 << 16)
        return is_news

    def read_rest(self) -> bytes:
        """What is shown until nobody holds the terminal any more."""
        os.close(self.screen)
        self.screen = -1
        while True:
            assert select.select([self.keyboard], [], [], LIMIT_S)[0], "somebody keeps the terminal"
            try:
                self.seen += os.read(self.keyboard, 1 << 16)
            except OSError:  # EIO: nobody is left
                return self.seen

    def close(self) -> None:
        for end in {self.keyboard, self.screen} - {-1}:
            os.close(end)


@pytest.fixture
def person() -> Iterator[Person]:
    person = Person()
    yield person
    person.close()


def at_terminal(launch: Launch, person: Person, *words: object) -> Job:
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), person.screen)
    return launch(*words, wrapper=(sys.executable, "-c", LOGIN), streams=streams, env={"TERM": "dumb"})


DEBUGGED = """
    import os, sys
    from telling import tell

    rank = int(os.environ["RANK"])
    tell("terminals", is_tty=[os.isatty(0), os.isatty(1), os.isatty(2)])
    print(f"noise of rank {rank}", flush=True)
    print(f"more noise of rank {rank}", file=sys.stderr, flush=True)
    answer = 41
    if rank == 1:
        breakpoint()
        tell("went on", answer=answer)
"""


def test_a_breakpoint_can_be_used_at_the_terminal_and_nobody_else_writes_there(
    launch: Launch, script: Script, person: Person, tmp_path: Path
) -> None:
    flags = ("--nproc-per-node", 2, "--debug-rank", 1, "--omp-threads", 1, "--log-dir", tmp_path / "logs")
    job = at_terminal(launch, person, *flags, script(DEBUGGED))

    shown = person.read_until(rb"\(Pdb\) ")
    assert b"phalanx: rank 1 has this terminal, and Ctrl-C reaches it alone" in shown
    assert b"\r\nnoise of rank 1\r\nmore noise of rank 1\r\n" in shown, "as it is, without a prefix"
    person.type(b"p answer + 1\n")
    assert b"42" in person.read_until(rb"\(Pdb\) ")
    person.type(b"answer = 7\n")
    person.read_until(rb"\(Pdb\) ")
    person.type(b"continue\n")

    rest = person.read_rest()
    assert job.wait() == 0
    assert b"rank 0" not in shown + rest
    assert job.told("went on")[0]["answer"] == 7
    found = {one.rank: one["is_tty"] for one in job.told("terminals", 2)}
    assert found == {0: [False, False, False], 1: [True, True, True]}
    (log,) = tmp_path.glob("logs/*/attempt_0/0/stdout.log")
    assert log.read_text() == "noise of rank 0\n"


def test_output_of_the_others_is_shown_too_if_that_was_asked_for(
    launch: Launch, script: Script, person: Person, tmp_path: Path
) -> None:
    flags = ("--nproc-per-node", 2, "--debug-rank", 1, "-t", 3, "--log-dir", tmp_path / "logs")
    job = at_terminal(launch, person, *flags, script(DEBUGGED))

    shown = person.read_until(rb"\(Pdb\) ")
    person.type(b"c\n")
    shown += person.read_rest()
    assert job.wait() == 0
    assert b"[default0]:noise of rank 0\r\n" in shown
    assert b"[default1]:" not in shown


BUSY = """
    import os, time
    from telling import stay, tell

    rank = int(os.environ["RANK"])
    if rank == 1:
        breakpoint()
        tell("busy")
        try:
            stay()
        except KeyboardInterrupt:
            tell("interrupted")
            raise
    tell("ready")
    stay()
"""


def test_ctrl_c_reaches_the_debugged_rank_alone_and_brings_the_prompt_back(
    launch: Launch, script: Script, person: Person
) -> None:
    """pdb stops at the next line when Ctrl-C comes to a program that it lets run."""
    train = script(
        """
        import os, time
        from telling import stay, tell

        if os.environ["RANK"] == "0":
            tell("ready")
            stay()
        breakpoint()
        tell("busy")
        while "GO" not in os.environ:  # what any frame can set: Ctrl-C may come before tell() has returned
            time.sleep(0.01)
        tell("went on")
        """
    )
    flags = ("--nproc-per-node", 2, "--debug-rank", 1, "--omp-threads", 1)
    job = at_terminal(launch, person, *flags, train)
    job.told("ready")
    person.read_until(rb"\(Pdb\) ")
    person.press_until(b"\x03", rb"KeyboardInterrupt(?s:.)*\(Pdb\) ")  # at the prompt: pdb's own affair
    person.type(b"continue\n")
    job.told("busy")

    person.type(b"\x03")

    person.read_until(rb"Program interrupted(?s:.)*\(Pdb\) ")
    person.type(b"import os; os.environ['GO'] = '1'\n")
    person.read_until(rb"\(Pdb\) ")
    person.type(b"continue\n")
    job.told("went on")
    person.type(b"\x1c")  # Ctrl-\\: rank 0 would stay for ever
    assert b"SIGQUIT" in person.read_rest()
    assert job.wait() == 131


def test_ctrl_backslash_ends_a_job_that_waits_at_a_breakpoint(
    launch: Launch, script: Script, person: Person
) -> None:
    job = at_terminal(launch, person, "--nproc-per-node", 2, "--debug-rank", 1, script(BUSY))
    person.read_until(rb"\(Pdb\) ")
    job.told("ready")

    person.type(b"\x1c")

    person.read_rest()
    assert job.wait() == 131


MODES_OF_LINES = termios.ECHO | termios.ICANON


def local_modes(person: Person) -> int:
    return int(termios.tcgetattr(person.screen)[3])


@pytest.mark.parametrize("ending", ["stopped", "killed", "failed elsewhere"])
def test_the_terminal_is_as_it_was_when_a_worker_has_died_at_the_prompt_of_its_debugger(
    launch: Launch, script: Script, person: Person, ending: str
) -> None:
    train = script(
        """
        import os
        from pathlib import Path
        from telling import stay, tell

        tell("ready")
        if os.environ["RANK"] == "1":
            import readline  # that sets the modes is what this is about
            breakpoint()
        while not Path("fail").exists():
            import time; time.sleep(0.05)
        raise SystemExit(9)
        """
    )
    before = termios.tcgetattr(person.screen)
    screen = os.dup(person.screen)
    try:
        job = at_terminal(launch, person, "--nproc-per-node", 2, "--debug-rank", 1, train)
        person.read_until(rb"\(Pdb\) ")
        worker = {one.rank: one.pid for one in job.told("ready", 2)}[1]
        deadline = time.monotonic() + LIMIT_S
        while local_modes(person) & MODES_OF_LINES:
            assert time.monotonic() < deadline, "readline sets no modes here"
            time.sleep(0.02)

        if ending == "stopped":
            person.type(b"\x1c")
        elif ending == "killed":
            os.kill(worker, signal.SIGKILL)
        else:
            Path(job.folder, "fail").touch()

        assert job.wait() == {"stopped": 131, "killed": 137, "failed elsewhere": 9}[ending]
        assert termios.tcgetattr(screen) == before
    finally:
        os.close(screen)


def test_a_breakpoint_that_has_nobody_to_read_from_is_told_of_the_flag(
    launch: Launch, script: Script
) -> None:
    job = launch("--nproc-per-node", 2, script(DEBUGGED))
    assert job.wait() == 1
    advice = b"a debugger had nothing to read; with --debug-rank 1 it has the launcher's terminal"
    assert job.stderr.count(advice) == 1, job.stderr

    job = launch("--nproc-per-node", 2, "--debug-rank", 1, script(DEBUGGED))
    assert job.wait() == 1
    assert b"phalanx: --debug-rank 1: standard input is no terminal here, so nobody can type" in job.stderr
    assert b"has this terminal" not in job.stderr
    assert b"a debugger had nothing to read: the launcher's standard input is no terminal" in job.stderr


def test_ctrl_c_stops_the_job_when_the_debugged_rank_has_ended(
    launch: Launch, script: Script, person: Person
) -> None:
    train = script(
        """
        import os
        from telling import stay, tell

        tell("ready")
        if os.environ["RANK"] == "0":
            stay()
        """
    )
    job = at_terminal(launch, person, "--nproc-per-node", 2, "--debug-rank", 1, train)
    # Of both: the one that stays may be ready before the other one is there.
    pids = {one.rank: one.pid for one in job.told("ready", 2)}
    # The other one has ended when its launcher has taken note of it: then it is no child any more.
    children = Path(f"/proc/{job.process.pid}/task/{job.process.pid}/children")
    deadline = time.monotonic() + LIMIT_S
    while str(pids[1]) in children.read_text().split():
        assert time.monotonic() < deadline, children.read_text()
        time.sleep(0.05)

    person.type(b"\x03")

    person.read_rest()
    assert job.wait() == 130


def test_nobody_is_late_while_somebody_debugs(launch: Launch, script: Script, person: Person) -> None:
    """With a limit of half a second for stragglers, the debugged rank is at its prompt for longer."""
    train = script(
        """
        import os
        from telling import tell

        if os.environ["RANK"] == "1":
            breakpoint()
            tell("went on")
        """
    )
    flags = ("--nproc-per-node", 2, "--debug-rank", 1, "--straggler-timeout", 0.5)
    job = at_terminal(launch, person, *flags, train)
    shown = person.read_until(rb"\(Pdb\) ")
    assert b"No time limit on slow workers holds meanwhile" in shown

    time.sleep(2)  # of nothing: four times the limit
    person.type(b"continue\n")

    person.read_rest()
    assert job.wait() == 0
    job.told("went on")


def test_a_rank_of_another_node_has_that_ones_terminal_and_a_rank_that_is_not_there_has_none(
    launch: Launch, script: Script
) -> None:
    train = script("from telling import tell; tell('ran')")
    for rank, lines in (
        (
            1,
            [
                b"--debug-rank 1: it runs on another node",
                b"--debug-rank 1: standard input is no terminal here",
            ],
        ),
        (7, [b"--debug-rank 7: there is no such rank, this round has ranks 0 to 1"] * 2),
    ):
        port = two_free_ports()
        flags = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port, "--debug-rank", rank)
        nodes = [launch(*flags, "--node-rank", number, train) for number in range(2)]
        assert [node.wait() for node in nodes] == [0, 0]
        for node, line in zip(nodes, lines, strict=True):
            assert node.stderr.count(line) == 1, node.stderr


def test_what_a_signal_to_the_launcher_means_does_not_change_but_for_ctrl_c(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import signal
        from telling import stay, tell

        signal.signal(signal.SIGTERM, lambda *_: (tell("asked"), exit(0)))
        tell("ready")
        stay()
        """
    )
    job = launch("--nproc-per-node", 2, "--debug-rank", 0, train)
    job.told("ready", 2)
    job.send(signal.SIGTERM)
    assert job.wait() == 143
    assert len(job.told("asked", 2)) == 2
