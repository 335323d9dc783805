"""A state that is spread over ranks (FSDP, tensor parallel: ``DTensor``), through ``torch.distributed.checkpoint``.

Each rank writes what torch plans for it into its own part of the step; together, the parts are torch's checkpoint
folder. Any number of ranks loads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phalanx.checkpoint.adapters.torch_state import part_of
from phalanx.checkpoint.exceptions import CheckpointError
from phalanx.checkpoint.saved import SavedStep

__all__ = ["DistributedState", "gather"]


class DistributedState:
    """Saves ``state``, a state dict, and loads it in place, with ``Checkpointer(writer="rank")``.

    All ranks of ``process_group`` (by default all) take part in saving and in loading. Not for saves in the background:
    torch's ranks talk to each other while they write, and would meet the collectives of the training.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp(), writer="rank")
    >>> checkpointer.save(100, DistributedState({"weight": torch.ones(2)}))
    True
    >>> checkpointer.load_latest(DistributedState({"weight": torch.zeros(2)})).value
    {'weight': tensor([1., 1.])}
    """

    def __init__(self, state: dict[str, Any], *, process_group: Any = None) -> None:
        self.state = state
        self.process_group = process_group

    def write(self, folder: Path) -> None:
        """Write this rank's part. Raises ``ValueError`` if ``folder`` is no part of a sharded step."""
        import torch.distributed.checkpoint as dcp

        if part_of(folder) is None:
            raise ValueError(
                'a distributed state is written by all of its ranks: use Checkpointer(…, writer="rank")'
            )
        dcp.save(self.state, storage_writer=dcp.FileSystemWriter(folder), process_group=self.process_group)

    def read(self, saved: SavedStep) -> dict[str, Any]:
        """Load it into ``state``, which says the shapes and how they are spread; returns it."""
        import tempfile

        import torch.distributed.checkpoint as dcp

        with tempfile.TemporaryDirectory(prefix="phalanx-") as folder:
            gather(saved, Path(folder))
            dcp.load(
                self.state, storage_reader=dcp.FileSystemReader(folder), process_group=self.process_group
            )
        return self.state


def gather(saved: SavedStep, folder: Path) -> None:
    """Make ``folder`` torch's checkpoint folder: links to the files of all parts, whose names tell the ranks apart.

    For other programs that read such folders. Raises ``CheckpointError`` if two parts have a file of the same name.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp(), writer="rank")
    >>> checkpointer.save(100, DistributedState({"weight": torch.ones(2)}))
    True
    >>> folder = Path(tempfile.mkdtemp())
    >>> checkpointer.load_latest(lambda saved: gather(saved, folder)).step
    100
    >>> sorted(file.name for file in folder.iterdir())
    ['.metadata', '__0_0.distcp']
    """
    for part in saved.parts:
        for file in sorted(part.iterdir()):
            try:
                (folder / file.name).symlink_to(file.absolute())
            except FileExistsError:
                raise CheckpointError(
                    f"two parts of step {saved.step} have a file {file.name}: they are no checkpoint of torch's"
                ) from None
