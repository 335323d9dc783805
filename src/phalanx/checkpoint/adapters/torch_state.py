"""``TorchState``: the complete state of a training in torch, saved and loaded in one call. Imports torch when used.

Each object's ``state_dict`` is a file, ``model.pt``, ``optimizer.pt``…, for ``torch.load``; ``torch-state.json`` lists
them, and has the values; ``random.pt`` has the random states of the rank that wrote. In a sharded step what is equal on
all ranks is in rank 0's part alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.checkpoint.adapters import plain
from phalanx.checkpoint.adapters.spread import refuse_spread
from phalanx.checkpoint.exceptions import CheckpointError
from phalanx.checkpoint.saved import SavedStep

__all__ = ["TorchState"]

_INDEX = "torch-state.json"
_RANDOM = "random.pt"
_VERSION = 1


class TorchState:
    """What a training needs to go on as if nothing had happened.

    Any of model, optimizer, scheduler, gradient scaler and sampler, and under names of your own whatever has
    ``state_dict`` and ``load_state_dict``. Random states of Python, numpy, torch and the rank's CUDA device are saved
    with it. A model may be wrapped by DDP or ``torch.compile``: its own state is saved, and loads with and without.

    Anything else given is a value that the script needs to go on: JSON, or a callable without arguments, which is asked
    for it at each save. ``values`` has those that were given or loaded; a number that is given here stays what it is
    until ``values`` is changed. What people want to see of a step belongs into ``save``'s ``meta``.

    ``Checkpointer.save(step, state)`` writes it, ``load_latest(state)`` reads it in place and has the values as
    ``Loaded.value``. Tensors are loaded into the CPU's memory, whatever device saved them, and each object copies them
    to where its own are: there is no device to give. Raises ``TypeError`` or ``ValueError`` for what could not be
    loaded again without pickle, and for what is spread over ranks (FSDP): see ``DistributedState``.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> def fresh():
    ...     model = torch.nn.Linear(2, 1)
    ...     return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    >>> model, optimizer = fresh()
    >>> checkpointer = Checkpointer(tempfile.mkdtemp())
    >>> epoch = 0
    >>> state = TorchState(model=model, optimizer=optimizer, epoch=lambda: epoch, best=1.0)
    >>> epoch = 3
    >>> state.values["best"] = 0.5
    >>> checkpointer.save(100, state)
    >>> other, optimizer = fresh()
    >>> state = TorchState(model=other, optimizer=optimizer, epoch=lambda: epoch, best=1.0)
    >>> loaded = checkpointer.load_latest(state)
    >>> state.values["epoch"], loaded.value, torch.equal(model.weight, other.weight)
    (3, {'best': 0.5, 'epoch': 3}, True)
    """

    def __init__(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        sampler: Any = None,
        **more: Any,
    ) -> None:
        own = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "scaler": scaler,
            "sampler": sampler,
        }
        given = {name: value for name, value in own.items() if value is not None}
        for name, value in given.items():
            if not _is_stateful(value):
                raise TypeError(
                    f"{name} is of type {type(value).__name__}, which has no state_dict and load_state_dict"
                )
            refuse_spread(name, value)
        self.objects: dict[str, Any] = given
        self.values: dict[str, Any] = {}
        self._asked: dict[str, Callable[[], Any]] = {}
        for name, value in more.items():
            if name == "random":
                raise ValueError("random is the name of the random states' file; take another one")
            plain.check_name(name)
            if _is_stateful(value):
                refuse_spread(name, value)
                self.objects[name] = value
            elif callable(value):
                self._asked[name] = value
            else:
                plain.check_json(value, name)
                self.values[name] = value

    def write(self, folder: Path) -> None:
        """Write all of it into ``folder``."""
        _write(folder, self._states(), self._values(), _random_states())

    def write_part(self, folder: Path, rank: int) -> None:
        """Write what is ``rank``'s of a sharded step: all of it by rank 0, by the others their random states alone."""
        if rank == 0:
            self.write(folder)
        else:
            _write(folder, None, {}, _random_states())

    def snapshot(self) -> _Snapshot:
        """A copy in the CPU's memory, to be written later; training may go on."""
        from phalanx.checkpoint.adapters.torch_values import copied

        return _Snapshot(copied(self._states()), self._values(), copied(_random_states()))

    def snapshot_part(self, rank: int) -> _Snapshot:
        """What ``rank`` writes of a sharded step: a rank other than 0 copies its random states and nothing else."""
        from phalanx.checkpoint.adapters.torch_values import copied

        return self.snapshot() if rank == 0 else _Snapshot(None, {}, copied(_random_states()))

    def read(self, saved: SavedStep) -> dict[str, Any]:
        """Load it in place, and the random states into this process. Returns the values, also in ``values``.

        A value that was not saved stays as it was given. A rank whose random states were not saved, because there were
        fewer ranks or another one wrote for it, gets ones that follow from that one's and its own number. Raises
        ``CheckpointError`` if an object, or an entry of the model, is missing, too many or of another shape, if the
        optimizer has other parameters, or the sampler another dataset: nothing is loaded then.
        """
        main = saved.parts[0]
        index = _index_of(main)
        if missing := self.objects.keys() - set(index["objects"]):
            raise CheckpointError(
                f"step {saved.step} has no state of {_and(missing)}, only of {_and(index['objects'])};"
                f" leave {'it' if len(missing) == 1 else 'them'} out to load the rest"
            )
        if extra := set(index["objects"]) - self.objects.keys():
            raise CheckpointError(
                f"step {saved.step} has a state of {_and(extra)}, too; give TorchState {_and(extra)},"
                f" or load single files with torch.load"
            )
        states = {name: _load(main / f"{name}.pt") for name in self.objects}
        if "model" in states:
            _compare_model(saved.step, _unwrapped(self.objects["model"]).state_dict(), states["model"])
        if "optimizer" in states:
            _compare_optimizer(saved.step, self.objects["optimizer"], states["optimizer"])
        # The sampler first: it looks before it changes anything, and no model has been changed by then.
        for name in sorted(self.objects, key=lambda name: name != "sampler"):
            try:
                _unwrapped(self.objects[name]).load_state_dict(states.pop(name))
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"the {name}'s state in step {saved.step} does not fit: {error}"
                ) from error
        self.values |= index["values"]
        _put_random_states(saved)
        return dict(self.values)

    def _states(self) -> dict[str, Any]:
        from phalanx.checkpoint.adapters.torch_values import loadable

        for name, thing in self.objects.items():
            refuse_spread(name, thing)  # once more: fully_shard changes a model in its place
        return {name: loadable(_unwrapped(thing).state_dict(), name) for name, thing in self.objects.items()}

    def _values(self) -> dict[str, Any]:
        from copy import deepcopy

        values = self.values | {name: ask() for name, ask in self._asked.items()}
        for name, value in values.items():
            plain.check_json(value, name)
        return deepcopy(values)


