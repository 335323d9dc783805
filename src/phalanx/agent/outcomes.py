"""How a round ended on this node, once its workers are gone: what the others are told, and what it is here. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.agent.group import DeadlinePassed, GroupMachine, GroupState, SpawnFailed, WorkersExited
from phalanx.agent.sentences import PLACE_GIVEN_UP
from phalanx.agent.verdict.stored import failures_text
from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, Ending, Failure, Verdict, judge, ranges_of
from phalanx.records import changed
from phalanx.rendezvous.events import WorkerFailed
from phalanx.rendezvous.stored import Outcome, Report

__all__ = ["failure_seen", "own_failures", "place_given_up", "report_of", "with_stopped", "with_unheard"]


def failure_seen(event: object, was: GroupState, group: GroupMachine) -> WorkerFailed | None:
    """What the others are to hear before all of this node's workers have ended: by this event some of them failed."""
    if was not in (GroupState.STARTING, GroupState.RUNNING):
        return None  # they are being stopped, and their ends are no news
    if isinstance(event, DeadlinePassed):
        is_news = group.state is GroupState.STOPPING
        return WorkerFailed(is_straggler=bool(group.stragglers)) if is_news else None
    is_failure = isinstance(event, SpawnFailed) or (
        isinstance(event, WorkersExited) and any(code != 0 for code in event.codes.values())
    )
    return WorkerFailed() if is_failure else None


def report_of(
    failures: Sequence[Failure],
    *,
    was_stopped: bool,
    stopped: Collection[int] = (),
    has_own_reason: bool,
    step: int | None = None,
    checkpoint: int | None = None,
) -> Report:
    """This node's report. ``was_stopped``: some worker was asked to stop while it ran; ``stopped``: which ranks."""
    if not failures and not was_stopped:
        return Report(outcome=Outcome.SUCCEEDED, step=step, checkpoint=checkpoint)
    has_failed = any(not one.is_collateral for one in failures)
    return Report(
        outcome=Outcome.FAILED if has_failed else Outcome.STOPPED,
        evidence=failures_text(failures if has_failed else _late_exceptions(failures), stopped=stopped),
        has_own_reason=has_own_reason,
        step=step,
        checkpoint=checkpoint,
    )


def _late_exceptions(failures: Sequence[Failure]) -> list[Failure]:
    """For the list of failures, if it was a symptom that stopped this node: a line each is enough."""
    return [
        changed(one, traceback="", crash="", stderr="", extra="") for one in failures if one.is_late_exception
    ]


def own_failures(failures: Sequence[Failure]) -> list[Failure]:
    """Those that this node alone can be blamed for: a connection to another one breaks of what happened there."""
    return [
        one
        for one in failures
        if not one.is_collateral and (one.group_world_size == 1 or not one.is_secondary)
    ]


def with_unheard(verdict: Verdict, failures: Sequence[Failure]) -> Verdict:
    """The verdict of a node whose last report nobody has heard: the loss of the store does not hide what failed here.

    ``failures`` are those of its last round. A verdict that has a cause, or is another one than "no round", stays; and
    any verdict does where nothing but connections to other nodes broke.
    """
    if not own_failures(failures) or verdict.cause is not None or verdict.exit_code != EX_UNAVAILABLE:
        return verdict
    return judge(failures, reason=f"{verdict.reason}; the other nodes could not be told")


def place_given_up(failures: Sequence[Failure], stopped: Collection[int]) -> Verdict:
    """Something of the job is left that nobody can kill, and no round may run beside it: the end of this node's part.

    The exit code is that of this node's first failure, else 75: it is no success, whatever the workers ended with. A
    symptom of what happened on another node is no failure of this one.
    """
    if own_failures(failures):
        return judge(failures, reason=PLACE_GIVEN_UP, stopped=stopped)
    return Verdict(ending=Ending.FAILED, exit_code=EX_UNAVAILABLE, reason=PLACE_GIVEN_UP)


def with_stopped(verdict: Verdict, stopped: Collection[int]) -> Verdict:
    """The end of a job that no worker's failure ended, with those ranks of this node that were stopped for it."""
    is_known = verdict.ending is Ending.SUCCEEDED or verdict.cause is not None
    return verdict if is_known else changed(verdict, stopped=ranges_of(stopped))
