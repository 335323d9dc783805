"""What failed workers left behind, read once per round: error files, crash stacks, the end of standard error.

A ``Failure`` is complete in itself: what the report needs is in it, since other nodes cannot read these files.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from signal import Signals
from socket import gethostname
from typing import Any

from phalanx.agent.channel.messages import ExceptionRecorded
from phalanx.agent.evidence.postmortem import Postmortem
from phalanx.agent.group import Exit
from phalanx.agent.processes.workers import Workers
from phalanx.agent.restarts.causes import what_cannot_heal
from phalanx.agent.sentences import debugger_without_input, one_line
from phalanx.agent.verdict.stored import EXTRA_MAX, STDERR_MAX
from phalanx.agent.verdict.verdict import EX_USAGE, Failure, exit_status
from phalanx.errors import ProcessFailure
from phalanx.errors._block import NOT_AVAILABLE
from phalanx.records import changed
from phalanx.rendezvous.ports import is_taken
from phalanx.rendezvous.round import Round

__all__ = ["Evidence"]

NS = 1e9
WALL_MAX_S = 4e9  # the year 2096; a file that names another time has been made by nobody's clock
TOLD_ELSEWHERE = ("py_callstack", "timestamp")

USAGE_ERROR = re.compile(r"\berror: \S", re.IGNORECASE)
USAGE_LINES = 20  # a parser's last words are few

# What the C library, Python and torch say when rank 0 cannot listen on its port.
PORT_TAKEN_WORDS = ("eaddrinuse", "address already in use", "errno 98")


class Evidence:
    """Makes failures of the workers of a round, for the policy and for the report.

    ``straggler_s``: how long workers may run on after others have ended, if this node knows of such a limit.
    ``why_ended``: see ``JobSpec``.
    """

    def __init__(
        self, straggler_s: float | None = None, why_ended: Callable[[int], str] | None = None
    ) -> None:
        self.postmortem = Postmortem(why_ended=why_ended)
        self._late = "long" if straggler_s is None else f"{straggler_s:g} s"
        self._began_at = 0.0  # monotonic seconds; nobody has looked at the clock yet
        self._began_singly_at: dict[int, float] = {}

    def begin(self) -> None:
        """The workers of a round are about to start: what is older says nothing of their ends."""
        self._began_at = time.monotonic()
        self._began_singly_at.clear()
        self.postmortem.begin()

    def begin_single(self, local_rank: int) -> None:
        """The same for one worker about to start while others run."""
        self._began_singly_at[local_rank] = time.monotonic()
        self.postmortem.begin_single(local_rank)

    def collect(
        self,
        settled: Round,
        workers: Workers | None,
        exits: Iterable[Exit],
        told: Mapping[int, ExceptionRecorded],
        *,
        log_dir: str | None = None,
    ) -> tuple[Failure, ...]:
        """Read what the failed workers of a round left.

        ``workers`` is None when none was made; ``told`` is what they said over the channel, by local rank: it stands in
        for an error file that could not be written. ``log_dir`` is where people find this node's logs.
        """
        failed = [one for one in exits if one.exit_code != 0 or one.is_straggler]
        return tuple(
            self._examine(settled, workers, one, told.get(one.local_rank), log_dir or "") for one in failed
        )

    def _examine(
        self, settled: Round, workers: Workers | None, end: Exit, told: ExceptionRecorded | None, log_dir: str
    ) -> Failure:
        known: dict[str, Any] = {
            "rank": settled.rank(end.local_rank),
            "local_rank": end.local_rank,
            "host": gethostname(),
            "group_rank": settled.group_rank,
            "group_world_size": settled.group_world_size,
            "round": settled.number,
            "exited_at": end.at,
            "log_dir": log_dir,
        }
        if end.why_not_started or workers is None:
            return Failure(
                **known,
                **_when(time.time()),
                pid=0,
                exit_code=end.exit_code,
                why_not_started=end.why_not_started,
                cannot_heal=what_cannot_heal("", "", end.exit_code, is_silent=True),
            )
        process = workers.failure(end.local_rank)
        began_at = self._began_singly_at.get(end.local_rank, self._began_at)
        signed_at = _first_sign(end, process, began_at)
        if _has_no_other_fault(end, signed_at):
            return _straggler(end, process, known, self._late)
        death = self.postmortem.explain(
            process.pid,
            end.exit_code,
            was_asked_to_stop=end.stopped_at is not None,
            remains=workers.remains(end.local_rank),
            local_rank=end.local_rank,
        )
        return Failure(
            **known,
            **_when(_wall_at(end, process, told, began_at)),
            **_recorded(process, told),
            pid=process.pid,
            exit_code=end.exit_code or 1,
            signed_at=signed_at,
            stopped_at=end.stopped_at,
            own_exit_code=_own_exit_code(process, told),
            summary=_summary(end, process, told, death.certain),
            explanation="\n".join((*death.sentences, *_on_debuggers(known["rank"], end, process, workers))),
            cannot_heal=_what_cannot_heal(end, process, told),
            crash=process.crash_trace(),
            stderr=process.stderr_tail[-STDERR_MAX:],
            master_port_taken=known["rank"] == 0 and _is_taken_port(process, settled.master_port),
        )


def _on_debuggers(rank: int, end: Exit, process: ProcessFailure, workers: Workers) -> tuple[str, ...]:
    """Advice for who has a breakpoint in a worker that reads nothing; ``q`` at a prompt ends in the same exception."""
    if process.record.exception_type.rpartition(".")[2] != "BdbQuit" or workers.has_terminal(end.local_rank):
        return ()
    return (debugger_without_input(rank, is_debug_rank=workers.terminal_rank == end.local_rank),)


def _has_no_other_fault(end: Exit, signed_at: float | None) -> bool:
    """It ran on too long, and no exception of its own from before it was asked to stop says why."""
    return end.is_straggler and (signed_at is None or end.stopped_at is None or signed_at >= end.stopped_at)


def _straggler(end: Exit, process: ProcessFailure, known: dict[str, Any], late: str) -> Failure:
    """Its fault is that it still ran, whatever its end was when it was stopped, and by whichever signal."""
    asked = end if end.stopped_at is None else changed(end, at=end.stopped_at)
    sentence = f"it still ran {late} after others had ended: stopped for that (--straggler-timeout)"
    record = process.record
    return Failure(
        **{**known, "exited_at": asked.at},
        **_when(_seen_at(asked)),
        pid=process.pid,
        exit_code=end.exit_code if end.exit_code > 0 else 1,
        is_straggler=True,
        summary=sentence,
        message=sentence,
        traceback="" if record.problem is not None else record.traceback,  # where it was when it was stopped
        error_file="" if process.error_file == NOT_AVAILABLE else process.error_file,
        stderr=process.stderr_tail[-STDERR_MAX:],
    )


def _when(wall_at: float) -> dict[str, Any]:
    return {"wall_at": wall_at, "utc_offset_s": time.localtime(wall_at).tm_gmtoff}


def _wall_at(end: Exit, process: ProcessFailure, told: ExceptionRecorded | None, began_at: float) -> float:
    """By the worker's own record, which was made when it happened; else when its exit was seen."""
    record, seen_at = process.record, _seen_at(end)
    if record.problem is not None:
        return seen_at if told is None else told.wall_ns / NS
    if record.monotonic_ns is not None and not _is_of_this_life(record.monotonic_ns / NS, began_at):
        return seen_at
    recorded_at = float(record.timestamp) if record.wall_ns is None else record.wall_ns / NS
    return recorded_at if abs(recorded_at) < WALL_MAX_S else seen_at


