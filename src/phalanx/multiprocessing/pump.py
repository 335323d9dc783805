"""The one background thread of a worker group's logs, and the only door to it.

Methods may be called from any one thread; they hand requests to the log thread, which alone touches the
streams.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from phalanx.multiprocessing.mover import LOOK_S, Mover, Stream

__all__ = ["LogPump"]

_CLOSE_S = 1.0  # what `close` gives to bring home what is left
_JOIN_S = 5.0


class LogPump:
    """Moves streams in a daemon thread until it is closed. Without a stream there is no thread.

    ``look_s`` is how often followed files are looked at where inotify fails.
    """

    def __init__(self, *, look_s: float = LOOK_S) -> None:
        self._read_end, self._write_end = _open_waker()
        self._mover = Mover(self._read_end, look_s=look_s)
        self._requests: deque[Callable[[], None]] = deque()
        self._condition = threading.Condition()
        self._ends_asked = self._ends_seen = self._ends_drained = 0
        self._has_streams = False
        self._closes_at: float | None = None
        self._crash: BaseException | None = None
        self._thread: threading.Thread | None = None

    def add(self, stream: Stream) -> None:
        """Move this stream too; it is owned, and closed, by the pump from now on."""
        self._has_streams = True
        self._request(lambda: self._mover.add(stream))

    def start(self) -> None:
        """Start the thread; no effect when it runs, or when there is nothing to move."""
        if self._thread is None and self._has_streams:
            self._thread = threading.Thread(target=self._run, name="phalanx-logs", daemon=True)
            self._thread.start()

    def end(self, local_rank: int) -> None:
        """The worker has ended; `drain` waits for all that it wrote."""
        self._ends_asked += 1
        self._request(lambda: self._note_end(local_rank))

    def retire(self, local_rank: int) -> None:
        """Let go of the streams that this ended worker has so far, as soon as they are read to their ends."""
        self._request(lambda: self._mover.retire(local_rank))

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that ended workers wrote is in files and on the console; False when time ran out."""
        self.start()
        if self._thread is None:
            return True
        with self._condition:
            done = self._condition.wait_for(self._is_drained, timeout_s)
        if self._crash is not None:
            raise RuntimeError("the log thread crashed; output after that is lost") from self._crash
        return done

    def close(self) -> None:
        """Bring home what can be in about a second, then let go of everything. Idempotent."""
        if self._write_end < 0:
            return
        thread = self._thread
        if thread is None:
            for request in self._requests:
                request()
            self._mover.close()
        else:
            self._request(self._note_close)
            thread.join(_JOIN_S)
            if (
                thread.is_alive()
            ):  # a write to something that blocks in spite of all: its descriptors are lost
                return
        for end in {self._read_end, self._write_end}:
            os.close(end)
        self._read_end = self._write_end = -1

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        if self._thread is not None:
            os.write(self._write_end, (1).to_bytes(8, sys.byteorder))

    def _is_drained(self) -> bool:
        return self._ends_drained >= self._ends_asked or self._crash is not None

    # From here on: the log thread.

    def _note_end(self, local_rank: int) -> None:
        self._ends_seen += 1
        self._mover.end(local_rank)

    def _note_close(self) -> None:
        self._closes_at = time.monotonic() + _CLOSE_S
        self._mover.end()

    def _run(self) -> None:
        # Signals are for the threads that handle them; a terminal may take our output in the background too.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            while not self._is_done():
                try:
                    self._turn()
                except Exception as bug:
                    if self._crash is not None:
                        raise
                    self._survive(bug)
        finally:
            self._mover.close()
            with self._condition:
                self._ends_drained = self._ends_asked
                self._condition.notify_all()

    def _is_done(self) -> bool:
        if self._closes_at is None or self._requests:
            return False
        return self._mover.is_drained or time.monotonic() >= self._closes_at

    def _turn(self) -> None:
        while self._requests:
            self._requests.popleft()()
        if self._ends_drained < self._ends_seen and self._mover.is_drained:
            with self._condition:
                self._ends_drained = self._ends_seen
                self._condition.notify_all()
        if not self._is_done():
            self._mover.turn(self._closes_at)

    def _survive(self, bug: BaseException) -> None:
        """A bug of ours must not block workers on their pipes: say it, lose their output, let them run."""
        threading.excepthook(
            threading.ExceptHookArgs((type(bug), bug, bug.__traceback__, threading.current_thread()))
        )
        self._mover.discard()
        with self._condition:
            self._crash = bug
            self._condition.notify_all()


def _open_waker() -> tuple[int, int]:
    """Descriptors (to read, to write) that end a sleep; both are one where the system has eventfd."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    return read_end, write_end
