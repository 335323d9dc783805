"""From the text of a flag or a variable to its value.

Each function takes the text and returns the value, or raises ``ValueError`` with the rest of a sentence that begins
with the name of the flag or variable and a colon. So a mistake reads the same wherever the text came from.
"""

from __future__ import annotations

import math
import os
import signal
from typing import TYPE_CHECKING

from phalanx.cli.mistakes import nearest
from phalanx.launcher.plugins import BACKENDS

if TYPE_CHECKING:
    from phalanx.multiprocessing.std import Std

__all__ = [
    "Choice",
    "a_signal",
    "appended",
    "backend",
    "backoff",
    "comma_list",
    "count",
    "devices",
    "duration",
    "error_handler",
    "event_handler",
    "exit_codes",
    "log_plugin",
    "node_range",
    "pairs",
    "port",
    "rank_set",
    "refill",
    "secret",
    "signals",
    "size",
    "span",
    "streams",
    "switch",
    "tail_size",
    "text",
    "threads",
    "tries",
]

TAIL_BYTES_MAX = 16 << 20
_YES = frozenset({"1", "true", "t", "yes", "y", "on"})
_NO = frozenset({"0", "false", "f", "no", "n", "off"})
_TIME_UNITS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SPAN_MAX_S = 1e8  # three years
_BACKOFF_MAX_S = 60.0
_EXIT_CODE_MAX = 255
_THREADS_MAX = 65536  # more than any machine has; a number with a digit too many
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})
# The launcher learns of its workers by SIGCHLD, and a fault's signal is raised by the kernel in the faulting thread.
_NOT_FOR_HANDLERS = frozenset(
    {signal.SIGCHLD, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
)


def text(raw: str) -> str:
    """Return the text itself."""
    return raw


def switch(raw: str) -> bool:
    """Read a yes or no, in every usual spelling (torchrun takes ``0`` and ``1`` only, and dies of others)."""
    word = raw.strip().lower()
    if word in _YES:
        return True
    if word in _NO:
        return False
    raise ValueError(f"{raw!r} is neither yes nor no; write 1, 0, true or false")


def count(raw: str) -> int:
    """Read a whole number that is not negative."""
    number = _integer(raw)
    if number < 0:
        raise ValueError(f"{raw!r} is negative; write 0 or more")
    return number


def port(raw: str) -> int:
    """Read a TCP port; 0 leaves the choice to us."""
    number = _integer(raw)
    if not 0 <= number <= 65535:
        raise ValueError(f"{raw!r} is no port; write a number from 0 to 65535")
    return number


def duration(raw: str) -> float:
    """Read a time span: seconds, or a number with ``s``, ``m`` (or ``min``), ``h`` or ``d`` after it."""
    word = raw.strip().lower()
    digits = word.rstrip("abcdefghijklmnopqrstuvwxyz")
    try:
        span = float(digits) * _TIME_UNITS[word[len(digits) :].strip()]
    except (ValueError, KeyError):
        span = math.nan
    if not 0 <= span < _SPAN_MAX_S:
        raise ValueError(
            f"{raw[:40]!r} is no time; write seconds, or a number with a unit such as 90s, 5m, 1h"
        )
    return span


def span(raw: str) -> float:
    """Read a time span that is longer than nothing."""
    found = duration(raw)
    if not found:
        raise ValueError(f"{raw[:40]!r} is no time at all; write seconds, or 90s, 5m, 1h")
    return found


def backoff(raw: str) -> tuple[float, float]:
    """Read ``FIRST`` or ``FIRST:MAX``, two time spans; MAX is a minute, or FIRST if that is longer."""
    first, colon, most = raw.partition(":")
    first_s = duration(first)
    most_s = duration(most) if colon else max(first_s, _BACKOFF_MAX_S)
    if most_s < first_s:
        raise ValueError(f"{raw[:40]!r}: the longest wait is shorter than the first one")
    return first_s, most_s


def refill(raw: str) -> tuple[float | None, bool]:
    """Read when a budget is whole again: ``never``, ``progress``, a time span, or the last two with a comma."""
    after_s, on_progress = None, False
    words = [part.strip() for part in raw.split(",")]
    for word in words:
        if word == "progress":
            on_progress = True
        elif word != "never" or len(words) > 1:
            if after_s is not None:
                raise ValueError(f"{raw[:40]!r} has two times; write one")
            try:
                after_s = span(word)
            except ValueError:
                raise ValueError(
                    f"{word[:40]!r} is not progress, nor a time such as 1h; or write never"
                ) from None
    return after_s, on_progress


def tries(raw: str) -> int:
    """Read a number of rounds, two or more: one failure alone is no pattern."""
    number = _integer(raw)
    if number < 2:  # the sentence says why
        raise ValueError(f"{raw[:40]!r} is too few; write 2 or more")
    return number


def exit_codes(raw: str) -> tuple[int, ...]:
    """Read exit codes with commas between them: numbers, ranges (``64-78``), or signals (``SIGKILL`` is 137)."""
    found: dict[int, None] = {}
    for word in filter(None, (part.strip() for part in raw.split(","))):
        low, dash, high = word.partition("-")
        killed_by = None if word.isdecimal() else _signal(word)
        if killed_by is not None:
            found[128 + killed_by] = None
        elif low.isdecimal() and (high.isdecimal() if dash else True):
            first, last = int(low[:6]), int((high or low)[:6])
            if not 1 <= first <= last <= _EXIT_CODE_MAX:
                raise ValueError(f"{word[:40]!r} is no exit code of a failure; those are 1 to 255")
            found.update(dict.fromkeys(range(first, last + 1)))
        else:
            raise ValueError(
                f"{word[:40]!r} is no exit code; write numbers, 64-78, or SIGKILL, with commas between"
            )
    if raw and not found:
        raise ValueError(f"{raw[:40]!r} names no exit code; write numbers, 64-78, or SIGKILL")
    return tuple(found)


def a_signal(raw: str) -> int:
    """Read one signal that a program can catch."""
    listed, unknown = signals(raw)
    if unknown or len(listed) != 1:
        raise ValueError(f"{raw[:40]!r} is no signal of this system; write one name such as SIGUSR1")
    return int(listed[0])


def tail_size(raw: str) -> int:
    """Read a number of bytes that are kept in memory for each worker."""
    amount = size(raw)
    if amount > TAIL_BYTES_MAX:
        raise ValueError(
            f"{raw!r} is too much to keep of each worker; 16M is the most, and a report shows 16K"
        )
    return amount


def size(raw: str) -> int:
    """Read a number of bytes: ``65536``, ``64K``, ``64KiB``, ``1.5G``; the units are powers of 1024."""
    word = raw.strip().upper()
    digits = word.rstrip("KMGTIB")
    unit = word[len(digits) :].removesuffix("B").removesuffix("I")
    try:
        number = float(digits)
        amount = number * _SIZE_UNITS[unit]
    except (ValueError, KeyError):
        amount = math.nan
    if not 0 <= amount < math.inf:
        raise ValueError(f"{raw!r} is no size; write a number of bytes, or one with a unit such as 64K or 1G")
    return int(amount)


class Choice:
    """A reader that takes one of ``allowed``."""

    def __init__(self, *allowed: str) -> None:
        self.allowed = allowed

    def __call__(self, raw: str) -> str:
        """Return the word if it is allowed."""
        if raw not in self.allowed:
            raise ValueError(f"{raw!r} is not one of {', '.join(self.allowed)}{nearest(raw, self.allowed)}")
        return raw


def node_range(raw: str) -> tuple[int, int]:
    """Read ``N`` or ``MIN:MAX`` as the smallest and the largest number of nodes."""
    low, colon, high = raw.partition(":")
    try:
        smallest = int(low)
        largest = int(high) if colon else smallest
    except ValueError:
        smallest, largest = 0, 0
    if not 1 <= smallest <= largest < 1_000_000:
        raise ValueError(f"{raw[:40]!r} is no number of nodes; write N, or MIN:MAX with 1 <= MIN <= MAX")
    return smallest, largest


def pairs(raw: str) -> dict[str, str]:
    """Read ``key=value,key=value``; a later pair of the same key wins."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in raw.split(","))):
        key, equals, value = item.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise ValueError(f"{item!r} is no setting; write key=value, with commas between them")
        found[key.strip()] = value.strip()
    return found


def comma_list(raw: str) -> tuple[str, ...]:
    """Read texts with commas between them; two commas in a row are one literal comma."""
    # An argument of a command cannot hold a NUL, so one can stand for the literal comma meanwhile. An empty text is
    # dropped: as a filter it would match every line, and it comes from a comma too many.
    parts = raw.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def rank_set(raw: str) -> frozenset[int] | None:
    """Read local ranks with commas between them; no text means every rank, which is ``None``."""
    if not raw.strip():
        return None
    try:
        ranks = frozenset(int(part) for part in raw.split(","))
    except ValueError:
        ranks = frozenset({-1})
    if min(ranks) < 0:
        raise ValueError(
            f"{raw!r} is no list of local ranks; write numbers with commas between them, such as 0,2"
        )
    return ranks


def streams(raw: str) -> Std | dict[int, Std]:
    """Read which streams of which local rank: ``3``, or ``0:3,1:1``."""
    from phalanx.multiprocessing.std import Std

    try:
        return Std.from_str(raw)
    except ValueError:
        raise ValueError(
            f"{raw!r} names no streams; write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), "
            "or one for each local rank, such as 0:3,1:1"
        ) from None


def devices(raw: str) -> tuple[str, ...]:
    """Read devices with commas between them: indices, or ids such as ``GPU-8f3b…``; each once."""
    from phalanx.launcher.hardware.devices import read_devices

    return read_devices(raw.split(","))


def threads(raw: str) -> int:
    """Read a number of threads; ``auto`` is 0, each worker's share."""
    if raw.strip().lower() == "auto":
        return 0
    number = _integer(raw)
    if not 1 <= number <= _THREADS_MAX:
        raise ValueError(f"{raw[:40]!r} is no number of threads; write 1 or more, or auto")
    return number


def error_handler(raw: str) -> str:
    """Return ``module:name`` of an error handler, from the same or from the name of an entry point."""
    from phalanx.launcher.plugins import resolve_error_handler

    return resolve_error_handler(raw)


def backend(raw: str) -> str:
    """Return the name of a rendezvous backend: one of ours, or that of an installed plug-in."""
    if raw not in BACKENDS:
        from phalanx.launcher.plugins import is_rendezvous_handler

        if not is_rendezvous_handler(raw):
            raise ValueError(
                f"{raw!r} is not one of {', '.join(BACKENDS)}{nearest(raw, BACKENDS) or ', nor a plug-in'}"
            )
    return raw


def event_handler(raw: str) -> str:
    """Return the name of a handler of events that is built in or installed."""
    from phalanx.launcher.plugins import check_event_handler

    check_event_handler(raw)
    return raw


def appended(raw: str) -> str:
    """Return the path of a file to which lines can be appended. It is not made yet."""
    place = raw if os.path.exists(raw) else os.path.dirname(raw) or "."
    if os.path.isdir(raw):
        raise ValueError(f"{raw!r} is a folder; name a file in it")
    if not os.path.exists(place):
        raise ValueError(f"there is no folder {place!r} for the file {raw!r}; make it first")
    if not os.access(place, os.W_OK):
        raise ValueError(f"the file {raw!r} cannot be written; check the permissions of {place!r}")
    return raw


def log_plugin(raw: str) -> str:
    """Return the name of a log plug-in that is installed, or ``default``."""
    if raw != "default":  # reading entry points costs what a plain job need not pay
        from phalanx.launcher.log_plugins import find_log_plugin

        find_log_plugin(raw)
    return raw


def secret(raw: str) -> bytes:
    """Return what a secret file holds."""
    from phalanx.launcher.secret_file import read_secret

    return read_secret(raw)


def signals(raw: str) -> tuple[tuple[signal.Signals, ...], tuple[str, ...]]:
    """Read signal names (``SIGTERM``, ``TERM`` or ``15``) with commas between them.

    Returns the signals in the given order, each once, and the names that this system does not know.
    """
    known: dict[signal.Signals, None] = {}
    unknown: list[str] = []
    for word in filter(None, (part.strip() for part in raw.split(","))):
        found = _signal(word)
        if found is None:
            unknown.append(word)
        elif found in _UNCATCHABLE:
            raise ValueError(f"no program can catch {found.name}; leave it out")
        elif found in _NOT_FOR_HANDLERS:
            raise ValueError(
                f"{found.name} reports a fault or a child's end and cannot be taken over; leave it out"
            )
        else:
            known[found] = None
    return tuple(known), tuple(unknown)


def _signal(word: str) -> signal.Signals | None:
    try:
        if word.isdecimal():
            return signal.Signals(int(word))
        return signal.Signals["SIG" + word.upper().removeprefix("SIG")]
    except (KeyError, ValueError):
        return None


def _integer(raw: str) -> int:
    try:
        return int(raw)
    except ValueError:
        raise ValueError(f"{raw!r} is no whole number") from None
