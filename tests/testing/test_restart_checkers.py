"""Each checker of restarts and exclusions complains about what it is there for, and not about what may be."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Ending, Verdict
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stored import NodeRecord, Outcome, Phase, Report, RoundRecord
from phalanx.testing.checking import Checker, Limits, Violation
from phalanx.testing.exclusions import ExclusionIsKept
from phalanx.testing.restarts import BackoffIsKept, BudgetIsNotOverdrawn, ChargesAreDue, GivesUpInTime
from phalanx.testing.trace import (
    ExclusionAsked,
    Fault,
    NodeWritten,
    Observation,
    ReportWritten,
    RoundWritten,
    StoreLost,
    VerdictWritten,
    WorkerEnded,
    WorkerStarted,
)

Story = Sequence[Observation | float]


def limits(*, clock_rates: tuple[float, float] = (1.0, 1.0), **policy: object) -> Limits:
    restarts = RestartPolicy(**{"max_restarts": 2, **policy})  # type: ignore[arg-type]
    return Limits(
        min_nodes=1, max_nodes=3, restarts=restarts, ttl_s=3.0, grace_s=1.0, clock_rates=clock_rates
    )


def watch(checker: Checker, *stories: Story) -> None:
    at = 0.0
    for story in stories:
        for one in story:
            if isinstance(one, float):
                at += one
            else:
                checker.see(at, one)
    checker.finish()


def opened(number: int, count: int = 0, *, delay_s: float = 0.0, incarnation: int = 1) -> RoundWritten:
    record = RoundRecord(number=number, phase=Phase.JOINING, restart_count=count, delay_s=delay_s)
    return RoundWritten(incarnation, record)


def settled(number: int, count: int = 0) -> RoundWritten:
    return RoundWritten(1, RoundRecord(number=number, phase=Phase.SETTLED, restart_count=count))


def over(number: int, count: int = 0) -> RoundWritten:
    return RoundWritten(1, RoundRecord(number=number, phase=Phase.COLLECTING, restart_count=count))


def fault(number: int, exit_code: int | None = None, *, is_hopeless: bool = False) -> Fault:
    return Fault("worker fails", "a.1", 0, number, exit_code, is_hopeless)


def reported(number: int, step: int | None = None) -> ReportWritten:
    return ReportWritten("a.1", number, Report(outcome=Outcome.FAILED, step=step))


def used_up(reason: str) -> VerdictWritten:
    return VerdictWritten(1, Verdict(ending=Ending.FAILED, exit_code=1, reason=reason))


def began(agent: str, number: int) -> WorkerStarted:
    settled = Round(
        number=number,
        restart_count=0,
        reason="",
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=1,
        world_size=1,
        master_addr="10.0.0.1",
        master_port=29500,
    )
    return WorkerStarted(agent, 1, settled, 0)


def here(agent: str, **facts: object) -> NodeWritten:
    return NodeWritten(agent, NodeRecord(host=agent, address="10.0.0.1", slots=1, **facts))  # type: ignore[arg-type]


def ran(
    number: int,
    count: int,
    *,
    for_s: float = 1.0,
    step: int | None = None,
    code: int | None = None,
    is_hopeless: bool = False,
    delay_s: float = 0.0,
) -> Story:
    """A round that opens, settles, and fails."""
    return [
        opened(number, count, delay_s=delay_s),
        delay_s,
        settled(number, count),
        for_s,
        fault(number, code, is_hopeless=is_hopeless),
        over(number, count),
        reported(number, step),
    ]


FAILS_TWICE = [*ran(1, 0), *ran(2, 1), opened(3, 2)]
A_WORKS: Story = [here("a.1"), here("b.1"), 30.0, settled(1), began("a.1", 1)]
A_STOPS = WorkerEnded("a.1", 1, -15, "asked")


@pytest.mark.parametrize(
    "checker",
    [
        pytest.param(ChargesAreDue(limits()), id="charges"),
        pytest.param(BudgetIsNotOverdrawn(limits()), id="budget"),
        pytest.param(BackoffIsKept(limits()), id="backoff"),
        pytest.param(GivesUpInTime(limits(tries_hopeless_once=True, give_up_after=3)), id="giving up"),
        pytest.param(ExclusionIsKept(limits()), id="exclusion"),
    ],
)
def test_a_job_that_fails_twice_is_no_violation(checker: Checker) -> None:
    watch(checker, FAILS_TWICE)


@pytest.mark.parametrize(
    ("checker", "story", "sentence"),
    [
        pytest.param(
            ChargesAreDue(limits()),
            [opened(1), settled(1), over(1), opened(2, 1)],
            "no worker of round 1 had failed",
            id="a change of membership is charged",
        ),
        pytest.param(
            ChargesAreDue(limits()),
            [*ran(1, 0), opened(2, 2)],
            "round 2 is +2 restarts",
            id="charged twice",
        ),
        pytest.param(
            ChargesAreDue(limits()),
            [*ran(1, 0), *ran(2, 1), opened(3, 0)],
            "round 3 is -1 restarts",
            id="a charge is forgotten",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits()),
            [*ran(1, 0), *ran(2, 1), *ran(3, 2), opened(4, 3)],
            "round 4 is charged beyond 2",
            id="the plain count is overdrawn",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits()),
            [opened(1, 0), opened(2, 3, incarnation=2)],
            "restart 3 of 2",
            id="survivors had spent more than there was",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(window_s=100.0)),
            [*ran(1, 0), *ran(2, 1, for_s=90.0), *ran(3, 2), opened(4, 3)],
            "round 4 is charged beyond 2",
            id="the window is overdrawn",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_after_s=100.0)),
            [*ran(1, 0), *ran(2, 1, for_s=50.0), *ran(3, 2, for_s=60.0), opened(4, 3)],
            "round 4 is charged beyond 2",
            id="refilled before it was healthy for long enough",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_on_progress=True)),
            [*ran(1, 0, step=5), *ran(2, 1, step=5), *ran(3, 2, step=4), opened(4, 3)],
            "round 4 is charged beyond 2",
            id="refilled by steps that were done before",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits()),
            [*ran(1, 0), *ran(2, 1), used_up("all 2 restarts are used")],
            "the job ended after 1 restarts",
            id="given up too early",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_on_progress=True)),
            [*ran(1, 0, step=1), *ran(2, 1, step=2), *ran(3, 2, step=3), used_up("all 2 restarts are used")],
            "the job ended after 0 restarts",
            id="given up though it came further",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0)),
            [*ran(1, 0), opened(2, 1), settled(2), *ran(2, 1), opened(3, 2)],
            "should wait 2 to 60 s",
            id="no wait after two short rounds",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0, max_restarts=9)),
            [*ran(1, 0), *ran(2, 1), *ran(3, 2, delay_s=2.0), opened(4, 3, delay_s=3.0)],
            "should wait 4 to 60 s",
            id="the wait does not grow",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0, backoff_max_s=5.0)),
            [*ran(1, 0), *ran(2, 1), opened(3, 2, delay_s=6.0)],
            "should wait 2 to 5 s",
            id="the wait is too long",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0)),
            [*ran(1, 0), opened(2, 1, delay_s=3.0)],
            "is the first restart",
            id="the first restart waits",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0)),
            [opened(1), settled(1), over(1), opened(2, 0, delay_s=3.0)],
            "nothing was charged",
            id="a change of membership waits",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0, clock_rates=(0.9, 1.1))),
            [*ran(1, 0), *ran(2, 1), opened(3, 2, delay_s=4.0), 3.5, began("a.1", 3)],
            "a.1 started after 3.50 s",
            id="workers start before the wait is over",
        ),
        pytest.param(
            GivesUpInTime(limits(tries_hopeless_once=True)),
            [*ran(1, 0, is_hopeless=True), *ran(2, 1, is_hopeless=True), opened(3, 2)],
            "round 3 tries again what failed 2 times for good",
            id="hopeless for the third time",
        ),
        pytest.param(
            GivesUpInTime(limits(no_restart_on=(2, 139))),
            [*ran(1, 0, code=-11), opened(2, 1)],
            "a restart after exit codes {139}",
            id="a code that ends the job",
        ),
        pytest.param(
            GivesUpInTime(limits(restart_on=(3,))),
            [*ran(1, 0, code=4), opened(2, 1)],
            "a restart after exit codes {4}",
            id="a code that is not tried again",
        ),
        pytest.param(
            GivesUpInTime(limits(give_up_after=2)),
            [*ran(1, 0, code=4), *ran(2, 1, code=4), opened(3, 2)],
            "exit code 4 2 times",
            id="the same for ever",
        ),
        pytest.param(
            GivesUpInTime(limits(give_up_after=2)),
            [*ran(1, 0, step=5), *ran(2, 1, step=5), *ran(3, 2, step=4), opened(4, 3)],
            "round 4 follows 2 that came no further",
            id="no further for ever",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1", excluded="why"), here("b.1"), 30.0, settled(1), began("a.1", 1)],
            "a.1 has been excluded for 30.0 s",
            id="an excluded node starts workers",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [*A_WORKS, here("a.1", excluded="why", excluded_in=1), 30.0, here("b.1")],
            "still runs",
            id="an excluded node goes on",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1"), ExclusionAsked("a.1"), 9.0, began("a.1", 2)],
            "asked 9.0 s ago to have its node excluded",
            id="what a worker asks for is forgotten",
        ),
    ],
)
def test_a_checker_complains(checker: Checker, story: Story, sentence: str) -> None:
    with pytest.raises(Violation, match=re.escape(sentence)):
        watch(checker, story)


@pytest.mark.parametrize(
    ("checker", "story"),
    [
        pytest.param(
            BudgetIsNotOverdrawn(limits(window_s=100.0)),
            [*ran(1, 0), *ran(2, 1, for_s=120.0), *ran(3, 2), *ran(4, 3), opened(5, 3)],
            id="the window has moved on",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(window_s=100.0, clock_rates=(0.9, 1.1))),
            [*ran(1, 0), *ran(2, 1, for_s=92.0), *ran(3, 2), opened(4, 3)],
            id="the window has moved on by a clock that is fast",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_after_s=100.0)),
            [*ran(1, 0), *ran(2, 1), *ran(3, 2, for_s=100.0), opened(4, 3)],
            id="healthy for long enough",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_on_progress=True)),
            [*ran(1, 0, step=5), *ran(2, 1), *ran(3, 2, step=6), *ran(4, 3), opened(5, 4)],
            id="further than ever",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits(refill_on_progress=True)),
            [*ran(1, 0, step=1), *ran(2, 1, step=1), *ran(3, 2), used_up("all 2 restarts are used")],
            id="used up since it came further",
        ),
        pytest.param(
            BudgetIsNotOverdrawn(limits()),
            [*ran(1, 0), *ran(2, 1), opened(1, 0, incarnation=2), settled(1), over(1), opened(2, 0)],
            id="a store that knows of nothing",
        ),
        pytest.param(
            ChargesAreDue(limits()),
            [opened(1), settled(1), here("a.1", last_restart_count=2), over(1), opened(4, 2)],
            id="somebody remembers",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0)),
            [*ran(1, 0), *ran(2, 1, for_s=61.0), opened(3, 2), settled(3, 2), began("a.1", 3)],
            id="a long round between",
        ),
        pytest.param(
            BackoffIsKept(limits(backoff_s=4.0)),
            [*ran(1, 0), *ran(2, 1), opened(3, 2, delay_s=2.5), 2.5, began("a.1", 3)],
            id="waited",
        ),
        pytest.param(
            GivesUpInTime(limits(tries_hopeless_once=True)),
            [*ran(1, 0, is_hopeless=True), *ran(2, 1), *ran(3, 2, is_hopeless=True), opened(4, 3)],
            id="hopeless, and another fault between",
        ),
        pytest.param(
            GivesUpInTime(limits()),
            [*ran(1, 0, is_hopeless=True), *ran(2, 1, is_hopeless=True), opened(3, 2)],
            id="hopeless, and nobody minds",
        ),
        pytest.param(
            GivesUpInTime(limits(give_up_after=2)),
            [*ran(1, 0, code=4, step=3), *ran(2, 1, code=4, step=4), opened(3, 2)],
            id="the same, and further each time",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1", excluded="why"), here("b.1", is_leaving=True), 30.0, settled(1), began("a.1", 1)],
            id="nobody else could run it",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1", excluded="why"), settled(2), began("a.1", 2), here("b.1"), 30.0, here("b.1")],
            id="it was needed when the round settled",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1", excluded="why"), here("b.1"), 3.0, settled(1), began("a.1", 1)],
            id="the leader may not know of it yet",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [here("a.1", excluded="why"), StoreLost(), *A_WORKS],
            id="it was excluded in another store",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [
                here("a.1"),
                ExclusionAsked("a.1"),
                here("a.1", excluded="why"),
                here("a.1"),
                9.0,
                began("a.1", 2),
            ],
            id="it was excluded, and is not any more",
        ),
        pytest.param(
            ExclusionIsKept(limits()),
            [*A_WORKS, here("a.1", excluded="why", excluded_in=1), 5.0, A_STOPS, 30.0, here("b.1")],
            id="it has stopped in time",
        ),
    ],
)
def test_a_checker_has_nothing_to_say(checker: Checker, story: Story) -> None:
    watch(checker, story)
