"""One object through ``torch.save``, in one file. For the state of a whole training there is ``TorchState``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.checkpoint.adapters import plain
from phalanx.checkpoint.saved import SavedStep

__all__ = ["TorchSave"]


class TorchSave:
    """Saves ``value``, tensors and plain containers of them, and loads it with ``weights_only=True``.

    In a sharded step each rank saves its own, and gets a list of all. ``map_location`` is ``torch.load``'s. Raises
    ``TypeError`` for what could not be loaded again without pickle.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp())
    >>> checkpointer.save(100, TorchSave({"weight": torch.ones(2)}))
    >>> checkpointer.load_latest(TorchSave()).value
    {'weight': tensor([1., 1.])}
    """

    def __init__(self, value: Any = None, *, file: str = "state.pt", map_location: Any = "cpu") -> None:
        self.value = value
        self.file = plain.check_name(file)
        self.map_location = map_location

    def write(self, folder: Path) -> None:
        """Write the file."""
        import torch

        from phalanx.checkpoint.adapters.torch_values import loadable

        torch.save(loadable(self.value, "the value"), folder / self.file)

    def snapshot(self) -> TorchSave:
        """A copy in the CPU's memory, to be written later."""
        from phalanx.checkpoint.adapters.torch_values import copied, loadable

        return TorchSave(copied(loadable(self.value, "the value")), file=self.file)

    def read(self, saved: SavedStep) -> Any:
        """What was saved; of a sharded step a list, by rank."""
        import torch

        found = [
            torch.load(part / self.file, map_location=self.map_location, weights_only=True)
            for part in saved.parts
        ]
        return found[0] if saved.parts == (saved.folder,) else found
