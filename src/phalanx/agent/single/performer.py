"""One worker of a round, performed while the others run: end what it left, examine it, start it again.

Beside ``processes``, which has the round; only a job with ``--restart-scope worker`` asks for this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.agent.single.worker import (
    BranchEmptied,
    BranchRemains,
    ExamineWorker,
    SignalBranch,
    StartWorker,
    WorkerExamined,
    WorkerNotStarted,
    WorkerStarted,
)
from phalanx.multiprocessing.context import SpawnError

if TYPE_CHECKING:
    from phalanx.agent.driver import Driver
    from phalanx.agent.processes.performer import Processes
    from phalanx.multiprocessing.trees import ProcessTree

__all__ = ["SingleRestarts"]


class SingleRestarts:
    """``perform`` maps each command to what does it."""

    def __init__(self, processes: Processes, driver: Driver) -> None:
        self._processes = processes
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._branches: dict[int, ProcessTree] = {}
        self._watched: dict[int, int] = {}  # local rank → descriptor of its branch
        self.perform: dict[type, Callable[[Any], None]] = {
            ExamineWorker: self._examine,
            SignalBranch: self._signal,
            StartWorker: self._start,
        }

    def unwatch(self) -> None:
        """Nothing of this round is to wake us any more."""
        for local_rank in list(self._branches):
            self._close(local_rank)

    # Ending what it left

    def _signal(self, command: SignalBranch) -> None:
        local_rank = command.local_rank
        workers = self._processes.workers
        assert workers is not None, "it ran"
        if local_rank not in self._branches:
            self._branches[local_rank] = workers.branch(local_rank)
        branch = self._branches[local_rank]
        branch.send(command.signal)
        if branch.is_empty:
            self._driver.post(BranchEmptied(local_rank))
        elif local_rank not in self._watched:
            self._watched[local_rank] = branch.fileno()
            self._loop.add_reader(branch.fileno(), self._on_changed, local_rank)

    def _on_changed(self, local_rank: int) -> None:
        branch = self._branches[local_rank]
        if branch.all_ended():
            branch.members()
            self._driver.post(BranchEmptied(local_rank) if branch.is_empty else BranchRemains(local_rank))

    def _close(self, local_rank: int) -> None:
        if (fd := self._watched.pop(local_rank, None)) is not None:
            self._loop.remove_reader(fd)
        if (branch := self._branches.pop(local_rank, None)) is not None:
            branch.close()

    # Examining it

    def _examine(self, command: ExamineWorker) -> None:
        self._close(command.exit.local_rank)
        self._processes.begin(self._look(command))

    async def _look(self, command: ExamineWorker) -> None:
        processes, workers, local_rank = (
            self._processes,
            self._processes.workers,
            command.exit.local_rank,
        )
        assert workers is not None, "it ran"
        try:
            await processes.drained(workers, (command.exit,))
            if processes.workers is not workers:
                return  # the round is over, and nobody asks any more
            failures = processes.failures((command.exit,))
        except Exception as error:  # noqa: BLE001 # a task's border: nobody awaits it
            self._driver.found_bug(error, command)
        else:
            told = processes.progress
            self._driver.post(WorkerExamined(local_rank, failures, told.step, told.checkpoint))

    # Starting it again

    def _start(self, command: StartWorker) -> None:
        local_rank, processes = command.local_rank, self._processes
        assert processes.workers is not None, "it ran"
        processes.forget(local_rank)
        try:
            pid = processes.workers.start_single(local_rank, command.round)
        except SpawnError as error:
            self._driver.post(WorkerNotStarted(local_rank, error.exit_code, str(error)))
        except OSError as error:  # the log folder has gone, or is full
            self._driver.post(WorkerNotStarted(local_rank, 1, f"its logs cannot be opened: {error}"))
        else:
            self._driver.post(WorkerStarted(local_rank, pid))
