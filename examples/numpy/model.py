"""A network of two layers in numpy: 256 pixels, 32 hidden units, 10 digits. All of its weights are one vector."""

from __future__ import annotations

import numpy as np

_SHAPES = ((256, 32), (32,), (32, 10), (10,))
_CUTS = np.cumsum([np.prod(shape) for shape in _SHAPES])


def layers(vector: np.ndarray) -> list[np.ndarray]:
    """Return the vector as the four arrays of the network: views, not copies."""
    return [part.reshape(shape) for part, shape in zip(np.split(vector, _CUTS[:-1]), _SHAPES, strict=True)]


def first_weights(seed: int) -> np.ndarray:
    """Return random weights, and biases of zero."""
    vector = np.zeros(_CUTS[-1])
    random = np.random.default_rng(seed)
    for layer in layers(vector):
        if layer.ndim == 2:
            layer[:] = random.normal(scale=1 / np.sqrt(len(layer)), size=layer.shape)
    return vector


def scores(vector: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer, and the logarithm of each digit's probability."""
    w1, b1, w2, b2 = layers(vector)
    hidden = np.maximum(images @ w1 + b1, 0)
    out = hidden @ w2 + b2
    out -= out.max(axis=1, keepdims=True)
    return hidden, out - np.log(np.exp(out).sum(axis=1, keepdims=True))


def loss_and_gradient(vector: np.ndarray, images: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the cross entropy, summed over the images, and its gradient."""
    hidden, log_odds = scores(vector, images)
    picked = np.arange(len(labels)), labels
    at_out = np.exp(log_odds)
    at_out[picked] -= 1
    at_hidden = (at_out @ layers(vector)[2].T) * (hidden > 0)
    parts = (images.T @ at_hidden, at_hidden.sum(0), hidden.T @ at_out, at_out.sum(0))
    return -float(log_odds[picked].sum()), np.concatenate([part.ravel() for part in parts])
