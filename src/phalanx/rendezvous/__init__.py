"""How agents agree on a round. On one machine the agreement is with oneself, along the same path.

The public names are torchelastic's. Each is loaded when it is used: a job on one machine needs none of them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.rendezvous.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from phalanx.rendezvous.handler import RendezvousHandler, RendezvousInfo
    from phalanx.rendezvous.parameters import RendezvousParameters
    from phalanx.rendezvous.registry import (
        RendezvousHandlerCreator,
        RendezvousHandlerRegistry,
        rendezvous_handler_registry,
    )
    from phalanx.rendezvous.store_info import RendezvousStoreInfo

__all__ = [
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeoutError",
    "rendezvous_handler_registry",
]

_MODULES = {
    "RendezvousHandler": "handler",
    "RendezvousHandlerCreator": "registry",
    "RendezvousHandlerRegistry": "registry",
    "RendezvousInfo": "handler",
    "RendezvousParameters": "parameters",
    "RendezvousStoreInfo": "store_info",
    "rendezvous_handler_registry": "registry",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
