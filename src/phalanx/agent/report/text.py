"""The report on a failed job: torchelastic's block, then what it lacks, the cause as the last line on screen. Pure.

It is made of the verdict alone, so that every node prints the same, but for the line on its own logs. The block's
lines (``time``, ``host``, ``rank``, ``exitcode``, ``error_file``, ``traceback``) are kept for the tools that parse
them. People read from the bottom: the last line says which rank failed first, of what, and where. Whatever a worker
wrote is shown without what could upset a terminal; lines of ours are wrapped where there is one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from signal import Signals
from typing import TYPE_CHECKING

from phalanx.agent.verdict.verdict import EX_USAGE, Ending, Failure, Verdict, listed, others_told, ranges_of
from phalanx.errors._block import NOT_AVAILABLE, block, entry

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["failure_report", "shown", "signal_name", "time_of"]

TAIL_LINES_BESIDE_TRACEBACK = 20
OTHERS_MAX = 16  # that have an entry of their own in the block, seven lines each
PREFIX = "phalanx: "
NARROWEST = 40  # a window that shows less is no reason to print a word in each line

_SPACE_IN_PATH = "\0"  # in lines that are being made: never broken there
# Control characters but newline and tab, and those that change the direction of all that follows.
_UNSAFE = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (*range(9), *range(11, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
}
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


def failure_report(
    verdict: Verdict, *, name: str, log_dir: str | None = None, has_run: bool = True, width: int | None = None
) -> str:
    """The text for a job that failed, empty for any other end.

    ``log_dir`` is this node's, ``has_run`` what it knows itself. ``width`` is the terminal's; None: it is no terminal,
    and nothing is wrapped.
    """
    if verdict.ending is not Ending.FAILED:
        return ""
    lines = _Lines(width)
    cause = verdict.cause
    if cause is None:
        if verdict.exit_code == EX_USAGE:
            return lines.add(f"error: {verdict.reason}").text()
        _tell_restarts(lines, verdict)
        what = "was stopped" if has_run or verdict.has_run else "could not be run"
        return lines.add(f"{_whole(name)} {what}: {verdict.reason}").text()
    if not cause.why_not_started:
        lines.add_plain(_block(verdict, cause, name))
        _tell_stderr(lines, cause)
        _tell_cut_short(lines, cause)
    if cause.explanation:
        lines.add(f"what is known of the death of rank {cause.rank}:")
        lines.add_all(cause.explanation.split("\n"))
    if verdict.stopped:
        lines.add(f"stopped because of it: {listed(verdict.stopped)}")
    _tell_logs(lines, cause, log_dir)
    _tell_restarts(lines, verdict)
    if verdict.tied:
        lines.add(f"{_named(verdict.tied)} failed at the same moment; rank {cause.rank} is shown")
    if verdict.reason:
        lines.add(f"not restarted: {verdict.reason}")
    return lines.add(failure_line(verdict, cause, name)).text()


class _Lines:
    """The report as it grows."""

    def __init__(self, width: int | None) -> None:
        self._width = None if width is None else max(width, NARROWEST)
        self._lines: list[str] = []

    def add(self, text: str, *, indent: str = "") -> _Lines:
        """A line of ours, wrapped between words where there is a terminal."""
        words = shown(text, is_line=True).split(" ")
        line = PREFIX + indent + words[0]
        for word in words[1:]:
            if self._width is not None and len(line) + 1 + len(word) > self._width:
                self._lines.append(line)
                line = " " * len(PREFIX) + indent + "  " + word
            else:
                line += f" {word}"
        self._lines.append(line)
        return self

    def add_all(self, texts: Iterable[str]) -> None:
        """Lines of ours that belong to the one above."""
        for text in texts:
            self.add(text, indent="  ")

    def add_plain(self, text: str) -> None:
        """Lines of somebody else's, as they are."""
        self._lines.append(text)

    def text(self) -> str:
        return "".join(f"{line}\n" for line in self._lines).replace(_SPACE_IN_PATH, " ")


# The parts


