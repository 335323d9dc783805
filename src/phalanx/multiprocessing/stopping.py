"""The synchronous driver of the stop machine: performs its commands, waits for descriptors, reports back.

An agent's event loop does the same with its own means; both leave every decision to ``machine``.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Collection
from typing import Protocol

from phalanx.multiprocessing.machine import (
    Command,
    DeadlinePassed,
    MembersRemain,
    NameStuck,
    SignalTree,
    SignalWorkers,
    StopMachine,
    StopRepeated,
    StopState,
    TreeEmptied,
    WorkerExited,
)
from phalanx.multiprocessing.pidfd import is_supported
from phalanx.multiprocessing.trees import JobProcess, ProcessTree

__all__ = ["SignalException", "Stopper"]

# Without pidfds the end of a process that is not our child is seen by looking. Linux before 5.4 only.
SCAN_AGAIN_S = 0.05


class SignalException(Exception):
    """A signal as an exception: ``sigval`` is the signal.

    Raised by hosts that turn signals into exceptions, as torchelastic's contexts did; never raised by ours.

    >>> import signal
    >>> SignalException("Process 12 got signal: 15", sigval=signal.SIGTERM).sigval.name
    'SIGTERM'
    """

    def __init__(self, msg: str, sigval: int) -> None:
        super().__init__(msg)
        self.sigval = sigval


class Workers(Protocol):
    """What a stop needs of the workers."""

    def fileno(self) -> int: ...

    def collect(self) -> Collection[int]:
        """Reap; return the local ranks that still run."""

    def send_signal(self, signum: int) -> list[int]: ...


class Stopper:
    """Drives one stop to its end.

    ``asked``: the local ranks that ran when they were asked to stop: how they ended is no fault of theirs. ``stuck``:
    the processes that SIGKILL did not end.
    """

    def __init__(self, machine: StopMachine, workers: Workers, tree: ProcessTree) -> None:
        self.machine = machine
        self._workers = workers
        self._tree = tree
        self._inbox: deque[object] = deque()
        self.asked: set[int] = set()
        self.stuck: list[JobProcess] = []

    def run(self, event: object) -> None:
        """Take ``event`` and go on until the machine has ended.

        A signal handler that raises (Ctrl-C) means "faster", not "leave them alone": the stop goes on with what is
        left of the grace, and the exception is raised at its end.
        """
        interruption: BaseException | None = None
        self._inbox.append(event)
        while self.machine.state is not StopState.ENDED:
            try:
                self._turn()
            except (KeyboardInterrupt, SystemExit, SignalException) as error:
                interruption = error
                self._inbox.append(StopRepeated())
        if interruption is not None:
            raise interruption

    def _turn(self) -> None:
        if not self._inbox:
            self._wait()
        running = self._workers.collect()
        # Compared, not counted: an interruption between two lines loses nothing.
        self._inbox.extend(map(WorkerExited, self.machine.alive.difference(running)))
        while self._inbox:
            for command in self.machine.step(self._inbox.popleft(), time.monotonic()):
                self._perform(command)

    def _perform(self, command: Command) -> None:
        match command:
            case SignalWorkers(signum):
                self.asked.update(self._workers.send_signal(signum))
            case SignalTree(signum):
                self._tree.send(signum)
                if self._tree.is_empty:
                    self._inbox.append(TreeEmptied())
            case NameStuck():
                self.stuck = self._tree.members()
            case _:
                raise AssertionError(f"a stop of this driver is asked for without a warning: {command}")

    def _wait(self) -> None:
        poller = select.poll()
        poller.register(self._workers.fileno(), select.POLLIN)
        is_ending_tree = self.machine.state in (StopState.TREE_TERM, StopState.TREE_KILL)
        timeout_s = max(0.0, (self.machine.deadline or 0.0) - time.monotonic())
        if is_ending_tree and is_supported():
            poller.register(self._tree.fileno(), select.POLLIN)
        elif is_ending_tree:
            timeout_s = min(timeout_s, SCAN_AGAIN_S)
        # Rounded up: a wait that ends early would spin until the deadline.
        poller.poll(int(timeout_s * 1000) + 1)
        if is_ending_tree and (self._tree.all_ended() or not is_supported()):
            self._tree.members()
            self._inbox.append(TreeEmptied() if self._tree.is_empty else MembersRemain())
        if self.machine.deadline is not None and time.monotonic() >= self.machine.deadline:
            self._inbox.append(DeadlinePassed())
