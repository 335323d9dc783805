"""Workers' output in a program whose ``sys.stdout`` is not its standard output: a notebook's, or a redirected one.

Where it is, agent and workers inherit the descriptor, and nothing is between. Else they write into a pipe, and one
thread of this program hands on what comes, for as long as the job runs.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import sys
import threading
from typing import Any

__all__ = ["Output"]

_DRAIN_S = 5.0  # a process that has left the job may hold the pipe open; nobody waits for it longer


class Output:
    """Where a job's output goes. ``stdout`` and ``stderr`` are for the agent; None: it inherits ours."""

    def __init__(self) -> None:
        self._streams: dict[int, Any] = {}
        self._theirs: list[int] = []
        self._thread: threading.Thread | None = None
        self.stdout = self._place("stdout", 1)
        self.stderr = self._place("stderr", 2)

    def _place(self, name: str, number: int) -> int | None:
        stream = getattr(sys, name)
        if stream is None:
            return None
        with contextlib.suppress(Exception):  # whatever stands there: what was printed before comes first
            stream.flush()
        if stream is getattr(sys, f"__{name}__") and _writes_to(stream, number):
            return None
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        self._streams[ours] = stream
        self._theirs.append(theirs)
        return theirs

    def started(self) -> None:
        """The job has its ends of the pipes: close ours, and hand on what comes."""
        self._close_theirs()
        if self._streams:
            self._thread = threading.Thread(target=self._hand_on, name="phalanx-output", daemon=True)
            self._thread.start()

    def ended(self) -> None:
        """Wait until what the job has written is handed on; or give up, when there was no job."""
        self._close_theirs()
        if self._thread is None:
            for fd in self._streams:
                os.close(fd)
            self._streams.clear()
        elif self._thread is not threading.current_thread():
            self._thread.join(_DRAIN_S)

    def _close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def _hand_on(self) -> None:
        decoders = {fd: codecs.getincrementaldecoder("utf-8")("backslashreplace") for fd in self._streams}
        with selectors.DefaultSelector() as selector:
            for fd in decoders:
                selector.register(fd, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    data = os.read(key.fd, 65536)
                    self._write(key.fd, decoders[key.fd].decode(data, final=not data))
                    if not data:
                        selector.unregister(key.fd)
                        os.close(key.fd)

    def _write(self, fd: int, text: str) -> None:
        if not text:
            return
        with contextlib.suppress(Exception):  # a stream that was closed, of somebody else's making
            self._streams[fd].write(text)
            self._streams[fd].flush()


def _writes_to(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (AttributeError, OSError, ValueError):
        return False
