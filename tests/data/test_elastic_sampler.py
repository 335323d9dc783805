from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data import ElasticDistributedSampler


def ranks(world_size: int, length: int, **options: Any) -> list[ElasticDistributedSampler]:
    return [ElasticDistributedSampler(length, world_size, rank, **options) for rank in range(world_size)]


def restored(
    world_size: int, length: int, state: dict[str, Any], **options: Any
) -> list[ElasticDistributedSampler]:
    job = ranks(world_size, length, **options)
    for sampler in job:
        sampler.load_state_dict(json.loads(json.dumps(state)))
    return job


def in_turn(job: list[ElasticDistributedSampler]) -> Iterator[int]:
    """The items of all ranks as they are in the order of the epoch."""
    dealt = [list(sampler) for sampler in job]
    assert [len(each) for each in dealt] == [len(sampler) for sampler in job]
    for turn in range(len(dealt[0])):
        yield from (each[turn] for each in dealt if turn < len(each))


WORLD_SIZES = st.integers(1, 9)
# Each: a job of so many ranks that trains on so many items of the epoch before it is interrupted.
INTERRUPTED = st.lists(st.tuples(WORLD_SIZES, st.integers(0, 60)), max_size=6)


@given(
    length=st.integers(0, 100),
    seed=st.integers(0, 2**64 - 1),
    shuffle=st.booleans(),
    even=st.sampled_from(["pad", "drop", "none"]),
    epochs=st.lists(st.tuples(INTERRUPTED, WORLD_SIZES), min_size=1, max_size=3),
)
def test_however_often_the_job_changes_its_size_no_item_is_lost_and_none_is_seen_twice(
    length: int, seed: int, shuffle: bool, even: str, epochs: list[tuple[list[tuple[int, int]], int]]
) -> None:
    options = {"seed": seed, "shuffle": shuffle, "even": even}
    state = ElasticDistributedSampler(length, 1, 0, **options).state_dict()  # type: ignore[arg-type]
    for epoch, (interrupted, last) in enumerate(epochs):
        alone = ElasticDistributedSampler(length, 1, 0, seed=seed, shuffle=shuffle, even="none")
        alone.set_epoch(epoch)
        whole = list(alone)  # what a job of one rank sees, without an interruption
        assert sorted(whole) == list(range(length))
        seen: list[int] = []  # and kept: the state was saved behind it
        for world_size, trained in interrupted:
            job = restored(world_size, length, state, **options)
            for sampler in job:
                sampler.set_epoch(epoch)
            seen += islice(in_turn(job), min(trained, length - job[0].position))
            if job[0].position < length:
                for sampler in job:
                    sampler.advance(trained)
            states = [sampler.state_dict() for sampler in job]
            assert states == [states[0]] * world_size
            state = states[0]
            if even != "drop":  # a rank that drops may have fewer items than were asked for here
                assert seen == whole[: state["position"]]
            seen = whole[: state["position"]]
        job = restored(last, length, state, **options)
        for sampler in job:
            sampler.set_epoch(epoch)
        assert job[0].position == (state["position"] if state["epoch"] == epoch else 0)
        left = length - job[0].position
        seen += in_turn(job)
        if even == "none":
            assert seen == whole
        elif even == "drop":
            assert seen == whole[: length - left % last]
            assert len({len(sampler) for sampler in job}) == 1
        else:
            assert seen[:length] == whole
            assert len(seen) - length < last
            assert all(seen[at] == whole[at % length] for at in range(length, len(seen)))
            assert len({len(sampler) for sampler in job}) == 1
        for sampler in job:
            sampler.advance(left)
        state = job[-1].state_dict()
        assert list(restored(2, length, state, **options)[0]) == []  # saved at the very end


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_each_global_step_has_the_same_items_whatever_the_number_of_ranks(world_size: int) -> None:
    job = ranks(world_size, 100, start_index=3)
    share = 12 // world_size
    loaders = [iter(sampler) for sampler in job]
    alone = list(ranks(1, 100, start_index=3)[0])
    for step in range(8):
        together = [item for loader in loaders for item in islice(loader, share)]
        assert Counter(together) == Counter(alone[step * 12 : step * 12 + 12])


