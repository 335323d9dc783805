"""A data-parallel training without torch: numpy for the arithmetic, sockets for the sum of gradients.

    phalanx run --nproc-per-node 4 --max-restarts 3 examples/numpy/train.py --checkpoints /tmp/numpy

Each step takes the same 48 images whatever the number of workers is, each worker its share of them. So a job that
loses workers, gets more, or starts anew at a checkpoint follows the curve that it would have followed anyway.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from allreduce import Group
from digits import digits
from model import first_weights, loss_and_gradient, scores

import phalanx
from phalanx.checkpoint import Checkpointer
from phalanx.data import ElasticDistributedSampler

BATCH = 48  # of all workers together: 1, 2, 3, 4, 6, 8, 12, 16, 24 or 48 of them
IMAGES = 40 * BATCH


def read_flags() -> argparse.Namespace:
    """Return what the command line says."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--steps", type=int, default=200)
    flags.add_argument("--rate", type=float, default=0.02)
    flags.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints/numpy"), help="a folder that all nodes see"
    )
    flags.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    flags.add_argument("--step-seconds", type=float, default=0.0, help="take so much longer for each step")
    flags.add_argument(
        "--curve", type=Path, help="rank 0 appends step and loss to this file, a line of JSON each"
    )
    flags.add_argument("--lose-rank", type=int, help="this rank is killed, in the first attempt only …")
    flags.add_argument("--at-step", type=int, help="… when it has come to this step")
    return flags.parse_args()


def main() -> None:
    """Train from the newest checkpoint to the last step."""
    flags = read_flags()
    images, labels = digits(IMAGES, seed=0)
    with Group() as group, Checkpointer(flags.checkpoints) as checkpoints:
        if BATCH % group.size:
            print(f"a batch of {BATCH} cannot be shared equally by {group.size} workers", file=sys.stderr)
            sys.exit(2)  # as for a wrong flag: no restart would change it, see no_restart_on in local.yaml
        sampler = ElasticDistributedSampler(IMAGES, group.size, group.rank, seed=2)
        weights = first_weights(seed=1)
        state: dict[str, Any] = {"weights": weights, "velocity": np.zeros_like(weights)}
        step = 0
        if (loaded := checkpoints.load_latest()) is not None:
            step, state = loaded.step, dict(loaded.value)
            sampler.load_state_dict(state.pop("sampler"))
        if group.rank == 0:
            print(f"starting at step {step} with {group.size} workers", flush=True)
            if step >= flags.steps:
                print(f"nothing is left to do: remove {flags.checkpoints} to begin anew", flush=True)
        for own in shares(sampler, step):
            if step >= flags.steps:
                break
            lose_a_worker(flags, group.rank, step)
            loss = train_step(state, group, images[own], labels[own], rate=flags.rate)
            time.sleep(flags.step_seconds)
            sampler.advance(BATCH)
            step += 1
            if group.rank == 0:
                tell(flags, step, loss)
            phalanx.progress(step)
            # Both are asked in each step on all ranks, so not behind an `or`: ranks agree on the step in these very
            # calls, and who left one out would hear of a request one step late, and save twice.
            is_asked, must_stop = phalanx.should_checkpoint(step), phalanx.should_stop(step)
            is_due = step % flags.checkpoint_every == 0 or step == flags.steps
            if is_due or is_asked or must_stop:
                checkpoints.save(step, {**state, "sampler": sampler.state_dict()})
            if must_stop:
                return
    if group.rank == 0:
        print(f"trained to step {step}: {accuracy(state):.1%} of new digits are read rightly", flush=True)


def shares(sampler: ElasticDistributedSampler, step: int) -> Iterator[np.ndarray]:
    """Yield this rank's share of each batch, from ``step`` on, epoch after epoch."""
    for epoch in itertools.count(step * BATCH // IMAGES):
        sampler.set_epoch(epoch)  # another order in each epoch, the same on all ranks
        own = np.array(list(sampler))
        yield from own.reshape(-1, BATCH // sampler.num_replicas)


def train_step(
    state: dict[str, Any], group: Group, images: np.ndarray, labels: np.ndarray, *, rate: float
) -> float:
    """Take a step of gradient descent with momentum; returns the loss of the whole batch."""
    loss, gradient = loss_and_gradient(state["weights"], images, labels)
    total = group.sum(np.append(gradient, loss)) / BATCH
    state["velocity"] = 0.9 * state["velocity"] - rate * total[:-1]
    state["weights"] = state["weights"] + state["velocity"]
    return float(total[-1])


def accuracy(state: dict[str, Any]) -> float:
    """Return how many of a set of other images are read rightly."""
    images, labels = digits(1000, seed=3)
    return float((scores(state["weights"], images)[1].argmax(axis=1) == labels).mean())


def tell(flags: argparse.Namespace, step: int, loss: float) -> None:
    """Print the loss now and then, and write it down always, if that is wanted."""
    if step % 20 == 0:
        print(f"step {step}: loss {loss:.4f}", flush=True)
    if flags.curve is not None:
        with flags.curve.open("a") as curve:
            curve.write(json.dumps({"step": step, "loss": loss, "at": time.time()}) + "\n")


def lose_a_worker(flags: argparse.Namespace, rank: int, step: int) -> None:
    """Die as a worker does when the kernel is short of memory: no exception, no goodbye."""
    if (rank, step) == (flags.lose_rank, flags.at_step) and os.environ.get(
        "TORCHELASTIC_RESTART_COUNT"
    ) == "0":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
