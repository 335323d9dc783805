from __future__ import annotations

from signal import SIGINT, SIGKILL, SIGTERM, SIGUSR1
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.machine import UnlistedEvent, Void
from phalanx.multiprocessing.machine import (
    SAME_REQUEST_S,
    TREE_KILL_S,
    TREE_TERM_S,
    DeadlinePassed,
    MembersRemain,
    NameStuck,
    SignalTree,
    SignalWorkers,
    StopMachine,
    StopRepeated,
    StopRequested,
    StopState,
    SweepRequested,
    TreeEmptied,
    WarnWorkers,
    WorkerExited,
)

ASK = StopRequested(SIGTERM, 30.0)
WARN = StopRequested(SIGTERM, 30.0, SIGUSR1, 120.0)
EVENTS = (
    ASK,
    StopRepeated(),
    SweepRequested(),
    WorkerExited(0),
    TreeEmptied(),
    MembersRemain(),
    DeadlinePassed(),
)

# For each state, a way into it that leaves both workers alive (none can be alive once a stop has ended in peace).
WAYS: dict[StopState, list[tuple[object, float]]] = {
    StopState.RUNNING: [],
    StopState.WARNED: [(WARN, 0.0)],
    StopState.ASKED: [(ASK, 0.0)],
    StopState.TREE_TERM: [(ASK, 0.0), (DeadlinePassed(), 30.0)],
    StopState.TREE_KILL: [(ASK, 0.0), (DeadlinePassed(), 30.0), (DeadlinePassed(), 30.5)],
    StopState.ENDED: [(ASK, 0.0), *[(DeadlinePassed(), at) for at in (30.0, 30.5, 35.5)]],
}


def machine_in(state: StopState) -> StopMachine:
    machine = StopMachine({0, 1})
    for event, now in WAYS[state]:
        machine.step(event, now)
    assert machine.state is state
    return machine


def test_a_worker_is_asked_alone_then_its_tree_then_killed_then_named() -> None:
    machine = StopMachine({0, 1})

    assert machine.step(StopRequested(SIGINT, 30.0), 100.0) == [SignalWorkers(SIGINT)]
    assert machine.deadline == 130.0
    assert machine.step(DeadlinePassed(), 130.0) == [SignalTree(SIGTERM)]
    assert machine.deadline == 130.0 + TREE_TERM_S
    assert machine.step(DeadlinePassed(), 130.5) == [SignalTree(SIGKILL)]
    assert machine.deadline == 130.5 + TREE_KILL_S
    assert machine.step(DeadlinePassed(), 135.5) == [NameStuck()]
    assert machine.state is StopState.ENDED
    assert machine.deadline is None


def test_when_the_last_worker_has_ended_what_it_left_behind_is_ended_at_once() -> None:
    machine = machine_in(StopState.ASKED)

    assert machine.step(WorkerExited(1), 1.0) == []
    assert machine.step(WorkerExited(0), 2.0) == [SignalTree(SIGTERM)]
    assert machine.step(TreeEmptied(), 2.0) == []
    assert machine.state is StopState.ENDED


def test_workers_that_ended_by_themselves_are_swept() -> None:
    machine = StopMachine({0})
    machine.step(WorkerExited(0), 0.0)

    assert machine.step(SweepRequested(), 1.0) == [SignalTree(SIGTERM)]
    assert machine.step(DeadlinePassed(), 1.5) == [SignalTree(SIGKILL)]
    machine.step(TreeEmptied(), 1.6)
    assert machine.state is StopState.ENDED


def test_a_request_without_a_live_worker_is_a_sweep() -> None:
    machine = StopMachine(set())

    assert machine.step(ASK, 5.0) == [SignalTree(SIGTERM)]
    assert machine.deadline == 5.0 + TREE_TERM_S


@pytest.mark.parametrize("order", [(TreeEmptied(), WorkerExited(0)), (WorkerExited(0), TreeEmptied())])
@pytest.mark.parametrize("state", [StopState.TREE_TERM, StopState.TREE_KILL])
def test_the_end_takes_both_an_empty_tree_and_every_exit_in_any_order(
    state: StopState, order: tuple[object, ...]
) -> None:
    machine = machine_in(state)
    machine.step(WorkerExited(1), 31.0)

    machine.step(order[0], 31.0)
    assert machine.state is state
    machine.step(order[1], 31.0)
    assert machine.state is StopState.ENDED


def test_a_double_of_a_request_changes_nothing_and_a_repetition_cuts_the_grace() -> None:
    machine = machine_in(StopState.ASKED)

    machine.step(StopRepeated(), SAME_REQUEST_S - 0.01)
    assert machine.deadline == 30.0
    machine.step(StopRepeated(), 10.0)
    assert machine.deadline == 10.5


