"""The base of what must hold in every world, and what a job was started with as far as that bounds it.

A checker raises ``Violation`` as soon as it sees one; ``finish`` is asked when the world has come to its end.
"""

from __future__ import annotations

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.records import Struct
from phalanx.testing.trace import Observation

__all__ = ["Checker", "Limits", "Violation"]


class Violation(AssertionError):
    """Something happened that must not."""


class Limits(Struct, kw_only=True):
    """What the job was started with, as far as it bounds rounds."""

    min_nodes: int
    max_nodes: int
    restarts: RestartPolicy
    exclude_for_s: float = 600.0
    ttl_s: float
    grace_s: float = 30.0
    clock_rates: tuple[float, float] = (1.0, 1.0)
    """Seconds of the slowest and of the fastest clock in a true second."""
    is_by_worker: bool = False


class Checker:
    """Base: sees nothing wrong."""

    def see(self, at: float, seen: Observation) -> None:
        """Take one observation. Raises ``Violation``."""

    def finish(self) -> None:
        """The world has ended. Raises ``Violation``."""
