"""A training loop without torch: it fits y = 3x + 1 by gradient descent, and survives the loss of a worker.

Each rank fits its own shard, and rank 0 keeps a checkpoint every few steps in a file of this job's own. A worker that
starts anew continues at the last checkpoint, because the loop begins at the step that is written there, and not because
of anything in Phalanx.

    phalanx run --nproc-per-node 2 --max-restarts 1 examples/train.py --steps 60 --lose-worker-at 33
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import NamedTuple

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
RUN_ID = os.environ["TORCHELASTIC_RUN_ID"]  # another one for each job, if it is not given by --rdzv-id
RESTARTS = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


class Model(NamedTuple):
    """The next step, and the line that was fitted so far."""

    step: int
    slope: float
    offset: float


def load(path: Path) -> Model:
    """Return the last checkpoint, or the model to begin with."""
    try:
        return Model(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Model(step=0, slope=0.0, offset=0.0)


def save(path: Path, model: Model) -> None:
    """Replace the checkpoint at once: whoever reads it finds the old one or the new one, never half of one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(model._asdict()))
    fresh.replace(path)


def train_step(model: Model, rate: float) -> tuple[Model, float]:
    """One step of gradient descent on a batch of this rank's shard; returns the better model and its loss."""
    shard = random.Random(model.step * WORLD_SIZE + RANK)
    batch = [(x, 3 * x + 1) for x in (shard.uniform(-1, 1) for _ in range(64))]
    errors = [(model.slope * x + model.offset - y, x) for x, y in batch]
    slope = model.slope - rate * 2 * sum(error * x for error, x in errors) / len(batch)
    offset = model.offset - rate * 2 * sum(error for error, _ in errors) / len(batch)
    return Model(model.step + 1, slope, offset), sum(error * error for error, _ in errors) / len(batch)


def main() -> None:
    """Train from the last checkpoint to the last step."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--steps", type=int, default=60)
    flags.add_argument("--rate", type=float, default=0.15)
    flags.add_argument("--checkpoint", type=Path, default=Path(f"checkpoint-{RUN_ID}.json"))
    flags.add_argument("--checkpoint-every", type=int, default=10)
    flags.add_argument("--step-seconds", type=float, default=0.03)
    flags.add_argument(
        "--lose-worker-at", type=int, help="the last rank is killed at this step of the first attempt"
    )
    args = flags.parse_args()

    model = load(args.checkpoint)
    if RANK == 0:
        print(f"starting at step {model.step} with {WORLD_SIZE} workers", flush=True)
    while model.step < args.steps:
        if (model.step, RANK, RESTARTS) == (args.lose_worker_at, WORLD_SIZE - 1, 0):
            os.kill(
                os.getpid(), signal.SIGKILL
            )  # as the kernel does when memory is short: no exception, no goodbye
        model, loss = train_step(model, args.rate)
        time.sleep(args.step_seconds)
        if RANK == 0 and model.step % args.checkpoint_every == 0:
            save(args.checkpoint, model)
            print(f"step {model.step}: loss {loss:.5f}, checkpoint saved", flush=True)
    if RANK == 0:
        print(f"fitted y = {model.slope:.2f}x + {model.offset:.2f}", flush=True)


if __name__ == "__main__":
    main()
