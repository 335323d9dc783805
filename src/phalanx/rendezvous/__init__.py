"""How agents agree on a round. On one machine the agreement is with oneself, along the same path.

The public names are torchelastic's. Each is loaded when it is used: a job on one machine needs none of them.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.rendezvous.errors import RendezvousClosedError as RendezvousClosedError
    from phalanx.rendezvous.errors import RendezvousConnectionError as RendezvousConnectionError
    from phalanx.rendezvous.errors import RendezvousError as RendezvousError
    from phalanx.rendezvous.errors import RendezvousGracefulExitError as RendezvousGracefulExitError
    from phalanx.rendezvous.errors import RendezvousStateError as RendezvousStateError
    from phalanx.rendezvous.errors import RendezvousTimeoutError as RendezvousTimeoutError
    from phalanx.rendezvous.handler import RendezvousHandler as RendezvousHandler
    from phalanx.rendezvous.handler import RendezvousInfo as RendezvousInfo
    from phalanx.rendezvous.parameters import RendezvousParameters as RendezvousParameters
    from phalanx.rendezvous.registry import RendezvousHandlerCreator as RendezvousHandlerCreator
    from phalanx.rendezvous.registry import RendezvousHandlerRegistry as RendezvousHandlerRegistry
    from phalanx.rendezvous.registry import rendezvous_handler_registry as rendezvous_handler_registry
    from phalanx.rendezvous.store_info import RendezvousStoreInfo as RendezvousStoreInfo

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.rendezvous.errors": (
            "RendezvousClosedError RendezvousConnectionError RendezvousError "
            "RendezvousGracefulExitError RendezvousStateError RendezvousTimeoutError"
        ),
        "phalanx.rendezvous.handler": "RendezvousHandler RendezvousInfo",
        "phalanx.rendezvous.parameters": "RendezvousParameters",
        "phalanx.rendezvous.registry": (
            "RendezvousHandlerCreator RendezvousHandlerRegistry rendezvous_handler_registry"
        ),
        "phalanx.rendezvous.store_info": "RendezvousStoreInfo",
    },
)
