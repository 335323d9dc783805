"""The step that ranks agree on, with every interleaving that hypothesis finds: no clock, no process, no store."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors._step_agreement import COMPARE_SET, COUNT, HEAR, StepAgreement


class Lost(Exception):
    """The question, or its answer, did not arrive."""


class Values:
    """The values of a round. Each question is one moment."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.questions = 0

    def ask(self, question: tuple[Any, ...]) -> Any:
        self.questions += 1
        kind, key, *rest = question
        if kind == HEAR:
            return self.values.get(key)
        if kind == COUNT:
            self.values[key] = str(int(self.values.get(key, "0")) + 1)
            return int(self.values[key])
        assert kind == COMPARE_SET
        expected, desired = rest
        if self.values.get(key) == expected:
            self.values[key] = desired
        return self.values.get(key)


class Rank:
    """A loop with a call in each step; between two calls it meets the others."""

    def __init__(
        self, values: Values, ranks: int, number: int, *, first_call: int = 0, margin: int = 2, start: int = 0
    ) -> None:
        self.agreed = StepAgreement("agree", ranks, number, f"only of {number}")
        self.values = values
        self.first_call = first_call
        self.margin = margin
        self.step = start
        self.said: list[int] = []
        self.is_dead = False
        self.is_done = False  # with its call of this step
        self._call: Generator[Any, Any, bool] | None = None
        self._question: Any = None

    def move(self, fate: str = "answered") -> None:
        """One question further, or to the end of the call."""
        if self._call is None:
            if self.step < self.first_call:
                self.is_done = True
                return
            self._call = self.agreed.at(self.step, self.margin)
            self._go(None)
        elif fate == "never arrived":
            self._go(Lost())
        else:
            answer = self.values.ask(self._question)
            self._go(Lost() if fate == "answer lost" else answer)

    def _go(self, answer: Any) -> None:
        assert self._call is not None
        try:
            if isinstance(answer, Lost):
                self._question = self._call.throw(answer)
            else:
                self._question = self._call.send(answer)
        except StopIteration as end:
            if end.value:
                self.said.append(self.step)
            self._call, self.is_done = None, True
        except Lost:
            self._call = None  # asked again in this step, unless it may go on
            self.is_done = self.agreed.may_pass(self.step)


def run(
    draw: Any,
    ranks: list[Rank],
    deliveries: list[tuple[int, int, str]],
    *,
    steps: int,
    apart: int = 0,
    deaths: dict[int, int] | None = None,
    losses: float = 0,
) -> None:
    """Move one rank at a time, as drawn. Nobody begins a step before all have ended the one ``apart`` + 1 before it.

    ``deliveries``: at which move of all, to which rank, which request.
    """
    moves = 0
    while True:
        for at, rank, request in deliveries:
            if at == moves:
                ranks[rank].agreed.hear(request)
        for rank, at in (deaths or {}).items():
            if at == moves:
                ranks[rank].is_dead = True
        moves += 1
        slowest = min(one.step + one.is_done for one in ranks)
        able = []
        for one in ranks:
            if one.is_dead:
                continue
            if one.is_done and one.step + 1 <= slowest + apart and one.step + 1 < steps:
                one.step, one.is_done = one.step + 1, False
            if not one.is_done:
                able.append(one)
        if not able:
            return
        fate = draw(st.sampled_from(["answered"] * 9 + ["answer lost"])) if losses else "answered"
        draw(st.sampled_from(able)).move(fate)


STEPS = 60
LATEST_DELIVERY = 40  # moves; at most one of them is a step of all, so there are steps left after that


