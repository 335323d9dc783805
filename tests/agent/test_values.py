"""The values of a round: what each call is answered, who waits for what, and what is forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent import values
from phalanx.agent.values import (
    Add,
    Answer,
    CallerGone,
    CompareSet,
    DeadlinePassed,
    Delete,
    Get,
    Refuse,
    RoundBegan,
    RoundValues,
    Set,
    ValuesState,
)

A, B, C = ("a", 1), ("b", 2), ("c", 3)


def _after(*events: Any) -> RoundValues:
    machine = RoundValues()
    for event in events:
        machine.step(event, 0.0)
    return machine


def test_a_value_is_there_after_it_was_set_and_gone_after_it_was_deleted() -> None:
    machine = RoundValues()
    assert machine.step(Get(A, "k"), 0.0) == [Answer(A, None)]
    assert machine.step(Set(A, "k", b"v"), 0.0) == [Answer(A, None)]
    assert machine.step(Get(B, "k"), 0.0) == [Answer(B, b"v")]
    assert machine.step(Set(A, "k", b""), 0.0) == [Answer(A, None)]
    assert machine.step(Get(B, "k", 9.0), 0.0) == [Answer(B, b"")], "an empty value is one"
    assert machine.step(Delete(A, "k"), 0.0) == [Answer(A, True)]
    assert machine.step(Delete(A, "k"), 0.0) == [Answer(A, False)]
    assert machine.step(Get(B, "k"), 0.0) == [Answer(B, None)]


def test_a_sum_begins_at_zero_and_takes_any_sign() -> None:
    machine = RoundValues()
    assert machine.step(Add(A, "n", 5), 0.0) == [Answer(A, 5)]
    assert machine.step(Add(A, "n", -7), 0.0) == [Answer(A, -2)]
    assert machine.step(Get(A, "n"), 0.0) == [Answer(A, b"-2")]


def test_a_sum_over_something_else_is_refused_and_changes_nothing() -> None:
    machine = _after(Set(A, "k", b"no number"))
    assert machine.step(Add(A, "k", 1), 0.0) == [Refuse(A, "the value of 'k' is no number")]
    assert machine.step(Get(A, "k"), 0.0) == [Answer(A, b"no number")]


@pytest.mark.parametrize(
    ("before", "expected", "after"),
    [
        (None, None, b"new"),
        (b"old", None, b"old"),
        (b"old", b"old", b"new"),
        (b"old", b"x", b"old"),
        (None, b"x", None),
    ],
)
def test_a_value_is_replaced_only_if_it_is_the_expected_one(before: Any, expected: Any, after: Any) -> None:
    machine = _after(*([Set(A, "k", before)] if before is not None else []))
    assert machine.step(CompareSet(A, "k", expected, b"new"), 0.0) == [Answer(A, after)]
    assert machine.step(Get(A, "k"), 0.0) == [Answer(A, after)]


@pytest.mark.parametrize(
    ("event", "value"),
    [(Set(C, "k", b"v"), b"v"), (Add(C, "k", 3), b"3"), (CompareSet(C, "k", None, b"v"), b"v")],
)
def test_all_who_wait_for_a_value_get_it_in_the_order_in_which_they_came(event: Any, value: bytes) -> None:
    machine = _after(Get(B, "k", 5.0), Get(A, "k", 9.0), Get(A, "other", 7.0))
    assert machine.step(event, 1.0)[1:] == [Answer(B, value), Answer(A, value)]
    assert machine.deadline == 7.0


def test_a_wait_ends_at_its_own_time_without_a_value() -> None:
    machine = _after(Get(A, "k", 5.0), Get(B, "k", 3.0))
    assert machine.deadline == 3.0
    assert machine.step(DeadlinePassed(), 2.9) == []
    assert machine.step(DeadlinePassed(), 3.0) == [Answer(B, None)]
    assert machine.deadline == 5.0
    assert machine.step(DeadlinePassed(), 50.0) == [Answer(A, None)]
    assert machine.deadline is None


def test_who_has_gone_is_answered_no_more() -> None:
    machine = _after(Get(A, "k", 5.0), Get(B, "k", 9.0), CallerGone("a"))
    assert machine.deadline == 9.0
    assert machine.step(Set(C, "k", b"v"), 0.0) == [Answer(C, None), Answer(B, b"v")]


def test_a_new_round_starts_empty_and_ends_the_waits_of_the_old() -> None:
    machine = _after(Set(A, "k", b"v"), Get(B, "other", 9.0))
    assert machine.step(RoundBegan(), 1.0) == [Refuse(B, "the round is over")]
    assert machine.deadline is None
    assert machine.step(Get(A, "k"), 1.0) == [Answer(A, None)]


def test_keys_values_and_their_sum_are_bounded() -> None:
    machine = RoundValues()
    most = b"x" * values.VALUE_BYTES_MAX
    assert isinstance(machine.step(Set(A, "k" * 1025, b""), 0.0)[0], Refuse)
    assert isinstance(machine.step(Set(A, "ä" * 600, b""), 0.0)[0], Refuse)
    assert isinstance(machine.step(Set(A, "k", most + b"x"), 0.0)[0], Refuse)
    answers = [machine.step(Set(A, f"{number}", most), 0.0)[0] for number in range(40)]
    stored = sum(isinstance(answer, Answer) for answer in answers)
    assert stored == values.TOTAL_BYTES_MAX // (len(most) + 2)
    assert "would exceed 16 MiB" in str(answers[-1])
    assert machine.step(Set(A, "0", most), 0.0) == [Answer(A, None)], "a replaced value makes room for itself"
    machine.step(Delete(A, "0"), 0.0)
    assert machine.step(Set(A, "new", most[:-10]), 0.0) == [Answer(A, None)], "a deleted value makes room"


def test_waits_are_bounded(monkeypatch: Any) -> None:
    monkeypatch.setattr(values, "WAITS_MAX", 2)
    machine = _after(Get(A, "k", 5.0), Get(B, "k", 5.0))
    assert isinstance(machine.step(Get(C, "k", 5.0), 0.0)[0], Refuse)


def test_every_event_is_listed_in_the_only_state() -> None:
    assert all(set(row) == {ValuesState.OPEN} for row in RoundValues.table.values())


_keys = st.sampled_from(["a", "b"])
_values = st.binary(max_size=3)
_events = st.one_of(
    st.builds(Get, st.just(A), _keys, st.sampled_from([0.0, 1.0, 5.0])),
    st.builds(Set, st.just(A), _keys, _values),
    st.builds(Add, st.just(A), _keys, st.integers(-9, 9)),
    st.builds(CompareSet, st.just(A), _keys, st.none() | _values, _values),
    st.builds(Delete, st.just(A), _keys),
)


@given(st.lists(_events))
def test_it_behaves_like_a_dictionary(events: list[Any]) -> None:
    """Each call is answered once, at once or later, and never differently from a plain dictionary."""
    machine, model = RoundValues(), dict[str, bytes]()
    answered = 0
    for event in events:
        commands = machine.step(event, 0.0)
        answered += len(commands)
        if isinstance(event, Set):
            model[event.key] = event.value
        elif isinstance(event, Delete):
            assert commands[0].value == (model.pop(event.key, None) is not None)
        elif isinstance(event, CompareSet):
            if model.get(event.key) == event.expected:
                model[event.key] = event.desired
            assert commands[0].value == model.get(event.key)
        elif isinstance(event, Add) and isinstance(commands[0], Answer):
            model[event.key] = b"%d" % (int(model.get(event.key, b"0")) + event.amount)
        elif isinstance(event, Get) and commands:
            assert commands == [Answer(A, model.get(event.key))]
    answered += len(machine.step(DeadlinePassed(), 100.0))
    assert answered == len(events)
    assert machine.deadline is None
