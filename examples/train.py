"""A training loop without torch: it fits y = 3x + 1 by gradient descent, and survives the loss of a worker.

Each rank fits its own shard, and rank 0 saves the line every few steps, in a folder of this job's own. A worker that
starts anew continues at the last checkpoint, because the loop begins at the step that is found there.

    phalanx run --nproc-per-node 2 --max-restarts 1 examples/train.py --steps 60 --lose-worker-at 39
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

from phalanx.checkpoint import Checkpointer

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
RUN_ID = os.environ["TORCHELASTIC_RUN_ID"]  # another one for each job, if it is not given by --rdzv-id
RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Line(NamedTuple):
    """What was fitted so far."""

    slope: float = 0.0
    offset: float = 0.0


def train_step(line: Line, step: int, rate: float) -> tuple[Line, float]:
    """One step of gradient descent on a batch of this rank's shard; returns the better line and its loss."""
    shard = random.Random(step * WORLD_SIZE + RANK)
    batch = [(x, 3 * x + 1) for x in (shard.uniform(-1, 1) for _ in range(64))]
    errors = [(line.slope * x + line.offset - y, x) for x, y in batch]
    slope = line.slope - rate * 2 * sum(error * x for error, x in errors) / len(batch)
    offset = line.offset - rate * 2 * sum(error for error, _ in errors) / len(batch)
    return Line(slope, offset), sum(error * error for error, _ in errors) / len(batch)


def main() -> None:
    """Train from the last checkpoint to the last step."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--rate", type=float, default=0.15)
    flags.add_argument("--checkpoints", type=Path, default=Path("checkpoints") / f"line-{RUN_ID}")
    flags.add_argument("--checkpoint-every", type=int, default=10)
    flags.add_argument("--step-seconds", type=float, default=0.03)
    flags.add_argument(
        "--lose-worker-at", type=int, help="the last rank is killed at this step of the first attempt"
    )
    args = flags.parse_args()

    checkpoints = Checkpointer(args.checkpoints)
    loaded = checkpoints.load_latest()  # the same step on all ranks
    step, line = (loaded.step, Line(**loaded.value)) if loaded else (0, Line())
    if RANK == 0:
        print(f"starting at step {step} with {WORLD_SIZE} workers", flush=True)
    while step < args.steps:
        if (step, RANK, RESTARTS) == (args.lose_worker_at, WORLD_SIZE - 1, 0):
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory is short: no goodbye
        line, loss = train_step(line, step, args.rate)
        step += 1
        time.sleep(args.step_seconds)
        if step % args.checkpoint_every == 0:
            checkpoints.save(step, line._asdict())  # all ranks call it, rank 0 writes
            if RANK == 0:
                print(f"step {step}: loss {loss:.5f}, checkpoint saved", flush=True)
    if RANK == 0:
        print(f"fitted y = {line.slope:.2f}x + {line.offset:.2f}", flush=True)


if __name__ == "__main__":
    main()