def deliveries_to_all(draw: Any, ranks: int, requests: list[str]) -> list[tuple[int, int, str]]:
    return [
        (draw(st.integers(0, LATEST_DELIVERY)), rank, request)
        for request in requests
        for rank in range(ranks)
    ]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_ranks_say_it_at_the_same_step_once_for_each_request_however_far_they_are_apart(
    data: Any,
) -> None:
    count = data.draw(st.integers(1, 4))
    requests = [f"r{one}" for one in range(data.draw(st.integers(1, 3)))]
    apart, margin = data.draw(st.sampled_from([0, 0, 1, 3, 10, 25])), data.draw(st.integers(1, 4))
    values = Values()
    start = data.draw(st.sampled_from([0, 0, -5, -1000]))
    ranks = [
        Rank(
            values,
            count,
            number,
            first_call=start + data.draw(st.sampled_from([0, 0, 0, 5])),
            margin=margin,
            start=start,
        )
        for number in range(count)
    ]
    steps = start + STEPS + 3 * apart
    run(data.draw, ranks, deliveries_to_all(data.draw, count, requests), steps=steps, apart=apart)

    assert len({tuple(one.said) for one in ranks}) == 1, "another step, or another number of times"
    assert 1 <= len(ranks[0].said) <= len(requests)
    for one in ranks:
        assert one.agreed.missed is None
        assert not one.agreed.is_open, "nothing is asked any more, and no request is left"


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_requests_that_are_apart_are_not_merged(data: Any) -> None:
    count = data.draw(st.integers(1, 3))
    values = Values()
    ranks = [Rank(values, count, number) for number in range(count)]
    for turn in range(3):
        for one in ranks:
            one.agreed.hear(f"r{turn}")
            one.agreed.hear(f"r{turn}")
        run(data.draw, ranks, [], steps=10 * (turn + 1))
        for one in ranks:
            assert len(one.said) == turn + 1
            one.agreed.hear(f"r{turn}")  # told again, as to who connects anew
    run(data.draw, ranks, [], steps=40)
    assert all(one.said == ranks[0].said and len(one.said) == 3 for one in ranks)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_ranks_whose_agents_name_one_event_differently_agree_too(data: Any) -> None:
    count = data.draw(st.integers(2, 4))
    values = Values()
    ranks = [Rank(values, count, number) for number in range(count)]
    told = [(data.draw(st.integers(0, 10)), rank, f"own of {rank}") for rank in range(count)]
    run(data.draw, ranks, told, steps=STEPS)
    assert all(one.said == ranks[0].said for one in ranks)
    assert len(ranks[0].said) == 1
    assert not any(one.agreed.is_open for one in ranks)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_rank_that_dies_leaves_the_others_free_and_at_no_different_steps(data: Any) -> None:
    count = data.draw(st.integers(2, 4))
    values = Values()
    ranks = [Rank(values, count, number) for number in range(count)]
    deaths = {data.draw(st.integers(0, count - 1)): data.draw(st.integers(0, 60))}
    run(data.draw, ranks, deliveries_to_all(data.draw, count, ["r"]), steps=STEPS, deaths=deaths)  # it ends
    steps = {step for one in ranks for step in one.said}
    assert len(steps) <= 1
    assert all(len(one.said) <= 1 for one in ranks)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_lost_answers_delay_an_agreement_and_never_split_it(data: Any) -> None:
    """Who hears no answer does not know whether its question arrived; here it did."""
    count = data.draw(st.integers(1, 4))
    apart = data.draw(st.sampled_from([0, 1, 5]))
    values = Values()
    ranks = [Rank(values, count, number, margin=data.draw(st.integers(1, 3))) for number in range(count)]
    told = deliveries_to_all(data.draw, count, ["r"])
    run(data.draw, ranks, told, steps=STEPS + 3 * apart, apart=apart, losses=0.1)
    assert len({tuple(one.said) for one in ranks}) == 1
    assert len(ranks[0].said) == 1
    assert not any(one.agreed.missed for one in ranks)


def test_who_goes_on_without_an_answer_where_it_may_not_says_nothing_and_knows_it() -> None:
    values = Values()
    deaf, other = pair()
    deaf.hear("r")
    ask(deaf, values, 0)
    assert [deaf.may_pass(step) for step in range(3)] == [True, True, False]
    other.hear("r")
    assert [step for step in range(4) if ask(other, values, step)] == [2]
    call = deaf.at(2, 2)
    next(call)
    with contextlib.suppress(Lost):
        call.throw(Lost())
    assert not ask(deaf, values, 3)
    assert deaf.missed == (2, 3)


def test_a_request_costs_one_question_for_each_step_and_nothing_when_it_is_over() -> None:
    values = Values()
    first, last = Rank(values, 2, 0), Rank(values, 2, 1)

    def step(rank: Rank) -> int:
        before = values.questions
        rank.is_done = False
        while not rank.is_done:
            rank.move()
        rank.step += 1
        return values.questions - before

    assert step(first) == step(last) == 0
    first.agreed.hear("r")
    assert [step(first), step(last), step(first), step(last)] == [3, 0, 1, 0]
    last.agreed.hear("r")
    assert [step(last), step(first)] == [5, 1]
    assert [step(last), step(first), step(last), step(first)] == [0, 0, 0, 0]
    assert first.said == last.said == [5]