def _seen_at(end: Exit) -> float:
    return time.time() - max(time.monotonic() - end.at, 0.0)


def _recorded(process: ProcessFailure, told: ExceptionRecorded | None) -> dict[str, Any]:
    """What the worker said of its exception, by file or over the channel."""
    record = process.record
    error_file = "" if process.error_file == NOT_AVAILABLE else process.error_file
    if record.problem is None:
        place = record.script_place or record.place
        return {
            "exception": record.exception_type,
            "message": record.message or str(process.message),
            "place": "" if place is None else _place(f"{place[0]}:{place[1]}"),
            "thread": record.thread or "",
            "traceback": record.traceback,
            "extra": _extra(record.data),
            "error_file": error_file,
        }
    if told is not None:
        return {
            "exception": told.message.partition(":")[0],
            "message": told.message,
            "place": "" if told.place is None else _place(told.place),
            "thread": told.thread or "",
            "error_file": error_file,
        }
    return {"message": str(process.message), "error_file": error_file}


def _extra(data: dict[str, Any]) -> str:
    """What else the file has under ``extraInfo``, as JSON; without its longest parts, or nothing, if it is too much."""
    message = data["message"]
    info = message.get("extraInfo") if isinstance(message, dict) else None
    if not isinstance(info, dict):
        return ""
    told = {name: one for name, one in info.items() if name not in TOLD_ELSEWHERE}
    for left_out in ((), ("chain", "earlier", "group", "notes")):
        text = json.dumps({name: one for name, one in told.items() if name not in left_out})
        if len(text) <= EXTRA_MAX:
            return text
    return ""


