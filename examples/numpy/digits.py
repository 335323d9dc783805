"""A small data set of noisy digits, 16 by 16 pixels, drawn anew in milliseconds and always the same."""

from __future__ import annotations

import numpy as np

# Five columns, seven rows; a row is a number whose five bits are its pixels.
_FONT = (
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
)


def digits(count: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ``count`` images as rows of 256 numbers, and which digit each shows."""
    random = np.random.default_rng(seed)
    bits = (np.array(_FONT)[:, :, None] >> np.arange(4, -1, -1)) & 1
    glyphs = bits.repeat(2, axis=1).repeat(2, axis=2)  # ten of them, 14 by 10
    labels = random.integers(10, size=count)
    images = random.normal(scale=0.5, size=(count, 16, 16))
    for image, label, top, left in zip(
        images, labels, random.integers(3, size=count), random.integers(2, 5, size=count), strict=True
    ):
        image[top : top + 14, left : left + 10] += glyphs[label]
    return images.reshape(count, 256), labels