def test_steps_may_be_told_in_jumps() -> None:
    values = Values()
    ranks = pair()
    said: list[tuple[int, int]] = []
    for one in ranks:
        one.hear("r")
    for step in range(0, 60, 10):
        for number, one in enumerate(ranks):
            if ask(one, values, step):
                said.append((step, number))
    assert said == [(10, 0), (10, 1)]


def test_who_comes_to_a_round_in_which_the_others_have_agreed_already_says_nothing_and_is_with_them_next() -> (
    None
):
    values = Values()
    one, other = pair()
    for step in range(5):
        for rank in (one, other):
            rank.hear("old")
            ask(rank, values, step)
    successor = StepAgreement("agree", 2, 1, "its successor")
    successor.hear("old")
    assert not any(ask(successor, values, step) for step in range(5, 8))
    assert successor.missed is not None
    for rank in (one, successor):
        rank.hear("new")
    found: list[tuple[int, int]] = []
    for step in range(8, 14):
        found += [(step, number) for number, rank in enumerate((one, successor)) if ask(rank, values, step)]
    assert found == [(10, 0), (10, 1)]


def test_a_rank_that_is_ahead_by_more_than_the_margin_is_with_the_others() -> None:
    values = Values()
    slow, fast = pair()
    fast.hear("r")
    assert not any(ask(fast, values, step) for step in range(12))
    slow.hear("r")
    said = [step for step in range(1, 20) if ask(slow, values, step)]
    assert said == [step for step in range(12, 20) if ask(fast, values, step)]
    assert len(said) == 1
    assert said[0] > 11
    assert fast.missed is slow.missed is None


def test_a_margin_outlasts_as_many_steps_in_which_nothing_is_heard() -> None:
    """A rank has written how far it may go without an answer; the decision is beyond that."""
    values = Values()
    deaf, other = pair()
    deaf.hear("r")
    ask(deaf, values, 0, margin=6)
    other.hear("r")
    for step in range(1, 6):
        call = deaf.at(step, 6)
        next(call)
        with contextlib.suppress(Lost):
            call.throw(Lost())
    said = [step for step in range(20) if ask(other, values, step, margin=1)]
    assert said == [step for step in range(6, 20) if ask(deaf, values, step, margin=6)] == [6]


def ask(agreed: StepAgreement, values: Values, step: int, margin: int = 2) -> bool:
    call, answer = agreed.at(step, margin), None
    try:
        while True:
            answer = values.ask(call.send(answer))
    except StopIteration as end:
        return bool(end.value)


def pair() -> tuple[StepAgreement, StepAgreement]:
    return StepAgreement("agree", 2, 0, "a"), StepAgreement("agree", 2, 1, "b")


def test_a_second_process_of_a_rank_does_not_stand_for_another_rank() -> None:
    values = Values()
    first, second = pair()
    helper = StepAgreement("agree", 2, 0, "a helper of rank 0")
    for one in (first, helper):
        one.hear("r")
    for step in range(6):
        assert not ask(first, values, step)
        assert not ask(helper, values, step), "rank 1 has not heard of it"
    second.hear("r")
    said = [[step for step in range(6, 12) if ask(one, values, step)] for one in (second, first, helper)]
    assert said == [said[0]] * 3
    assert len(said[0]) == 1
    assert first.missed is second.missed is helper.missed is None


def test_who_does_not_hear_that_it_was_counted_is_not_counted_twice() -> None:
    values = Values()
    deaf, other = pair()
    deaf.hear("r")
    call = deaf.at(0, 2)
    question = next(call)
    question = call.send(values.ask(question))
    assert question[1] == "agree/0/ranks/0"
    values.ask(question)
    with contextlib.suppress(Lost):
        call.throw(Lost())
    for step in range(4):
        assert not ask(deaf, values, step)
    assert values.values["agree/0/ranks"] == "1"
    other.hear("r")
    said = [[step for step in range(4, 9) if ask(one, values, step)] for one in (other, deaf)]
    assert said[0] == said[1]
    assert len(said[0]) == 1


def test_steps_below_zero_are_steps() -> None:
    values = Values()
    one, other = pair()
    for rank in (one, other):
        rank.hear("r")
    found = [
        (step, n) for step in range(-9, 9) for n, rank in enumerate((one, other)) if ask(rank, values, step)
    ]
    assert found == [(-7, 0), (-7, 1)]


def test_now_is_at_once_at_any_step() -> None:
    values = Values()
    values.values["agree/0/line"] = "at now\nr"
    one, other = pair()
    for rank, step in ((one, -1000), (other, 1000)):
        rank.hear("r")
        assert ask(rank, values, step)
        assert rank.missed is None
