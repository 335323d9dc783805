"""One answer to the question which rank this process is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors.ranks import Ranks, own_ranks

ALONE = Ranks(0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environment", "ranks"),
    [
        ({}, ALONE),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Ranks(1, 2, None, None)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ALONE),
        (
            {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
            Ranks(5, 8, 1, 4),
        ),
        (
            {
                "RANK": "5",
                "WORLD_SIZE": "8",
                "LOCAL_RANK": "0",
                "PHALANX_LOCAL_RANK": "1",
                "LOCAL_WORLD_SIZE": "4",
            },
            Ranks(5, 8, 1, 4),
        ),
        ({"RANK": "2", "WORLD_SIZE": "2"}, ALONE),
        ({"RANK": "two", "WORLD_SIZE": "4"}, ALONE),
        ({"RANK": "1"}, ALONE),
        ({"WORLD_SIZE": "4"}, ALONE),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, ALONE),
    ],
)
def test_the_environment_says_who_a_process_is(environment: dict[str, str], ranks: Ranks) -> None:
    assert own_ranks(environment) == ranks


GROUP = """
import os, sys
import torch.distributed as dist
from phalanx.errors.ranks import own_ranks

for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "PHALANX_LOCAL_RANK"):
    os.environ.pop(name, None)
assert own_ranks().world_size == 1, "no group yet"
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
print(own_ranks())
os.environ.update(RANK="3", WORLD_SIZE="9")
print(own_ranks())
dist.barrier()
dist.destroy_process_group()
"""


def test_a_process_group_of_torch_is_asked_when_the_environment_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, str(tmp_path / "store"), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for number, process in enumerate(ranks):
        out, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        assert out.splitlines() == [
            f"Ranks(rank={number}, world_size=2, local_rank=None, local_world_size=None)",
            "Ranks(rank=3, world_size=9, local_rank=None, local_world_size=None)",
        ]


def test_torch_is_not_imported_for_it() -> None:
    code = (
        "import sys; from phalanx.errors.ranks import own_ranks; own_ranks(); print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