def test_more_ranks_than_items_get_them_as_often_as_it_takes() -> None:
    assert [list(sampler) for sampler in ranks(5, 2, shuffle=False)] == [[0], [1], [0], [1], [0]]
    assert [list(sampler) for sampler in ranks(5, 2, shuffle=False, even="drop")] == [[]] * 5
    assert [list(sampler) for sampler in ranks(5, 2, shuffle=False, even="none")] == [[0], [1], [], [], []]


def train(
    sampler: ElasticDistributedSampler, epochs: int, batch: int, stop_after: int = 10**9
) -> list[tuple[int, int]]:
    """The loop that docs/data.md shows."""
    seen = []
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        items = iter(sampler)
        while share := list(islice(items, batch)):
            seen += [(epoch, item) for item in share]
            sampler.advance(batch * sampler.num_replicas)
            stop_after -= 1
            if not stop_after:
                return seen
    return seen


@pytest.mark.parametrize("stop_after", range(1, 10))
def test_a_loop_that_begins_with_the_saved_epoch_goes_on_in_its_middle_and_at_its_end(
    stop_after: int,
) -> None:
    whole = train(ElasticDistributedSampler(10, 1, 0), epochs=3, batch=4)
    assert len(whole) == 30
    first = ElasticDistributedSampler(10, 1, 0)
    seen = train(first, epochs=3, batch=4, stop_after=stop_after)
    second = ElasticDistributedSampler(10, 1, 0)
    second.load_state_dict(first.state_dict())
    assert seen + train(second, epochs=3, batch=4) == whole


def test_the_epoch_that_is_under_way_goes_on_and_any_other_one_begins() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0, start_index=4)
    sampler.set_epoch(0)
    assert sampler.position == 4
    sampler.advance(2)
    sampler.set_epoch(0)
    sampler.set_epoch(0)
    assert (sampler.position, len(sampler)) == (6, 4)
    sampler.set_epoch(1)
    assert (sampler.epoch, sampler.position, len(sampler)) == (1, 0, 10)
    sampler.set_epoch(0)
    assert sampler.position == 0


def test_an_epoch_that_was_used_up_here_can_be_begun_again_but_not_by_oversight() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0)
    sampler.advance(12)
    assert sampler.position == 10
    with pytest.raises(RuntimeError, match=r"epoch 0 has no items left, all 10 .* call set_epoch\(1\)"):
        iter(sampler)
    sampler.set_epoch(0)
    assert len(list(sampler)) == 10


