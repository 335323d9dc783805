"""Where a process stands, asked of it or of ``py-spy``, and written down for people.

faulthandler says nothing when it has written its last line. But the signal is held back in the thread that writes, as
in any handler: when there is text, and no thread holds the signal back any more that did not before, it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from socket import gethostname
from typing import Self

from phalanx.errors._boot import STACKS_SIGNAL
from phalanx.errors._failure import without_our_frames
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.pidfd import has_ended, is_supported
from phalanx.multiprocessing.procfs import read_file, read_stat, start_ticks_of

__all__ = ["FILE_NAME", "Asked", "py_spy", "save"]

FILE_NAME = "stacks.txt"
# A hundred threads of a hundred frames take 20 ms; a process that swaps, or is far behind on its CPU, takes longer.
ANSWER_S = 2.0
PY_SPY_S = 2.0  # it reads symbols of the interpreter first, 0.3 s on a slow machine
FIRST_LOOK_S, LAST_LOOK_S = 0.001, 0.05
ENDS_WITHIN_S = 0.5  # who was killed, if the kernel lets it
DUMP_BYTES_MAX = 4 << 20  # faulthandler writes 100 threads at most, of 100 frames each
FILE_BYTES_MAX = 32 << 20  # a script whose timers end nobody can have many
ADVICE = "install py-spy beside the launcher (pip install py-spy) to see"
# faulthandler's last line when there are more threads: it writes the newest, and the main one is the oldest.
CUT = "..."
CUT_WORDS = "only the newest 100 threads are shown, of which the main thread mostly is none"
STATES = {"D": "it waits in the kernel", "T": "it is stopped", "t": "a debugger holds it"}


class Asked:
    """One worker whose stacks are wanted. ``is_asked`` is set when the signal was sent."""

    __slots__ = (
        "_blocked",
        "_file",
        "_handle",
        "_start",
        "_ticks",
        "folder",
        "is_asked",
        "pid",
        "rank",
        "text",
    )

    def __init__(self, rank: int, pid: int, folder: str, file: NamelessFile, handle: int) -> None:
        self.rank = rank
        self.pid = pid
        self.folder = folder
        """Of its logs; empty: it has none."""
        self.is_asked = False
        self.text = ""
        self._file = file
        self._handle = handle  # -1: this system has none
        self._ticks = start_ticks_of(pid)
        self._start = 0
        self._blocked: frozenset[str] = frozenset()

    @classmethod
    def of(cls, rank: int, pid: int, folder: str, file: NamelessFile) -> Self:
        """``file`` is where its faulthandler writes. Handles of our own are taken, as the round may end meanwhile.

        Raises ``OSError``.
        """
        own = NamelessFile.of(os.dup(file.fd))
        try:
            return cls(rank, pid, folder, own, os.pidfd_open(pid) if is_supported() else -1)
        except OSError:
            own.close()
            raise

    @property
    def is_gone(self) -> bool:
        """Whether it has ended: its number may be another process's by now."""
        if self._handle >= 0:
            return has_ended(self._handle)
        stat = read_stat(self.pid)
        return stat is None or stat.state == "Z" or stat.start_ticks != self._ticks

    @property
    def is_full(self) -> bool:
        """Whether it has told so often that its file, which is in memory, gets no more."""
        return os.fstat(self._file.fd).st_size >= FILE_BYTES_MAX

    def ask(self) -> None:
        """Send it the signal, if it can answer."""
        if not self.is_full and self._can_answer():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it is another user's now (sudo)
                if self._handle >= 0:
                    signal.pidfd_send_signal(self._handle, STACKS_SIGNAL)
                elif not self.is_gone:
                    os.kill(self.pid, STACKS_SIGNAL)
                self.is_asked = True

    def _can_answer(self) -> bool:
        """Whether it catches the signal, and has the file that it would write to still open.

        A script that closes all descriptors, and opens others under their numbers, must not find stacks in its files.
        """
        if not _mask(read_file(f"/proc/{self.pid}/status", None), b"SigCgt:", STACKS_SIGNAL):
            return False
        with contextlib.suppress(OSError):
            own = os.readlink(f"/proc/self/fd/{self._file.fd}")
            for name in os.listdir(f"/proc/{self.pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{self.pid}/fd/{name}") == own:
                        self._start = os.fstat(self._file.fd).st_size
                        self._blocked = self._holding()
                        return True
        return False

    @property
    def has_answered(self) -> bool:
        """Whether its stacks are in the file, all of them."""
        if os.fstat(self._file.fd).st_size <= self._start:
            return False
        return self._holding() <= self._blocked

    def read(self) -> str:
        """What it has written since it was asked."""
        return self._file.read(DUMP_BYTES_MAX, start=self._start).decode("utf-8", "replace")

    @property
    def is_cut(self) -> bool:
        """Whether it has told of its newest threads alone."""
        return self.text.endswith(f"\n{CUT}")

    def close(self) -> None:
        """Give the handles back."""
        self._file.close()
        if self._handle >= 0:
            os.close(self._handle)

    def _holding(self) -> frozenset[str]:
        """Threads in which the signal is held back: by their own choice, or because they are in its handler."""
        try:
            threads = os.listdir(f"/proc/{self.pid}/task")
        except OSError:
            return frozenset()
        place = f"/proc/{self.pid}/task"
        return frozenset(
            one
            for one in threads
            if _mask(read_file(f"{place}/{one}/status", None), b"SigBlk:", STACKS_SIGNAL)
        )