def _first_sign(end: Exit, process: ProcessFailure, began_at: float) -> float | None:
    """The earlier of the channel's message and the error file's own clock reading."""
    recorded = process.record.monotonic_ns
    signs = (end.signed_at, None if recorded is None else recorded / NS)
    return min((one for one in signs if one is not None and _is_of_this_life(one, began_at)), default=None)


def _is_of_this_life(sign_at: float, began_at: float) -> bool:
    """Whether a worker that started after ``began_at`` can have given it: if not, somebody else has made that file."""
    return sign_at >= began_at


def _own_exit_code(process: ProcessFailure, told: ExceptionRecorded | None) -> int | None:
    """What the interpreter would have ended with after the recorded exception."""
    if process.record.problem is None and process.record.exception_type:
        code = process.record.exit_code
        return 1 if code is None else code
    return None if told is None else 1


def _what_cannot_heal(end: Exit, process: ProcessFailure, told: ExceptionRecorded | None) -> str:
    record = process.record
    if record.problem is None:
        raised_in = "" if record.place is None else record.place[0]
        return what_cannot_heal(record.exception_type, raised_in, record.exit_code)
    if told is not None:
        return what_cannot_heal(told.message.partition(":")[0], "", None)
    return what_cannot_heal("", "", end.exit_code, is_silent=True)


def _summary(end: Exit, process: ProcessFailure, told: ExceptionRecorded | None, why_killed: str = "") -> str:
    """The exception and its place, else the signal and why it came, else the exit code."""
    record = process.record
    if record.problem is None and record.exception_type not in ("", "SystemExit"):
        return _sentence(record.message, record.script_place or record.place)
    if record.problem is not None and told is not None and not told.message.startswith("SystemExit"):
        return _sentence(told.message, told.place)
    own = _own_exit_code(process, told)
    if end.exit_code < 0 and own is None:
        return f"killed by {_signal_name(-end.exit_code)}" + (f": {why_killed}" if why_killed else "")
    code = exit_status(end.exit_code) if own is None else own
    said = one_line(record.text) if record.exception_type == "SystemExit" else ""
    if not said or said.lstrip("-").isdecimal():
        said = _refused(process.stderr_tail) if code == EX_USAGE else ""
    return f"exit code {code}" + (f": {said}" if said else "")


def _refused(stderr: str) -> str:
    """What the script's own parser did not understand, in its words: argparse, click and others end so."""
    lines = stderr.rstrip().split("\n")[-USAGE_LINES:]
    return next((one_line(line) for line in reversed(lines) if USAGE_ERROR.search(line)), "")


def _sentence(message: str, place: tuple[str, int] | str | None) -> str:
    """``ValueError: bad batch 17 at train.py:9``."""
    first, *others = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    # A text may begin on a line of its own: ValueError("\n  bad batch").
    what = one_line(f"{first} {others[0]}" if first.endswith(":") and others else first.removesuffix(":"))
    if place is None:
        return what
    return f"{what} at {_place(place if isinstance(place, str) else f'{place[0]}:{place[1]}')}"


def _place(place: str) -> str:
    path, _, line = place.rpartition(":")
    return f"{_short_path(path)}:{line}"


def _short_path(path: str) -> str:
    """Relative when it lies below the current folder, as it was given on the command line."""
    try:
        here = os.getcwd() + os.sep
    except OSError:  # the folder was deleted
        return path
    return path.removeprefix(here)


def _signal_name(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_taken_port(process: ProcessFailure, port: int) -> bool:
    """Whether rank 0 failed because somebody has MASTER_PORT: it says so of this port, or the port is taken now.

    A script may fail to bind a port of its own, and says the same words then.
    """
    text = process.record.message.lower()
    if not any(words in text for words in PORT_TAKEN_WORDS):
        return False
    return str(port) in text or is_taken(port)