def pass_over(sampler: ElasticDistributedSampler, batch: int) -> int:
    """One pass with a loader that drops its last batch, if it is too small; returns the number of steps."""
    items, steps = list(sampler), 0
    for _ in range(len(items) // batch):
        sampler.advance(batch * sampler.num_replicas)
        steps += 1
    return steps


@pytest.mark.parametrize("length", [9, 10, 11])
def test_an_epoch_ends_where_too_little_is_left_for_each_rank(length: int) -> None:
    for sampler in ranks(3, length, drop_last=True):
        assert pass_over(sampler, 1) == 3
        with pytest.raises(
            RuntimeError, match=r"epoch 0 has no items left, .* are used; call set_epoch\(1\)"
        ):
            iter(sampler)
        sampler.set_epoch(0)
        assert pass_over(sampler, 1) == 3
        sampler.set_epoch(1)
        assert pass_over(sampler, 1) == 3


def test_a_rest_that_only_the_loader_drops_is_not_passed_over_for_ever() -> None:
    sampler = ElasticDistributedSampler(100, 2, 0)
    assert [pass_over(sampler, 8) for _ in range(4)] == [6, 0, 0, 0]
    with pytest.raises(
        RuntimeError, match=r"got no further in 3 passes, 96 of 100 are used; call set_epoch\(1\)"
    ):
        iter(sampler)
    resumed = ElasticDistributedSampler(100, 2, 0)
    resumed.load_state_dict({**sampler.state_dict(), "position": 80})
    assert [pass_over(resumed, 8) for _ in range(4)] == [1, 0, 0, 0]
    with pytest.raises(RuntimeError, match=r"call set_epoch\(1\)"):
        iter(resumed)
    for each in (sampler, resumed):
        each.set_epoch(1)
        assert pass_over(each, 8) == 6
    sampler.set_epoch(2)
    assert pass_over(sampler, 8) == 6


def test_a_state_that_was_loaded_at_the_end_of_its_epoch_does_not_give_empty_passes_for_ever() -> None:
    for even, position in (("pad", 10), ("drop", 9)):
        sampler = ElasticDistributedSampler(10, 3, 1, even=even)  # type: ignore[arg-type]
        sampler.load_state_dict({**sampler.state_dict(), "position": position})
        for _ in range(3):
            sampler.set_epoch(0)  # has not gone through it: begins nothing anew
            assert list(sampler) == []
        with pytest.raises(RuntimeError, match=r"has no items left, .* call set_epoch\(1\)"):
            iter(sampler)
        sampler.set_epoch(1)
        assert len(list(sampler)) in (3, 4)


def test_looking_at_a_batch_before_the_loop_takes_nothing_from_it() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0, shuffle=False)
    sampler.load_state_dict({**sampler.state_dict(), "position": 7})
    assert list(sampler) == [7, 8, 9]  # a loader with workers reads all of a short rest ahead
    assert list(sampler) == [7, 8, 9]
    sampler.set_epoch(0)
    assert list(sampler) == [7, 8, 9]


def test_passes_from_a_start_index_are_whole_ones_where_nobody_tells_a_position() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0, start_index=8, shuffle=False)
    assert [list(sampler) for _ in range(5)] == [[8, 9]] * 5


@pytest.mark.filterwarnings("ignore:the sampler's state is saved with position 8")
def test_passes_from_a_state_are_whole_ones_where_nobody_tells_a_position() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0, start_index=8, shuffle=False)
    for again in (sampler, ElasticDistributedSampler(10, 1, 0, start_index=8, shuffle=False)):
        list(sampler)
        again.load_state_dict(sampler.state_dict())  # which has named, once, that nobody tells
        assert [list(again) for _ in range(5)] == [[8, 9]] * 5
        again.state_dict()
        assert [list(again) for _ in range(5)] == [[8, 9]] * 5


def test_without_advance_each_pass_is_a_whole_one_as_with_torchs_sampler() -> None:
    sampler = ElasticDistributedSampler(10, 2, 1)
    assert list(sampler) == list(sampler)
    before = list(sampler)
    sampler.set_epoch(1)
    assert len(list(sampler)) == 5
    assert list(sampler) != before


def test_a_state_of_a_loop_that_forgets_to_tell_its_position_is_named_once() -> None:
    sampler = ElasticDistributedSampler(10, 2, 0)
    sampler.state_dict()  # nothing was taken
    list(sampler)
    with pytest.warns(
        RuntimeWarning, match=r"position 0, though 5 items were taken .* advance\(\) was never"
    ):
        sampler.state_dict()
    with warnings.catch_warnings(action="error"):
        sampler.state_dict()


def test_a_loop_that_tells_its_position_is_not_warned() -> None:
    first, state = ElasticDistributedSampler(10, 1, 0), {}
    for samples in (0, 4):  # no step yet, and one
        list(first)
        first.advance(samples)
        with warnings.catch_warnings(action="error"):
            state = first.state_dict()
    second = ElasticDistributedSampler(10, 1, 0)
    second.load_state_dict(state)
    list(second)
    second.advance(1)
    with warnings.catch_warnings(action="error"):
        second.state_dict()


