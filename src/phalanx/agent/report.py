"""The report on a failed job: torchelastic's block, then what it lacks, the cause as the last line on screen.

The block's lines (``time``, ``host``, ``rank``, ``exitcode``, ``error_file``, ``traceback``) are kept for the tools
that parse them. People read from the bottom: the last line says which rank failed first, of what, and where.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from socket import gethostname

from phalanx.agent.flight import FlightRecord
from phalanx.agent.verdict import EX_USAGE, Ending, Failure, Verdict
from phalanx.errors import ChildFailedError, ProcessFailure
from phalanx.multiprocessing.folders import temporary_folder

__all__ = ["TAIL_BYTES_MAX", "bug_report", "details_of", "failure_report", "save_flight"]

TAIL_BYTES_MAX = 16 * 1024  # enough for a long traceback, little enough for a terminal's scrollback
TAIL_LINES_BESIDE_TRACEBACK = 20


def failure_report(
    verdict: Verdict,
    evidence: Mapping[int, ProcessFailure],
    *,
    name: str,
    has_run: bool,
    restart_count: int,
    log_folder: str | None,
    stderr_tail: bytes = b"",
) -> str:
    """The text for a job that failed. ``evidence`` maps the rank to what was found of that worker."""
    cause = verdict.cause
    if cause is None and verdict.exit_code == EX_USAGE:
        return f"phalanx: error: {verdict.reason}\n"
    if verdict.ending is not Ending.FAILED or cause is None:
        what = "was stopped" if has_run else "could not be run"
        return f"phalanx: {name} {what}: {verdict.reason}\n"
    collateral = [one for one in verdict.failures if one.is_collateral and one is not cause]
    failed = [one for one in verdict.failures if one not in collateral]
    lines = []
    if cause.rank in evidence:
        lines.append(_block(cause, failed, evidence, name=name))
        lines += _tail(stderr_tail, evidence[cause.rank], rank=cause.rank)
    elif cause.details:
        lines.append(cause.details)  # it ran on another node
    lines += [f"phalanx: rank {cause.rank}: {sentence}" for sentence in cause.explanation.splitlines()]
    if collateral:
        ranks = ", ".join(str(one.rank) for one in collateral)
        lines.append(f"phalanx: stopped because of it: rank{'s' if len(collateral) > 1 else ''} {ranks}")
    if log_folder:
        lines.append(f"phalanx: logs: {log_folder}")
    if restart_count:
        lines.append(f"phalanx: restarted {restart_count} time{'s' if restart_count > 1 else ''} before")
    lines.append(f"phalanx: {_last_line(verdict, cause, name=name)}")
    return "\n".join(lines) + "\n"


def details_of(name: str, failure: Failure, process: ProcessFailure, stderr_tail: bytes) -> str:
    """The block about one worker and the end of its standard error, for the nodes that cannot read its files."""
    block = ChildFailedError(name, {failure.rank: process}, first_rank=failure.rank).format_msg()
    return "\n".join([block, *_tail(stderr_tail, process, rank=failure.rank)])


def _block(
    cause: Failure, failed: list[Failure], evidence: Mapping[int, ProcessFailure], *, name: str
) -> str:
    """Compose torchelastic's block, with our choice of the first failure instead of its whole-second timestamps."""
    ordered = [cause, *(one for one in failed if one is not cause)]
    shown = {one.rank: evidence[one.rank] for one in ordered if one.rank in evidence}
    return ChildFailedError(name, shown, first_rank=cause.rank).format_msg()


def _tail(stderr_tail: bytes, failure: ProcessFailure, *, rank: int) -> list[str]:
    """The last lines of the first failing rank's standard error, without the traceback that the block shows."""
    text = stderr_tail[-TAIL_BYTES_MAX:].decode(errors="replace").rstrip()
    traceback = failure.record.traceback.strip()
    if traceback:
        text = text.replace(traceback, "").strip()
        text = "\n".join(text.splitlines()[-TAIL_LINES_BESIDE_TRACEBACK:])
    if not text:
        return []
    return [
        f"phalanx: last lines of rank {rank}'s standard error:",
        *(f"  {line}" for line in text.splitlines()),
    ]


def _last_line(verdict: Verdict, cause: Failure, *, name: str) -> str:
    what = cause.why_not_started or cause.summary or f"exit code {verdict.exit_code}"
    code = f" (exit code {verdict.exit_code})" if f"exit code {verdict.exit_code}" not in what else ""
    after = f"; not restarted: {verdict.reason}" if verdict.reason else ""
    where = "" if not cause.host or cause.host == gethostname() else f" on {cause.host}"
    return f"{name} failed: rank {cause.rank}{where}: {what}{code}{after}"


def bug_report(bug: BaseException, flight_path: str | None) -> str:
    """The text for a job that a bug of ours ended: all that is needed to report it."""
    record = f"; the flight record is {flight_path}" if flight_path else ""
    trace = "".join(traceback.format_exception(bug))
    return f"{trace}phalanx: this is a bug of phalanx, not of the job: the workers were stopped{record}\n"


def save_flight(flight: FlightRecord, folder: str | None, *, is_bug: bool) -> str | None:
    """Write the flight record into the job's log folder; None if that is not possible.

    A bug's goes to the temporary folder where a job has no log folder: without it nobody can say what happened.
    """
    if folder and os.path.isdir(folder):
        path = os.path.join(folder, "flight.jsonl")
    elif is_bug:
        path = os.path.join(temporary_folder(), f"phalanx-flight-{os.getpid()}.jsonl")
    else:
        return None
    try:
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in flight.lines())
    except OSError:
        return None
    return path
