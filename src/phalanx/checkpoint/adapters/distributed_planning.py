"""torch's planners of distributed checkpoints, for what is no tensor: saved and loaded without pickle's freedom.

torch's own load it with ``weights_only=False``: a step from somebody else could run what it likes. Imports torch.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.stateful import Stateful

from phalanx.checkpoint.adapters.torch_values import loadable
from phalanx.checkpoint.exceptions import CheckpointError

__all__ = ["LoadPlanner", "SavePlanner", "refuse_unloadable"]


class SavePlanner(DefaultSavePlanner):  # type: ignore[misc,unused-ignore] # torch has no types where it is not installed
    """Refuses what ``LoadPlanner`` would not load again: here torch tells all ranks of it."""

    def create_local_plan(self) -> Any:
        """Torch's plan of this rank. Raises ``TypeError``."""
        refuse_unloadable(self.state_dict)
        return super().create_local_plan()


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc,unused-ignore]
    """Loads what is no tensor with ``weights_only=True``."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        """Load ``value``, and give torch's planner what was loaded, written anew: it never sees the file's bytes."""
        try:
            loaded = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{read_item.dest_index.fqn} cannot be loaded without running its code (torch.load with weights_only)"
            ) from error
        anew = io.BytesIO()
        torch.save(loaded, anew)
        anew.seek(0)
        super().load_bytes(read_item, anew)


def refuse_unloadable(state: Mapping[str, Any], where: str = "the state") -> None:
    """Raises ``TypeError`` for what ``LoadPlanner`` would not load again. Tensors of any kind are torch's to save."""
    for key, value in state.items():
        _refuse(value, f"{where}[{key!r}]")


def _refuse(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        refuse_unloadable(value, where)
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            _refuse(item, f"{where}[{at}]")
    elif not isinstance(value, torch.Tensor | Stateful) and type(value).__name__ != "ShardedTensor":
        loadable(value, where)
