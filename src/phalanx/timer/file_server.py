"""The server at the other end of the FIFO: a thread that sleeps until a request comes or a countdown ends."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import select
import stat
import threading
import time
import weakref
from collections.abc import Callable

from phalanx.timer import debug_info
from phalanx.timer.countdowns import ClockSteps, TimerBook
from phalanx.timer.fifo import Fifo, is_read
from phalanx.timer.requests import LINE_BYTES_MAX, FileTimerRequest, read_line

__all__ = ["FileTimerServer"]

logger = logging.getLogger(__name__)

REQUEST_BEGINS = b'{"version"'  # as both clients write it
COMPLAINTS_MAX = 20  # nonsense in a loop must not fill the log

wall_time = time.time  # by which clients say when their time is over
LogEvent = Callable[[str, FileTimerRequest | None], None]


class FileTimerServer:
    """Watches the countdowns of workers on this machine, and sends those that are too slow their signal.

    ``file_path``: the FIFO, which the server makes (mode 0600) and removes; a FIFO that is left there is replaced, one
    that somebody reads and any other file are refused with ``FileExistsError``. ``run_id``: of the job, for what is
    logged. ``max_interval``: after how many seconds the server wakes at the latest. ``daemon``: whether a program may
    end while the thread runs. ``log_event(name, request)`` is called for what the server does; its errors are logged.
    ``is_worker(pid)``: whether it may be ended; it is asked when its time is over. ``end_worker(request)`` takes the
    place of the signal, for an agent that has something to do before; it must not block. ``on_requests()`` is called
    when workers have made progress. Clients of torchelastic 2.13 can use the server. A line that is no request is
    dropped, and nothing it says can harm this process or pid 1. A FIFO that somebody has removed is made anew within
    ``max_interval``, or at ``look()``, and heard until its last client has closed it; nothing that has taken its place
    is touched. Without one, who is too slow is ended all the same.

    >>> import tempfile
    >>> server = FileTimerServer(os.path.join(tempfile.mkdtemp(), "watchdog"), run_id="job")
    >>> server.start()
    >>> server.stop()
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: LogEvent | None = None,
        *,
        is_worker: Callable[[int], bool] = lambda _pid: True,
        end_worker: Callable[[FileTimerRequest], None] | None = None,
        on_requests: Callable[[], None] = lambda: None,
    ) -> None:
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event
        self._is_worker = is_worker
        self._end_worker = end_worker
        self._on_requests = on_requests
        self._book: TimerBook[FileTimerRequest] = TimerBook()
        self._steps = ClockSteps()
        self._last_progress_time = int(wall_time())
        self._complaints = 0
        self._fifo: Fifo | None = None
        self._nameless: list[Fifo] = []  # older ones that clients still have open, the oldest first
        self._wake = -1
        self._has_told_loss = False  # of the FIFO's name
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None
        _servers.add(self)

    # Its life

    def start(self) -> None:
        """Make the FIFO and start the thread. Raises ``FileExistsError`` and other ``OSError``."""
        if self._thread is not None:
            raise RuntimeError("the timer server runs already")
        self._clear_place()
        self._open()
        self._is_stopping.clear()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._watchdog_loop, name="timer-server", daemon=self._daemon)
        self._thread.start()
        self._tell("watchdog started", None)

    def stop(self) -> None:
        """Stop the thread, wait for it, and remove the FIFO. Without effect when the server does not run."""
        if self._thread is None:
            self._close()  # run_once has opened it
            return
        self._is_stopping.set()
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._thread = None
        wake, self._wake = self._wake, -1
        os.close(wake)
        self._close()
        self._tell("watchdog stopped", None)

    def run_once(self) -> None:
        """Take the requests that are there and end who is too slow, in the caller's thread, without waiting.

        For a program that has a loop of its own, instead of ``start``; the first call makes the FIFO.
        """
        if self._fifo is None:
            self._clear_place()
            self._open()
        self._take_requests(0.0)
        self._end_expired()

    def _leave_to_parent(self) -> None:
        """In a forked child: the server is the parent's, and a FIFO that is held open counts as one that is served."""
        self._give_up_fifos()
        if self._wake >= 0:
            os.close(self._wake)
        self._wake = -1
        self._thread = None

    def look(self) -> None:
        """Have the thread look at once whether the FIFO is still there, and make it anew if it is not."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # Its parts, as torchelastic names them

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether there is a process with this number.

        >>> FileTimerServer.is_process_running(os.getpid())
        True
        """
        try:
            os.kill(pid, 0)
        except OSError as error:
            return error.errno == errno.EPERM
        return True

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Begin and end countdowns; every request of a worker is a sign of its progress."""
        if timer_requests:
            self._last_progress_time = int(wall_time())
            self._on_requests()
        self._book.enter(timer_requests)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Drop all countdowns of these workers."""
        self._book.forget(worker_pids)

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the countdowns that end at ``deadline`` (seconds since the epoch) or before, by pid."""
        return self._book.expired(deadline)

    def get_last_progress_time(self) -> int:
        """Return when a worker has last begun or ended a countdown; now, while none runs. Seconds since the epoch."""
        return self._last_progress_time if len(self._book) else int(wall_time())

    # The thread

    def _watchdog_loop(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._take_requests(self._patience_s())
                self._end_expired()
                self._mend()
            except Exception:
                logger.exception("job %s: the timer server goes on after an error", self._run_id)
                self._is_stopping.wait(1.0)  # not in a circle

    def _patience_s(self) -> float:
        next_at = self._book.next_expiration
        if next_at is None:
            return self._max_interval
        return min(self._max_interval, max(0.0, next_at - wall_time()))

    def _take_requests(self, patience_s: float) -> None:
        watched = select.poll()  # select() refuses descriptors above 1023
        fifos = [one.fd for one in self._fifos()]
        for fd in [*fifos, self._wake]:
            if fd >= 0:
                watched.register(fd, select.POLLIN)
        ready = {fd for fd, _ in watched.poll(math.ceil(patience_s * 1000))}
        self._follow_clock()  # before requests are read whose times are by the clock as it is now
        if self._wake in ready:
            os.eventfd_read(self._wake)
        if not ready.isdisjoint(fifos):
            self._read_all_there_is()

    def _read_all_there_is(self) -> None:
        # The newest is read first and heard last: what a client has written before, into an older one, is there by
        # then. The other way round, the end of a countdown could be heard before its beginning.
        read = [self._requests_of(one) for one in reversed(self._fifos())]
        self.register_timers([request for requests in reversed(read) for request in requests])
        for one in [one for one in self._nameless if one.is_at_end]:
            self._nameless.remove(one)
            one.close()

    def _requests_of(self, fifo: Fifo) -> list[FileTimerRequest]:
        *lines, fifo.rest = (fifo.rest + fifo.read()).split(b"\n")
        if len(fifo.rest) > LINE_BYTES_MAX:
            self._complain("a line without an end")
            fifo.rest = b""
        return [one for line in lines if line and (one := self._read(line)) is not None]

    def _read(self, line: bytes) -> FileTimerRequest | None:
        try:
            request = read_line(line)
        except ValueError as reason:
            self._complain(str(reason))
            # Half of a line, of a writer that was killed or is hostile, stands before the next one's, which is whole.
            # Within the text of a request these bytes cannot be: quotes in it are escaped.
            at = line.rfind(REQUEST_BEGINS)
            return self._read(line[at:]) if at > 0 else None
        if request.worker_pid == os.getpid():
            self._complain("it would end the server's own process")
            return None
        return request

    def _complain(self, reason: str) -> None:
        self._complaints += 1
        if self._complaints <= COMPLAINTS_MAX:
            logger.warning("job %s: a timer request is ignored: %s", self._run_id, reason[:200])

    def _follow_clock(self) -> None:
        step_s = None
        while step_s is None:
            # From left to right, as Python calls them.
            step_s = self._steps.seen(before=time.monotonic(), wall=wall_time(), after=time.monotonic())
        if step_s:
            self._book.shift(step_s)
            self._last_progress_time += int(step_s)
            logger.warning("job %s: the clock was set by %+.1f s; timers go on by it", self._run_id, step_s)

    def _end_expired(self) -> None:
        self._follow_clock()
        expired = self.get_expired_timers(wall_time())
        debug_info.log_debug_info_for_expired_timers(
            self._run_id, {pid: [one.to_json() for one in timers] for pid, timers in expired.items()}
        )
        for pid, timers in expired.items():
            if not self._is_worker(pid):
                if _has_memory(pid):  # else it may have been one, which has ended in its block
                    self._complain(f"process {pid} is no worker")
                continue
            # One that says no signal ends nobody; another one of the same worker may.
            first = next((one for one in timers if one.signal > 0), timers[0])
            self._tell("timer expired", first)
            scopes = ", ".join(one.scope_id for one in timers)
            if self._end_worker is not None:
                if first.signal > 0:
                    self._end_worker(first)
            elif self._reap_worker(pid, first.signal):
                logger.warning(
                    "job %s: process %s is too slow in %s and was sent signal %s",
                    self._run_id,
                    pid,
                    scopes,
                    first.signal,
                )
                self._tell("kill worker process", first)
        self.clear_timers(
            set(expired) | {pid for pid in self._book.workers if not self.is_process_running(pid)}
        )

    def _reap_worker(self, worker_pid: int, signal: int) -> bool:
        """Send the worker its signal. Return whether it was sent."""
        if signal <= 0:
            return False
        try:
            os.kill(worker_pid, signal)
        except OSError as error:
            logger.info("job %s: process %s: %s", self._run_id, worker_pid, error.strerror)
            return False
        return True

    def _tell(self, name: str, request: FileTimerRequest | None) -> None:
        if self._log_event is None:
            return
        try:
            self._log_event(name, request)
        except Exception:
            logger.exception("job %s: log_event failed", self._run_id)

    # The FIFO

    def _clear_place(self) -> None:
        """Remove a FIFO that was left there. One that a server reads is its own: its workers would be heard no more."""
        try:
            if not stat.S_ISFIFO(os.lstat(self._file_path).st_mode):
                raise FileExistsError(errno.EEXIST, "a file that is no FIFO is there", self._file_path)
        except FileNotFoundError:
            return
        if is_read(self._file_path):
            raise FileExistsError(errno.EEXIST, "another timer server reads from it", self._file_path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file_path)

    def _open(self) -> None:
        self._fifo = Fifo(self._file_path)

    def _fifos(self) -> list[Fifo]:
        """All that clients may write into, the oldest first."""
        return self._nameless if self._fifo is None else [*self._nameless, self._fifo]

    def _mend(self) -> None:
        """Make the FIFO anew if its name is free. Whatever has that name may be another server's, and stays."""
        try:
            if self._has_name():
                self._has_told_loss = False
                return
            self._set_aside()
            self._open()
        except FileExistsError:
            self._tell_loss("something else has taken the place of", "remove it, and the FIFO is made anew")
        except OSError as reason:  # its folder has gone, too, or descriptors are short: tried at each wake
            self._tell_loss(
                f"{reason.strerror}: nothing is in the place of", "it is made anew when that can be"
            )
        else:
            self._has_told_loss = False
            logger.warning("job %s: the timers' FIFO was removed by somebody, and is made anew", self._run_id)
            self._tell("watchdog file made anew", None)

    def _has_name(self) -> bool:
        """Whether our FIFO is where it was made. Raises ``FileExistsError`` when something else is."""
        try:
            if self._fifo is not None and not self._fifo.is_at(self._file_path):
                raise FileExistsError
        except (FileNotFoundError, NotADirectoryError):
            return False
        return self._fifo is not None

    def _set_aside(self) -> None:
        """Read the FIFO on without its name: who has opened it writes when it comes to that, and looks no more."""
        if self._fifo is not None:
            self._fifo.let_go()
            self._nameless.append(self._fifo)
            self._fifo = None

    def _tell_loss(self, what: str, cure: str) -> None:
        if not self._has_told_loss:
            self._has_told_loss = True
            logger.warning(
                "job %s: %s the timers' FIFO at %r: workers that begin now cannot tell of their timers; %s",
                self._run_id,
                what,
                self._file_path,
                cure,
            )

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            # Somebody may have put another file there, which is not ours to remove.
            if self._fifo is not None and self._fifo.is_at(self._file_path):
                os.unlink(self._file_path)
        self._give_up_fifos()

    def _give_up_fifos(self) -> None:
        for one in self._fifos():
            one.close()
        self._fifo, self._nameless = None, []

    def __repr__(self) -> str:
        return f"<FileTimerServer of job {self._run_id} at {json.dumps(self._file_path)}>"


_servers: weakref.WeakSet[FileTimerServer] = weakref.WeakSet()


def _leave_in_child() -> None:
    for server in list(_servers):
        server._leave_to_parent()


os.register_at_fork(after_in_child=_leave_in_child)


def _has_memory(pid: int) -> bool:
    """Whether it runs: one that is ending has given its memory back, before it can be waited for."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as sizes:
        return not sizes.read().startswith(b"0 ")
    return False
