"""The report as data: what ``--report-file`` and ``report.json`` hold, and the launcher's own error file. Pure.

The first is described in ``docs/errors.md``: a reader passes over names that it does not know, and ``version`` changes
when a name that is there changes its meaning. The second is torchelastic's long format.
"""

from __future__ import annotations

import json
from typing import Any

from phalanx.agent.report.text import signal_name, time_of
from phalanx.agent.verdict.verdict import Failure, Verdict, exit_status, others_told

__all__ = ["VERSION", "error_data", "report_data"]

VERSION = 1


def report_data(verdict: Verdict, *, name: str, host: str = "", log_dir: str | None = None) -> dict[str, Any]:
    """All that the report says, as JSON can carry it; ``host`` and ``log_dir`` are this node's.

    ``other_failures`` are in the order of their ranks; what was stopped by the launcher is not among them, but for
    exceptions that came too late where the first failure is but a symptom.
    """
    cause = verdict.cause
    return {
        "version": VERSION,
        "job": name,
        "ending": verdict.ending.value,
        "exit_code": verdict.exit_code,
        "reason": verdict.reason,
        "first_failure": None if cause is None else _failure(cause),
        "other_failures": [_failure(one) for one in sorted(others_told(verdict), key=lambda one: one.rank)],
        "failed_ranks": _ranks(verdict.failed),
        "tied_ranks": _ranks(verdict.tied),
        "stopped_ranks": _ranks(verdict.stopped),
        "restart_count": verdict.restart_count,
        "restarts": list(verdict.restarts),
        "node": {"host": host, "log_dir": log_dir},
    }


def _failure(one: Failure) -> dict[str, Any]:
    failed_at = time_of(one)
    return {
        "rank": one.rank,
        "local_rank": one.local_rank,
        "group_rank": one.group_rank,
        "round": one.round,
        "host": one.host,
        "pid": one.pid,
        "exit_code": exit_status(one.blamed_exit_code),
        "signal": -one.exit_code if one.exit_code < 0 else None,
        "signal_name": signal_name(one) or None,
        "time": None if failed_at is None else failed_at.isoformat(),
        "time_s": one.wall_at or None,
        "summary": one.why_not_started or one.summary,
        "exception": one.exception or None,
        "message": one.message,
        "place": one.place or None,
        "thread": one.thread or None,
        "traceback": one.traceback,
        "crash": one.crash,
        "stderr": one.stderr,
        "explanation": one.explanation.split("\n") if one.explanation else [],
        "cannot_heal": one.cannot_heal,
        "was_started": not one.why_not_started,
        "is_secondary": one.is_secondary,
        "is_after_stop": one.is_collateral,
        "error_file": one.error_file or None,
        "log_dir": one.log_dir or None,
    }


def _ranks(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [rank for first, last in ranges for rank in range(first, last + 1)]


def error_data(verdict: Verdict, *, name: str, wall_at: float) -> dict[str, Any]:
    """The launcher's own error file, for the scheduler above, as torchelastic's ``ProcessFailure`` reads it.

    ``wall_at`` is for an end without a failure of a worker: no round could be formed.
    """
    cause = verdict.cause
    if cause is None:
        sentence = f"{name} could not be run: {verdict.reason or verdict.ending.value}"
        info: dict[str, Any] = {"py_callstack": sentence, "timestamp": str(int(wall_at))}
        return _error(sentence, verdict.exit_code, info)
    message = cause.message or cause.why_not_started or cause.summary
    info = {
        **_extra(cause),
        "py_callstack": cause.traceback or cause.crash or message,
        "timestamp": str(int(cause.wall_at or wall_at)),
        "host": cause.host,
        "pid": cause.pid,
        "rank": cause.rank,
        "local_rank": cause.local_rank,
        "group_rank": cause.group_rank,
        "round": cause.round,
        "exit_code": verdict.exit_code,
        "signal": signal_name(cause) or None,
        "explanation": cause.explanation,
        "restart_count": verdict.restart_count,
        "reason": verdict.reason,
    }
    return _error(message, verdict.exit_code, info)


def _error(message: str, code: int, info: dict[str, Any]) -> dict[str, Any]:
    return {"message": {"message": message, "extraInfo": info, "errorCode": code}}


def _extra(cause: Failure) -> dict[str, Any]:
    try:
        extra = json.loads(cause.extra) if cause.extra else {}
    except (ValueError, RecursionError):  # another node's
        return {}
    return extra if isinstance(extra, dict) else {}