def test_hammering_does_not_put_the_second_request_off() -> None:
    machine = machine_in(StopState.ASKED)

    for now in (0.2, 0.4, 0.6):
        machine.step(StopRepeated(), now)
    assert machine.deadline == 1.1


def test_a_repetition_never_lengthens_the_grace() -> None:
    machine = StopMachine({0})
    machine.step(StopRequested(SIGTERM, 2.0), 0.0)

    machine.step(StopRepeated(), 1.9)
    assert machine.deadline == 2.0


def test_another_reason_to_stop_can_only_bring_the_end_nearer_and_signals_nobody_again() -> None:
    machine = machine_in(StopState.ASKED)

    assert machine.step(StopRequested(SIGINT, 60.0), 1.0) == []
    assert machine.deadline == 30.0
    assert machine.step(StopRequested(SIGINT, 5.0), 1.0) == []
    assert machine.deadline == 6.0


def test_a_warning_comes_first_and_then_the_signal_with_the_whole_grace() -> None:
    machine = StopMachine({0, 1})

    assert machine.step(WARN, 0.0) == [WarnWorkers(SIGUSR1)]
    assert machine.deadline == 120.0
    assert machine.step(WorkerExited(0), 60.0) == []
    assert machine.step(DeadlinePassed(), 120.0) == [SignalWorkers(SIGTERM)]
    assert machine.deadline == 150.0


def test_workers_that_end_after_the_warning_are_never_asked() -> None:
    machine = machine_in(StopState.WARNED)

    assert machine.step(WorkerExited(0), 1.0) == []
    assert machine.step(WorkerExited(1), 2.0) == [SignalTree(SIGTERM)]
    machine.step(TreeEmptied(), 2.0)
    assert machine.state is StopState.ENDED


@pytest.mark.parametrize(
    "without", [StopRequested(SIGTERM, 30.0, SIGUSR1), StopRequested(SIGTERM, 30.0, None, 9.0)]
)
def test_a_warning_without_a_signal_or_without_time_is_none(without: StopRequested) -> None:
    assert StopMachine({0}).step(without, 0.0) == [SignalWorkers(SIGTERM)]


def test_impatience_ends_the_warning_and_leaves_half_a_second_after_the_signal() -> None:
    machine = machine_in(StopState.WARNED)

    assert machine.step(StopRepeated(), 0.2) == [], "the double of the request"
    assert machine.step(StopRepeated(), 5.0) == [SignalWorkers(SIGTERM)]
    assert machine.deadline == 5.0 + TREE_TERM_S
    machine.step(StopRepeated(), 5.1)
    assert machine.deadline == 5.0 + TREE_TERM_S


def test_a_reason_that_cannot_wait_ends_the_warning_with_the_shorter_of_both_graces() -> None:
    machine = machine_in(StopState.WARNED)

    assert machine.step(StopRequested(SIGTERM, 2.0), 1.0) == [SignalWorkers(SIGTERM)]
    assert machine.deadline == 3.0
    machine = machine_in(StopState.WARNED)
    machine.step(StopRequested(SIGTERM, 60.0), 1.0)
    assert machine.deadline == 31.0


def test_another_request_with_a_warning_brings_no_second_warning_and_its_own_signal_at_the_end() -> None:
    machine = machine_in(StopState.WARNED)

    assert machine.step(StopRequested(SIGINT, 10.0, SIGUSR1, 20.0), 1.0) == []
    assert machine.deadline == 21.0
    assert machine.step(DeadlinePassed(), 21.0) == [SignalWorkers(SIGINT)]
    assert machine.deadline == 31.0
    machine = machine_in(StopState.WARNED)
    machine.step(StopRequested(SIGINT, 10.0, SIGUSR1, 500.0), 1.0)
    assert machine.deadline == 120.0


def test_what_the_kernel_does_not_let_go_is_told_apart_from_an_end_in_peace() -> None:
    assert machine_in(StopState.ENDED).is_stuck
    machine = machine_in(StopState.ASKED)
    for event in (WorkerExited(0), WorkerExited(1), TreeEmptied()):
        machine.step(event, 1.0)
    assert (machine.state, machine.is_stuck) == (StopState.ENDED, False)


@pytest.mark.parametrize(
    "state", [StopState.WARNED, StopState.ASKED, StopState.TREE_TERM, StopState.TREE_KILL]
)
def test_a_timer_that_was_set_for_an_earlier_deadline_decides_nothing(state: StopState) -> None:
    machine = machine_in(state)
    assert machine.deadline is not None

    assert machine.step(DeadlinePassed(), machine.deadline - 0.01) == []
    assert machine.state is state


