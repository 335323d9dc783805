"""Programs of others that launch jobs through torch's names run on Phalanx as they are, and say so when a rank fails.

Each worker tells whose it is: only Phalanx's have the variables of its agent. Each of these programs runs under torch's
own launcher, too; that is not tried here again and again, since it would be a test of torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import two_free_ports

pytestmark = [pytest.mark.system, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(400)]  # two runs

SCRIPTS = Path(sysconfig.get_path("scripts"))
LIMIT_S = 170  # two imports of torch one after the other, on a machine that does other things
TELL = """
import json, os, sys, time
def tell(**facts):
    whose = "phalanx" if "PHALANX_AGENT" in os.environ and "PHALANX_ROUND" in os.environ else "torch"
    facts = {"whose": whose, "rank": int(os.environ["RANK"]), "words": sys.argv[1:], **facts}
    os.write(1, (json.dumps(facts) + "\\n").encode())  # one write: lines of two workers must not mix
"""
WITH_ACCELERATE = f"""
{TELL}
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
mine = torch.tensor([float(accelerator.process_index + 1)])
tell(sum=accelerator.reduce(mine, "sum").item(), world=accelerator.num_processes,
     backend=torch.distributed.get_backend())
accelerator.wait_for_everyone()  # or the other rank is stopped before it has told
if "--fail=" + os.environ["TORCHELASTIC_RESTART_COUNT"] in sys.argv and accelerator.process_index == 1:
    raise ValueError("no data for this rank")
accelerator.end_training()
"""
WITH_FABRIC = f"""
{TELL}
import torch
from lightning_fabric import Fabric
fabric = Fabric()
mine = torch.tensor([float(fabric.global_rank + 1)])
tell(sum=fabric.all_reduce(mine, reduce_op="sum").item(), world=fabric.world_size,
     backend=torch.distributed.get_backend())
fabric.barrier()  # or the other rank is stopped before it has told
if "--fail" in sys.argv and fabric.global_rank == 1:
    raise ValueError("no data for this rank")
"""
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
FABRIC = (
    "fabric",
    "run",
    "--accelerator",
    "cpu",
    "--devices",
    "2",
    "--strategy",
    "ddp",
    "--main-port",
    "PORT",
)


def run(folder: Path, *command: str | Path, compat: str | None) -> subprocess.CompletedProcess[str]:
    command = tuple(str(two_free_ports()) if word == "PORT" else word for word in command)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    if compat is not None:
        environment["PHALANX_COMPAT"] = compat
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )


def told(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda facts: facts["rank"])


def both_ranks(whose: str, *words: str) -> list[dict[str, Any]]:
    """What two workers tell that have added 1 and 2 over gloo."""
    common = {"whose": whose, "words": list(words), "sum": 3.0, "world": 2, "backend": "gloo"}
    return [{"rank": rank, **common} for rank in (0, 1)]


def has_our_report(text: str) -> bool:
    line = r"^phalanx: train\.py failed: rank 1: ValueError: no data for this rank"
    return re.search(line, text, re.MULTILINE) is not None


def test_accelerates_command_runs_and_restarts_its_ranks_on_phalanx(tmp_path: Path) -> None:
    """The first round fails, the second has the facts; what accelerate does with torch's names alone is torch's."""
    (tmp_path / "train.py").write_text(WITH_ACCELERATE)
    command: list[str | Path] = [SCRIPTS / "accelerate", *ACCELERATE[1:], "--max_restarts", "1"]
    done = run(tmp_path, *command, "train.py", "--fail=0", compat="1")
    assert done.returncode == 0, done.stderr
    assert told(done)[::2] == told(done)[1::2] == both_ranks("phalanx", "--fail=0"), "two rounds of two ranks"
    assert "no data for this rank" in done.stderr


def test_fabrics_command_runs_on_phalanx_and_a_rank_that_fails_is_in_our_report(tmp_path: Path) -> None:
    """Through ``python -m phalanx.compat``, which takes a program that was installed as well as a script."""
    (tmp_path / "train.py").write_text(WITH_FABRIC)
    command: list[str | Path] = [sys.executable, "-m", "phalanx.compat", SCRIPTS / "fabric", *FABRIC[1:]]
    done = run(tmp_path, *command, "train.py", "--fail", compat=None)
    assert done.returncode == 1, done.stderr
    assert told(done) == both_ranks("phalanx", "--fail")
    assert has_our_report(done.stderr), done.stderr


NOTEBOOK = f"""
import sys
from accelerate import Accelerator, notebook_launcher
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

