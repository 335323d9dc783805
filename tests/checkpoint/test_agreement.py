"""Ranks agree in whatever order their messages come, with whatever each of them sees."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checkpoint.thread_ranks import seeing

from phalanx.checkpoint.agreement import (
    Check,
    Count,
    Finding,
    Hear,
    Member,
    Number,
    Request,
    Resumption,
    Tell,
    finish_save,
    resume,
)

Talk = Generator[Request, Any, Any]
GOOD = Finding()
DAMAGED = Finding("a file is cut", is_damaged=True)
OUT_OF_REACH = Finding("input/output error")


@dataclasses.dataclass
class World:
    """Conversations over one store, each step of each rank at a time that the test draws."""

    act: Callable[[int, Request], Any]
    numbers: dict[str, int] = dataclasses.field(default_factory=dict)
    messages: dict[str, Any] = dataclasses.field(default_factory=dict)
    requests: int = 0

    def run(
        self, talks: list[Talk], choose: Callable[[list[int]], int], impatient: bool = False
    ) -> list[Any]:
        """What each rank returned. ``impatient``: patience may end at any time, else when all others wait, too."""
        results: list[Any] = [None] * len(talks)
        waiting: dict[int, Request] = {rank: next(talk) for rank, talk in enumerate(talks)}
        while waiting:
            able = [
                rank
                for rank, request in waiting.items()
                if impatient
                or not (isinstance(request, Hear) and request.is_patient and request.key not in self.messages)
            ]
            rank = choose(able or list(waiting))
            try:
                waiting[rank] = talks[rank].send(self.answer(rank, waiting[rank]))
            except StopIteration as end:
                results[rank] = end.value
                del waiting[rank]
        return results

    def answer(self, rank: int, request: Request) -> Any:
        self.requests += 1
        match request:
            case Count(key):
                self.numbers[key] = self.numbers.get(key, 0) + 1
                return self.numbers[key]
            case Number(key):
                return self.numbers.get(key, 0)
            case Tell(key, message):
                assert key not in self.messages, "a message is told once"
                self.messages[key] = json.loads(json.dumps(dict(message)))
                return None
            case Hear(key):
                return self.messages.get(key)
            case _:
                return self.act(rank, request)


@st.composite
def views(draw: st.DrawFn) -> list[dict[int, Finding]]:
    """For each rank the steps that it sees, and what it finds in each when it reads it."""
    findings = st.sampled_from([GOOD, GOOD, GOOD, DAMAGED, OUT_OF_REACH])
    view = st.dictionaries(st.integers(1, 5), findings, max_size=5)
    return draw(st.lists(view, min_size=1, max_size=5))


def _orders(data: st.DataObject) -> Callable[[list[int]], int]:
    return lambda able: able[data.draw(st.integers(0, len(able) - 1))]


def _resume_all(
    found: list[dict[int, Finding]], choose: Callable[[list[int]], int]
) -> tuple[World, list[Any]]:
    def act(rank: int, request: Request) -> Finding:
        assert isinstance(request, Check)
        return found[rank][request.step]

    world = World(act)
    members = [Member(rank, len(found), place=rank) for rank in range(len(found))]
    talks: list[Talk] = [seeing(found[me.rank], resume(me)) for me in members]
    return world, world.run(talks, choose)


@given(found=views(), data=st.data())
def test_all_ranks_resume_from_the_newest_step_that_every_rank_can_read(
    found: list[dict[int, Finding]], data: st.DataObject
) -> None:
    _, results = _resume_all(found, _orders(data))
    common = set.intersection(
        *({step for step, finding in view.items() if finding == GOOD} for view in found)
    )
    assert all(isinstance(result, Resumption) for result in results), "nobody waits for ever"
    assert all(result == results[0] for result in results)
    assert results[0].step == max(common, default=None)
    assert results[0].error is None


@given(found=views(), data=st.data())
def test_steps_that_were_passed_over_are_named_with_the_folders_in_which_they_are_damaged(
    found: list[dict[int, Finding]], data: st.DataObject
) -> None:
    _, results = _resume_all(found, _orders(data))
    taken = results[0].step if results[0].step is not None else -1
    seen_by_all = set.intersection(*(set(view) for view in found))
    expected = {
        step: tuple(rank for rank, view in enumerate(found) if view[step] == DAMAGED)
        for step in seen_by_all
        if step > taken
    }
    assert {bad.step: bad.places for bad in results[0].bad} == expected
    assert [bad.step for bad in results[0].bad] == sorted(expected, reverse=True)
    assert all("rank" in bad.why for bad in results[0].bad)
    assert results[0].seen_by == sum(bool(view) for view in found)
    assert bool(results[0].example) == any(found)
    views = [set(view) for view in found]
    assert results[0].are_alike == all(view == views[0] for view in views)


@pytest.mark.parametrize("ranks", [1, 10, 100])
def test_the_number_of_messages_of_each_rank_does_not_grow_with_the_ranks(ranks: int) -> None:
    world, results = _resume_all([{1: GOOD, 2: GOOD, 3: GOOD}] * ranks, lambda able: able[0])
    assert {result.step for result in results} == {3}
    assert world.requests <= 20 * ranks + 13


def test_a_good_newest_step_is_the_only_one_that_is_read() -> None:
    read: list[int] = []

    def act(rank: int, request: Request) -> Finding:
        assert isinstance(request, Check)
        read.append(request.step)
        return GOOD

    talks: list[Talk] = [seeing([1, 2, 3], resume(Member(rank, 3))) for rank in range(3)]
    World(act).run(talks, lambda able: able[-1])
    assert read == [3, 3, 3]


@given(data=st.data(), ranks=st.integers(2, 5))
def test_a_rank_that_cannot_tell_its_steps_ends_the_agreement_of_all_with_its_reason(
    data: st.DataObject, ranks: int
) -> None:
    lost = data.draw(st.integers(0, ranks - 1))
    talks: list[Talk] = [
        seeing([5], resume(Member(rank, ranks), "permission denied" if rank == lost else None))
        for rank in range(ranks)
    ]
    results = World(lambda *_: GOOD).run(talks, _orders(data))
    assert {(result.step, result.error) for result in results} == {(None, f"rank {lost}: permission denied")}


def _save_all(
    world: World,
    steps: list[int],
    faults: dict[int, str],
    choose: Callable[[list[int]], int],
    impatient: bool = False,
) -> list[Any]:
    talks: list[Talk] = [
        finish_save(Member(rank, len(steps)), step, faults.get(rank)) for rank, step in enumerate(steps)
    ]
    return world.run(talks, choose, impatient)


@given(ranks=st.integers(1, 5), data=st.data())
def test_a_save_is_published_once_when_all_ranks_have_written(ranks: int, data: st.DataObject) -> None:
    published: list[int] = []
    world = World(lambda rank, _: published.append(rank))
    assert _save_all(world, [7] * ranks, {}, _orders(data)) == [None] * ranks
    assert len(published) == 1


@given(ranks=st.integers(1, 5), data=st.data())
def test_a_rank_that_failed_tells_all_and_nothing_is_published(ranks: int, data: st.DataObject) -> None:
    failed = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1))
    published: list[int] = []
    world = World(lambda rank, _: published.append(rank))
    results = _save_all(world, [7] * ranks, dict.fromkeys(failed, "disk full"), _orders(data))
    assert not published
    assert len(set(results)) == 1
    named = [str(rank) for rank in sorted(failed)]
    assert results[0].startswith("rank")
    assert results[0].endswith("disk full")
    assert all(name in results[0] for name in named)


@given(steps=st.lists(st.sampled_from([7, 8]), min_size=2, max_size=5), data=st.data())
def test_ranks_that_save_different_steps_are_named_on_all_ranks(
    steps: list[int], data: st.DataObject
) -> None:
    world = World(lambda *_: None)
    results = _save_all(world, steps, {}, _orders(data))
    assert len(set(results)) == 1
    if len(set(steps)) == 1:
        assert results[0] is None
    else:
        assert "step 7" in results[0]
        assert "step 8" in results[0]


@given(data=st.data(), savers=st.integers(1, 3), resumers=st.integers(1, 3))
def test_a_rank_that_saves_while_another_resumes_is_named(
    data: st.DataObject, savers: int, resumers: int
) -> None:
    ranks = savers + resumers
    talks: list[Talk] = [finish_save(Member(rank, ranks), 7, None) for rank in range(savers)]
    talks += [seeing([5], resume(Member(rank, ranks))) for rank in range(savers, ranks)]
    results = World(lambda *_: GOOD).run(talks, _orders(data))
    texts = {result.error if isinstance(result, Resumption) else result for result in results}
    assert len(texts) == 1
    assert "resume" in str(texts)


@given(ranks=st.integers(2, 4), data=st.data())
def test_whenever_patience_ends_all_ranks_hear_the_same_and_a_failed_save_is_not_published(
    ranks: int, data: st.DataObject
) -> None:
    published: list[int] = []
    world = World(lambda rank, _: published.append(rank))
    results = _save_all(world, [7] * ranks, {}, _orders(data), impatient=True)
    gave_up = [result for result in results if result is not None and "was not told" in result]
    told = {result for result in results if result not in gave_up}
    assert len(told) <= 1
    assert published == [] or told == {None}
    assert len(published) <= 1


def test_who_has_not_come_is_named_when_patience_ends() -> None:
    world = World(lambda *_: None)
    talks: list[Talk] = [finish_save(Member(rank, 4), 7, None) for rank in (0, 2)]
    results = world.run(talks, lambda able: able[0])
    assert results == ["rank 0 has waited in vain for ranks 1 and 3"] * 2


def test_a_rank_that_is_restarted_alone_is_told_that_a_round_is_needed() -> None:
    world = World(lambda *_: GOOD)
    world.run([seeing([5], resume(Member(rank, 2))) for rank in range(2)], lambda able: able[0])
    world.messages = {
        key: message
        for key, message in world.messages.items()
        if "said/1" not in key and "example" not in key
    }
    [result] = world.run([seeing([5], resume(Member(1, 2)))], lambda able: able[0])
    assert "a second time" in result.error