def _block(verdict: Verdict, cause: Failure, name: str) -> str:
    own = others_told(verdict)
    entries = [_entry(index, one) for index, one in enumerate(own[:OTHERS_MAX], start=1)]
    left_out = _without(verdict.failed, [cause.rank, *(one.rank for one in own[:OTHERS_MAX])])
    if left_out:
        entries.append(f"  and {listed(left_out)}")
    return block(shown(name, is_line=True), _entry(0, cause), entries)


def _entry(index: int, failure: Failure) -> str:
    failed_at = time_of(failure)
    return entry(
        index,
        time=NOT_AVAILABLE if failed_at is None else failed_at.strftime("%Y-%m-%d_%H:%M:%S"),
        host=shown(failure.host, is_line=True),
        rank=failure.rank,
        local_rank=failure.local_rank,
        exit_code=failure.exit_code,
        signal_name=signal_name(failure),
        pid=failure.pid,
        error_file=shown(failure.error_file, is_line=True) or NOT_AVAILABLE,
        explanation="\n".join(filter(None, map(shown, _explanation(failure, is_cause=index == 0)))),
    )


def _explanation(failure: Failure, *, is_cause: bool) -> Iterator[str]:
    line = failure.why_not_started or failure.summary
    if failure.is_collateral and not is_cause:
        yield f"{line}, after it was asked to stop"
        return
    message = failure.message if is_cause or not failure.exception else ""  # others have theirs in the line
    yield (failure.traceback or message or line).rstrip("\n")
    yield failure.crash.strip("\n")


def _tell_stderr(lines: _Lines, cause: Failure) -> None:
    """The last lines of its standard error, without what the block shows: the traceback, the text of a sys.exit."""
    text = shown(cause.stderr).rstrip()
    if traceback := shown(cause.traceback).strip():
        text = _without_traceback(text, traceback, cause.rank).strip("\n")
        if cause.exception == "SystemExit":
            text = _without_last_words(text, shown(cause.message).removeprefix("SystemExit: ").rstrip())
        text = "\n".join(text.split("\n")[-TAIL_LINES_BESIDE_TRACEBACK:])
    if text.strip():
        lines.add(f"last lines of rank {cause.rank}'s standard error:")
        lines.add_plain("\n".join(f"  {line}" for line in text.split("\n")))


def _without_traceback(text: str, traceback: str, rank: int) -> str:
    """The text without what the interpreter wrote of the same exception.

    It may have more frames than the traceback: ``@record`` notes it below the frames of its callers. torch's
    ``sys.excepthook``, which init_process_group() sets, writes the rank in front of each line.
    """
    wanted = traceback.split("\n")
    lines = text.split("\n")
    bare = [line.removeprefix(f"[rank{rank}]: ") for line in lines]
    at = 0
    while at < len(lines):
        length = _length_of(wanted, bare, at) if bare[at] == wanted[0] else 0
        del lines[at : at + length], bare[at : at + length]
        at += not length
    return "\n".join(lines)


def _length_of(wanted: list[str], lines: list[str], start: int) -> int:
    """How many lines from this one on are the wanted ones, with more frames between them or not; 0: they are not."""
    found = 0
    for at in range(start, len(lines)):
        if lines[at] == wanted[found]:
            found += 1
            if found == len(wanted):
                return at + 1 - start
        elif not lines[at].startswith("  "):
            return 0
    return 0


def _without_last_words(text: str, words: str) -> str:
    if words.lstrip("-").isdecimal():  # a code, which Python does not write
        return text
    return f"\n{text}".removesuffix(f"\n{words}").strip("\n")


def _tell_cut_short(lines: _Lines, cause: Failure) -> None:
    """The block has the signal that ended the process, the last line another code."""
    if cause.blamed_exit_code != cause.exit_code:
        name = signal_name(cause) or f"signal {-cause.exit_code}"
        lines.add(
            f"rank {cause.rank} had not exited yet after its exception: this launcher's {name} cut that short; "
            f"exit code {cause.blamed_exit_code} counts"
        )


def _tell_logs(lines: _Lines, cause: Failure, log_dir: str | None) -> None:
    if cause.group_world_size == 1:
        if log_dir or cause.log_dir:
            lines.add(f"logs: {_whole(log_dir or cause.log_dir)}")
        return
    if cause.log_dir:
        lines.add(f"logs of rank {cause.rank}, on {cause.host}: {_whole(cause.log_dir)}")
    if log_dir:
        lines.add(f"logs of this node: {_whole(log_dir)}")