def py_spy() -> str | None:
    """The program, on the PATH or beside this interpreter; None: it is not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)


def save(asked: Sequence[Asked], reason: str, spy: str | None, spare: Callable[[int], None]) -> list[str]:
    """Ask, wait for the answers, ask ``spy`` for the others, and append all to files; returns what could not be done.

    Takes ``ANSWER_S + PY_SPY_S + ENDS_WITHIN_S`` at most. ``spare`` is told the pid of each program that is started.
    """
    for one in asked:
        one.ask()
    _await([one for one in asked if one.is_asked])
    for one in asked:
        text = one.read() if one.is_asked else ""
        one.text = without_our_frames(text).strip("\n")
    lacking = [one for one in asked if not one.text or one.is_cut]
    if spy is not None:
        _ask([one for one in lacking if not one.is_gone], spy, spare)
    for one in lacking:
        if not one.text:
            one.text = f"no stack: {_why_silent(one)}; {ADVICE} such a process"
        elif one.is_cut:
            one.text += f"\n\n{CUT_WORDS}; {ADVICE} all of them"
    lines = {line: None for one in asked if (line := _append(one, reason))}
    return list(lines)


def _await(asked: list[Asked]) -> None:
    give_up_at = time.monotonic() + ANSWER_S
    pause_s = FIRST_LOOK_S
    while asked := [one for one in asked if not (one.has_answered or one.is_gone)]:
        left_s = give_up_at - time.monotonic()
        if left_s <= 0:
            return
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, LAST_LOOK_S)


def _ask(lacking: list[Asked], spy: str, spare: Callable[[int], None]) -> None:
    """All at once: each reads a process of its own, and has the same time."""
    running = []
    for one in lacking:
        with contextlib.suppress(OSError):
            program = subprocess.Popen(
                [spy, "dump", "--full-filenames", "--pid", str(one.pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            spare(program.pid)
            running.append((one, program))
    give_up_at = time.monotonic() + PY_SPY_S
    late = []
    for one, program in running:
        try:
            out, err = program.communicate(timeout=max(0.0, give_up_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            program.kill()
            late.append(program)
            one.text = f"{_so_far(one)}, and py-spy did not tell within {PY_SPY_S:g} s"
            continue
        if one.is_gone:
            continue  # what was read may have been another's
        said = (out if out.strip() else err).decode("utf-8", "replace").strip("\n")
        found = program.returncode == 0 and out.strip()
        if not found:
            head = f"{_so_far(one)}, and py-spy says:\n"
        elif one.is_cut:
            head = f"{_so_far(one)}; all of them, told by py-spy:\n"
        else:
            head = "told by py-spy:\n"
        one.text = head + without_our_frames(said)
    _let_go(late)


def _let_go(killed: list[subprocess.Popen[bytes]]) -> None:
    """The kernel may hold them as it holds the workers."""
    give_up_at = time.monotonic() + ENDS_WITHIN_S
    for program in killed:
        for stream in (program.stdout, program.stderr):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(max(0.0, give_up_at - time.monotonic()))


def _so_far(one: Asked) -> str:
    """What is known without py-spy."""
    return f"{one.text}\n\n{CUT_WORDS}" if one.is_cut else f"no stack: {_why_silent(one)}"


def _why_silent(one: Asked) -> str:
    stat = read_stat(one.pid)
    if stat is None or one.is_gone:
        return "the process has ended"
    if one.is_full:
        return f"the process has told {FILE_BYTES_MAX >> 20} MiB of stacks in this round already"
    if not one.is_asked:
        return "the process does not tell by itself (no Python that was started here, or it has changed that)"
    state = f": {STATES[stat.state]}" if stat.state in STATES else ""
    return f"the process did not answer within {ANSWER_S:g} s{state}"


def _append(one: Asked, reason: str) -> str:
    """Write it down; returns a line on why that cannot be done, or nothing."""
    if not one.folder:
        return "stacks are not saved: this job has no log folder"
    now = datetime.now().astimezone().isoformat(" ", "milliseconds")
    text = f"{now}, rank {one.rank} on {gethostname()}, process {one.pid}, saved because {reason}:\n\n{one.text}\n\n"
    path = os.path.join(one.folder, FILE_NAME)
    try:
        os.makedirs(one.folder, exist_ok=True)
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            if file.tell() < FILE_BYTES_MAX:
                file.write(text)
    except OSError as error:
        return f"stacks cannot be saved to {path!r}: {error.strerror or error}"
    return ""


def _mask(status: bytes | None, name: bytes, number: int) -> bool:
    """Whether the signal is in this mask of a status file of proc(5)."""
    for line in (status or b"").split(b"\n"):
        if line.startswith(name):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
