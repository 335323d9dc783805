"""How failed workers are reported: one ``ProcessFailure`` each, and ``ChildFailedError`` for all of them together.

Names, fields and the lines of the report are torchelastic's, because tools parse them. What we know beyond (crash
traces, the end of stderr) follows the line ``traceback``, indented, where such tools expect text of any length.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any

from ._block import NOT_AVAILABLE, block, entry
from ._description import clean
from ._handler import get_error_handler
from ._reading import ErrorRecord, read_error_file

__all__ = ["ChildFailedError", "ProcessFailure"]

_MAX_TAIL = 16 * 1024  # characters of stderr in a report
_HERE = os.path.dirname(__file__)
_OUR_FOLDERS = (_HERE, os.path.join(os.path.dirname(_HERE), "functions"))  # the latter calls functions


@dataclass
class ProcessFailure:
    """A failed worker: what is known of it, read from its error file when this is made.

    ``exitcode`` is negative for a signal. ``error_file`` becomes ``<N/A>`` when there is none. ``message`` is a
    dictionary for torchelastic's long error format and a string otherwise, ``timestamp`` is in seconds: the error
    file's, or now. ``crash`` is what faulthandler wrote, ``stderr_tail`` the end of its stderr. Never raises for any
    content of the file. Source: torchelastic's class of that name.

    >>> ProcessFailure(local_rank=0, pid=12, exitcode=-9, error_file="").signal_name()
    'SIGKILL'
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    _: KW_ONLY
    crash: str = field(default="", repr=False)
    stderr_tail: str = field(default="", repr=False)
    error_file_data: dict[str, Any] = field(init=False)
    message: Any = field(init=False)
    timestamp: int = field(init=False)
    record: ErrorRecord = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.record = read_error_file(self.error_file)
        self.timestamp = self.record.timestamp
        if os.path.lexists(self.error_file):
            self.error_file_data = self.record.data
            self.message = self.record.data["message"]
        else:
            self.error_file = NOT_AVAILABLE
            self.error_file_data = {"message": "<NONE>"}
            self.message = ""
        if not self.message:
            self.message = self._end()

    def _end(self) -> str:
        """What can be said of an end that left no message."""
        if self.exitcode < 0:
            said = f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
            return get_error_handler().maybe_enrich_signal_failure_message(
                said, pid=self.pid, exitcode=self.exitcode
            )
        self.error_file_data["errorTraits"] = {"category": "system_terminated_error", "retryability": "False"}
        return f"Process {self.pid} ended with code {self.exitcode} and left no exception behind"

    def signal_name(self) -> str:
        """The name of the signal that ended it (``SIGKILL``), ``<N/A>`` for an exit or a signal without a name."""
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """The time of the failure as ``YYYY-MM-DD_HH:MM:SS``, in local time."""
        return time.strftime("%Y-%m-%d_%H:%M:%S", time.localtime(self.timestamp))

    def explanation(self) -> str:
        """Why it failed, in lines: its traceback or what else is known, and the trace of a native crash."""
        record = self.record
        is_long = isinstance(self.message, dict)
        parts = [record.traceback or record.message] if is_long else [clean(str(self.message))]
        if crash := self.crash_trace():
            parts.append(crash)
        return "\n".join(part.rstrip("\n") for part in parts)

    def crash_trace(self) -> str:
        """What faulthandler wrote, without the frames of the boot file."""
        return clean(without_our_frames(self.crash).strip("\n"))


class ChildFailedError(Exception):
    """Some workers of a group failed. ``failures`` maps the global rank to its failure; it is not empty.

    ``first_rank`` is the rank of the first failure for callers that know more than the times in the error files. The
    text is the report, and below it the end of the first failing worker's stderr if that left no exception behind.
    ``record`` passes the first failure's error file up when this leaves the function that it wraps. Raises
    ``ValueError`` without failures.

    >>> failure = ProcessFailure(local_rank=0, pid=12, exitcode=7, error_file="")
    >>> rank, first = ChildFailedError("train.py", {3: failure}).get_first_failure()
    >>> rank, first.exitcode
    (3, 7)
    """

    def __init__(
        self, name: str, failures: dict[int, ProcessFailure], *, first_rank: int | None = None
    ) -> None:
        if not failures:
            raise ValueError(f"{name}: no failure was given for ChildFailedError")
        self.name = name
        self.failures = failures
        self.first_rank = min(failures, key=self._when) if first_rank is None else first_rank
        super().__init__(self.format_msg() + _tail(self.failures[self.first_rank]))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), first_rank=self.first_rank), (self.name, self.failures)

    def get_first_failure(self) -> tuple[int, ProcessFailure]:
        """Global rank and failure with the earliest time; within a second those that tell it finer come first."""
        return self.first_rank, self.failures[self.first_rank]

    def _when(self, rank: int) -> tuple[int, int]:
        failure = self.failures[rank]
        wall_ns = failure.record.wall_ns
        return failure.timestamp, (failure.timestamp + 1) * 10**9 if wall_ns is None else wall_ns

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """The report. Its lines, and the spelling of the parameters, are torchelastic's."""
        entries = {
            rank: _entry(index, rank, failure) for index, (rank, failure) in enumerate(self.failures.items())
        }
        root = entries.pop(self.first_rank)
        return block(self.name, root, list(entries.values()), border=boarder_delim, rule=section_delim)


def _tail(failure: ProcessFailure) -> str:
    text = clean(failure.stderr_tail[-_MAX_TAIL:]).strip("\n")
    if not text or failure.record.traceback:
        return ""
    return f"\nThe end of stderr of local rank {failure.local_rank}:\n  " + text.replace("\n", "\n  ")


def _entry(index: int, rank: int, failure: ProcessFailure) -> str:
    return entry(
        index,
        time=failure.timestamp_isoformat(),
        host=os.uname().nodename,
        rank=rank,
        local_rank=failure.local_rank,
        exit_code=failure.exitcode,
        signal_name="" if failure.signal_name() == NOT_AVAILABLE else failure.signal_name(),
        pid=failure.pid,
        error_file=failure.error_file,
        explanation=failure.explanation(),
    )


def without_our_frames(crash: str) -> str:
    """The text of faulthandler, or of py-spy, without our frames at the bottom of the main thread."""
    ours = tuple(f'  File "{folder}/' for folder in _OUR_FOLDERS)
    lines = (line for line in crash.split("\n") if not line.startswith(ours))
    return "\n".join(line for line in lines if not any(f"({folder}/" in line for folder in _OUR_FOLDERS))
