"""The other side of ``library.py``: the process in which a hosted agent runs.

It is handed four descriptors: a nameless file that holds the ``RunOptions`` and takes the ``Outcome``; a socket on
which the host writes numbers of signals, one byte each, and whose end is the host's; the host's pidfd, because a
forked child of the host may hold that socket open when the host is dead; and a pipe for job events, or -1 if the host
wants none. None of them reaches a worker.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from phalanx.agent.spec import Ended
from phalanx.agent.verdict.verdict import EX_BUG, EX_UNAVAILABLE, EX_USAGE, Ending
from phalanx.launcher.hosting.event_pipe import EventsOut
from phalanx.launcher.hosting.handover import from_json, to_json
from phalanx.launcher.hosting.outcome import BY_PROGRAM, LastWords, Outcome
from phalanx.launcher.options import RunOptions
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.pidfd import has_ended

if TYPE_CHECKING:
    from phalanx.events.job import JobEvent

__all__ = ["HostLink", "command"]

SECRET = "PHALANX_SECRET"  # the agents', and workers would inherit it


class HostLink:
    """The agent's connection to its host; a ``phalanx.agent.spec.Host``."""

    def __init__(self, link: int, host_pidfd: int, handover: NamelessFile, job_events: int = -1) -> None:
        """``host_pidfd`` is -1 where the system has no pidfds."""
        self.is_gone = False
        self.is_in_use = False
        """The agent has begun to start: from here on no error is a mistake in the options."""
        self.has_told = False
        self._link = socket.socket(fileno=link)
        self._link.setblocking(False)
        self._host_pidfd = host_pidfd
        self._handover = handover
        self._events = EventsOut(job_events) if job_events >= 0 else None
        self._either = select.epoll()
        for fd in (link, host_pidfd):
            if fd >= 0:
                self._either.register(fd, select.EPOLLIN)

    def fileno(self) -> int:
        """Readable when the host has asked for something, or is gone."""
        return self._either.fileno()

    def asked(self) -> tuple[int, ...]:
        """Signals that the host has asked for since the last call."""
        numbers: list[int] = []
        while not self.is_gone:
            try:
                data = self._link.recv(4096)
            except BlockingIOError:
                self.is_gone = self._host_pidfd >= 0 and has_ended(self._host_pidfd)
                break
            except OSError:
                data = b""
            numbers += data
            self.is_gone = not data
        signed = (BY_PROGRAM - one if one > BY_PROGRAM else one for one in numbers)
        return tuple(one for one in signed if abs(one) in signal.valid_signals())

    @property
    def observe(self) -> Callable[[JobEvent], object] | None:
        """What takes job events for the host, if it wants them."""
        return None if self._events is None else self._events.put

    def told(self, ended: Ended) -> None:
        """Hand the outcome to the host."""
        self.tell(
            Outcome(
                exit_code=ended.exit_code,
                ending=Ending.FAILED if ended.verdict is None else ended.verdict.ending,
                report=ended.last_words,
                verdict=ended.verdict,
                is_complete=ended.is_orderly,
            )
        )

    def tell(self, outcome: Outcome) -> None:
        """Write the outcome into the file that the host reads when we have ended. Never raises."""
        left = "" if self._events is None else self._events.left()
        try:
            self._handover.write(to_json(LastWords(outcome=outcome, job_events=left)).encode())
        except (OSError, TypeError):  # no memory: our exit code has to do
            traceback.print_exc()
        self.has_told = True

    def witness(self) -> tuple[int, ...]:
        """Our end of the socket: the host sees it close when the agent and its keeper are gone."""
        self.is_in_use = True
        return (self._link.fileno(),)


def command() -> NoReturn:
    """Be the agent: ``argv`` names file, socket, pidfd and pipe. Ends the process, as ``phalanx run`` does."""
    gc.disable()  # until the agent turns it on: imports make no garbage
    # That of the thread that started us; the program may block signals there for its own ends.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.pop(SECRET, None)
    file, link, host_pidfd, job_events = map(int, sys.argv[1:5])
    for fd in (file, link, host_pidfd, job_events):
        if fd >= 0:
            os.set_inheritable(fd, False)
    handover = NamelessFile.of(file)
    host = HostLink(link, host_pidfd, handover, job_events)
    try:
        code = _serve(host, handover)
    except BaseException:  # noqa: BLE001 # the process's border: the record is what is left of it
        code = _fail(
            host, EX_BUG, f"{traceback.format_exc()}phalanx: this is a bug of phalanx, not of the job"
        )
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
    os._exit(code)


def _serve(host: HostLink, handover: NamelessFile) -> int:
    try:
        options = from_json(handover.read(), RunOptions)
    except ValueError as reason:
        return _fail(
            host,
            EX_BUG,
            f"phalanx: error: the agent cannot read what it is asked to run: {reason}; if phalanx was installed anew "
            "since this program started, start the program again",
        )

    from phalanx.launcher.command import run_command
    from phalanx.multiprocessing.folders import LogDirError

    try:
        return run_command(options, host=host)
    except BlockingIOError:  # fork's EAGAIN
        return _fail(
            host, EX_UNAVAILABLE, "phalanx: error: no more processes can be started here; see ulimit -u"
        )
    except (LogDirError, ValueError) as reason:
        if host.is_in_use and not isinstance(reason, LogDirError):
            raise
        return _fail(host, EX_USAGE, f"phalanx: error: {reason}")


def _fail(host: HostLink, code: int, text: str) -> int:
    """Say why there is no job, or no longer one, on standard error and to the host."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it
        print(text, file=sys.stderr)
    if not host.has_told:
        host.tell(
            Outcome(exit_code=code, ending=Ending.FAILED, report=f"{text}\n", is_complete=not host.is_in_use)
        )
    return code
