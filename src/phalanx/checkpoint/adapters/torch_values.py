"""What torch saves and loads again without running anybody's code: checked, and copied for later.

``torch.load(weights_only=True)`` builds tensors, numbers, text and plain containers, and refuses any other class. What
it would refuse is refused when it is saved: a checkpoint that nobody can load is found out too late.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

__all__ = ["copied", "loadable"]

_DEPTH = 100
_MAPPINGS = (dict, OrderedDict, Counter)  # MultiStepLR counts its milestones; torch loads no other mappings


def loadable(value: Any, where: str, depth: int = 0) -> Any:
    """``value`` as ``torch.load(weights_only=True)`` gives it back; numpy's scalars become Python's numbers.

    Containers are new ones, tensors the same. Raises ``TypeError`` that says which entry cannot be kept, and why.
    """
    import torch

    kind = type(value)
    if value is None or kind in _plain_types():
        return value
    if isinstance(value, torch.Tensor):
        if kind not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            raise TypeError(_refusal(value, where))
        return value
    if depth == _DEPTH:
        raise TypeError(
            f"{where[:60]}… is nested more than {_DEPTH} times, or contains itself; it cannot be saved"
        )
    if kind in (list, tuple, set):
        return kind(loadable(item, f"{where}[{at}]", depth + 1) for at, item in enumerate(value))
    if kind in _MAPPINGS:
        found = _emptied(value)
        for key, item in value.items():
            found[loadable(key, f"a key of {where}", depth + 1)] = loadable(
                item, f"{where}[{key!r}]", depth + 1
            )
        return found
    if kind.__module__ == "numpy" and hasattr(value, "dtype") and getattr(value, "ndim", 1) == 0:
        return loadable(value.item(), where, _DEPTH)
    raise TypeError(_refusal(value, where))


def copied(value: Any) -> Any:
    """A copy in the CPU's memory of what ``loadable`` returned: nothing that happens to the original changes it.

    Tensors that share memory share it in the copy, too, as they do in what ``torch.save`` writes.
    """
    storages: dict[Any, Any] = {}
    return _copied(value, storages)


def _copied(value: Any, storages: dict[Any, Any]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return _copied_tensor(value.detach(), storages)
    kind = type(value)
    if kind in (list, tuple, set):
        return kind(_copied(item, storages) for item in value)
    if kind is bytearray:
        return bytearray(value)
    if kind in _MAPPINGS:
        found = _emptied(value)
        for key, item in value.items():
            found[key] = _copied(item, storages)
        return found
    return value


def _emptied(value: Any) -> Any:
    """A container of the same kind, with what torch leaves on a module's state: its ``_metadata``."""
    found = type(value)()
    if isinstance(value, OrderedDict):
        found.__dict__.update(value.__dict__)
    return found


def _copied_tensor(tensor: Any, storages: dict[Any, Any]) -> Any:
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return tensor.to("cpu", copy=True)
    storage = tensor.untyped_storage()
    key = (tensor.device, storage.data_ptr(), storage.nbytes())
    if key not in storages:
        storages[key] = storage.clone() if tensor.device.type == "cpu" else storage.cpu()
    found = torch.empty(0, dtype=tensor.dtype)
    return found.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())


def _plain_types() -> tuple[type, ...]:
    import torch

    return (bool, int, float, complex, str, bytes, bytearray, torch.Size, torch.dtype, torch.device)


def _refusal(value: object, where: str) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if kind.__name__ in ("DTensor", "ShardedTensor"):
        return (
            f"{where} is a {name}, of which this rank has only a part; save it with"
            f" phalanx.checkpoint.DistributedState"
        )
    if kind.__module__ == "numpy":
        return f"{where} is a {name}, which torch loads only with pickle; keep it as torch.from_numpy(…), or a list"
    return (
        f"{where} is a {name}, which cannot be loaded again without running its code (torch.load with weights_only);"
        f" keep what it holds as tensors, numbers, text, lists and dicts"
    )
