"""How a hosted agent's job ended: what the agent hands to the program that started it."""

from __future__ import annotations

import signal

from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.multiprocessing.pidfd import EXIT_CODE_LOST
from phalanx.records import Struct

__all__ = ["BY_PROGRAM", "LastWords", "Outcome", "without_a_word"]

BY_PROGRAM = 128
"""Added to a signal's number on the way to the agent: the program's code asks, and nobody has sent it that signal."""


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
    job_events: str = ""
    """Lines of job events that the host has not taken."""


def without_a_word(name: str, code: int | None) -> Outcome:
    """The outcome of an agent that died of something else than its job."""
    if not code:  # with 0 there would be a word; so says Popen when somebody else has taken the status
        code, how = (
            EXIT_CODE_LOST,
            "has ended, and its exit status was lost: this program ignores SIGCHLD, or",
        )
        how += " something in it waits for children of others"
    elif code < 0:
        how = f"was killed by {_signal_name(-code)}; its keeper has ended what was left of the job"
        code = 128 - code
    else:
        how = f"ended with exit code {code} before it could say why; see its standard error"
    return Outcome(exit_code=code, ending=Ending.FAILED, report=f"phalanx: the agent of {name} {how}\n")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
