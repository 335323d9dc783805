"""Which failure was first, and what the launcher exits with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.verdict import Ending, Failure, exit_status, first_failure, first_of_nodes, judge


def failed(rank: int, **facts: object) -> Failure:
    values: dict[str, object] = {
        "local_rank": rank,
        "pid": 100 + rank,
        "exit_code": 1,
        "exited_at": 10.0,
        **facts,
    }
    return Failure(rank=rank, **values)  # type: ignore[arg-type]


def test_the_earliest_exit_is_the_cause_when_nobody_recorded_an_exception() -> None:
    assert first_failure([failed(0, exited_at=7.0), failed(1, exited_at=6.0)]) == failed(1, exited_at=6.0)


def test_a_rank_that_recorded_first_and_exited_last_is_the_cause() -> None:
    slow = failed(2, signed_at=6.0, exited_at=9.0)
    quick = failed(0, signed_at=7.0, exited_at=7.1)
    assert first_failure([quick, slow]) is slow


def test_what_the_launcher_stopped_is_never_blamed_while_there_is_another_failure() -> None:
    culprit = failed(1, exited_at=8.0)
    stopped = failed(0, exit_code=-15, exited_at=8.5, stopped_at=8.1)
    assert first_failure([stopped, culprit]) is culprit
    assert stopped.is_collateral
    assert not culprit.is_collateral


def test_an_exception_recorded_before_the_stop_is_the_ranks_own() -> None:
    own = failed(0, signed_at=5.0, exited_at=9.0, stopped_at=8.0)
    assert not own.is_collateral
    assert first_failure([failed(1, exited_at=8.0), own]) is own


def test_when_everything_is_collateral_the_job_still_has_a_cause() -> None:
    assert first_failure([failed(0, exited_at=9.0, stopped_at=8.0)]) is not None
    assert first_failure([]) is None


def test_our_own_signal_does_not_hide_what_the_cause_would_have_ended_with() -> None:
    slow = failed(1, signed_at=5.0, exited_at=9.0, stopped_at=8.0, exit_code=-15, own_exit_code=7)
    quick = failed(0, exit_code=5, exited_at=8.0)
    assert judge([quick, slow], reason="").exit_code == 7
    by_itself = failed(1, signed_at=5.0, exited_at=6.0, exit_code=-11, own_exit_code=1)
    assert judge([by_itself], reason="").exit_code == 139


def test_a_tie_goes_to_the_lowest_rank() -> None:
    cause = first_failure([failed(3), failed(1), failed(2)])
    assert cause is not None
    assert cause.rank == 1


@pytest.mark.parametrize(("code", "status"), [(7, 7), (2, 2), (70, 70), (-9, 137), (-11, 139), (-15, 143)])
def test_the_launcher_passes_the_first_failing_ranks_code_through(code: int, status: int) -> None:
    assert exit_status(code) == status
    verdict = judge([failed(0, exit_code=code)], reason="all 3 restarts are used")
    assert (verdict.ending, verdict.exit_code) == (Ending.FAILED, status)


@given(
    st.lists(
        st.builds(
            failed,
            st.integers(0, 7),
            exited_at=st.floats(1, 20),
            signed_at=st.none() | st.floats(1, 20),
            stopped_at=st.none() | st.floats(1, 20),
        ),
        min_size=1,
    )
)
def test_the_cause_does_not_depend_on_the_order_of_the_evidence(failures: list[Failure]) -> None:
    forward, backward = first_failure(failures), first_failure(failures[::-1])
    assert forward is not None
    assert backward is not None
    assert (forward.rank, forward.first_sign_at) == (backward.rank, backward.first_sign_at)
    assert not forward.is_collateral or all(one.is_collateral for one in failures)


def test_between_nodes_the_revision_of_the_first_sign_decides_and_no_clock() -> None:
    early, late = failed(4, exited_at=900.0), failed(0, exited_at=1.0)
    assert first_of_nodes([([late], 12), ([early], 11)]) is early
    assert first_of_nodes([([late], 12), ([early], None)]) is late
    assert first_of_nodes([]) is None
    assert first_of_nodes([((), 3)]) is None


def test_inside_of_a_node_its_own_clock_decides() -> None:
    first, second = failed(4, exited_at=5.0), failed(0, exited_at=6.0)
    assert first_of_nodes([([second, first], 11)]) is first


@pytest.mark.parametrize(
    "summary",
    [
        "RuntimeError: Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistBackendError: NCCL error",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer",
    ],
)
def test_a_symptom_of_a_broken_connection_yields_to_any_other_failure(summary: str) -> None:
    symptom, cause = failed(0, summary=summary), failed(1, summary="KeyError: 3")
    assert symptom.is_secondary
    assert not cause.is_secondary
    assert first_of_nodes([([symptom], 5), ([cause], 9)]) is cause


def test_the_end_of_standard_error_tells_a_symptom_only_where_a_library_gave_up_without_an_exception() -> (
    None
):
    said = "... NCCL watchdog: Connection reset by peer ..."
    assert failed(0, summary="killed by SIGABRT", exit_code=-6, details=said).is_secondary
    assert not failed(0, summary="RuntimeError: x", details=said).is_secondary
    assert not failed(0, summary="killed by SIGKILL", exit_code=-9, details=said).is_secondary, (
        "out of memory"
    )


def test_what_the_launcher_stopped_yields_to_a_symptom() -> None:
    stopped = failed(0, stopped_at=1.0)
    symptom = failed(1, summary="broken pipe")
    assert first_of_nodes([([stopped], 1), ([symptom], 9)]) is symptom


@given(
    st.permutations(
        [
            ([failed(0)], 7),
            ([failed(2, summary="broken pipe")], 3),
            ([failed(4, stopped_at=1.0)], 1),
            ([failed(6)], None),
            ([failed(8)], 7),
        ]
    )
)
def test_every_node_finds_the_same_cause(nodes: list[tuple[list[Failure], int | None]]) -> None:
    found = first_of_nodes(nodes)
    assert found is not None
    assert found.rank == 0
