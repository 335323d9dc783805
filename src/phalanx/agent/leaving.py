"""Somebody told this agent to stop: what its workers get, what the other nodes hear, and how it ends then. Pure.

A request is about this node, which leaves the job; with ``--stop-all`` it is about the job, whose verdict this node
then writes itself. Of several requests the first one names the exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from signal import SIGTERM, Signals, valid_signals

from phalanx.agent.graces import Graces
from phalanx.agent.group import GroupMachine, StopAsked
from phalanx.agent.restarts.policy import RestartPolicy, describe, has_restart_left
from phalanx.agent.verdict.stored import verdict_text
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, first_failure, judge
from phalanx.multiprocessing.machine import SAME_REQUEST_S
from phalanx.records import changed
from phalanx.rendezvous.events import EndAsked, LeaveAsked, StopRound
from phalanx.rendezvous.stop_cause import StopCause

__all__ = ["Leaving", "request_by", "request_of", "warned"]


def warned(event: StopAsked, graces: Graces) -> StopAsked:
    """The same request with the warning ahead that the user wants."""
    return changed(event, warn_signal=graces.warn_signal, warn_s=graces.warn_s)


def request_of(notice: StopRound, graces: Graces) -> StopAsked:
    """What workers get whose round is over. Only what was planned waits for a warning."""
    grace_s = graces.of(notice.cause)
    if notice.grace_s is not None:
        grace_s = min(grace_s, notice.grace_s)
    request = StopAsked(SIGTERM, grace_s, cause=notice.cause.name.lower())
    return warned(request, graces) if notice.cause is StopCause.PLANNED else request


def request_by(verdict: Verdict, graces: Graces) -> StopAsked:
    """What workers get whose job is over: if somebody told it to stop, the same as there."""
    signal = verdict.exit_code - 128
    if verdict.ending is not Ending.STOPPED:
        return StopAsked(SIGTERM, graces.stop_s, cause="end" if verdict.cause is None else "failure")
    if signal not in valid_signals():
        return StopAsked(SIGTERM, graces.stop_s)
    return warned(StopAsked(signal, graces.stop_s), graces)


class Leaving:
    """The first request to stop, if there was one. ``stops_all_as``: this node's name, where requests are about all."""

    def __init__(self, stops_all_as: str | None) -> None:
        self._stops_all_as = stops_all_as
        self._asked: StopAsked | None = None
        self._asked_at = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether somebody told this agent to stop."""
        return self._asked is not None

    @property
    def is_for_all(self) -> bool:
        """Whether that was about the whole job."""
        return self._asked is not None and self._stops_all_as is not None

    def note(self, event: StopAsked, now: float) -> EndAsked | LeaveAsked:
        """The first request. Returns what the other nodes are to hear of it."""
        self._asked, self._asked_at = event, now
        if self._stops_all_as is None:
            return LeaveAsked()
        reason = f"{self._stops_all_as} was told to stop by {self._name} (--stop-all)"
        return EndAsked(verdict_text(self._verdict(reason)))

    def is_double(self, now: float) -> bool:
        """Whether a request that comes now is the double of the first: wrappers send two."""
        return self._asked is not None and now - self._asked_at < SAME_REQUEST_S

    def stopped(self) -> Verdict:
        """The end of who was told to stop."""
        return self._verdict(f"stopped by {self._name}")

    def judge(self, failures: Sequence[Failure], group: GroupMachine, restarts: RestartPolicy) -> Verdict:
        """A failure that came before the request is still the end of the job, unless it would have been retried.

        Where a connection to another node broke, that node has failed or left, and it is blamed there.
        """
        assert group.round is not None, "workers are of a round"
        is_alone = group.round.group_world_size == 1
        own = [one for one in failures if not one.is_collateral and (is_alone or not one.is_secondary)]
        first = first_failure(own)
        if first is None or self.is_for_all or has_restart_left(own, restarts, group.round.restart_count):
            return self.stopped()
        reason = f"{describe(first)} before {self._name} arrived"
        return judge(failures, reason=reason, cause=first, stopped=group.stopped_ranks)

    @property
    def _name(self) -> str:
        assert self._asked is not None, "somebody asked"
        return Signals(self._asked.signal).name

    def _verdict(self, reason: str) -> Verdict:
        assert self._asked is not None, "a job is stopped because somebody asked"
        return Verdict(ending=Ending.STOPPED, exit_code=128 + self._asked.signal, reason=reason)
