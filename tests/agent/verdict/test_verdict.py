"""Which failure was first, and what the launcher exits with."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.verdict.symptoms_seen import OWN_FAULTS, SYMPTOMS

from phalanx.agent.verdict.verdict import (
    Ending,
    Failure,
    exit_status,
    first_failure,
    first_of_nodes,
    judge,
    ranges_of,
)


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


def raised(rank: int, exception: str, text: str, **facts: object) -> Failure:
    message = f"{exception.rpartition('.')[2]}: {text}"
    return failed(
        rank, exception=exception, message=message, summary=message.partition("\n")[0][:200], **facts
    )


@pytest.mark.parametrize(("exception", "text"), SYMPTOMS.values(), ids=SYMPTOMS)
def test_a_symptom_of_a_broken_connection_yields_to_any_other_failure(exception: str, text: str) -> None:
    symptom, cause = raised(0, exception, text), failed(1, summary="KeyError: 3")
    assert symptom.is_secondary
    assert not cause.is_secondary
    assert first_of_nodes([([symptom], 5), ([cause], 9)]) is cause
    if "\n" not in text:
        assert failed(0, summary=symptom.summary).is_secondary, "told in a line"


@pytest.mark.parametrize(("exception", "text"), OWN_FAULTS.values(), ids=OWN_FAULTS)
def test_what_a_process_did_wrong_itself_is_no_symptom_whatever_words_are_in_it(
    exception: str, text: str
) -> None:
    assert not raised(0, exception, text).is_secondary


@pytest.mark.parametrize("is_before", [True, False])
def test_inside_of_a_node_a_symptom_yields_too_whichever_came_first(is_before: bool) -> None:
    symptom = raised(0, *SYMPTOMS["store.set, its host is gone"], signed_at=4.0 if is_before else 6.0)
    silent = failed(1, exit_code=3, exited_at=5.0)
    assert first_failure([symptom, silent]) is silent
    assert judge([symptom, silent], reason="").exit_code == 3


def test_a_symptom_does_not_yield_to_a_failure_that_the_launcher_caused() -> None:
    symptom = raised(1, "BrokenPipeError", "[Errno 32] Broken pipe", exited_at=5.0)
    shot = failed(0, exit_code=-9, exited_at=6.0, stopped_at=5.5)
    late = raised(2, "KeyError", "second", signed_at=5.7, exited_at=5.8, stopped_at=5.5)
    assert first_failure([shot, late, symptom]) is symptom
    assert first_of_nodes([([shot, late], 3), ([symptom], 7)]) is symptom


def test_a_node_that_saw_a_symptom_before_its_own_failure_was_not_the_first() -> None:
    """Somebody had failed before that symptom; the revision of the node's first sign is the symptom's."""
    symptom = raised(0, "BrokenPipeError", "[Errno 32] Broken pipe", signed_at=1.0)
    later = failed(1, signed_at=2.0)
    first = failed(2, summary="KeyError: 3")
    assert first_of_nodes([([symptom, later], 5), ([first], 9)]) is first
    assert first_of_nodes([([symptom, later], 5), ([symptom], 3)]) is later


def test_the_end_of_standard_error_tells_a_symptom_only_where_a_library_gave_up_without_an_exception() -> (
    None
):
    said = "[rank1]:[E] ... [PG 0 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(...)"
    assert failed(0, summary="killed by SIGABRT", exit_code=-6, stderr=said).is_secondary
    assert not failed(0, summary="RuntimeError: x", stderr=said).is_secondary
    assert not failed(0, summary="exit code 1", stderr=said).is_secondary
    assert not failed(
        0, summary="killed by SIGABRT", exit_code=-6, stderr="free(): invalid pointer"
    ).is_secondary
    assert not failed(0, summary="killed by SIGKILL", exit_code=-9, stderr=said).is_secondary, "out of memory"


def test_a_program_that_wrote_to_a_peer_that_is_gone_shows_a_symptom() -> None:
    assert failed(0, summary="killed by SIGPIPE", exit_code=-13).is_secondary


# Ties


def test_failures_found_in_one_look_are_a_tie_and_the_lowest_rank_stands_in() -> None:
    verdict = judge([failed(5), failed(2), failed(3, exited_at=11.0)], reason="")
    assert verdict.cause is not None
    assert verdict.cause.rank == 2
    assert verdict.tied == ((2, 2), (5, 5))


def test_who_recorded_when_it_failed_is_tied_with_nobody() -> None:
    assert judge([failed(2, signed_at=9.0), failed(5)], reason="").tied == ()
    assert judge([failed(2, signed_at=10.0), failed(5)], reason="").tied == ()


def test_neither_a_symptom_nor_what_was_stopped_nor_another_node_takes_part_in_a_tie() -> None:
    first = failed(1)
    symptom = failed(2, summary="BrokenPipeError: [Errno 32] Broken pipe")
    stopped = failed(3, stopped_at=9.0)
    elsewhere = failed(4, group_rank=1)
    verdict = judge([first, symptom, stopped, elsewhere], reason="", cause=first)
    assert verdict.tied == ()
    assert verdict.failed == ((1, 2), (4, 4))


# Who failed and who was stopped


def test_what_was_stopped_is_listed_for_the_whole_job_and_no_failure_among_it() -> None:
    cause, also = failed(1, exited_at=8.0), failed(2, signed_at=7.9, exited_at=9.0, stopped_at=8.0)
    cause = failed(1, signed_at=7.0, exited_at=8.0)
    killed = failed(3, exit_code=-9, exited_at=9.0, stopped_at=8.0)
    verdict = judge([cause, also, killed], reason="", stopped=[0, 2, 3, 8, 9, 10])
    assert verdict.failed == ((1, 2),)
    assert verdict.stopped == ((0, 0), (3, 3), (8, 10))


def test_a_cause_that_was_stopped_itself_is_not_listed_as_its_own_victim() -> None:
    verdict = judge([failed(0, stopped_at=9.0), failed(1, stopped_at=9.0)], reason="", stopped=[0, 1, 2])
    assert (verdict.failed, verdict.stopped) == (((0, 0),), ((1, 2),))


@given(st.sets(st.integers(0, 60)))
def test_ranges_are_the_numbers_in_order_and_as_few_as_can_be(numbers: set[int]) -> None:
    ranges = ranges_of(numbers)
    assert [one for first, last in ranges for one in range(first, last + 1)] == sorted(numbers)
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))


def test_what_the_launcher_stopped_yields_to_a_symptom() -> None:
    stopped = failed(0, stopped_at=1.0)
    symptom = failed(1, summary="BrokenPipeError: x")
    assert first_of_nodes([([stopped], 1), ([symptom], 9)]) is symptom


@given(
    st.permutations(
        [
            ([failed(0)], 7),
            ([failed(2, summary="BrokenPipeError: x")], 3),
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


def test_ranks_that_are_told_without_their_failures_are_in_the_verdict_too() -> None:
    verdict = judge([failed(3), failed(4)], reason="", failed=[3, 4, 5, 6], tied=[3, 4, 5], stopped=[6, 7])
    assert (verdict.failed, verdict.tied, verdict.stopped) == (((3, 6),), ((3, 5),), ((7, 7),))


def test_none_of_those_that_ran_on_too_long_is_more_to_blame_than_another() -> None:
    late = [failed(rank, host=f"n{rank}", is_straggler=True, exited_at=9.0 - rank) for rank in (1, 2)]
    assert judge([*late, failed(3)], reason="", cause=late[1]).tied == ((1, 2),)
    assert judge([failed(0, exited_at=1.0), *late], reason="").tied == ()