def _tell_restarts(lines: _Lines, verdict: Verdict) -> None:
    if verdict.restart_count:
        times = f"{verdict.restart_count} time{'s' if verdict.restart_count > 1 else ''}"
        lines.add(f"restarted {times} before{':' if verdict.restarts else ''}")
    elif verdict.restarts:
        lines.add("restarted before:")
    lines.add_all(verdict.restarts)


def failure_line(verdict: Verdict, cause: Failure, name: str) -> str:
    if cause.is_straggler:
        return _stragglers(verdict, cause, name)
    what = cause.why_not_started or _what(cause) or f"exit code {verdict.exit_code}"
    code = f" (exit code {verdict.exit_code})" if f"exit code {verdict.exit_code}" not in what else ""
    where = f" on {cause.host}" if cause.host and cause.group_world_size > 1 else ""
    return f"{_whole(name)} failed: rank {cause.rank}{where}: {what}{code}"


def _stragglers(verdict: Verdict, cause: Failure, name: str) -> str:
    """Of several none is more to blame than another."""
    who = listed(verdict.tied or ((cause.rank, cause.rank),))
    where = f" on {cause.host}" if cause.host and cause.group_world_size > 1 and not verdict.tied else ""
    still = cause.summary.removeprefix("it ")
    return f"{_whole(name)} failed: {who}{where} {still} (exit code {verdict.exit_code})"


def _what(cause: Failure) -> str:
    """The summary, which has the exception's first line cut where that is long; here it is told whole."""
    thread = f" in thread {cause.thread}" if cause.thread else ""
    if not cause.place or cause.exception in ("", "SystemExit"):
        return f"{cause.summary}{thread}"
    first_line = cause.message.strip().split("\n")[0].removesuffix(": ").removesuffix(":")
    return f"{first_line} at {_whole(cause.place)}{thread}"


# Words


def shown(text: str, *, is_line: bool = False) -> str:
    """The text as a terminal may have it: colours taken out, what else would act on it written as an escape.

    Of a line that was written over itself (a progress bar) the last state is kept. ``is_line``: line ends are escaped.
    """
    text = _COLOURS.sub("", text)
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    kept = text.replace(_SPACE_IN_PATH, "\ue000") if is_line else text
    kept = kept.translate(_UNSAFE).encode("utf-8", "backslashreplace").decode()
    return (
        kept.replace("\ue000", _SPACE_IN_PATH).replace("\n", "\\n").replace("\t", "\\t") if is_line else kept
    )


def _last_state(line: str) -> str:
    states = [state for state in line.split("\r") if state]
    return states[-1] if states else ""


def _whole(path: str) -> str:
    """A path in a line that may be wrapped: it stays in one piece."""
    return path.replace(" ", _SPACE_IN_PATH)


def signal_name(failure: Failure) -> str:
    """``SIGKILL``; empty for an exit, and for a signal without a name."""
    try:
        return Signals(-failure.exit_code).name
    except ValueError:
        return ""


def time_of(failure: Failure) -> datetime | None:
    """When it failed, by the clock and in the time zone of its host; None: it is not known."""
    from datetime import UTC, datetime, timedelta, timezone

    try:
        zone = timezone(timedelta(seconds=failure.utc_offset_s)) if failure.utc_offset_s else UTC
        return datetime.fromtimestamp(failure.wall_at, zone) if failure.wall_at else None
    except (ValueError, OverflowError, OSError):
        return None


def _named(ranges: tuple[tuple[int, int], ...]) -> str:
    """``rank 2 and rank 5``; from three on as a list."""
    ranks = [rank for first, last in ranges for rank in (first, last)] if len(ranges) <= 2 else []
    two = sorted(set(ranks))
    return f"rank {two[0]} and rank {two[1]}" if len(two) == 2 and _count(ranges) == 2 else listed(ranges)


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in ranges)


def _without(ranges: Iterable[tuple[int, int]], ranks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    left = {rank for first, last in ranges for rank in range(first, last + 1)} - set(ranks)
    return ranges_of(left)
