"""What failed workers left behind, read once per round: error files, crash stacks, the end of standard error."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from signal import Signals
from socket import gethostname

from phalanx.agent.group import Exit
from phalanx.agent.messages import ExceptionRecorded
from phalanx.agent.postmortem import Postmortem
from phalanx.agent.verdict import Failure, Verdict, exit_status, first_failure
from phalanx.agent.workers import Workers
from phalanx.errors import ErrorHandler, ProcessFailure, get_error_handler
from phalanx.rendezvous.ports import is_taken
from phalanx.rendezvous.round import Round

__all__ = ["Evidence", "hand_up"]

# What the C library, Python and torch say when rank 0 cannot listen on its port.
PORT_TAKEN_WORDS = ("eaddrinuse", "address already in use", "errno 98")


STRAGGLER = "it still ran long after others had ended (--straggler-timeout)"


class Evidence:
    """The failures of the latest round that had any: for the policy as records, for the report in full."""

    def __init__(self) -> None:
        self.processes: dict[int, ProcessFailure] = {}
        """Rank → what is known of its process."""
        self.stderr_tails: dict[int, bytes] = {}
        self.postmortem = Postmortem()

    def collect(
        self,
        name: str,
        settled: Round,
        workers: Workers | None,
        exits: Iterable[Exit],
        told: Mapping[int, ExceptionRecorded],
    ) -> tuple[Failure, ...]:
        """Read what the failed workers of a round left, forgetting the round before.

        ``workers`` is None when none was made; ``told`` is what they said over the channel, by local rank: it stands in
        for an error file that could not be written.
        """
        self.processes = {}
        self.stderr_tails = {}
        failed = [one for one in exits if one.exit_code != 0 or one.is_straggler]
        found = tuple(self._examine(settled, workers, one, told.get(one.local_rank)) for one in failed)
        first = first_failure(found)
        return tuple(_with_details(name, one, self) if one is first else one for one in found)

    def _examine(
        self, settled: Round, workers: Workers | None, end: Exit, told: ExceptionRecorded | None
    ) -> Failure:
        rank = settled.rank(end.local_rank)
        if end.why_not_started or workers is None:
            return Failure(
                rank=rank,
                local_rank=end.local_rank,
                pid=0,
                exit_code=end.exit_code,
                exited_at=end.at,
                why_not_started=end.why_not_started,
                host=gethostname(),
            )
        process = workers.failure(end.local_rank)
        self.processes[rank] = process
        self.stderr_tails[rank] = workers.stderr_tail(end.local_rank)
        death = self.postmortem.explain(
            process.pid,
            end.exit_code,
            was_asked_to_stop=end.stopped_at is not None,
            remains=workers.remains(end.local_rank),
        )
        return Failure(
            rank=rank,
            local_rank=end.local_rank,
            host=gethostname(),
            pid=process.pid,
            exit_code=end.exit_code or 1,
            exited_at=end.at,
            signed_at=_first_sign(end, process),
            stopped_at=None if end.is_straggler else end.stopped_at,
            own_exit_code=None if end.is_straggler else _own_exit_code(process, told),
            summary=STRAGGLER if end.is_straggler else _summary(end, process, told, death.certain),
            explanation="\n".join(death.sentences),
            master_port_taken=rank == 0 and _is_taken_port(process, settled.master_port),
        )

    def tail_of_cause(self, verdict: Verdict) -> bytes:
        """The end of the first failing rank's standard error."""
        return b"" if verdict.cause is None else self.stderr_tails.get(verdict.cause.rank, b"")

    def hand_up(self, verdict: Verdict, error_file: str | None) -> None:
        """Copy the first failure's error file to the launcher's own, for the scheduler above (as torchelastic does)."""
        if error_file and verdict.cause is not None and verdict.cause.rank in self.processes:
            hand_up(self.processes[verdict.cause.rank], verdict.exit_code, error_file)


def _with_details(name: str, failure: Failure, evidence: Evidence) -> Failure:
    """What the other nodes will print of this failure, whose files they cannot read."""
    from phalanx.agent.report import details_of

    process = evidence.processes.get(failure.rank)
    if process is None:
        return failure
    details = details_of(name, failure, process, evidence.stderr_tails.get(failure.rank, b""))
    return Failure(
        **{**{one: getattr(failure, one) for one in Failure.__struct_fields__}, "details": details}
    )


def hand_up(process: ProcessFailure, exit_code: int, error_file: str) -> None:
    """Copy the first failure's error file to the launcher's own, for the scheduler above (torchelastic does this)."""
    if process.record.problem is not None:
        return
    handler = get_error_handler()
    if handler._get_error_file_path() != error_file:
        handler = _HandlerFor(error_file)
    handler.dump_error_file(process.error_file, exit_code)


class _HandlerFor(ErrorHandler):
    """Writes to the file that was named on the command line instead of the one in the environment."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def _get_error_file_path(self) -> str:
        return self._path


def _first_sign(end: Exit, process: ProcessFailure) -> float | None:
    """The earlier of the channel's message and the error file's own clock reading."""
    recorded = process.record.monotonic_ns
    signs = [
        sign for sign in (end.signed_at, recorded / 1e9 if recorded is not None else None) if sign is not None
    ]
    return min(signs, default=None)


def _own_exit_code(process: ProcessFailure, told: ExceptionRecorded | None) -> int | None:
    """What the interpreter would have ended with after the recorded exception."""
    if process.record.problem is None and process.record.exception_type:
        code = process.record.exit_code
        return 1 if code is None else code
    return None if told is None else 1


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
    code = f"exit code {exit_status(end.exit_code) if own is None else own}"
    said = _first_line(record.text) if record.exception_type == "SystemExit" else ""
    return f"{code}: {said}" if said and not said.lstrip("-").isdecimal() else code


def _sentence(message: str, place: tuple[str, int] | str | None) -> str:
    """``ValueError: bad batch 17 at train.py:9``."""
    what = _first_line(message).removesuffix(": ").removesuffix(":")
    if place is None:
        return what
    path, line = place.rsplit(":", 1) if isinstance(place, str) else (place[0], str(place[1]))
    return f"{what} at {_short_path(path)}:{line}"


def _first_line(text: str, width: int = 200) -> str:
    line = text.strip().splitlines()[0] if text.strip() else ""
    line = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)
    return line if len(line) <= width else f"{line[:width]}…"


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
