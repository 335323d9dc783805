"""The base of what must hold in every world, and what a job was started with as far as that bounds it.

A checker raises ``Violation`` as soon as it sees one; ``finish`` is asked when the world has come to its end.
"""

from __future__ import annotations

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.sentences import PLACE_GIVEN_UP
from phalanx.records import Struct
from phalanx.testing.trace import Observation

__all__ = ["Checker", "Limits", "Violation", "has_ended_alone"]

WITHOUT_STORE = ("store_timeout", "the store was not reached")


def has_ended_alone(verdict: object) -> bool:
    """Whether it is about one node only: it lost the store for good, or could not kill a process."""
    reason = str(getattr(verdict, "reason", ""))
    return reason == PLACE_GIVEN_UP or any(words in reason for words in WITHOUT_STORE)


class Violation(AssertionError):
    """Something happened that must not.

    >>> from phalanx.testing import Violation
    >>> raise Violation("two leaders in one round")
    Traceback (most recent call last):
    phalanx.testing.checking.Violation: two leaders in one round
    """


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
    has_single_restarts: bool = False


class Checker:
    """Base: sees nothing wrong.

    >>> from phalanx.testing import Checker
    >>> class Counting(Checker):
    ...     count = 0
    ...
    ...     def see(self, at, seen):
    ...         self.count += 1
    >>> Counting().finish()
    """

    def see(self, at: float, seen: Observation) -> None:
        """Take one observation. Raises ``Violation``."""

    def finish(self) -> None:
        """The world has ended. Raises ``Violation``."""
