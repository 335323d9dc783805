"""The interface between an agent and a rendezvous, as torchelastic publishes it.

Handlers that people have written for torchelastic implement it, and drive our agent through ``foreign``. Ours
implement it too (``dynamic``, ``static``), for programs that were written against it; our own agent does not use them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from phalanx.records import Struct

if TYPE_CHECKING:
    from phalanx.rendezvous.store_info import RendezvousStoreInfo

__all__ = ["RendezvousHandler", "RendezvousInfo"]


class RendezvousInfo(Struct):
    """What ``next_rendezvous`` agreed on, as one node sees it.

    >>> from phalanx.rendezvous import RendezvousStoreInfo
    >>> info = RendezvousInfo(None, 0, 2, RendezvousStoreInfo("n1", 29500))
    >>> info.rank, info.world_size, info.bootstrap_store_info.master_addr
    (0, 2, 'n1')
    """

    store: Any
    """A key-value store that all nodes of this round share (``get``, ``set``, ``add``, ``wait`` …), empty at first."""
    rank: int
    """The place of this node among the nodes: torchelastic's group rank."""
    world_size: int
    """How many nodes there are."""
    bootstrap_store_info: RendezvousStoreInfo | None
    """Where the workers meet: ``MASTER_ADDR`` and ``MASTER_PORT``. None: the caller has to find out itself."""


class RendezvousHandler(ABC):
    """One node's part in the rendezvous of one job.

    The methods block, and are called by one thread at a time.

    >>> class Alone(RendezvousHandler):
    ...     def get_backend(self): return "alone"
    ...     def next_rendezvous(self): return RendezvousInfo(None, 0, 1, None)
    ...     def is_closed(self): return False
    ...     def set_closed(self): pass
    ...     def num_nodes_waiting(self): return 0
    ...     def get_run_id(self): return "fit"
    ...     def shutdown(self): return True
    >>> Alone().next_rendezvous().world_size
    1
    """

    @abstractmethod
    def get_backend(self) -> str:
        """Return the name under which the handler was asked for."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the store at ``bootstrap_store_info`` instead of opening their own there."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Leave the present round, if there is one, and wait until this node is part of the next.

        Raises ``RendezvousClosedError``, ``RendezvousTimeoutError``, ``RendezvousConnectionError`` or
        ``RendezvousStateError``; ``RendezvousGracefulExitError`` when the job ended while this node was a spare.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether the job is known to be over. It becomes true everywhere some time after ``set_closed`` anywhere."""

    @abstractmethod
    def set_closed(self) -> None:
        """Say that the job is over: there is no further round."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """Return how many nodes wait for a next round. More than zero: call ``next_rendezvous`` to take them in."""

    @abstractmethod
    def get_run_id(self) -> str:
        """Return what tells this job from others at the same endpoint."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Let go of connections and threads, and close the rendezvous. Return whether that went well."""
