"""What an agent leaves behind at the end: the report on the console, and files for whoever comes after.

Nothing here fails the job's end: a file that cannot be written is one line in front of the report, and the exit code
stays what it is.
"""

from __future__ import annotations

import errno
import json
import os
import time
import traceback
from socket import gethostname
from typing import Any

from phalanx.agent.report.data import error_data, report_data
from phalanx.agent.report.flight import FlightRecord
from phalanx.agent.report.text import failure_report
from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.errors._writing import write_atomically
from phalanx.multiprocessing.folders import temporary_folder
from phalanx.records import changed
from phalanx.rendezvous.round import Round

__all__ = ["last_words", "save_flight"]

REPORT_NAME, FLIGHT_NAME = "report.json", "flight.jsonl"
LINKS_MAX = 40  # as the kernel follows


def last_words(
    verdict: Verdict,
    *,
    name: str,
    settled: Round | None,
    log_dir: str | None,
    flight: FlightRecord,
    bug: BaseException | None = None,
    error_file: str | None = None,
    report_file: str | None = None,
) -> str:
    """Write the files of this node, and return what is to be printed.

    ``settled`` is the last round that this node was in, ``log_dir`` where its own logs are.
    """
    verdict = _with_restarts(verdict, settled)
    told = ""
    if report_file or (log_dir and verdict.ending is Ending.FAILED):
        data = report_data(verdict, name=name, host=gethostname(), log_dir=log_dir)
        if log_dir and verdict.ending is Ending.FAILED:
            _write(
                os.path.join(log_dir, REPORT_NAME), data
            )  # the folder may be full, or gone: the user knows
        if report_file:
            told += _write(report_file, data)
    if verdict.ending is not Ending.FAILED:
        return told
    flight_path = save_flight(flight, log_dir, is_bug=bug is not None)
    if error_file:
        told += _write(error_file, error_data(verdict, name=name, wall_at=time.time()))
    if bug is not None:
        return told + _bug_report(bug, flight_path)
    return told + failure_report(
        verdict, name=name, log_dir=log_dir, has_run=settled is not None, width=_terminal_width()
    )


def _with_restarts(verdict: Verdict, settled: Round | None) -> Verdict:
    """What a node decides for itself (it was told to stop) does not know of restarts; its round does."""
    if settled is None or settled.restart_count <= verdict.restart_count:
        return verdict
    known = verdict.restarts or ((settled.reason,) if settled.reason else ())
    return changed(verdict, restart_count=settled.restart_count, restarts=known)


def _write(path: str, data: dict[str, Any]) -> str:
    """Write JSON whole or not at all; returns a line on why it could not be written, or nothing."""
    content = json.dumps(data).encode("ascii") + b"\n"
    try:
        if path.endswith(os.sep):  # realpath() takes it away, and a file of that name would be made
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if opened := _opened_already(path):
            _write_into(opened, content)
        else:
            write_atomically(os.path.realpath(path), content)  # a link stays one: its target is replaced
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        return f"phalanx: could not write {path!r}: {reason}\n"
    return ""


def _opened_already(path: str) -> str | None:
    """Where in /proc it is, or its links lead (``/dev/stderr``): what somebody has opened must not be replaced.

    The file behind it may be the one that our own output goes to; after a rename all that was in it were lost.
    """
    for _ in range(LINKS_MAX):
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if path.startswith("/proc/"):
            return path
        if not os.path.islink(path):
            return None
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    return None


def _write_into(path: str, content: bytes) -> None:
    folder, name = os.path.split(path)
    if folder == os.path.realpath("/proc/self/fd") and name.isdecimal():
        # Opened by its name it would begin at the file's start, over what has been written there.
        descriptor = os.dup(int(name))
    else:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    finally:
        os.close(descriptor)


def _terminal_width() -> int | None:
    try:
        return os.get_terminal_size(2).columns or None
    except OSError:  # no terminal
        return None


def _bug_report(bug: BaseException, flight_path: str | None) -> str:
    """The text for a job that a bug of ours ended: all that is needed to report it."""
    record = f"; the flight record is {flight_path}" if flight_path else ""
    trace = "".join(traceback.format_exception(bug))
    return f"{trace}phalanx: this is a bug of phalanx, not of the job: the workers were stopped{record}\n"


def save_flight(flight: FlightRecord, folder: str | None, *, is_bug: bool) -> str | None:
    """Write the flight record into the job's log folder; None if that is not possible.

    A bug's goes to the temporary folder where a job has no log folder: without it nobody can say what happened.
    """
    is_at_home = folder is not None and os.path.isdir(folder)
    if not is_at_home and not is_bug:
        return None
    content = "".join(f"{line}\n" for line in flight.lines()).encode("utf-8", "backslashreplace")
    try:
        if is_at_home:
            path = os.path.join(str(folder), FLIGHT_NAME)
            write_atomically(path, content)
        else:
            path = _write_among_others(temporary_folder(), content)
    except OSError:
        return None
    return path


def _write_among_others(folder: str, content: bytes) -> str:
    """Write a new file where others may write, too: under a name that nobody can have foreseen, whole or not at all."""
    path = os.path.join(folder, f"phalanx-flight-{os.urandom(8).hex()}.jsonl")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:
            os.unlink(path)
            raise
    return path
