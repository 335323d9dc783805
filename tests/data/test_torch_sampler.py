"""Beside torch's own sampler, which is the oracle."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from phalanx.data.torch_sampler import ElasticDistributedSampler

CASES = [(10, 3, 0), (10, 3, 3), (7, 8, 0), (12, 4, 4)]

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def dealt(sampler_class: type) -> list[list[int]]:
    found = []
    for size, replicas, start in CASES:
        for rank in range(replicas):
            sampler = sampler_class(list(range(size)), num_replicas=replicas, rank=rank, start_index=start)
            for epoch in (0, 3):
                sampler.set_epoch(epoch)
                found.append([len(sampler), sampler.num_samples, sampler.total_size, *sampler])
    return found


@pytest.mark.compat(
    "name torch.distributed.elastic.utils.data.elastic_distributed_sampler.ElasticDistributedSampler", "same"
)
def test_every_rank_gets_the_items_that_torchs_own_sampler_deals_to_it() -> None:
    program = f"""
import json, inspect
from torch.distributed.elastic.utils.data import ElasticDistributedSampler
CASES = {CASES!r}
{_source(dealt)}
print(json.dumps(dealt(ElasticDistributedSampler)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert dealt(ElasticDistributedSampler) == json.loads(done.stdout)


def _source(function: object) -> str:
    import inspect

    return inspect.getsource(function)  # type: ignore[arg-type] # a function


@pytest.mark.parametrize("start", [-1, 10, 11])
def test_a_start_outside_of_the_dataset_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="write 0 to 9"):
        ElasticDistributedSampler(list(range(10)), num_replicas=2, rank=0, start_index=start)


def test_together_the_ranks_get_all_that_is_left() -> None:
    got: set[int] = set()
    for rank in range(3):
        got |= set(ElasticDistributedSampler(list(range(20)), num_replicas=3, rank=rank, start_index=5))
    assert got == set(range(5, 20))


def test_more_ranks_than_twice_the_items_get_some_of_them_again() -> None:
    """Torch's own fails here with an AssertionError."""
    for rank in range(5):
        assert list(ElasticDistributedSampler([7], num_replicas=5, rank=rank)) == [0]
