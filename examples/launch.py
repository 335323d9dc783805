"""Fits a line in several workers, and compares what they found: ``python examples/launch.py [workers]``."""

from __future__ import annotations

import os
import random
import sys

import phalanx


def fit(steps: int, lr: float) -> tuple[float, float]:
    """Fit y = 3x + 1 on data of this rank's own, and return slope and intercept."""
    data = random.Random(int(os.environ["RANK"]))
    slope = intercept = 0.0
    for step in range(steps):
        x = data.uniform(-1.0, 1.0)
        error = slope * x + intercept - (3.0 * x + 1.0)
        slope -= lr * error * x
        intercept -= lr * error
        if step % 500 == 0:
            phalanx.progress(step)
            print(f"step {step}: {slope:.2f}x + {intercept:.2f}", flush=True)
    return slope, intercept


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    found = phalanx.launch(fit, 1000, kwargs={"lr": 0.1}, nproc=workers, max_restarts=1)
    for rank, (slope, intercept) in enumerate(found):
        print(f"rank {rank} fitted y = {slope:.2f}x + {intercept:.2f}")
