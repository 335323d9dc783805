"""Tensors in a file of safetensors (``pip install safetensors``): of torch, or numpy's arrays without torch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from phalanx.checkpoint.adapters import plain
from phalanx.checkpoint.saved import SavedStep

__all__ = ["SafeTensors"]


class SafeTensors:
    """Saves ``tensors``, names to torch's tensors or to numpy's arrays, and loads them as ``framework`` has them.

    ``metadata`` is text by text, in the file's head. In a sharded step each rank saves its own, and gets a list of all.
    Tensors that share memory or are not contiguous are refused by safetensors, with ``RuntimeError`` or ``ValueError``.

    >>> import tempfile, numpy
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp())
    >>> checkpointer.save(100, SafeTensors({"weight": numpy.ones(2)}))
    >>> checkpointer.load_latest(SafeTensors(framework="numpy")).value
    {'weight': array([1., 1.])}
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | None = None,
        *,
        file: str = "model.safetensors",
        metadata: Mapping[str, str] | None = None,
        framework: Literal["torch", "numpy"] = "torch",
        device: str = "cpu",
    ) -> None:
        if framework not in ("torch", "numpy"):
            raise ValueError(f'framework is "torch" or "numpy", not {framework!r}')
        self.tensors = dict(tensors or {})
        self.file = plain.check_name(file)
        self.metadata = None if metadata is None else dict(metadata)
        self.framework = framework
        self.device = device

    def write(self, folder: Path) -> None:
        """Write the file."""
        torch = sys.modules.get("torch")
        if torch is not None and any(isinstance(each, torch.Tensor) for each in self.tensors.values()):
            from safetensors.torch import save_file

            save_file(self.tensors, folder / self.file, self.metadata)
            return
        import numpy as np
        from safetensors.numpy import save_file as save_arrays

        # It writes the memory as it lies; a copy only where that is not in the usual order.
        arrays = {
            name: np.require(each, each.dtype.newbyteorder("<"), "C") for name, each in self.tensors.items()
        }
        save_arrays(arrays, folder / self.file, self.metadata)

    def snapshot(self) -> SafeTensors:
        """A copy in the CPU's memory, to be written later."""
        copies = {
            name: each.copy()
            if hasattr(each, "__array_interface__") and not hasattr(each, "detach")
            else each.detach().to("cpu", copy=True)
            for name, each in self.tensors.items()
        }
        return SafeTensors(copies, file=self.file, metadata=self.metadata)

    def read(self, saved: SavedStep) -> Any:
        """The tensors, by name; of a sharded step a list, by rank."""
        found = [self._read(part / self.file) for part in saved.parts]
        return found[0] if saved.parts == (saved.folder,) else found

    def _read(self, path: Path) -> dict[str, Any]:
        if self.framework == "numpy":
            from safetensors.numpy import load_file as load_arrays

            return dict(load_arrays(path))
        from safetensors.torch import load_file

        return dict(load_file(path, device=self.device))
