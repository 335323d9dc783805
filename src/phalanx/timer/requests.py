"""What a client asks of a timer server: start a countdown, or end it; and the line that carries this over a FIFO.

Pure. The line is torchelastic's, one JSON object of at most ``PIPE_BUF`` bytes, so that each side may be torch's:
``{"version": 1, "pid": …, "scope_id": …, "expiration_time": …, "signal": …}``; a negative time ends the countdown.
"""

from __future__ import annotations

import json
import signal as signals
from typing import Any

__all__ = ["LINE_BYTES_MAX", "NO_ENDS", "FileTimerRequest", "TimerRequest", "read_line"]

VERSION = 1
LINE_BYTES_MAX = 4096  # PIPE_BUF of Linux: what is longer could be torn by another writer's line
PID_MAX = 1 << 22  # PID_MAX_LIMIT of Linux
SIGNAL_MAX = 64
# What they do to a process that does not catch them is no end: it stands still, goes on, or does not notice.
NO_ENDS = frozenset(
    int(one)
    for one in (
        signals.SIGSTOP,
        signals.SIGTSTP,
        signals.SIGTTIN,
        signals.SIGTTOU,
        signals.SIGCONT,
        signals.SIGCHLD,
        signals.SIGURG,
        signals.SIGWINCH,
    )
)
TIME_MAX = 1e12  # the year 33658; an integer may be larger than any float


class TimerRequest:
    """A countdown that begins, or one that ends: its ``expiration_time`` is negative then.

    ``expiration_time`` is in seconds since the epoch. What identifies a worker is up to client and server.

    >>> TimerRequest(worker_id=7, scope_id="forward", expiration_time=-1.0).scope_id
    'forward'
    """

    __slots__ = ("expiration_time", "scope_id", "worker_id")

    def __init__(self, worker_id: Any, scope_id: str, expiration_time: float) -> None:
        self.worker_id = worker_id
        self.scope_id = scope_id
        self.expiration_time = expiration_time

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimerRequest):
            return NotImplemented
        return (self.worker_id, self.scope_id, self.expiration_time) == (
            other.worker_id,
            other.scope_id,
            other.expiration_time,
        )

    def __hash__(self) -> int:
        return hash((self.worker_id, self.scope_id, self.expiration_time))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.worker_id!r}, {self.scope_id!r}, {self.expiration_time!r})"


class FileTimerRequest(TimerRequest):
    """A request that travels over a FIFO. ``signal`` is what the server sends to the worker; 0 or less: nothing.

    >>> FileTimerRequest(worker_pid=7, scope_id="forward", expiration_time=-1.0).to_json()
    '{"version": 1, "pid": 7, "scope_id": "forward", "expiration_time": -1.0, "signal": 0}'
    """

    __slots__ = ("signal", "version")

    def __init__(self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = VERSION
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """The process that asks."""
        pid: int = self.worker_id
        return pid

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FileTimerRequest):
            return NotImplemented
        return super().__eq__(other) is True and self.signal == other.signal

    def __hash__(self) -> int:
        return hash((self.worker_id, self.scope_id, self.expiration_time, self.signal))

    def to_json(self) -> str:
        """The request as the protocol has it, without the end of the line."""
        # What json.dumps makes of the whole; it takes twice as long, and this is most of what a block costs.
        scope, at = json.dumps(self.scope_id), json.dumps(self.expiration_time)
        return (
            f'{{"version": {self.version}, "pid": {self.worker_pid}, "scope_id": {scope}, '
            f'"expiration_time": {at}, "signal": {int(self.signal)}}}'
        )


def read_line(line: bytes) -> FileTimerRequest:
    """Read what ``to_json`` wrote. Raises ``ValueError``, with the reason, for anything else.

    >>> read_line(b'{"version": 1, "pid": 7, "scope_id": "f", "expiration_time": 2.5, "signal": 9}')
    FileTimerRequest(7, 'f', 2.5)
    """
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as reason:
        raise ValueError(f"no JSON: {reason}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 # what was written is wrong, not what we were called with
    if found.get("version") != VERSION:
        raise ValueError(f"version {found.get('version')!r} is not known")
    pid, scope, at, number = (found.get(name) for name in ("pid", "scope_id", "expiration_time", "signal"))
    if type(pid) is not int or not 1 < pid <= PID_MAX:
        raise ValueError(f"pid {pid!r} is no worker's")
    if not isinstance(scope, str):
        raise ValueError(f"scope_id {scope!r} is no text")  # noqa: TRY004 # as above
    if isinstance(at, bool) or not isinstance(at, int | float) or not abs(at) <= TIME_MAX:
        raise ValueError("expiration_time is no time")
    if type(number) is not int or number > SIGNAL_MAX:
        raise ValueError(f"signal {number!r} is no signal")
    if number in NO_ENDS:
        raise ValueError(f"{signals.Signals(number).name} ends no process")
    return FileTimerRequest(pid, scope, float(at), number)
