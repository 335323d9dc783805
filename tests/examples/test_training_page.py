"""The loop of docs/training.md for torch's own sampler, tried as it is written there."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S

PAGE = (Path(__file__).parents[2] / "docs/training.md").read_text()
(LOOP,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

# 100 images are 8 batches of 12 and 4 that are left over: an epoch ends in the middle of what a checkpoint is in.
BEFORE = """
import itertools, json, os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from phalanx.checkpoint import Checkpointer, TorchState
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, BATCH, EPOCHS = dist.get_rank(), 12, 3
numbers = torch.arange(100)
dataset = TensorDataset(numbers, numbers)
model = torch.nn.Linear(1, 1)
state = TorchState(model=model)
checkpoints = Checkpointer("checkpoints")
seen = open(f"seen-{sys.argv[1]}-{rank}", "a")
ends_at = int(sys.argv[2])

def train_step(images, labels):
    print(json.dumps([step, labels.tolist()]), file=seen, flush=True)
    dist.barrier()
    if step == ends_at:
        dist.barrier()
        os._exit(1)
"""
AFTER = """
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_job_that_resumes_within_an_epoch_with_more_workers_goes_on_behind_the_last_batch(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(BEFORE + LOOP + AFTER)
    first = run(tmp_path, 2, ends_at=13)
    assert first.returncode == 1, first.stdout
    second = run(tmp_path, 3, ends_at=-1)
    assert second.returncode == 0, second.stdout
    before, after = seen(tmp_path, 2), seen(tmp_path, 3)
    assert (list(before), list(after)) == (list(range(14)), list(range(10, 24)))  # saved after ten steps
    assert all(before[step] == after[step] for step in range(10, 14))
    every = before | after
    for epoch in range(3):
        batches = [every[step] for step in range(8 * epoch, 8 * epoch + 8)]
        assert all(len(batch) == 12 for batch in batches)
        assert len(set().union(*batches)) == 96  # no image twice
    assert every[0] != every[8] != every[16]  # another order in each epoch


def run(folder: Path, workers: int, *, ends_at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "phalanx", "run", "--nproc-per-node", str(workers)),
            *("train.py", str(workers), str(ends_at)),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S * 6,
    )


def seen(folder: Path, workers: int) -> dict[int, set[int]]:
    """The images of each step, of all workers together."""
    found: dict[int, set[int]] = {}
    for path in folder.glob(f"seen-{workers}-*"):
        for step, images in map(json.loads, path.read_text().splitlines()):
            assert not found.setdefault(step, set()) & set(images)
            found[step].update(images)
    return dict(sorted(found.items()))
