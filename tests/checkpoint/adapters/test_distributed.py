"""Two ranks save what is spread over them; one, two and three load it. Real jobs, with gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.checkpoint import Checkpointer, SaveFailed
from phalanx.checkpoint.adapters.distributed import DistributedState

pytestmark = [pytest.mark.torch, pytest.mark.system, pytest.mark.filterwarnings("ignore")]

JOB = """
import random, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from phalanx.checkpoint import Checkpointer, TorchState
from phalanx.checkpoint.adapters.distributed import DistributedState

kind, does, folder = sys.argv[1:]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world_size,))
checkpointer = Checkpointer(folder, sharded=True)


def spread(value):
    return distribute_tensor(value, mesh, [Shard(0)])


if kind == "dcp":
    whole = torch.arange(26.0).reshape(13, 2)
    if does == "save":
        state = {"weight": spread(whole), "same": torch.ones(3), "step": 7}
        checkpointer.save(7, DistributedState(state), {"world": world_size})
    else:
        state = {"weight": spread(torch.zeros(13, 2)), "same": torch.zeros(3), "step": 0}
        loaded = checkpointer.load_latest(DistributedState(state))
        assert (loaded.step, loaded.meta, loaded.value is state) == (7, {"world": 2}, True)
        assert torch.equal(state["weight"].full_tensor(), whole)
        assert torch.equal(state["same"], torch.ones(3))
        assert state["step"] == 7
else:
    model = torch.nn.Linear(2, 2)
    if does == "save":
        random.seed(rank)
        torch.nn.init.constant_(model.weight, 3.0)
        checkpointer.save(7, TorchState(model=model, epoch=2))
    else:
        loaded = checkpointer.load_latest(TorchState(model=model, epoch=0))
        assert loaded.value == {"epoch": 2}
        assert torch.all(model.weight == 3.0)
    drawn = [None] * world_size
    dist.all_gather_object(drawn, random.random())
    assert len(set(drawn)) == world_size
    expected = [random.Random(rank).random() for rank in range(2)]
    assert drawn[:2] == expected[:world_size], drawn
dist.destroy_process_group()
"""


def run(folder: Path, kind: str, does: str, ranks: int) -> None:
    (folder / "job.py").write_text(JOB)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "phalanx",
            "run",
            "--nproc-per-node",
            str(ranks),
            "job.py",
            kind,
            does,
            "steps",
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["dcp", "state"])
def test_what_two_ranks_saved_is_loaded_by_one_two_and_three(tmp_path: Path, kind: str) -> None:
    run(tmp_path, kind, "save", 2)
    parts = {
        str(path.relative_to(tmp_path / "steps"))
        for path in (tmp_path / "steps/step-000000007").rglob("*")
        if path.is_file()
    }
    expected = {
        "dcp": {"rank-00000/.metadata", "rank-00000/__0_0.distcp", "rank-00001/__1_0.distcp"},
        "state": {"rank-00000/model.pt", "rank-00000/random.pt", "rank-00001/random.pt"},
    }
    assert {f"step-000000007/{name}" for name in expected[kind]} <= parts
    for ranks in (1, 2, 3):
        run(tmp_path, kind, "load", ranks)


def test_one_rank_alone_is_refused(tmp_path: Path) -> None:
    import torch

    state = DistributedState({"weight": torch.ones(2)})
    with pytest.raises((SaveFailed, ValueError), match=r"use Checkpointer.*sharded=True"):
        Checkpointer(tmp_path).save(1, state)
    assert Checkpointer(tmp_path).steps() == []


def test_in_the_background_it_is_refused(tmp_path: Path) -> None:
    with (
        Checkpointer(tmp_path, background=True, sharded=True) as checkpointer,
        pytest.raises(TypeError, match=r"DistributedState has write\(\) and no snapshot\(\)"),
    ):
        checkpointer.save(1, DistributedState({}))
