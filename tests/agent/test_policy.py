"""Whether a failed round is tried again, as a table."""

from __future__ import annotations

import pytest

from phalanx.agent.policy import PORT_RETRIES_MAX, Budget, GiveUp, Restart, decide
from phalanx.agent.verdict import Failure

CRASH = Failure(rank=1, local_rank=1, pid=7, exit_code=1, exited_at=1.0, summary="ValueError: x at t.py:2")
PORT = Failure(rank=0, local_rank=0, pid=7, exit_code=1, exited_at=1.0, master_port_taken=True)
ABSENT = Failure(rank=0, local_rank=0, pid=0, exit_code=127, exited_at=1.0, why_not_started="'x' not found")


@pytest.mark.parametrize(
    ("failure", "budget", "expected"),
    [
        (CRASH, Budget(max_restarts=0), None),
        (CRASH, Budget(max_restarts=3, charged=3), None),
        (CRASH, Budget(max_restarts=3), Budget(max_restarts=3, charged=1)),
        (CRASH, Budget(max_restarts=3, charged=2, port_retries=2), Budget(max_restarts=3, charged=3)),
        (PORT, Budget(max_restarts=0), Budget(max_restarts=0, port_retries=1)),
        (PORT, Budget(max_restarts=2, charged=1), Budget(max_restarts=2, charged=1, port_retries=1)),
        (PORT, Budget(max_restarts=0, port_retries=PORT_RETRIES_MAX), None),
        (
            PORT,
            Budget(max_restarts=1, port_retries=PORT_RETRIES_MAX),
            Budget(max_restarts=1, charged=1),
        ),
        (ABSENT, Budget(max_restarts=1), Budget(max_restarts=1, charged=1)),
    ],
)
def test_decisions(failure: Failure, budget: Budget, expected: Budget | None) -> None:
    decision = decide([failure], budget)
    if expected is None:
        assert isinstance(decision, GiveUp)
    else:
        assert isinstance(decision, Restart)
        assert decision.budget == expected


def test_the_reason_names_the_rank_the_error_and_the_count() -> None:
    decision = decide([CRASH], Budget(max_restarts=3))
    assert decision.reason == "rank 1 failed: ValueError: x at t.py:2 (restart 1 of 3)"


def test_a_used_up_budget_says_so() -> None:
    assert decide([CRASH], Budget(max_restarts=3, charged=3)).reason == "all 3 restarts are used"


def test_a_port_that_was_taken_elsewhere_than_on_rank_0_is_an_ordinary_failure() -> None:
    first = Failure(rank=1, local_rank=1, pid=7, exit_code=1, exited_at=0.5)
    assert isinstance(decide([PORT, first], Budget(max_restarts=0)), GiveUp)
