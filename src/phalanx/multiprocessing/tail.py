"""torchelastic's ``TailLog``: copy growing log files, line by line, to a text stream while their writers run.

A front of the machinery behind tees: the same whole lines, and no polling where inotify works.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TextIO

from phalanx.multiprocessing.console import Console, console_for
from phalanx.multiprocessing.mover import LOOK_S, Stream
from phalanx.multiprocessing.outlets import LineOutlet
from phalanx.multiprocessing.pump import LogPump
from phalanx.multiprocessing.sources import FollowedFile

__all__ = ["TailLog", "tail_logfile"]

# What `TailLog.stop` gives a slow reader for lines that were written before it.
_DRAIN_S = 60.0


class TailLog:
    """Copies the lines of several log files to ``dst`` until it is stopped.

    Files need not exist at the start. Each line gets the prefix ``[<name><index>]:`` or that of
    ``log_line_prefixes``, by the index of its file in ``log_files``. ``interval_sec`` matters only where the
    system cannot tell of writes. ``log_line_filter`` gets each line, with its newline, and says whether it
    counts. Signature and behaviour are torchelastic's, but lines are whole, and none is lost at the end.

    >>> import sys
    >>> with open("0.log", "w") as log:
    ...     print("step 1", file=log)
    >>> TailLog("trainer", {0: "0.log"}, sys.stdout).start().stop()
    [trainer0]:step 1
    """

    def __init__(
        self,
        name: str,
        log_files: Mapping[int, str],
        dst: TextIO,
        log_line_prefixes: Mapping[int, str] | None = None,
        interval_sec: float = LOOK_S,
        log_line_filter: Callable[[str], bool] | None = None,
    ) -> None:
        default = {index: f"[{name}{index}]:" for index in log_files}
        self._prefixes = {**default, **(log_line_prefixes or {})}
        self._log_files = dict(log_files)
        self._dst = dst
        self._interval_s = interval_sec
        self._filter = log_line_filter
        self._pump: LogPump | None = None
        self._console: Console | None = None
        self._is_stopped = False

    def start(self) -> TailLog:
        """Start copying in the background; returns self."""
        if self._pump is not None:
            raise RuntimeError("this TailLog was started before; make a new one")
        self._pump = LogPump(look_s=self._interval_s)
        self._console = console_for(self._dst)
        for index, path in self._log_files.items():
            outlet = LineOutlet(self._prefixes[index], console=self._console, select=_selecting(self._filter))
            consoles = [self._console] if self._console is not None else []
            self._pump.add(Stream(index, FollowedFile(path), [outlet], consoles))
        self._pump.start()
        return self

    def stop(self) -> None:
        """Copy what has been written until now, the last line too if it has no newline, and stop. Idempotent."""
        if self._pump is not None and not self._is_stopped:
            for index in self._log_files:
                self._pump.end(index)
            self._pump.drain(_DRAIN_S)
            self._pump.close()
            if self._console is not None:
                self._console.close()
        self._is_stopped = True

    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._is_stopped


def tail_logfile(
    header: str,
    file: str,
    dst: TextIO,
    finished: threading.Event,
    interval_sec: float,
    log_line_filter: Callable[[str], bool] | None = None,
) -> None:
    """Copy one file's lines, each after ``header``, until ``finished`` is set and the end is reached.

    >>> import sys, threading
    >>> with open("worker.log", "w") as log:
    ...     print("step 1", "step 2", sep=chr(10), file=log)
    >>> finished = threading.Event()
    >>> finished.set()
    >>> tail_logfile("[0]:", "worker.log", sys.stdout, finished, 0.1)
    [0]:step 1
    [0]:step 2
    """
    tail = TailLog("", {0: file}, dst, {0: header}, interval_sec, log_line_filter).start()
    try:
        finished.wait()
    finally:
        tail.stop()


def _selecting(log_line_filter: Callable[[str], bool] | None) -> Callable[[bytes], bytes] | None:
    if log_line_filter is None:
        return None

    def select(block: bytes) -> bytes:
        lines = block.decode("utf-8", "replace").split("\n")[:-1]
        return "".join(f"{line}\n" for line in lines if log_line_filter(f"{line}\n")).encode("utf-8")

    return select
