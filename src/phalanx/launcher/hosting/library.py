"""An agent that a program hosts: ``start_agent(options)`` runs a job beside the program, in a child process.

The program itself stays as it is: no signal handler, no mask, no subreaper, no thread, and only this one child is ever
waited for. It may call from any thread, host several agents, and wait in an asyncio loop. The agent is a fresh
interpreter in a session of its own: a Ctrl-C in the program's terminal reaches the program alone, which says what that
means. When the program ends, however it does, its agent stops the job as at SIGTERM; and when the agent is killed, its
keeper ends what is left.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Self

from phalanx.events.job import JobEvent
from phalanx.events.status import JobStatus
from phalanx.launcher.hosting.descriptors import (
    above_standard,
    close_all,
    copies,
    open_or_null,
    own_pidfd,
    pipe,
    readable,
    watched,
)
from phalanx.launcher.hosting.event_pipe import EventsIn, Subscriber
from phalanx.launcher.hosting.handover import from_json, to_json
from phalanx.launcher.hosting.outcome import BY_PROGRAM, LastWords, Outcome, without_a_word
from phalanx.launcher.hosting.watching import AsyncWatch, Watch
from phalanx.launcher.options import RunOptions
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.pidfd import Child, has_ended, ready_of

__all__ = ["AgentProcess", "Outcome", "start_agent"]

# The package is found where this program found it, and neither the current folder nor that one stays on the path:
# a module of the user's named like one of the standard library must not become part of the agent.
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import phalanx; del sys.path[0]; "
    "from phalanx.launcher.hosting.hosted import command; command()"
)
# Above the ten seconds after which a keeper gives up what the kernel does not let go.
KEEPER_LIMIT_S = 15.0


def start_agent(
    options: RunOptions,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    observe: bool = True,
) -> AgentProcess:
    """Start a job's agent and return at once; what the job is like, and where it fails, the outcome tells.

    ``env`` is the whole environment of agent and workers, by default this program's; ``stdout`` and ``stderr`` take
    what workers and agent print: a descriptor, a file, ``subprocess.DEVNULL``, or None for this program's own. Standard
    input is empty. Without ``observe`` the agent tells nothing but its end: ``events`` and ``status`` know no more.
    Raises ``TypeError`` for a value in ``options`` of another type than its field's, ``ValueError``
    for ``subprocess.PIPE`` (nobody would read it), and ``OSError`` when no process can be started.

    >>> from phalanx.cli.run import run_options
    >>> with start_agent(run_options(["--nproc-per-node", "2", "--no-python", "true"])) as agent:
    ...     agent.wait().exit_code
    0
    """
    if subprocess.PIPE in (stdout, stderr):
        raise ValueError("subprocess.PIPE: make a pipe with os.pipe(), and pass its second end")
    if not sys.executable:
        raise OSError("the Python interpreter of this program is not known (sys.executable is empty)")
    order = to_json(options).encode()
    with ExitStack() as until_started, ExitStack() as after_start:
        handover = NamelessFile("phalanx-job")
        until_started.callback(handover.close)
        handover.fd = above_standard(handover.fd)
        handover.write(order)
        ours, theirs = socket.socketpair()
        link = socket.socket(fileno=above_standard(ours.detach()))
        until_started.callback(link.close)
        link.setblocking(False)
        their_link = above_standard(theirs.detach())
        after_start.callback(os.close, their_link)
        host = own_pidfd()
        if host >= 0:
            after_start.callback(os.close, host)
        received, sent = pipe() if observe else (-1, -1)
        job_events = EventsIn(received)
        until_started.callback(job_events.close)
        if sent >= 0:
            after_start.callback(os.close, sent)
        given = (handover.fd, their_link, host, sent)
        process, child = _started(given, _name(options), env=env, cwd=cwd, stdout=stdout, stderr=stderr)
        until_started.pop_all()
    return AgentProcess(options, process, child, link, handover, job_events)


def _started(
    given: tuple[int, ...],
    name: str,
    *,
    stdout: int | IO[Any] | None,
    stderr: int | IO[Any] | None,
    **place: Any,
) -> tuple[subprocess.Popen[bytes], Child | None]:
    """The agent's process, with these descriptors, and what tells of its end."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    process = subprocess.Popen(
        # The last word is for who looks at a list of processes.
        [sys.executable, "-P", "-c", _PROGRAM, root, *map(str, given), name],
        stdin=subprocess.DEVNULL,
        stdout=open_or_null(stdout, 1),
        stderr=open_or_null(stderr, 2),
        pass_fds=[fd for fd in given if fd >= 0],
        start_new_session=True,
        **place,
    )
    try:
        return process, watched(process.pid)
    except BaseException:  # no descriptor is left: an agent that cannot be watched must not be there
        process.kill()
        process.wait()
        raise


