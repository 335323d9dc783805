from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.adapters.torch_save import TorchSave
from phalanx.checkpoint.saved import SavedStep

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


def test_tensors_in_containers_come_back_and_a_snapshot_does_not_change(tmp_path: Path) -> None:
    weight = torch.ones(2)
    value = {"weight": weight, "rest": [1, (2.5, "a"), None]}
    snapshot = TorchSave(value).snapshot()
    weight += 1
    Checkpointer(tmp_path).save(1, snapshot)
    Checkpointer(tmp_path).save(2, TorchSave(value, file="other.pt"))
    before = Checkpointer(tmp_path).load(1, TorchSave()).value
    after = Checkpointer(tmp_path).load(2, TorchSave(file="other.pt")).value
    assert (before["weight"].tolist(), after["weight"].tolist()) == ([1, 1], [2, 2])
    assert before["rest"] == after["rest"] == value["rest"]


def test_of_a_sharded_step_there_is_one_for_each_rank(tmp_path: Path) -> None:
    parts = tuple(tmp_path / f"rank-{rank:05d}" for rank in range(2))
    for rank, part in enumerate(parts):
        part.mkdir()
        TorchSave(rank).write(part)
    assert TorchSave().read(SavedStep(1, {}, 2, tmp_path, parts)) == [0, 1]


class Own:
    pass


@pytest.mark.parametrize("value", [Own(), {"a": Own()}, [object]])
def test_what_needs_pickle_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be loaded again without running its code"):
        TorchSave(value).write(tmp_path)
    assert list(tmp_path.iterdir()) == []