def train(fail):
{TELL.replace(chr(10), chr(10) + "    ")}
    import torch
    accelerator = Accelerator(cpu=True)
    mine = torch.tensor([float(accelerator.process_index + 1)])
    total = accelerator.reduce(mine, "sum").item()
    tell(sum=total, world=accelerator.num_processes, backend=torch.distributed.get_backend())
    accelerator.wait_for_everyone()  # or the other rank is stopped before it has told
    if fail and accelerator.process_index == 1:
        raise ValueError("no data for this rank")

if __name__ == "__main__":
    port = sys.argv.pop(1)
    notebook_launcher(train, (False,), num_processes=2, use_port=port)
    print("done", flush=True)
    try:
        notebook_launcher(train, (True,), num_processes=2, use_port=port)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print("failed", type(error).__module__, rank, "no data for this rank" in str(failure.message), flush=True)
"""


@pytest.mark.compat("name torch.distributed.launcher.api.elastic_launch", "same")
def test_a_function_of_a_notebook_runs_on_phalanx(tmp_path: Path) -> None:
    """accelerate's notebook_launcher is ``elastic_launch`` underneath."""
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = run(tmp_path, sys.executable, "notebook.py", "PORT", compat="1")
    assert done.returncode == 0, done.stderr
    assert "\ndone\n" in done.stdout
    first, second = done.stdout.split("\ndone\n")
    for part in (first, second):
        lines = [json.loads(line) for line in part.splitlines() if line.startswith("{")]
        assert sorted(lines, key=lambda facts: facts["rank"]) == both_ranks("phalanx")
    assert "failed phalanx." in second, "the exception that notebook_launcher lets through"
    assert second.endswith(" 1 True\n")


TRAIN = f"""
{TELL}
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

@record
def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.arange(16.0).reshape(8, 2))
    # One rank has a process for its data, which imports torch for seconds; the other reads them itself.
    workers = dict(num_workers=1, multiprocessing_context=sys.argv[1]) if dist.get_rank() == 0 else dict()
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False), **workers)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    rows = 0
    for (batch,) in loader:
        model(batch).sum().backward()
        rows += len(batch)
    gradient = model.module.weight.grad.clone()
    total = torch.tensor([float(rows)])
    dist.all_reduce(total)
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
    state = {{"weight": model.module.weight.detach()}}
    checkpoint.save(state, checkpoint_id=sys.argv[2])
    checkpoint.async_save(
        state, checkpoint_id=sys.argv[2] + " later", async_checkpointer_type=AsyncCheckpointerType.PROCESS
    ).result()
    tell(rows=total.item(), gradient=gradient.tolist(), record=record.__module__.partition(".")[0], words=[])
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


def test_torchs_own_training_and_checkpoints_are_not_disturbed(tmp_path: Path) -> None:
    """DDP, workers of a DataLoader, and checkpoints, with torch's names from both sides.

    An asynchronous checkpoint imports torchelastic's names, one of them private, and starts a process that does, too.
    Each rank has four rows of 0, 1, …, 15 in pairs: the gradient of their sum is what torch computes under torchrun.
    """
    (tmp_path / "train.py").write_text(TRAIN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py", "spawn"]
    done = run(tmp_path, *launch, str(tmp_path / "saved"), compat="1")
    assert done.returncode == 0, done.stderr
    expected = {"whose": "phalanx", "words": [], "record": "phalanx", "rows": 8.0, "gradient": [[28.0, 32.0]]}
    assert told(done) == [{"rank": rank, **expected} for rank in (0, 1)]
    for folder in ("saved", "saved later"):
        assert {path.name for path in (tmp_path / folder).iterdir()} >= {".metadata", "__0_0.distcp"}