def test_torchs_word_for_leaving_out_the_last_items_is_understood() -> None:
    ours, torchs = (
        ElasticDistributedSampler(10, 4, 0, even="drop"),
        ElasticDistributedSampler(10, 4, 0, drop_last=True),
    )
    assert (list(ours), torchs.even) == (list(torchs), "drop")
    assert ElasticDistributedSampler(10, 4, 0, drop_last=False).even == "pad"


def test_an_iterator_has_the_position_of_the_moment_in_which_it_was_made() -> None:
    sampler = ElasticDistributedSampler(10, 1, 0, shuffle=False)
    ahead = iter(sampler)
    sampler.advance(5)
    assert list(ahead) == list(range(10))
    assert list(sampler) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"version": 2}, r"version 2 is not known here, only 1"),
        ({"version": None}, r"version None is not known"),
        ({"length": 11}, r"length 11, and here length is 10: its position 4 would mean other items"),
        ({"seed": 1}, r"seed 1, and here seed is 0"),
        ({"shuffle": False}, r"shuffle False, and here shuffle is True"),
        ({"position": 11}, r"epoch 0 and position 11, which are no places"),
        ({"position": 4.0}, r"position 4.0, which are no places"),
        ({"epoch": -1}, r"epoch -1"),
        ({"epoch": True}, r"epoch True"),
    ],
    ids=str,
)
def test_a_state_that_means_other_items_is_refused_and_nothing_changes(
    change: dict[str, Any], sentence: str
) -> None:
    sampler = ElasticDistributedSampler(10, 1, 0)
    state = {**ElasticDistributedSampler(10, 1, 0, start_index=4).state_dict(), **change}
    with pytest.raises(ValueError, match=sentence):
        sampler.load_state_dict(state)
    assert sampler.position == 0


def test_half_a_state_is_refused() -> None:
    with pytest.raises(ValueError, match="has no epoch, length, position, seed, shuffle"):
        ElasticDistributedSampler(10, 1, 0).load_state_dict({"version": 1})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"start_index": 11}, "write 0 to 10"),
        ({"start_index": -1}, "write 0 to 10"),
        ({"rank": 2}, "rank 2 is none of 2"),
        ({"rank": -1}, "rank -1 is none of 2"),
        ({"num_replicas": 0}, "none of 0"),
        ({"seed": -1}, "seed -1 is out of range"),
        ({"even": "fill"}, 'even \'fill\' is not known; write "pad", "drop" or "none"'),
        ({"dataset_or_length": -1}, "-1 items is out of range"),
        ({"drop_last": True, "even": "none"}, 'drop_last=True and even="none" say two things'),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused_in_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ElasticDistributedSampler(**{"dataset_or_length": 10, "num_replicas": 2, "rank": 0, **arguments})
    sampler = ElasticDistributedSampler(10, 1, 0)
    with pytest.raises(ValueError, match="goes back"):
        sampler.advance(-1)
    with pytest.raises(ValueError, match="epoch -1"):
        sampler.set_epoch(-1)


def test_numbers_of_numpys_are_taken_as_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    one = numpy.int64(1)
    sampler = ElasticDistributedSampler(5000 * one, 2 * one, one, 4 * one, seed=17 * one)
    sampler.set_epoch(one)
    sampler.advance(4 * one)
    plain = ElasticDistributedSampler(5000, 2, 1, seed=17)
    plain.set_epoch(1)
    plain.advance(4)
    assert (list(sampler), sampler.state_dict()) == (list(plain), plain.state_dict())
    assert {type(value) for value in sampler.state_dict().values()} == {int, bool}
    assert (
        ElasticDistributedSampler(numpy.arange(1), 1, 0).length == 1
    )  # a dataset, though __index__ takes it


