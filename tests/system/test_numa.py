"""Real launchers bind real workers: the kernel says which CPUs they may use, from their first instruction."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.multiprocessing.affinity import read_cpus

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(
        len(os.sched_getaffinity(0)) < 2, reason="a mask that is a part of another needs two CPUs"
    ),
]

CPUS = frozenset(os.sched_getaffinity(0))
SCRIPT = """
import os, time
with open("/proc/self/status") as status:
    mask = next(line for line in status if line.startswith("Cpus_allowed_list:"))
mine = f"mask.{os.environ['RANK']}.{os.environ['TORCHELASTIC_RESTART_COUNT']}"
with open("half." + mine, "w") as file:
    file.write(mask.split()[1])
os.rename("half." + mine, mine)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    while os.environ["WORLD_SIZE"] != "1" and not os.path.exists("mask.0.0"):
        time.sleep(0.01)
    raise SystemExit(3)
"""


def run(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "run", *flags, "train.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def masks(folder: Path) -> dict[str, frozenset[int]]:
    return {path.name: read_cpus(path.read_text()) for path in folder.glob("mask.*")}


@pytest.mark.compat(
    "flag --numa-binding",
    "better",
    "bound at birth without numactl, on machines without GPUs too, and told in one line",
)
@pytest.mark.parametrize("scope", ["group", "worker"])
def test_workers_have_cores_of_their_own_in_every_life(tmp_path: Path, scope: str) -> None:
    done = run(
        tmp_path,
        "--nproc-per-node=2",
        "--numa-binding=exclusive",
        "--max-restarts=1",
        f"--restart-scope={scope}",
    )
    assert done.returncode == 0, done.stderr
    found = masks(tmp_path)
    assert found["mask.0.0"] | found["mask.1.0"] == CPUS
    assert not found["mask.0.0"] & found["mask.1.0"]
    assert found["mask.1.1"] == found["mask.1.0"]
    if scope == "group":
        assert found["mask.0.1"] == found["mask.0.0"]
    line = next(one for one in done.stderr.splitlines() if "numa" in one)
    assert line.startswith("phalanx: numa exclusive: local rank 0 on node ")
    assert done.stderr.count("numa exclusive") == 1


def test_more_workers_than_cores_is_a_mistake_before_anything_starts(tmp_path: Path) -> None:
    done = run(tmp_path, f"--nproc-per-node={len(CPUS) + 1}", "--numa-binding=exclusive")
    assert done.returncode == 2
    assert done.stderr.startswith("phalanx: error: --numa-binding: node ")
    assert len(done.stderr.splitlines()) == 1
    assert not masks(tmp_path)


def test_the_agent_itself_and_workers_without_a_binding_have_all_cpus(tmp_path: Path) -> None:
    done = run(tmp_path, "--nproc-per-node=2", "--max-restarts=1")
    assert done.returncode == 0, done.stderr
    assert set(masks(tmp_path).values()) == {CPUS}
