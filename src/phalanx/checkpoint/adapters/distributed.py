"""A state that is spread over ranks (FSDP, tensor parallel: ``DTensor``), through ``torch.distributed.checkpoint``.

Each rank writes what torch plans for it into its own part of the step; together, the parts are torch's checkpoint
folder. Any number of ranks loads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.checkpoint.exceptions import CheckpointError
from phalanx.checkpoint.saved import SavedStep

__all__ = ["DistributedState", "gather"]


class DistributedState:
    """Saves ``state``, a state dict, and loads it in place, with ``Checkpointer(…, sharded=True)``.

    All ranks of ``process_group`` (by default all) take part in saving and in loading, because torch's ranks talk to
    each other meanwhile. Before they write, they agree that all are about to; what fails in the writing itself is told
    to all by torch. A rank that dies in between leaves the others waiting until the launcher ends them. It is not for
    saves in the background, which would meet the collectives of the training.

    What is no tensor is loaded as ``torch.load(weights_only=True)`` would, and torch's ``.metadata``, a pickle, by a
    reader that makes nothing but torch's own records: no code of the file's is run. Raises ``TypeError`` for what could
    not be loaded again so.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp(), sharded=True)
    >>> checkpointer.save(100, DistributedState({"weight": torch.ones(2)}))
    >>> checkpointer.load_latest(DistributedState({"weight": torch.zeros(2)})).value
    {'weight': tensor([1., 1.])}
    """

    is_collective = True  # the ranks agree before any of them is asked to write

    def __init__(self, state: dict[str, Any], *, process_group: Any = None) -> None:
        from phalanx.checkpoint.adapters.distributed_planning import refuse_unloadable

        refuse_unloadable(state)
        self.state = state
        self.process_group = process_group

    def write(self, folder: Path) -> None:
        """Refused, with ``ValueError``: no rank alone has all of it."""
        raise ValueError(
            "a distributed state is written by all of its ranks: use Checkpointer(…, sharded=True)"
        )

    def write_part(self, folder: Path, rank: int) -> None:
        """Write what torch plans for this rank; ``rank`` is in the names that torch gives."""
        import torch.distributed.checkpoint as dcp

        from phalanx.checkpoint.adapters.distributed_planning import SavePlanner

        with _one_error():
            dcp.save(
                self.state,
                storage_writer=dcp.FileSystemWriter(folder),
                planner=SavePlanner(),
                process_group=self.process_group,
            )

    def read(self, saved: SavedStep) -> dict[str, Any]:
        """Load it into ``state``, which says the shapes and how they are spread; returns it."""
        import tempfile

        import torch.distributed.checkpoint as dcp

        from phalanx.checkpoint.adapters.distributed_planning import LoadPlanner
        from phalanx.checkpoint.adapters.distributed_reader import Reader

        with tempfile.TemporaryDirectory(prefix="phalanx-") as folder, _one_error():
            gather(saved, Path(folder))
            dcp.load(
                self.state,
                storage_reader=Reader(folder),
                planner=LoadPlanner(),
                process_group=self.process_group,
            )
        return self.state


@contextmanager
def _one_error() -> Iterator[None]:
    """What torch raises for the failures of all ranks is no ``Exception``, and its text has their tracebacks."""
    from torch.distributed.checkpoint import CheckpointException

    try:
        yield
    except CheckpointException as error:
        failures = sorted(error.failures.items())
        reasons = "; ".join(f"rank {rank}: {type(why[0]).__name__}: {why[0]}" for rank, why in failures)
        raise CheckpointError(f"the ranks could not do it together: {reasons}") from error


def gather(saved: SavedStep, folder: Path) -> None:
    """Make ``folder`` torch's checkpoint folder: links to the files of all parts, whose names tell the ranks apart.

    For other programs that read such folders. Raises ``CheckpointError`` if two parts have a file of the same name.

    >>> import tempfile, torch
    >>> from phalanx.checkpoint import Checkpointer
    >>> checkpointer = Checkpointer(tempfile.mkdtemp(), sharded=True)
    >>> checkpointer.save(100, DistributedState({"weight": torch.ones(2)}))
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
