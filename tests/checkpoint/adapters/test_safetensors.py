from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.adapters.safetensors import SafeTensors
from phalanx.checkpoint.saved import SavedStep


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype="f4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::3],
        np.arange(4, dtype=">i4"),
        np.zeros((0, 3)),
        np.array(1.5),
    ],
    ids=["plain", "Fortran's order", "every third", "big-endian", "empty", "no dimension"],
)
def test_arrays_come_back_without_torch(tmp_path: Path, array: Any) -> None:
    state = SafeTensors({"a": array, "b": np.ones(2, dtype="i2")}, metadata={"kind": "test"})
    for number, each in enumerate((state, state.snapshot())):
        Checkpointer(tmp_path).save(number, each)
        loaded = Checkpointer(tmp_path).load(number, SafeTensors(framework="numpy")).value
        assert list(loaded) == ["a", "b"]
        assert loaded["a"].dtype == array.dtype.newbyteorder("=")
        assert loaded["a"].shape == array.shape
        assert np.array_equal(loaded["a"], array)


def test_a_program_without_torch_stays_without_it(tmp_path: Path) -> None:
    program = """
import pathlib, sys
import numpy
from phalanx.checkpoint.adapters.safetensors import SafeTensors
SafeTensors({"a": numpy.ones(2)}).write(pathlib.Path(sys.argv[1]))
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == 0


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_torch_come_back_and_a_snapshot_does_not_change(tmp_path: Path) -> None:
    import torch

    weight = torch.ones(3, dtype=torch.bfloat16)
    snapshot = SafeTensors({"weight": weight}).snapshot()
    weight += 1
    Checkpointer(tmp_path).save(1, snapshot)
    Checkpointer(tmp_path).save(2, SafeTensors({"weight": weight}))
    for step, expected in ((1, torch.ones(3)), (2, torch.full((3,), 2.0))):
        found = Checkpointer(tmp_path).load(step, SafeTensors()).value
        assert found["weight"].dtype == torch.bfloat16
        assert torch.equal(found["weight"], expected.bfloat16())


def test_of_a_sharded_step_there_is_one_for_each_rank(tmp_path: Path) -> None:
    parts = tuple(tmp_path / f"rank-{rank:05d}" for rank in range(2))
    for rank, part in enumerate(parts):
        part.mkdir()
        SafeTensors({"rank": np.array(rank)}).write(part)
    found = SafeTensors(framework="numpy").read(SavedStep(1, {}, 2, tmp_path, parts))
    assert [each["rank"] for each in found] == [0, 1]


def test_another_framework_is_refused() -> None:
    with pytest.raises(ValueError, match='framework is "torch" or "numpy", not \'jax\''):
        SafeTensors(framework="jax")  # type: ignore[arg-type]
