"""A small data set of noisy shapes, 16 by 16 pixels, drawn anew in a second and always the same."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

NAMES = ("disc", "ring", "square", "frame", "diamond", "cross")
SIZE = 16


def shapes(count: int, *, seed: int) -> TensorDataset:
    """Return ``count`` images of one channel with the numbers of their shapes."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(NAMES), (count,), generator=random)
    centre = 8 + 4 * torch.rand(2, count, 1, 1, generator=random) - 2.5
    radius = 4 + 2 * torch.rand(count, 1, 1, generator=random)
    images = torch.stack(list(_drawn(centre, radius)))[labels, torch.arange(count)]
    noisy = images.float() + 0.3 * torch.randn(count, SIZE, SIZE, generator=random)
    return TensorDataset(noisy.unsqueeze(1), labels)


def _drawn(centre: Tensor, radius: Tensor) -> tuple[Tensor, ...]:
    """Return each of the shapes at each of the places, as masks."""
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    down, right = (rows - centre[0]).abs(), (columns - centre[1]).abs()
    round_, square = (down**2 + right**2).sqrt(), torch.maximum(down, right)
    return (
        round_ <= radius,
        (round_ <= radius) & (round_ >= radius - 1.6),
        square <= radius * 0.9,
        (square <= radius * 0.9) & (square >= radius * 0.9 - 1.6),
        down + right <= radius * 1.2,
        (torch.minimum(down, right) <= 1) & (square <= radius),
    )
