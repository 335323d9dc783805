"""Between the agent's machine and who performs: what is neither the group's affair nor the store's. Pure."""

from __future__ import annotations

from phalanx.agent.group import Exit
from phalanx.agent.verdict import Failure, Verdict
from phalanx.records import Struct

__all__ = [
    "CheckpointTold",
    "CollectEvidence",
    "EvidenceCollected",
    "Finish",
    "JobBegan",
    "PassOn",
    "SignalPassed",
]

# Events


class JobBegan(Struct):
    """The driver is ready."""


class EvidenceCollected(Struct):
    """Logs are drained and error files read: the failures of the round that ended (empty when all succeeded)."""

    failures: tuple[Failure, ...]


class SignalPassed(Struct):
    """A signal that stops nothing arrived; workers are to have it too."""

    signal: int


class CheckpointTold(Struct):
    """A worker says that it has finished a checkpoint."""

    step: int


# Commands


class CollectEvidence(Struct):
    """Drain the logs, read what the failed workers left, and report ``EvidenceCollected``."""

    exits: tuple[Exit, ...]


class PassOn(Struct):
    """Deliver a signal to each worker that is prepared for it."""

    signal: int


class Finish(Struct):
    """The job is over on this node, and the store is left."""

    verdict: Verdict