class _Snapshot:
    """What a ``TorchState`` writes, of an earlier moment."""

    def __init__(
        self, states: dict[str, Any] | None, values: dict[str, Any], random_states: dict[str, Any]
    ) -> None:
        self._states = states
        self._values = values
        self._random_states = random_states

    def write(self, folder: Path) -> None:
        """Write it as ``TorchState`` would have done then."""
        _write(folder, self._states, self._values, self._random_states)


def _write(
    folder: Path, states: dict[str, Any] | None, values: dict[str, Any], random_states: dict[str, Any]
) -> None:
    """Without ``states`` it is the part of a rank other than 0, which has nothing else that rank 0 has not."""
    import torch

    torch.save(random_states, folder / _RANDOM)
    if states is None:
        return
    for name, state in states.items():
        torch.save(state, folder / f"{name}.pt")
    index = {"version": _VERSION, "objects": list(states), "values": values}
    (folder / _INDEX).write_text(json.dumps(index), encoding="ascii")


def _index_of(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="ascii"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} was not saved by TorchState: it has no {_INDEX}") from None
    except ValueError as error:
        raise CheckpointError(f"{folder / _INDEX} cannot be read: {error}") from None
    if not isinstance(index, dict) or index.get("version") != _VERSION:
        raise CheckpointError(
            f"{folder / _INDEX} was not written by this release; read the step with a later one"
        )
    return index


def _load(path: Path) -> Any:
    import torch

    # On the CPU, whatever device saved it: load_state_dict copies to where the parameters are.
    return torch.load(path, map_location="cpu", weights_only=True)


def _compare_model(step: int, mine: dict[str, Any], saved: dict[str, Any]) -> None:
    missing, extra = mine.keys() - saved.keys(), saved.keys() - mine.keys()
    if missing or extra:
        lacks = f"no {_and(missing)}" if missing else ""
        has = f"{_and(extra)}, which the model here has not" if extra else ""
        raise CheckpointError(
            f"the model's state in step {step} has {' and has '.join(filter(None, [lacks, has]))}"
        )
    for name, tensor in mine.items():
        here, there = _shape(tensor), _shape(saved[name])
        if here is not None and there is not None and here != there:
            raise CheckpointError(
                f"the model's state in step {step} has {name} of the shape {there}, and here it is {here}"
            )


def _shape(value: Any) -> list[int] | None:
    import torch

    if not isinstance(value, torch.Tensor) or torch.nn.parameter.is_lazy(value):
        return None
    return list(value.shape)


def _compare_optimizer(step: int, optimizer: Any, saved: Any) -> None:
    """As torch's own optimizers would, but before anything is loaded."""
    import torch

    if not isinstance(optimizer, torch.optim.Optimizer) or not isinstance(saved, dict):
        return
    here = [len(group["params"]) for group in optimizer.param_groups]
    there = [len(group["params"]) for group in saved.get("param_groups", [])]
    if here != there:
        raise CheckpointError(
            f"the optimizer's state in step {step} does not fit: it is of {_groups(there)}, and here it has"
            f" {_groups(here)}"
        )


def _groups(sizes: list[int]) -> str:
    groups = "a group" if len(sizes) == 1 else f"{len(sizes)} groups"
    return f"{groups} of {' and '.join(map(str, sizes)) or 'no'} parameters"


def _put_random_states(saved: SavedStep) -> None:
    from phalanx.checkpoint.adapters import random_states

    has_part = saved.rank < len(saved.parts)
    states = _load(saved.parts[saved.rank if has_part else 0] / _RANDOM)
    if has_part or random_states.is_own(states, saved.rank):  # a node's own copy: its first rank wrote it
        random_states.put(states)
    else:
        random_states.put_derived(states, saved.rank)


def _random_states() -> dict[str, Any]:
    from phalanx.checkpoint.adapters import random_states

    return random_states.get()


def _unwrapped(thing: Any) -> Any:
    """The model itself, without what DDP and torch.compile put around it."""
    import torch

    while isinstance(thing, torch.nn.Module):
        inner = thing.module if isinstance(thing, _wrappers()) else getattr(thing, "_orig_mod", None)
        if not isinstance(inner, torch.nn.Module):
            break
        thing = inner
    return thing


def _wrappers() -> Any:
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    return (DataParallel, DistributedDataParallel)


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _and(names: Any) -> str:
    listed = sorted(names)
    more = [f"{len(listed) - 5} more"] if len(listed) > 6 else []
    listed = listed[:5] + more if more else listed
    return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed) or "nothing"