@pytest.mark.parametrize("value", [1.5, 2.0, True, "1", None], ids=str)
def test_what_is_no_whole_number_is_refused_where_it_is_given(value: Any) -> None:
    sampler = ElasticDistributedSampler(10, 1, 0)
    for call in (
        lambda: ElasticDistributedSampler(10, 1, 0, seed=value),
        lambda: ElasticDistributedSampler(10, 1, 0, value),
        lambda: sampler.set_epoch(value),
        lambda: sampler.advance(value),
    ):
        with pytest.raises(TypeError, match="is a whole number, not"):
            call()


def test_a_dataset_without_a_length_is_refused() -> None:
    with pytest.raises(TypeError, match="generator has no length"):
        ElasticDistributedSampler((one for one in "abc"), 1, 0)  # type: ignore[arg-type]


def test_ranks_are_those_of_the_launcher_or_one_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    sampler = ElasticDistributedSampler(["a", "b", "c", "d"], shuffle=False)
    assert (sampler.rank, sampler.num_replicas, sampler.length, list(sampler)) == (2, 3, 4, [2, 1])
    given = ElasticDistributedSampler(4, num_replicas=5)
    assert (given.rank, given.num_replicas) == (2, 5)
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable)
    assert ElasticDistributedSampler(4).num_replicas == 1


def test_no_torch_and_no_numpy_is_imported() -> None:
    program = """
import sys
from phalanx.data import CyclingIterator, ElasticDistributedSampler
list(ElasticDistributedSampler(10))
sys.exit(bool({"torch", "numpy", "asyncio", "phalanx.agent"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


# With torch


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_ranks_are_those_of_torchs_process_group_where_no_launcher_says_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch.distributed as dist

    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    assert ElasticDistributedSampler(4).num_replicas == 1
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        sampler = ElasticDistributedSampler(4)
        assert (sampler.rank, sampler.num_replicas) == (0, 1)
    finally:
        dist.destroy_process_group()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_torchs_loader_takes_it_as_its_sampler(workers: int, persistent: bool) -> None:
    """Workers read ahead of the loop; the position is the loop's own all the same."""
    from torch.utils.data import DataLoader

    data = list(range(1000, 1030))

    def loaders(state: dict[str, Any] | None) -> list[tuple[ElasticDistributedSampler, Any]]:
        job = ranks(2, len(data), even="none")
        for sampler in job:
            if state:
                sampler.load_state_dict(state)
        return [
            (
                sampler,
                DataLoader(
                    data,  # type: ignore[arg-type,unused-ignore] # a list is dataset enough
                    batch_size=4,
                    sampler=sampler,
                    num_workers=workers,
                    persistent_workers=persistent,
                ),
            )
            for sampler in job
        ]

    def run(state: dict[str, Any] | None, stop: int | None) -> tuple[list[tuple[int, int]], dict[str, Any]]:
        """Goes through two epochs, or up to the step ``stop`` of the first one."""
        job = loaders(state)
        seen = []
        for epoch in range(job[0][0].epoch, 2):
            for sampler, _ in job:
                sampler.set_epoch(epoch)
            steps = zip(*(loader for _, loader in job), strict=True)
            for number, batches in enumerate(steps, 1):
                seen += [(epoch, item) for batch in batches for item in batch.tolist()]
                for sampler, _ in job:
                    sampler.advance(8)
                if number == stop:
                    return seen, job[0][0].state_dict()
        return seen, {}

    before, state = run(None, stop=2)
    after, _ = run(state, stop=None)
    assert len(before) == 16
    assert sorted(before + after) == [(epoch, item) for epoch in (0, 1) for item in data]


def test_an_empty_dataset_is_taken_as_by_torchs_sampler() -> None:
    sampler = ElasticDistributedSampler([], num_replicas=2, rank=1)
    assert (sampler.length, len(sampler), list(sampler)) == (0, 0, [])
