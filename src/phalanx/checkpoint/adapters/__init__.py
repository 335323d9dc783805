"""What is saved through other libraries: each adapter is thin, and its library loads when it is used."""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.checkpoint.adapters.distributed import DistributedState as DistributedState
    from phalanx.checkpoint.adapters.distributed import gather as gather
    from phalanx.checkpoint.adapters.safetensors import SafeTensors as SafeTensors
    from phalanx.checkpoint.adapters.torch_save import TorchSave as TorchSave
    from phalanx.checkpoint.adapters.torch_state import TorchState as TorchState

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.checkpoint.adapters.distributed": "DistributedState gather",
        "phalanx.checkpoint.adapters.safetensors": "SafeTensors",
        "phalanx.checkpoint.adapters.torch_save": "TorchSave",
        "phalanx.checkpoint.adapters.torch_state": "TorchState",
    },
)
