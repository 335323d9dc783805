"""Job events on their way from a hosted agent to its host: a pipe that neither of them ever waits for.

The agent writes lines while they fit, keeps a bounded number of those that do not, and drops the oldest of these. What
is still kept at its end goes to the host with the outcome, so that a host that reads late misses nothing of the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakSet

from phalanx.events.job import EventsDropped, JobEnded, JobEvent
from phalanx.events.lines import from_line, to_line
from phalanx.events.status import JobStatus
from phalanx.launcher.hosting.descriptors import above_standard
from phalanx.launcher.hosting.outcome import Outcome

if TYPE_CHECKING:
    import asyncio

__all__ = ["EventsIn", "EventsOut", "Subscriber"]

# Some 300 bytes each: hours of a quiet job, and what an agent may hold for a host that does not look.
KEPT_MAX = 1000
# The host's own memory of what nobody has asked for.
UNTAKEN_MAX = 10_000
AT_ONCE = 16384  # bytes: several lines in a system call, a quarter of a pipe


class EventsOut:
    """The agent's end. ``put`` is called on the running loop; it never blocks and never raises."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._kept: deque[JobEvent] = deque()
        self._dropped = 0
        self._dropped_at_ns = 0
        self._begun = b""  # what has left the queue and not yet us
        self._loop: asyncio.AbstractEventLoop | None = None  # that looks whether there is room again

    def put(self, job_event: JobEvent) -> None:
        """Send it, or keep it until there is room."""
        if self._fd < 0:
            return
        if len(self._kept) >= KEPT_MAX:
            self._dropped += 1
            self._dropped_at_ns = self._kept.popleft().at_ns
        self._kept.append(job_event)
        if self._loop is None:
            self._send()

    def left(self) -> str:
        """What is still kept; the pipe takes nothing more. The loop has ended, or is about to."""
        self._loop = None
        data = self._begun + b"".join(self._lines())
        self._close()
        return data.decode()

    def _send(self) -> None:
        while self._begun or self._kept or self._dropped:
            if not self._begun:
                self._begun = b"".join(self._lines(AT_ONCE))
            try:
                sent = os.write(self._fd, self._begun)
            except BlockingIOError:
                if self._loop is None:
                    import asyncio  # a host has no need of it

                    self._loop = asyncio.get_running_loop()
                    self._loop.add_writer(self._fd, self._send)
                return
            except OSError:  # nobody listens any more
                self._unwatch()
                self._close()
                return
            self._begun = self._begun[sent:]
        self._unwatch()

    def _lines(self, at_most: int | None = None) -> list[bytes]:
        lines: list[bytes] = []
        if self._dropped:
            dropped = EventsDropped(at_ns=self._dropped_at_ns, count=self._dropped)
            lines.append(to_line(dropped).encode())
            self._dropped = 0
        size = 0
        while self._kept and (at_most is None or size < at_most):
            lines.append(to_line(self._kept.popleft()).encode())
            size += len(lines[-1])
        return lines

    def _unwatch(self) -> None:
        if self._loop is not None:
            self._loop.remove_writer(self._fd)
            self._loop = None

    def _close(self) -> None:
        self._kept.clear()
        self._begun = b""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Subscriber:
    """One of those who wait for what happens: ``fd`` is readable when there is more, whoever has read the pipe.

    A status says everything, so of more than anybody keeps up with the oldest are dropped.
    """

    def __init__(self) -> None:
        self.fd = above_standard(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
        self.statuses: deque[JobStatus] = deque(maxlen=UNTAKEN_MAX)
        self._last: JobStatus | None = None

    def tell(self, status: JobStatus) -> None:
        """Something has happened, and now the job stands so."""
        if status != self._last:
            self._last = status
            self.statuses.append(status)
        with contextlib.suppress(BlockingIOError):  # 2**64 times unheard
            os.eventfd_write(self.fd, 1)

    def quiet(self) -> None:
        """``fd`` is readable no more until there is something new."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def __del__(self) -> None:
        # The only way to end one: who still holds it may be telling it something at this moment.
        with contextlib.suppress(AttributeError):  # no descriptor was left to make one
            os.close(self.fd)


class EventsIn:
    """The host's end; who uses it holds a lock. ``fd`` is -1 where no job events are sent."""

    def __init__(self, fd: int) -> None:
        if fd >= 0:
            os.set_blocking(fd, False)
        self.fd = fd
        self.status = JobStatus()
        self._half = b""
        self._untaken: deque[JobEvent] = deque()
        self._dropped = 0
        self._dropped_at_ns = 0
        self._end: JobEnded | None = None
        self._subscribers: WeakSet[Subscriber] = WeakSet()

    def subscribe(self) -> Subscriber:
        """Who is told of each change from now on, as long as somebody holds it; the first is how it stands now."""
        subscriber = Subscriber()
        subscriber.tell(self.status)
        self._subscribers.add(subscriber)
        return subscriber

    def read(self) -> None:
        """Take in what has come. Never blocks."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._take_in(data)

    def finish(self, left: str, outcome: Outcome) -> None:
        """The agent is gone: its last words, and the end."""
        self.read()
        self.close()
        self._take_in(left.encode())
        told = self._end
        if told is None or told.exit_code != outcome.exit_code:
            # It could not say so itself, or something happened to it after it had.
            reason = "" if outcome.verdict is None else outcome.verdict.reason
            told = JobEnded(
                at_ns=time.time_ns(),
                ending=outcome.ending.value,
                exit_code=outcome.exit_code,
                reason=reason or _last_line(outcome.report),
            )
        self._add(told)

    def take(self) -> list[JobEvent]:
        """Those that were not taken yet, in order."""
        taken = list(self._untaken)
        self._untaken.clear()
        if self._dropped:
            taken.insert(0, EventsDropped(at_ns=self._dropped_at_ns, count=self._dropped))
            self._dropped = 0
        return taken

    def close(self) -> None:
        """Hear nothing more; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _take_in(self, data: bytes) -> None:
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            job_event = from_line(line)
            if isinstance(job_event, JobEnded):
                self._end = job_event  # told when the agent is gone: the last, and one with the outcome
            elif job_event is not None:
                self._add(job_event)

    def _add(self, job_event: JobEvent) -> None:
        if len(self._untaken) >= UNTAKEN_MAX:
            self._dropped += 1
            self._dropped_at_ns = self._untaken.popleft().at_ns
        self._untaken.append(job_event)
        self.status = self.status.after(job_event)
        for subscriber in self._subscribers:
            subscriber.tell(self.status)


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].removeprefix("phalanx: ") if lines else ""
