"""Whether something of torch's is spread over ranks, so that no rank alone can save it.

For some of it ``state_dict`` is a collective operation: the one rank that calls it waits for all others. So this is
found out from the object itself, before.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["refuse_spread"]

# Looked at only if they are imported: who has such an object has imported its module.
_CLASSES = (
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),
    ("torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer"),
    ("torch.distributed.tensor", "DTensor"),
    ("torch.distributed._shard.sharded_tensor", "ShardedTensor"),
)


def refuse_spread(name: str, thing: Any) -> None:
    """Raises ``TypeError`` that says what of ``thing`` is spread, and how to save it."""
    kinds = _kinds()
    for part in (thing, *_parts(thing)):
        found = next((known for kind, known in kinds if isinstance(part, kind)), None)
        if found is None and getattr(part, "_is_flat_param", False):
            found = "FullyShardedDataParallel"  # its parameters, which an optimizer has without the module
        if found is not None:
            raise TypeError(
                f"{name} {'is' if part is thing else 'has'} a {found}, of which each rank has a part only:"
                f" {_advice(found)}"
            )


def _advice(found: str) -> str:
    if found == "ZeroRedundancyOptimizer":
        return "take another optimizer, or shard the model (fully_shard) and save both with DistributedState"
    return (
        "save its state dict (torch.distributed.checkpoint.state_dict.get_state_dict) with DistributedState and"
        " Checkpointer(…, sharded=True)"
    )


def _kinds() -> list[tuple[type, str]]:
    found = []
    for module, name in _CLASSES:
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type):
            found.append((kind, name))
    return found


def _parts(thing: Any) -> list[Any]:
    """A module's modules and parameters, an optimizer's parameters."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    if isinstance(thing, torch.nn.Module):
        return [*thing.modules(), *thing.parameters(), *thing.buffers()]
    if isinstance(thing, torch.optim.Optimizer):
        return [each for group in thing.param_groups for each in group["params"]]
    return []
