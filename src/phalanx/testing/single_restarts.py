"""One worker of a simulated node that is ended, examined and started again while the others run.

It stands where ``agent/single/performer.py`` stands in production.
"""

from __future__ import annotations

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
from phalanx.testing.nodes import Process

if TYPE_CHECKING:
    from phalanx.agent.driver import Driver
    from phalanx.testing.processes import SimulatedProcesses

__all__ = ["SimulatedSingleRestarts"]


class SimulatedSingleRestarts:
    """``perform`` maps each command to what does it. ``post`` is the driver's."""

    def __init__(self, processes: SimulatedProcesses, driver: Driver) -> None:
        self._processes = processes
        self._driver = driver
        self._watched: set[int] = set()
        self.perform: dict[type, Callable[[Any], None]] = {
            ExamineWorker: self._examine,
            SignalBranch: self._signal,
            StartWorker: self._start,
        }

    def unwatch(self) -> None:
        """Nothing of this round is to be told any more."""
        self._watched.clear()

    def changed(self, local_rank: int) -> None:
        """A process that this worker had started has ended."""
        if local_rank in self._watched:
            is_empty = not self._branch(local_rank)
            self._driver.post(BranchEmptied(local_rank) if is_empty else BranchRemains(local_rank))

    def _branch(self, local_rank: int) -> list[Process]:
        return [one for one in self._processes.workers[local_rank].children if one.is_alive]

    def _signal(self, command: SignalBranch) -> None:
        for process in self._branch(command.local_rank):
            process.signal(command.signal, "its agent swept")
        self._watched.add(command.local_rank)
        if not self._branch(command.local_rank):
            self._driver.post(BranchEmptied(command.local_rank))

    def _examine(self, command: ExamineWorker) -> None:
        self._watched.discard(command.exit.local_rank)
        self._processes.after_drain(self._examined, command, self._processes.round)

    def _examined(self, command: ExamineWorker, settled: object) -> None:
        processes, end = self._processes, command.exit
        if processes.round is settled:
            told = processes.progress
            failures = (processes.failure(end),)
            self._driver.post(WorkerExamined(end.local_rank, failures, told.step, told.checkpoint))

    def _start(self, command: StartWorker) -> None:
        local_rank = command.local_rank
        if self._processes.cannot_start(local_rank, command.round):
            self._driver.post(WorkerNotStarted(local_rank, 127, "No such file or directory"))
        else:
            worker = self._processes.start(local_rank, command.round)
            self._driver.post(WorkerStarted(local_rank, worker.process.pid))
