"""Each checker complains about what it is there for, and about nothing in a world that goes well."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stored import Phase, RoundRecord
from phalanx.testing.checkers import (
    CauseIsTheInjectedOne,
    EveryRunEnds,
    NoBug,
    NothingBeginsAfterTheEnd,
    NothingIsLeft,
    OldWorkersAreGone,
    OneMembershipPerRound,
    RanksOnceEach,
    SameVerdict,
    WorkersKnowTheCount,
    all_checkers,
)
from phalanx.testing.checking import Checker, Limits, Violation
from phalanx.testing.trace import (
    AgentEnded,
    AgentStarted,
    Fault,
    Observation,
    Resumed,
    RoundWritten,
    StopSignalled,
    StoreLost,
    Suspended,
    VerdictWritten,
    WorkerEnded,
    WorkerStarted,
)

LIMITS = Limits(min_nodes=2, max_nodes=3, restarts=RestartPolicy(max_restarts=1), ttl_s=3.0)
SUCCEEDED = Verdict(ending=Ending.SUCCEEDED, exit_code=0)


def started(agent: str, number: int = 1, rank: int = 0, pid: int = 1, **changes: object) -> WorkerStarted:
    fields: dict[str, object] = {
        "number": number,
        "restart_count": 0,
        "reason": "",
        "group_rank": rank,
        "group_world_size": 2,
        "first_rank": rank,
        "local_world_size": 1,
        "world_size": 2,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
    }
    return WorkerStarted(agent, pid, Round(**{**fields, **changes}), 0)  # type: ignore[arg-type]


def ended(agent: str, verdict: Verdict = SUCCEEDED, *, is_orderly: bool = True) -> AgentEnded:
    return AgentEnded(agent, verdict.exit_code, verdict, "", is_orderly)


def failed(rank: int, number: int = 1) -> Verdict:
    cause = Failure(rank=rank, local_rank=0, pid=1, exit_code=3, exited_at=1.0, summary="boom", round=number)
    return Verdict(ending=Ending.FAILED, exit_code=3, cause=cause)


def watch(checker: Checker, seen: Sequence[Observation | float]) -> None:
    at = 0.0
    for one in seen:
        if isinstance(one, float):
            at += one
        else:
            checker.see(at, one)
    checker.finish()


def written(number: int, incarnation: int = 1, *, count: int = 0) -> RoundWritten:
    return RoundWritten(incarnation, RoundRecord(number=number, phase=Phase.SETTLED, restart_count=count))


GOOD: list[Observation | float] = [
    AgentStarted("a.1"),
    AgentStarted("b.1"),
    written(1),
    started("a.1"),
    started("b.1", rank=1),
    Fault("worker", "b.1", 1, 1),
    WorkerEnded("b.1", 1, 3, "boom"),
    WorkerEnded("a.1", 1, -15, "asked"),
    1.0,
    written(2, count=1),
    started("a.1", 2, pid=2, restart_count=1, reason="rank 1 failed"),
    started("b.1", 2, rank=1, pid=2, restart_count=1, reason="rank 1 failed"),
    WorkerEnded("b.1", 2, 0, "done"),
    WorkerEnded("a.1", 2, 0, "done"),
    VerdictWritten(1, SUCCEEDED),
    ended("a.1"),
    ended("b.1"),
]


def test_a_world_that_goes_well_is_no_violation() -> None:
    for checker in all_checkers(LIMITS):
        watch(checker, GOOD)


@pytest.mark.parametrize(
    ("checker", "seen", "sentence"),
    [
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1"), started("b.1", rank=1, master_port=29501)],
            "master_port is 29501 for b.1",
            id="another master",
        ),
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1"), started("b.1", rank=1, restart_count=1)],
            "restart_count",
            id="another restart count",
        ),
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1"), started("b.1", rank=1, reason="why")],
            "reason is 'why'",
            id="another reason",
        ),
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1"), started("b.1")],
            "both have group rank 0",
            id="one place twice",
        ),
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1", group_world_size=1)],
            "has 1 nodes",
            id="too few nodes",
        ),
        pytest.param(
            OneMembershipPerRound(LIMITS),
            [started("a.1", group_world_size=4)],
            "has 4 nodes",
            id="too many nodes",
        ),
        pytest.param(
            RanksOnceEach(LIMITS),
            [started("a.1"), started("a.1", pid=2)],
            "rank 0 was started by",
            id="a rank twice",
        ),
        pytest.param(
            RanksOnceEach(LIMITS), [started("a.1", rank=2)], "rank 2 of 2", id="a rank beyond the world"
        ),
        pytest.param(
            OldWorkersAreGone(LIMITS),
            [started("a.1"), started("b.1", 2)],
            "is alive beside",
            id="old beside new",
        ),
        pytest.param(
            OldWorkersAreGone(LIMITS),
            [started("a.1", 2), started("b.1", 1)],
            "is alive beside",
            id="an old one starts late",
        ),
        pytest.param(
            OldWorkersAreGone(LIMITS),
            [started("a.1"), Suspended("a"), started("b.1", 2), 5.0, Resumed("a"), 1.0, AgentStarted("c.1")],
            "is alive beside",
            id="old after its node resumed",
        ),
        pytest.param(
            WorkersKnowTheCount(),
            [Fault("cut", "a"), written(2, count=1), started("a.1", 2, restart_count=1)],
            "workers failed 0 times",
            id="a membership change is charged",
        ),
        pytest.param(
            WorkersKnowTheCount(),
            [Fault("w", "a.1", 0, 1), written(2, count=1), started("a.1", 2)],
            "a.1 starts restart 0 of round 2",
            id="a worker sees another count",
        ),
        pytest.param(
            NothingIsLeft(), [started("a.1"), ended("a.1")], "a.1 has ended and left", id="left by an agent"
        ),
        pytest.param(NothingIsLeft(), [started("a.1")], "these are alive", id="left at the end"),
        pytest.param(EveryRunEnds(), [AgentStarted("a.1")], "never ended: a.1", id="never ends"),
        pytest.param(NoBug(), [AgentEnded("a.1", 70, None, "Traceback", False)], "Traceback", id="a bug"),
        pytest.param(
            NothingBeginsAfterTheEnd(LIMITS),
            [VerdictWritten(1, SUCCEEDED), 9.0, started("a.1")],
            "a.1 starts workers of round 1 9.0 s after the end",
            id="it goes on after the end",
        ),
        pytest.param(
            SameVerdict(),
            [VerdictWritten(1, SUCCEEDED), ended("a.1"), ended("b.1", failed(1))],
            "b.1 ended with (3,",
            id="two verdicts",
        ),
        pytest.param(
            SameVerdict(),
            [VerdictWritten(1, failed(0)), ended("a.1", failed(0)), ended("b.1", failed(1))],
            "b.1 ended with (3,",
            id="two causes",
        ),
        pytest.param(SameVerdict(), [ended("a.1")], "a.1 ended with (0,", id="a verdict that nobody wrote"),
        pytest.param(
            CauseIsTheInjectedOne(),
            [written(1), Fault("w", "a.1", 0, 1), VerdictWritten(1, failed(1))],
            "blames rank 1 of round 1",
            id="the wrong rank is blamed",
        ),
        pytest.param(
            CauseIsTheInjectedOne(),
            [written(1), VerdictWritten(1, failed(0))],
            "blames rank 0",
            id="nobody failed",
        ),
        pytest.param(
            CauseIsTheInjectedOne(),
            [written(1), Fault("w", "a.1", 0, 1), written(2), VerdictWritten(1, failed(0))],
            "the round was 2",
            id="a failure of long ago is blamed",
        ),
        pytest.param(
            CauseIsTheInjectedOne(),
            [written(1), Fault("w", "a.1", 0, 1), written(1, 2), VerdictWritten(2, failed(0))],
            "blames rank 0 of round 1",
            id="a failure of another life is blamed",
        ),
        pytest.param(
            CauseIsTheInjectedOne(),
            [Fault("w", "a.1", 0, 1), StopSignalled("b.1", 15), ended("b.1", failed(0))],
            "b.1 blames rank 0",
            id="who leaves blames somebody else's worker",
        ),
    ],
)
def test_a_checker_complains(checker: Checker, seen: list[Observation | float], sentence: str) -> None:
    with pytest.raises(Violation, match=re.escape(sentence)):
        watch(checker, seen)


def test_a_worker_of_a_suspended_machine_is_excused_and_for_a_moment_after() -> None:
    watch(
        OldWorkersAreGone(LIMITS),
        [
            started("a.1"),
            Suspended("a"),
            started("b.1", 2),
            5.0,
            Resumed("a"),
            0.01,
            WorkerEnded("a.1", 1, -9, "the fence fell"),
            1.0,
            AgentStarted("c.1"),
        ],
    )


def test_newcomers_to_a_store_without_data_may_begin_anew_beside_old_workers_until_their_fence() -> None:
    seen: list[Observation | float] = [started("a.1", 5), StoreLost(), 1.0, started("b.1", 1)]
    watch(
        OldWorkersAreGone(LIMITS),
        [*seen, 1.0, WorkerEnded("a.1", 1, -9, "the fence fell"), 9.0, AgentStarted("c.1")],
    )
    watch(OneMembershipPerRound(LIMITS), [started("a.1"), StoreLost(), started("b.1", master_port=1)])
    with pytest.raises(Violation, match="is alive beside"):
        watch(OldWorkersAreGone(LIMITS), [*seen, 9.0, started("b.1", 1, rank=1, pid=2)])
    with pytest.raises(Violation, match="is alive beside"):
        watch(OldWorkersAreGone(LIMITS), [one for one in seen if not isinstance(one, StoreLost)])


def test_a_failure_of_the_last_round_may_be_blamed_by_all_and_by_its_own_node_also_later() -> None:
    seen: list[Observation | float] = [written(1), Fault("w", "a.1", 0, 1)]
    watch(CauseIsTheInjectedOne(), [*seen, VerdictWritten(1, failed(0)), ended("b.1", failed(0))])
    watch(CauseIsTheInjectedOne(), [*seen, StopSignalled("a.1", 15), written(2), ended("a.1", failed(0))])
    watch(CauseIsTheInjectedOne(), [*seen, Fault("agent is frozen", "a.1"), ended("a.1", failed(1))])
    with pytest.raises(Violation, match=re.escape("a.1 blames rank 1")):
        watch(CauseIsTheInjectedOne(), [*seen, ended("a.1", failed(1))])


def test_a_newcomer_in_the_round_of_those_who_remember_begins_no_new_life() -> None:
    seen: list[Observation | float] = [started("a.1"), StoreLost(), started("a.1", 2, pid=2, restart_count=1)]
    with pytest.raises(Violation, match=re.escape("restart_count is 0 for b.1")):
        watch(OneMembershipPerRound(LIMITS), [*seen, started("b.1", 2, rank=1)])


def test_who_came_when_the_store_had_gone_with_the_job_ends_alone() -> None:
    late = Verdict(
        ending=Ending.FAILED, exit_code=75, reason="the store was not reached for 3600 s (join_timeout): -"
    )
    watch(SameVerdict(), [VerdictWritten(1, SUCCEEDED), ended("a.1"), ended("b.1", late)])


def test_a_member_that_remembers_may_not_begin_with_round_one() -> None:
    with pytest.raises(Violation, match="is alive beside"):
        watch(OldWorkersAreGone(LIMITS), [started("a.1", 5), StoreLost(), 9.0, started("a.1", 1, pid=2)])


def test_a_verdict_that_was_lost_with_its_store_is_none() -> None:
    seen: list[Observation | float] = [VerdictWritten(1, failed(0)), StoreLost(), 9.0, started("a.1")]
    watch(NothingBeginsAfterTheEnd(LIMITS), seen)
    watch(SameVerdict(), [*seen, VerdictWritten(2, SUCCEEDED), ended("a.1"), ended("b.1", failed(0))])
    watch(NothingBeginsAfterTheEnd(LIMITS), [VerdictWritten(1, SUCCEEDED), 1.0, started("a.1")])


def test_who_leaves_may_have_a_verdict_of_its_own() -> None:
    stopped = Verdict(ending=Ending.STOPPED, exit_code=143)
    watch(SameVerdict(), [StopSignalled("a.1", 15), ended("a.1", stopped)])
