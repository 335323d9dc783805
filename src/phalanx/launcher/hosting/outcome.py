"""How a hosted agent's job ended: what the agent hands to the program that started it."""

from __future__ import annotations

from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.records import Struct

__all__ = ["LastWords", "Outcome"]


class Outcome(Struct, kw_only=True):
    """The end of a job, as the program sees it that started the agent.

    >>> outcome = Outcome(exit_code=0, ending=Ending.SUCCEEDED, report="")
    >>> outcome.ending.value, outcome.verdict
    ('succeeded', None)
    """

    exit_code: int
    """As of ``phalanx run``: 0, the first failing rank's own, 128 + N for signal N, 2, 70 or 75."""
    ending: Ending
    report: str
    """What the agent printed last; of an agent that could not say a word, a sentence about its end."""
    verdict: Verdict | None = None
    """Which worker failed first, and who else; None when there was no job, or the agent died of something else."""
    is_complete: bool = True
    """Nothing of the job was left when this was written. If it is False, the keeper is ending what is left."""


class LastWords(Struct, kw_only=True):
    """What the agent leaves for its host in the file that held the order."""

    outcome: Outcome
    happenings: str = ""
    """Lines of happenings that the host has not taken."""
