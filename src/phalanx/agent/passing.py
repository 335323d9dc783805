"""Signals that stop nothing: which of those that reach an agent its workers should have. Pure.

One that was sent to an agent is told to all. Some schedulers signal every launcher, and then the word of another agent
and the signal itself arrive both, in either order: within two seconds they are one.
"""

from __future__ import annotations

from collections.abc import Collection
from signal import Signals

from phalanx.rendezvous.asks import Ask, AskSent
from phalanx.rendezvous.events import SignalHeard, SignalSent

__all__ = ["ASK_FOR_CHECKPOINT", "PassedSignals", "told_of"]

SAME_SIGNAL_S = 2.0
ASK_FOR_CHECKPOINT = frozenset((Signals.SIGUSR1, Signals.SIGUSR2))
"""What schedulers send ahead of the end. Others that a user has passed on (SIGWINCH, SIGCONT) mean something else."""
NEVER = float("-inf")


class PassedSignals:
    """Two signals in a row that are both sent to this agent are two.

    ``allowed`` are the numbers that this agent passes on: the word of another agent is no reason to send others.
    """

    def __init__(self, allowed: Collection[int]) -> None:
        self._allowed = frozenset(allowed)
        self._sent_at: dict[int, float] = {}
        self._heard: dict[int, tuple[float, str]] = {}

    def is_new_here(self, number: int, now: float) -> bool:
        """This agent was sent the signal: whether its workers, and the other agents, do not have it yet."""
        if now - self._heard.pop(number, (NEVER, ""))[0] < SAME_SIGNAL_S:
            return False
        self._sent_at[number] = now
        return True

    def is_new_elsewhere(self, notice: SignalHeard, now: float) -> bool:
        """Another agent was sent the signal: whether our workers do not have it yet."""
        number = notice.number
        if number not in self._allowed or now - self._sent_at.get(number, NEVER) < SAME_SIGNAL_S:
            return False
        heard_at, whose = self._heard.get(number, (NEVER, ""))
        if whose != notice.node_id and now - heard_at < SAME_SIGNAL_S:
            return False
        self._heard[number] = (now, notice.node_id)
        return True


def told_of(number: int) -> tuple[SignalSent | AskSent, ...]:
    """What all nodes hear of a signal that was sent to this agent."""
    if number not in ASK_FOR_CHECKPOINT:
        return (SignalSent(number),)
    return SignalSent(number), AskSent(Ask.CHECKPOINT, Signals(number).name)
