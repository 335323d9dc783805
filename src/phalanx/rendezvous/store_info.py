"""Where the workers of a round meet: ``MASTER_ADDR`` and ``MASTER_PORT``, told by rank 0 through the store."""

from __future__ import annotations

from typing import Any, ClassVar

from phalanx.records import Struct

__all__ = ["RendezvousStoreInfo", "own_address"]


class RendezvousStoreInfo(Struct):
    """The address and port at which global rank 0 listens.

    >>> RendezvousStoreInfo("n1", 29500).master_port
    29500
    """

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"

    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int, store: Any, local_addr: str | None, server_port: int | None = None
    ) -> RendezvousStoreInfo:
        """Rank 0 writes where it is into ``store``, the others read it there, waiting as long as the store does.

        ``store`` needs ``set`` and ``get``, as torch's stores have them. Rank 0 is at ``local_addr``, or else at the
        address by which this machine reaches the others (torchelastic asks a name server for the host's full name,
        which may be unknown to everybody else); its port is ``server_port``, or one that is free at this moment.
        """
        if rank == 0:
            address, port = local_addr or own_address(store), server_port or _free_port()
            store.set(RendezvousStoreInfo.MASTER_ADDR_KEY, address.encode())
            store.set(RendezvousStoreInfo.MASTER_PORT_KEY, str(port).encode())
        return RendezvousStoreInfo(
            store.get(RendezvousStoreInfo.MASTER_ADDR_KEY).decode(),
            int(store.get(RendezvousStoreInfo.MASTER_PORT_KEY)),
        )


def own_address(store: Any = None) -> str:
    """Return an address at which other nodes probably reach this one. Asks no name server.

    In this order: our end of the connection that reached the store, the interface of the default route, loopback.
    """
    if known := getattr(store, "source_address", None):
        return str(known)
    from phalanx.rendezvous.session import outside_address

    return outside_address() or "127.0.0.1"


def _free_port() -> int:
    """Return a port that was free a moment ago: the interface has no way to hold it until rank 0 binds it."""
    from phalanx.rendezvous.ports import hold_port

    held = hold_port()
    held.release()
    return held.number
