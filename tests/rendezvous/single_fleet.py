"""A fleet with single restarts, for stories about ``--restart-scope worker``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.rendezvous.fleet import Agent, Fleet

from phalanx.agent.single.machine import SingleAgent
from phalanx.agent.single.worker import (
    BranchEmptied,
    ExamineWorker,
    SignalBranch,
    StartWorker,
    WorkerExamined,
    WorkerNotStarted,
    WorkerStarted,
)
from phalanx.rendezvous.round import Round

__all__ = ["SingleFleet", "SingleNode"]


class SingleNode(Agent):
    """``restarts``: the workers that had a single restart, in order, each with what it was told."""

    kind = SingleAgent

    def __init__(self, fleet: Fleet, name: str, settings: dict[str, Any]) -> None:
        super().__init__(fleet, name, settings)
        self.restarts: list[tuple[int, Round]] = []
        self.leaves_children = False
        self.swept: list[int] = []
        self.cannot_start: set[int] = set()
        perform: dict[type, Callable[[Any], object]] = {
            SignalBranch: self._signal_branch,
            ExamineWorker: self._examine,
            StartWorker: self._start_single,
        }
        self._node.update(perform)

    def _signal_branch(self, command: SignalBranch) -> None:
        self.swept.append(command.local_rank)
        if not self.leaves_children or command.signal == 9:
            self.post(BranchEmptied(command.local_rank))

    def _examine(self, command: ExamineWorker) -> None:
        end = command.exit
        self.post(WorkerExamined(end.local_rank, self._evidence((end,))))

    def _start_single(self, command: StartWorker) -> None:
        local_rank = command.local_rank
        assert local_rank not in self.alive, f"one worker twice\n{self.fleet.story()}"
        if local_rank in self.cannot_start:
            self.cannot_start.discard(local_rank)
            self.post(WorkerNotStarted(local_rank, 127, "it is not there any more"))
            return
        self.alive.add(local_rank)
        self.summaries.pop(local_rank, None)
        self.restarts.append((local_rank, command.round))
        self.post(WorkerStarted(local_rank, 500 + len(self.restarts)))


class SingleFleet(Fleet):
    """Agents are ``SingleNode``."""

    def make(self, name: str, settings: dict[str, Any]) -> Agent:
        return SingleNode(self, name, settings)

    def node(self, name: str) -> SingleNode:
        """One of them."""
        found = self[name]
        assert isinstance(found, SingleNode)
        return found

    def counts(self, *names: str) -> list[int]:
        """The restart counts that workers there were told at their single restarts."""
        return [told.restart_count for name in names for _, told in self.node(name).restarts]
