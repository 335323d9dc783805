"""Durable checkpoints: a step is published whole or not at all, checked before it is loaded, kept while it is needed.

``Checkpointer`` saves and loads; whatever can write a file can be saved. ``TorchState``, ``TorchSave``, ``SafeTensors``
and ``DistributedState`` save what other libraries hold. Each name loads when it is used; importing
this package imports nothing else.

Exceptions: ``CheckpointError``, of which ``SaveFailed``, ``NoGoodStep``, ``CannotCheck``, ``NoPeers`` and
``StillSaving`` are kinds.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.checkpoint.adapters.distributed import DistributedState as DistributedState
    from phalanx.checkpoint.adapters.distributed import gather as gather
    from phalanx.checkpoint.adapters.safetensors import SafeTensors as SafeTensors
    from phalanx.checkpoint.adapters.torch_save import TorchSave as TorchSave
    from phalanx.checkpoint.adapters.torch_state import TorchState as TorchState
    from phalanx.checkpoint.checkpointer import Checkpointer as Checkpointer
    from phalanx.checkpoint.exceptions import CannotCheck as CannotCheck
    from phalanx.checkpoint.exceptions import CheckpointError as CheckpointError
    from phalanx.checkpoint.exceptions import NoGoodStep as NoGoodStep
    from phalanx.checkpoint.exceptions import NoPeers as NoPeers
    from phalanx.checkpoint.exceptions import SaveFailed as SaveFailed
    from phalanx.checkpoint.exceptions import StillSaving as StillSaving
    from phalanx.checkpoint.saved import Loaded as Loaded
    from phalanx.checkpoint.saved import Problem as Problem
    from phalanx.checkpoint.saved import SavedStep as SavedStep

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.checkpoint.adapters.distributed": "DistributedState gather",
        "phalanx.checkpoint.adapters.safetensors": "SafeTensors",
        "phalanx.checkpoint.adapters.torch_save": "TorchSave",
        "phalanx.checkpoint.adapters.torch_state": "TorchState",
        "phalanx.checkpoint.checkpointer": "Checkpointer",
        "phalanx.checkpoint.exceptions": "CannotCheck CheckpointError NoGoodStep NoPeers SaveFailed StillSaving",
        "phalanx.checkpoint.saved": "Loaded Problem SavedStep",
    },
)
