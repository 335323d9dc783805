"""torchelastic's sampler: a ``DistributedSampler`` that begins in the middle of an epoch. Imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data.distributed import DistributedSampler

__all__ = ["ElasticDistributedSampler"]


class ElasticDistributedSampler(DistributedSampler):  # type: ignore[misc,unused-ignore] # torch has no types where it is not installed
    """Deals the items of ``dataset`` from ``start_index`` on to ``num_replicas`` ranks, shuffled by the epoch.

    A job that was interrupted in an epoch and goes on with another number of ranks leaves out what it has seen.
    ``num_replicas`` and ``rank`` are by default those of torch's process group. Each rank gets equally many; what lacks
    is taken from the beginning again. Raises ``ValueError`` for a start behind the end. Semantics of torchelastic 2.13.

    >>> sampler = ElasticDistributedSampler(list(range(10)), num_replicas=2, rank=0, start_index=4)
    >>> len(sampler), set(sampler) <= {4, 5, 6, 7, 8, 9}
    (3, True)
    """

    def __init__(
        self, dataset: Any, num_replicas: int | None = None, rank: int | None = None, start_index: int = 0
    ) -> None:
        super().__init__(dataset=dataset, num_replicas=num_replicas, rank=rank)
        if not 0 <= start_index < len(dataset):
            raise ValueError(
                f"start_index {start_index} is no place in a dataset of {len(dataset)}; write 0 to {len(dataset) - 1}"
            )
        self.start_index = start_index
        left = len(dataset) - start_index
        self.num_samples = -(-left // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        by_epoch = torch.Generator()
        by_epoch.manual_seed(self.epoch)
        order = torch.randperm(len(self.dataset) - self.start_index, generator=by_epoch).tolist()
        indices = [self.start_index + one for one in order]
        indices += [indices[at % len(order)] for at in range(self.total_size - len(order))]
        return iter(indices[self.rank : self.total_size : self.num_replicas])

    def __len__(self) -> int:
        return int(self.num_samples)