def test_children_born_while_their_parents_die_get_the_signal_of_the_hour() -> None:
    assert machine_in(StopState.TREE_TERM).step(MembersRemain(), 30.1) == [SignalTree(SIGTERM)]
    assert machine_in(StopState.TREE_KILL).step(MembersRemain(), 30.6) == [SignalTree(SIGKILL)]


def test_a_tree_that_was_empty_and_is_not_does_not_end_the_stop() -> None:
    machine = machine_in(StopState.TREE_TERM)
    machine.step(TreeEmptied(), 30.1)
    machine.step(MembersRemain(), 30.2)

    for local_rank in (0, 1):
        machine.step(WorkerExited(local_rank), 30.3)
    assert machine.state is StopState.TREE_TERM


@pytest.mark.parametrize("state", StopState)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_pair_of_event_and_state_is_listed_and_keeps_the_invariants(
    event: object, state: StopState
) -> None:
    machine = machine_in(state)
    machine.step(event, 1000.0)
    machine.check()


def test_the_table_names_each_event_in_each_state_and_gives_each_void_a_reason() -> None:
    assert {type(event) for event in EVENTS} == set(StopMachine.table)
    for arrows in StopMachine.table.values():
        assert set(arrows) == set(StopState)
        assert all(arrow.reason for arrow in arrows.values() if isinstance(arrow, Void))


def test_an_event_of_another_machine_is_refused() -> None:
    with pytest.raises(UnlistedEvent, match="StopMachine: nobody listed str in state RUNNING"):
        StopMachine({0}).step("TreeEmptied", 0.0)


ANY_EVENT = st.one_of(
    st.builds(
        StopRequested,
        st.sampled_from([SIGTERM, SIGINT]),
        st.floats(0, 60),
        st.sampled_from([None, SIGUSR1]),
        st.floats(0, 60),
    ),
    st.sampled_from([StopRepeated(), SweepRequested(), TreeEmptied(), MembersRemain(), DeadlinePassed()]),
    st.builds(WorkerExited, st.integers(0, 3)),
)
ORDER = (
    StopState.RUNNING,
    StopState.WARNED,
    StopState.ASKED,
    StopState.TREE_TERM,
    StopState.TREE_KILL,
    StopState.ENDED,
)


@given(st.integers(0, 4), st.lists(st.tuples(ANY_EVENT, st.floats(0, 40)), max_size=40))
def test_whatever_happens_a_stop_only_goes_forward_and_the_deadline_only_comes_nearer(
    workers: int, history: list[tuple[Any, float]]
) -> None:
    machine = StopMachine(range(workers))
    now = 0.0
    for event, later in history:
        now += later
        before, deadline = machine.state, machine.deadline
        commands = machine.step(event, now)
        assert ORDER.index(machine.state) >= ORDER.index(before)
        if machine.state is before and deadline is not None:
            assert machine.deadline is not None
            assert machine.deadline <= deadline
        is_asked_now = machine.state is StopState.ASKED and before in (StopState.RUNNING, StopState.WARNED)
        assert [isinstance(one, SignalWorkers) for one in commands].count(True) == is_asked_now
        is_warned_now = machine.state is StopState.WARNED and before is StopState.RUNNING
        assert [isinstance(one, WarnWorkers) for one in commands].count(True) == is_warned_now


@given(st.integers(0, 4), st.lists(ANY_EVENT, max_size=20), st.floats(0, 60))
def test_once_it_was_asked_a_stop_ends_within_the_grace_and_five_and_a_half_seconds(
    workers: int, history: list[Any], grace_s: float
) -> None:
    machine = StopMachine(range(workers))
    machine.step(StopRequested(SIGTERM, grace_s), 0.0)
    for event in history:
        machine.step(event, 0.0)

    now = 0.0
    while machine.deadline is not None:
        now = machine.deadline
        machine.step(DeadlinePassed(), now)
    assert machine.state is StopState.ENDED
    assert now <= grace_s + TREE_TERM_S + TREE_KILL_S + 1e-6


@given(st.integers(1, 4), st.permutations([0, 1, 2, 3]))
def test_workers_that_obey_are_never_killed(workers: int, order: list[int]) -> None:
    machine = StopMachine(range(workers))
    commands = machine.step(ASK, 0.0)
    for local_rank in order:
        commands += machine.step(WorkerExited(local_rank), 1.0)
    commands += machine.step(TreeEmptied(), 1.0)

    assert commands == [SignalWorkers(SIGTERM), SignalTree(SIGTERM)]
    assert machine.state is StopState.ENDED
