"""DistributedDataParallel on a small set of images, on any number of workers, which may change while it trains.

    phalanx run --nproc-per-node 2 --max-restarts 3 examples/ddp/train.py --checkpoints /tmp/ddp

Each step takes the same 192 images whatever the number of workers is, each worker its share of them. So a job that
loses workers, gets more, or starts anew at a checkpoint follows the curve that it would have followed anyway. (This
model draws no random numbers. One with dropout needs ``sharded=True``, see ``main``, and as many workers as before.)
It runs under torchrun, and as ``python examples/ddp/train.py``, as well.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from shapes import NAMES, shapes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import phalanx
from phalanx.checkpoint import Checkpointer, TorchState
from phalanx.data import ElasticDistributedSampler

BATCH = 192  # of all workers together: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96 or 192 of them
STEPS_PER_EPOCH = 20
IMAGES = STEPS_PER_EPOCH * BATCH


def read_flags() -> argparse.Namespace:
    """Return what the command line says."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--epochs", type=int, default=12)
    flags.add_argument("--rate", type=float, default=0.1)
    flags.add_argument(
        "--checkpoints", type=Path, default=Path("checkpoints/ddp"), help="a folder that all nodes see"
    )
    flags.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    flags.add_argument("--log-every", type=int, default=20, metavar="STEPS")
    flags.add_argument(
        "--curve", type=Path, help="rank 0 appends step and loss to this file, a line of JSON each"
    )
    flags.add_argument("--lose-rank", type=int, help="this rank is killed, in the first attempt only …")
    flags.add_argument("--at-step", type=int, help="… when it has come to this step")
    return flags.parse_args()


def join_group() -> torch.device:
    """Meet the other workers, if there are any, and return the device of this one."""
    local_rank, local_size = (
        int(os.environ.get("LOCAL_RANK", "0")),
        int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
    )
    has_gpu = torch.cuda.device_count() >= local_size
    device = torch.device("cuda", local_rank) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if has_gpu else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # no launcher: a group of one
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    if BATCH % dist.get_world_size():
        size = dist.get_world_size()
        print(f"a batch of {BATCH} cannot be shared equally by {size} workers", file=sys.stderr)
        sys.exit(2)  # as for a wrong flag: no restart would change it, see no_restart_on in cluster.yaml
    return device


def network() -> nn.Module:
    """Return the model, with the same weights on each rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, kernel_size=5, stride=2, padding=2), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, len(NAMES))),
    )


def batches(dataset: TensorDataset, sampler: ElasticDistributedSampler, step: int) -> Iterator[list[Tensor]]:
    """Yield this rank's share of each batch, from ``step`` on, epoch after epoch.

    torch's own DistributedSampler would do, too, but begins each epoch at its first image: docs/training.md has a loop
    that passes over those that were seen.
    """
    share = BATCH // dist.get_world_size()
    # With a generator of its own it draws nothing from torch's, which resumes with the checkpoint.
    generator = torch.Generator()
    loader = DataLoader(dataset, batch_size=share, sampler=sampler, generator=generator)
    for epoch in itertools.count(step // STEPS_PER_EPOCH):
        sampler.set_epoch(epoch)  # another order in each epoch, the same on all ranks
        # Loader workers, if there are any, seed themselves by it: on each rank and in each pass with another number.
        place = epoch * sampler.length + sampler.position
        generator.manual_seed(place * sampler.num_replicas + sampler.rank)
        yield from loader


def main() -> None:
    """Train from the newest checkpoint to the last step."""
    flags = read_flags()
    train(flags, join_group())
    # At a good end only. After a failure other workers may be gone, and this might wait for them.
    dist.destroy_process_group()


def train(flags: argparse.Namespace, device: torch.device) -> None:
    """Take the steps that are left, and save some of them."""
    is_first = dist.get_rank() == 0
    model = network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=flags.rate, momentum=0.9)
    last_step = flags.epochs * STEPS_PER_EPOCH
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=last_step)
    dataset = shapes(IMAGES, seed=1)
    sampler = ElasticDistributedSampler(dataset, dist.get_world_size(), dist.get_rank(), seed=2)
    # All that the next step depends on. Of random states rank 0's are saved, and other ranks begin with new ones; with
    # Checkpointer(…, sharded=True) each rank's own are, for a job that resumes with as many workers.
    state = TorchState(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    with Checkpointer(flags.checkpoints) as checkpoints:
        loaded = checkpoints.load_latest(state)
        step = 0 if loaded is None else loaded.step
        if is_first:
            print(f"starting at step {step} with {dist.get_world_size()} workers", flush=True)
            if step >= last_step:
                print(f"nothing is left to do: remove {flags.checkpoints} to begin anew", flush=True)
        parallel = DistributedDataParallel(model)
        for images, labels in batches(dataset, sampler, step):
            if step >= last_step:
                break
            lose_a_worker(flags, step)
            loss = nn.functional.cross_entropy(parallel(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            sampler.advance(BATCH)
            step += 1
            log(flags, step, loss.detach())
            phalanx.progress(step)
            # Both are asked in each step on all ranks, so not behind an `or`: ranks agree on the step in these very
            # calls, and who left one out would hear of a request one step late, and save twice.
            is_asked = phalanx.should_checkpoint(step)
            must_stop = phalanx.should_stop(step)
            is_due = step % flags.checkpoint_every == 0 or step == last_step
            if is_due or is_asked or must_stop:
                checkpoints.save(step, state)
            if must_stop:
                return
    if is_first:
        print(
            f"trained to step {step}: {accuracy(model, device):.1%} of new images are named rightly",
            flush=True,
        )


def log(flags: argparse.Namespace, step: int, loss: Tensor) -> None:
    """Tell the loss of the whole batch now and then; all ranks call this, because all have a part of it."""
    if step % flags.log_every:
        return
    dist.all_reduce(loss)
    mean = loss.item() / dist.get_world_size()  # waits for this step, on each rank
    if dist.get_rank() != 0:
        return
    print(f"step {step}: loss {mean:.4f}", flush=True)
    if flags.curve is not None:
        with flags.curve.open("a") as curve:
            curve.write(json.dumps({"step": step, "loss": mean}) + "\n")


def accuracy(model: nn.Module, device: torch.device) -> float:
    """Return how much of a set of other images is named rightly."""
    images, labels = shapes(1000, seed=3).tensors
    with torch.no_grad():
        found = model(images.to(device)).argmax(dim=1).cpu()
    return float((found == labels).float().mean())


def lose_a_worker(flags: argparse.Namespace, step: int) -> None:
    """Die as a worker does when the kernel is short of memory: no exception, no goodbye."""
    is_first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if is_first_attempt and (dist.get_rank(), step) == (flags.lose_rank, flags.at_step):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
