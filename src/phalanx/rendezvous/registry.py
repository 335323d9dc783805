"""Which names of backends stand for which handlers, and how a plug-in's name becomes code.

Entry points are read only when a name was asked for that nobody registered, and only the one of that name is loaded:
a broken plug-in is trouble for those alone who want it. Two groups: entries of ``torchrun.handlers`` are called without
arguments and return a creator, as torchrun does it; entries of ``phalanx.rendezvous_handlers`` are creators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.rendezvous.handler import RendezvousHandler
from phalanx.rendezvous.parameters import RendezvousParameters

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "OUR_GROUP",
    "TORCHRUN_GROUP",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

TORCHRUN_GROUP = "torchrun.handlers"
OUR_GROUP = "phalanx.rendezvous_handlers"

RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]


class RendezvousHandlerRegistry:
    """Names of backends, and the functions that make their handlers. The process has one.

    >>> registry = RendezvousHandlerRegistry()
    >>> def refuse(parameters):
    ...     raise ValueError(f"there is nobody at {parameters.endpoint}")
    >>> registry.register("mine", refuse)
    >>> registry.create_handler(RendezvousParameters("mine", "n1:29400", "fit", 1, 2))
    Traceback (most recent call last):
        ...
    ValueError: there is nobody at n1:29400
    """

    def __init__(self) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Let a name stand for a creator. Saying the same twice is harmless.

        Raises ``ValueError`` for an empty name, and for one that stands for another creator already.
        """
        if not backend:
            raise ValueError("a rendezvous backend is registered under a name, and it is empty")
        known = self._creators.setdefault(backend, creator)
        if known != creator:
            raise ValueError(
                f"the rendezvous backend {backend!r} is registered already, with {known!r}; "
                f"{creator!r} needs another name"
            )

    def registered(self, backend: str) -> RendezvousHandlerCreator | None:
        """Return the creator that was registered under a name; None: plug-ins are to be asked for it."""
        return self._creators.get(backend)

    def find_creator(self, backend: str) -> RendezvousHandlerCreator:
        """Return who makes the handlers of a backend: one that was registered, else a plug-in's.

        Raises ``ValueError``, with the names that are known, or with what is wrong with the plug-in.
        """
        if backend not in self._creators:
            self.register(backend, self._load_plug_in(backend))
        return self._creators[backend]

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler of ``params.backend``.

        Raises ``ValueError`` for an unknown backend and ``RuntimeError`` for a handler that goes by another name,
        besides what the creator itself raises.
        """
        handler = self.find_creator(params.backend)(params)
        if handler.get_backend() != params.backend:
            raise RuntimeError(
                f"the creator of rendezvous backend {params.backend!r} made a handler that calls itself "
                f"{handler.get_backend()!r}; its name and what its get_backend() returns must be the same"
            )
        return handler

    def _load_plug_in(self, backend: str) -> RendezvousHandlerCreator:
        from importlib.metadata import entry_points

        candidates = {
            entry.value: entry
            for group in (TORCHRUN_GROUP, OUR_GROUP)
            for entry in entry_points(group=group, name=backend)
        }
        if not candidates:
            installed = {
                entry.name for group in (OUR_GROUP, TORCHRUN_GROUP) for entry in entry_points(group=group)
            }
            names = ", ".join(sorted({*self._creators, *installed}))
            raise ValueError(
                f"no rendezvous backend is called {backend!r} (there are: {names}); register one, or install a package "
                f"with an entry point of {OUR_GROUP} or {TORCHRUN_GROUP}"
            )
        if len(candidates) > 1:
            raise ValueError(
                f"several installed packages offer a rendezvous backend {backend!r} ({', '.join(sorted(candidates))}); "
                "uninstall all but one"
            )
        return _creator_of(*candidates.values())


def _creator_of(entry: EntryPoint) -> RendezvousHandlerCreator:
    try:
        loaded: Any = entry.load()
        creator: Any = loaded() if entry.group == TORCHRUN_GROUP else loaded
    except Exception as error:
        raise ValueError(
            f"the plug-in of rendezvous backend {entry.name!r} ({entry.value}) did not load: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not callable(creator):
        raise ValueError(  # noqa: TRY004 # one kind of error for all that is wrong with a plug-in
            f"the plug-in of rendezvous backend {entry.name!r} ({entry.value}) gave {creator!r}, which is no creator"
        )
    return creator  # type: ignore[no-any-return]  # callable is all that can be asked of a plug-in before it runs


def _create_static(params: RendezvousParameters) -> RendezvousHandler:
    from phalanx.rendezvous.static import create_rdzv_handler

    return create_rdzv_handler(params)


def _create_c10d(params: RendezvousParameters) -> RendezvousHandler:
    from phalanx.rendezvous.c10d_backend import create_backend
    from phalanx.rendezvous.dynamic import create_handler

    backend, store = create_backend(params)
    try:
        return create_handler(store, backend, params)
    except BaseException:
        store.close()
        raise


def _create_etcd(params: RendezvousParameters) -> RendezvousHandler:
    from phalanx.rendezvous.dynamic import create_handler
    from phalanx.rendezvous.etcd_backend import create_backend

    backend, store = create_backend(params)
    try:
        return create_handler(store, backend, params)
    except BaseException:
        store.client.close()
        raise


rendezvous_handler_registry = RendezvousHandlerRegistry()
rendezvous_handler_registry.register("static", _create_static)
rendezvous_handler_registry.register("c10d", _create_c10d)
rendezvous_handler_registry.register("etcd", _create_etcd)
rendezvous_handler_registry.register("etcd-v2", _create_etcd)


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler that ``params.backend`` names, from the registry of this process.

    >>> static = get_rendezvous_handler(RendezvousParameters("static", "localhost:29400", "fit", 1, 1, rank=0))
    >>> static.get_backend(), static.get_run_id()
    ('static', 'fit')
    """
    return rendezvous_handler_registry.create_handler(params)
