"""A fleet whose workers are restarted one by one, for stories about ``--restart-scope worker``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.rendezvous.fleet import Agent, Fleet

from phalanx.agent.single.life import (
    BranchEmptied,
    ExamineWorker,
    SignalBranch,
    StartWorker,
    WorkerExamined,
    WorkerNotStarted,
    WorkerStarted,
)
from phalanx.agent.single.machine import SinglyAgent
from phalanx.rendezvous.round import Round

__all__ = ["Singly", "SinglyNode"]


class SinglyNode(Agent):
    """``lives``: the workers that were started again alone, in order, each with what it was told."""

    kind = SinglyAgent

    def __init__(self, fleet: Fleet, name: str, settings: dict[str, Any]) -> None:
        super().__init__(fleet, name, settings)
        self.lives: list[tuple[int, Round]] = []
        self.leaves_children = False
        self.swept: list[int] = []
        self.cannot_start: set[int] = set()
        perform: dict[type, Callable[[Any], object]] = {
            SignalBranch: self._signal_branch,
            ExamineWorker: self._examine,
            StartWorker: self._start_again,
        }
        self._node.update(perform)

    def _signal_branch(self, command: SignalBranch) -> None:
        self.swept.append(command.local_rank)
        if not self.leaves_children or command.signal == 9:
            self.post(BranchEmptied(command.local_rank))

    def _examine(self, command: ExamineWorker) -> None:
        end = command.exit
        self.post(WorkerExamined(end.local_rank, self._evidence((end,))))

    def _start_again(self, command: StartWorker) -> None:
        local_rank = command.local_rank
        assert local_rank not in self.alive, f"two lives of one worker\n{self.fleet.story()}"
        if local_rank in self.cannot_start:
            self.cannot_start.discard(local_rank)
            self.post(WorkerNotStarted(local_rank, 127, "it is not there any more"))
            return
        self.alive.add(local_rank)
        self.summaries.pop(local_rank, None)
        self.lives.append((local_rank, command.round))
        self.post(WorkerStarted(local_rank, 500 + len(self.lives)))


class Singly(Fleet):
    """Agents are ``SinglyNode``."""

    def make(self, name: str, settings: dict[str, Any]) -> Agent:
        return SinglyNode(self, name, settings)

    def node(self, name: str) -> SinglyNode:
        """One of them."""
        found = self[name]
        assert isinstance(found, SinglyNode)
        return found

    def counts(self, *names: str) -> list[int]:
        """The restart counts that workers there were told when they were started again alone."""
        return [told.restart_count for name in names for _, told in self.node(name).lives]
