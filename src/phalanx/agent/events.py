"""Between the agent's machine and who performs: what is neither the group's affair nor the store's. Pure."""

from __future__ import annotations

from phalanx.agent.group import Exit
from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.records import Struct
from phalanx.rendezvous.events import CheckpointDone, NodeExcluded

__all__ = [
    "AnnounceCheckpoint",
    "CollectEvidence",
    "EvidenceCollected",
    "Finish",
    "JobBegan",
    "PassOn",
    "SignalPassed",
    "WorkerTold",
]

# Events


class JobBegan(Struct):
    """The driver is ready."""


class EvidenceCollected(Struct):
    """Logs are drained and error files read: the failures of the round that ended (empty when all succeeded)."""

    failures: tuple[Failure, ...]
    step: int | None = None
    """The furthest that the round's workers told of."""
    checkpoint: int | None = None
    """The furthest checkpoint that they told of."""


class SignalPassed(Struct):
    """A signal that stops nothing arrived; workers are to have it too."""

    signal: int


class WorkerTold(Struct):
    """A worker says something that the other nodes should know, or this one remember."""

    what: CheckpointDone | NodeExcluded


# Commands


class AnnounceCheckpoint(Struct):
    """Tell the workers of this node that a checkpoint is wanted soon. ``request`` is the same on all nodes."""

    reason: str
    request: str


class CollectEvidence(Struct):
    """Drain the logs, read what the failed workers left, and report ``EvidenceCollected``."""

    exits: tuple[Exit, ...]


class PassOn(Struct):
    """Deliver a signal to each worker that is prepared for it."""

    signal: int


class Finish(Struct):
    """The job is over on this node, and the store is left."""

    verdict: Verdict
