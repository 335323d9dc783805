"""Who looks on at a job in its agent's own process: handlers of torchelastic's events, and a file of job events.

They run on a thread of their own, which begins when the first thing happens: a handler may be anybody's code, and may
block, as a console may. What they take too slowly waits in a queue of bounded length, and is dropped beyond that. One
that fails is told of in one line and not asked again. Nothing here can end a job.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from phalanx.events.job import JobEvent
    from phalanx.launcher.options import RunOptions

    Sink = Callable[[JobEvent], object]

__all__ = ["EventSinks", "event_sink", "event_sinks_of", "file_sink", "together"]

WAITING_MAX = 1000
# How long a job that is over waits for its sinks: a scheduler that stops it counts this, too.
FINISH_S = 5.0


def event_sinks_of(options: RunOptions) -> EventSinks:
    """Those that were asked for."""
    sinks: dict[str, Callable[[], Sink]] = {}
    name, file = options.event_log_handler, options.events_file
    backend = "c10d" if options.standalone else options.rdzv_backend  # as torchrun says it
    if name != "null":
        sinks[f"the handler of events {name!r}"] = lambda: event_sink(name, backend)
    if file is not None:
        sinks[f"the file of job events {file!r}"] = lambda: file_sink(file)
    return EventSinks(sinks)


def together(first: Sink | None, second: Sink) -> Sink:
    """Both of them, in this order."""
    if first is None:
        return second

    def take(job_event: JobEvent) -> None:
        first(job_event)
        second(job_event)

    return take


def event_sink(name: str, rdzv_backend: str) -> Sink:
    """What records a job's events through the handler with this name. Raises ``KeyError``, and what its code raises."""
    from phalanx.events.handlers import get_logging_handler
    from phalanx.events.making import EventMaker
    from phalanx.events.recording import record

    get_logging_handler(name)
    maker = EventMaker(rdzv_backend=rdzv_backend)

    def take(job_event: JobEvent) -> None:
        for event in maker.from_job_event(job_event):
            record(event, name)

    return take


def file_sink(path: str) -> Sink:
    """What appends a line for each job event to this file, whole: several nodes may share it. Raises ``OSError``."""
    from phalanx.events.lines import to_line

    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def take(job_event: JobEvent) -> None:
        data = to_line(job_event).encode()
        while data:  # a file takes all of it at once, a pipe may not
            data = data[os.write(file, data) :]

    return take


class EventSinks:
    """``observe`` hands a job event to all; it never blocks. ``sinks`` are made on the thread, by their name."""

    def __init__(self, sinks: dict[str, Callable[[], Sink]]) -> None:
        self._make = sinks
        self._waiting: list[JobEvent] = []
        self._dropped = 0
        self._is_over = False
        self._thread: threading.Thread | None = None

    def observe(self, job_event: JobEvent) -> None:
        """Take a job event, on the agent's loop."""
        if self._thread is None:
            self._begin()
        with self._changed:
            if len(self._waiting) >= WAITING_MAX:
                self._dropped += 1
            else:
                self._waiting.append(job_event)
            self._changed.notify()

    def finish(self, patience_s: float = FINISH_S) -> None:
        """The job is over: wait so long for those who still write."""
        if self._thread is None:
            return
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join(patience_s)
        if self._thread.is_alive():
            _say(f"events were lost: {' and '.join(self._make)} took longer than {patience_s:g} s at the end")
        elif self._dropped:
            _say(f"{self._dropped} events were lost: {' and '.join(self._make)} took too long")

    def _begin(self) -> None:
        import threading

        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="phalanx-events", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sinks: dict[str, Sink] = {}
        for name, make in self._make.items():
            try:
                sinks[name] = make()
            except Exception as error:  # noqa: BLE001 # a plug-in's code, or a folder that has gone
                _say(f"{name} cannot be used: {_reason(error)}; the job goes on without it")
        for job_event in self._arriving():
            for name, take in list(sinks.items()):
                try:
                    take(job_event)
                except Exception as error:  # noqa: BLE001 # as above
                    del sinks[name]
                    _say(f"{name} failed and is not used any more: {_reason(error)}; the job goes on")

    def _arriving(self) -> Iterable[JobEvent]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_over)
                taken, self._waiting = self._waiting, []
            if not taken:
                return
            yield from taken


def _reason(error: Exception) -> str:
    from phalanx.agent.sentences import one_line

    return f"{type(error).__name__}: {one_line(str(error))}"


def _say(text: str) -> None:
    """In one piece: lines of workers go to the same place."""
    from phalanx.agent.processes.console import Console

    console = Console()
    console.say(text)
    console.finish("", patience_s=FINISH_S)