class AgentProcess:
    """A running agent, and the way to end it. All methods may be called from any thread.

    As a context manager, plain or asynchronous, it stops the job when the block is left, and waits. Whoever drops the
    last reference to it lets go of the job, which is then stopped, too.

    >>> from phalanx.cli.run import run_options
    >>> with start_agent(run_options(["--no-python", "sleep", "1000"])) as agent:
    ...     agent.wait(timeout_s=0.1), agent.stop()
    (None, True)
    >>> agent.wait().exit_code
    143
    """

    def __init__(
        self,
        options: RunOptions,
        process: subprocess.Popen[bytes],
        child: Child | None,
        link: socket.socket,
        handover: NamelessFile,
        job_events: EventsIn,
    ) -> None:
        self._options = options
        self._process = process  # reaps, and knows what to do if we do not
        self._child = child
        self._link = link
        self._handover = handover
        self._events = job_events
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        self._ended_at: float | None = None
        self._host = os.getpid()

    @property
    def pid(self) -> int:
        """The agent's process id; it leads a session of its own."""
        return self._process.pid

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_event: Callable[[JobEvent], object] | None = None,
    ) -> Outcome | None:
        """Wait for the end of agent and job; None when ``timeout_s`` was not enough, and the job goes on.

        ``on_event`` is called here with each job event as it comes, ``JobEnded`` last; what it raises is raised,
        and the job goes on. Each job event is handed out once, to whoever asks first.
        """
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        told = None if on_event is None else self._subscribed()
        while True:
            awaited = self._awaited(told)
            self._hand_out(on_event)
            if awaited is None:
                return self._outcome
            fds, limit_s = awaited
            try:
                left_s = -1.0 if give_up_at is None else max(0.0, give_up_at - time.monotonic())
                ready = ready_of(
                    [*fds, *_fds(told)], left_s if limit_s is None or 0 <= left_s < limit_s else limit_s
                )
            finally:
                close_all(fds)
            if fds[0] not in ready and give_up_at is not None and time.monotonic() >= give_up_at:
                return None

    async def wait_async(self, *, on_event: Callable[[JobEvent], object] | None = None) -> Outcome:
        """Wait in a running asyncio loop for the end of agent and job. A wait that is cancelled changes nothing.

        ``on_event`` is called in the loop, as in ``wait``.
        """
        told = None if on_event is None else self._subscribed()
        while True:
            awaited = self._awaited(told)
            self._hand_out(on_event)
            if awaited is None:
                assert self._outcome is not None, "nothing is awaited"
                return self._outcome
            fds, limit_s = awaited
            try:
                await readable([*fds, *_fds(told)], limit_s)
            finally:
                close_all(fds)

    def watch(self, timeout_s: float | None = None) -> Watch:
        """How the job stands now, and then at each change until its end; see ``Watch``."""
        return Watch(self._subscribed(), self._awaited, _name(self._options), timeout_s)

    def watch_async(self, timeout_s: float | None = None) -> AsyncWatch:
        """The same, for ``async for`` in a running asyncio loop."""
        return AsyncWatch(self._subscribed(), self._awaited, _name(self._options), timeout_s)

    def events(self) -> list[JobEvent]:
        """What has happened since somebody asked last, in order; ``JobEnded`` comes last, once the agent is gone.

        Kept are some thousands that nobody asks for; of more the oldest are dropped, and counted in their place.
        """
        self.wait(0.0)
        with self._lock:
            return self._events.take()

    def status(self) -> JobStatus:
        """How the job stands on this node, by all that has happened, whoever took it.

        >>> from phalanx.cli.run import run_options
        >>> with start_agent(run_options(["--no-python", "false"])) as agent:
        ...     _ = agent.wait()
        >>> agent.status().workers[0].exit_code, agent.events()[-1].ending
        (1, 'failed')
        """
        self.wait(0.0)
        with self._lock:
            return self._events.status

    def stop(self, signum: int = signal.SIGTERM) -> bool:
        """Stop the job as ``phalanx run`` does at this signal: workers have their grace, then their trees end.

        A second time, later than half a second, cuts the grace short. False when the agent has ended already. Raises
        ``ValueError`` for a signal that is passed on, and therefore stops nothing.
        """
        if signum in self._options.pass_signals and signum not in self._options.stop_signals:
            raise ValueError(f"{signal.Signals(signum).name} is passed on to the workers, and stops nothing")
        return self._ask(signum, BY_PROGRAM if signum == signal.SIGTERM else 0)

    def send_signal(self, signum: int) -> bool:
        """Send the agent a signal. Those of the options arrive in order and are never lost while it starts.

        False when the agent has ended already.
        """
        if signum in self._options.stop_signals or signum in self._options.pass_signals:
            return self._ask(signum)
        with self._lock:
            return self._child is not None and self._child.send_signal(signum)

    def kill(self) -> bool:
        """End the agent at once; its keeper kills what is left of the job. False when it has ended already."""
        with self._lock:
            return self._child is not None and self._child.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (
            os.getpid() != self._host
        ):  # a forked child, which leaves its copy of the block: the job is its parent's
            return
        self._ask(*_signal_for(kind))
        try:
            self.wait()
        except BaseException:  # a second Ctrl-C
            self.stop()
            self.wait()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._host:
            return
        self._ask(*_signal_for(kind))
        try:
            await self.wait_async()
        except BaseException:  # cancelled, again
            self.stop()
            await self.wait_async()
            raise

    def __del__(self) -> None:
        if self._outcome is None:  # Popen warns of it, and reaps it some day
            self._close()

    def __repr__(self) -> str:
        state = "running" if self._outcome is None else f"ended: {self._outcome.exit_code}"
        return f"<AgentProcess of {_name(self._options)}: pid {self.pid}, {state}>"

    def _ask(self, signum: int, mark: int = 0) -> bool:
        """Over the socket: it keeps what comes before the agent can take signals, which would kill it."""
        number = signal.Signals(signum)
        with self._lock:
            if self._outcome is not None:
                return False
            try:
                # MSG_NOSIGNAL: this program may have taken SIGPIPE's default action back.
                return self._link.send(bytes([number + mark]), socket.MSG_NOSIGNAL) == 1
            except OSError:
                return False

    def _hand_out(self, on_event: Callable[[JobEvent], object] | None) -> None:
        if on_event is None:
            return
        with self._lock:
            taken = self._events.take()
        for one in taken:
            on_event(one)

    def _subscribed(self) -> Subscriber:
        self.wait(0.0)
        with self._lock:
            return self._events.subscribe()

    def _awaited(self, told: Subscriber | None = None) -> tuple[list[int], float | None] | None:
        """Descriptors to wait for, which are the caller's to close, and for how long at most; None: it is over.

        The first is readable when the agent has ended, or nothing of its job is left; the second, if there is one, when
        something has happened. Copies, because each waiter may be in another thread or loop, and whoever comes first
        closes ours. What ``told`` was told before is taken in here.
        """
        if told is not None:
            told.quiet()
        with self._lock:
            if self._outcome is not None:
                return None
            self._events.read()
            if self._child is not None and not has_ended(self._child.fileno()):
                return copies(self._child.fileno(), self._events.fd), None
            last = self._told()
            outcome = None if last is None else last.outcome
            if outcome is None or not outcome.is_complete:
                self._ended_at = self._ended_at or time.monotonic()
                left_s = self._ended_at + KEEPER_LIMIT_S - time.monotonic()
                if left_s > 0 and not has_ended(self._link.fileno()):  # its other end is the keeper's, too
                    return [os.dup(self._link.fileno())], left_s
            code = self._process.poll()
            self._outcome = outcome or without_a_word(_name(self._options), code)
            self._events.finish("" if last is None else last.job_events, self._outcome)
            self._close()
            return None

    def _told(self) -> LastWords | None:
        try:
            return from_json(self._handover.read(), LastWords)
        except ValueError:  # it is the order still, or half an answer
            return None

    def _close(self) -> None:
        self._events.close()
        self._link.close()
        self._handover.close()
        if self._child is not None:
            self._child.close()
            self._child = None


def _fds(told: Subscriber | None) -> list[int]:
    """What is readable when another waiter has taken in what has happened."""
    return [] if told is None else [told.fd]


def _name(options: RunOptions) -> str:
    return options.name or options.entrypoint


def _signal_for(kind: type[BaseException] | None) -> tuple[int, int]:
    """What a block that is left so sends: Ctrl-C is what its user pressed."""
    is_pressed = kind is not None and issubclass(kind, KeyboardInterrupt)
    return (signal.SIGINT, 0) if is_pressed else (signal.SIGTERM, BY_PROGRAM)
