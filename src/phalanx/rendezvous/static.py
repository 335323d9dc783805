"""``StaticTCPRendezvous``: all members are known beforehand, and each knows its rank.

Rank 0 serves the store that the nodes agree through; not on the master port, which belongs to the workers' rank 0, but
on the next one. A round forms when every node has come; there is no leaving, no joining and no closing.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from phalanx.rendezvous.endpoint import parse_rendezvous_endpoint
from phalanx.rendezvous.errors import RendezvousError
from phalanx.rendezvous.handler import RendezvousHandler, RendezvousInfo
from phalanx.rendezvous.parameters import RendezvousParameters
from phalanx.rendezvous.seat import Seat, boot_id, key_of
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.store_info import RendezvousStoreInfo
from phalanx.store.port import Store

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]

TIMEOUT_S = 600  # torchelastic's
CLOSE_TIMEOUT_S = 30.0
NO_PORT = -1


class StaticTCPRendezvous(RendezvousHandler):
    """The rendezvous of node ``rank`` of ``world_size``; ``timeout`` in seconds is for the others to come.

    ``store_port`` is where rank 0 serves the store; None: the port after ``master_port``.
    """

    def __init__(
        self,
        master_addr: str,
        master_port: int,
        rank: int,
        world_size: int,
        run_id: str,
        timeout: int,
        *,
        store_port: int | None = None,
    ) -> None:
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        port = store_port or master_port + 1

        async def open_store() -> Store:
            from phalanx.store.hosting import open_hosted

            return await open_hosted(master_addr, port, is_host=rank == 0, run_id=key_of(run_id))

        self._seat = Seat(
            MembershipSettings(
                run_id=key_of(run_id),
                node_id=secrets.token_hex(8),
                host=os.uname().nodename,
                slots=1,
                min_nodes=world_size,
                max_nodes=world_size,
                order_hint=rank,
                boot_id=boot_id(),
                master_addr=master_addr,
                master_port=master_port or None,
                is_static=True,
                join_timeout_s=float(timeout),
                drain_s=CLOSE_TIMEOUT_S,
                growth=Growth.NEVER,
            ),
            open_store,
            join_s=float(timeout),
            ask_s=CLOSE_TIMEOUT_S,
        )

    def get_backend(self) -> str:
        """Return ``static``."""
        return "static"

    def get_run_id(self) -> str:
        """Return the run id."""
        return self.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until every node has called this, once more for each round.

        Raises ``RendezvousTimeoutError``, which says who is here, and ``RendezvousConnectionError``.
        """
        settled = self._seat.next_round()
        return RendezvousInfo(
            self._seat.values_of(settled),
            settled.group_rank,
            settled.group_world_size,
            RendezvousStoreInfo(settled.master_addr, settled.master_port),
        )

    def is_closed(self) -> bool:
        """Return False: what the members are was settled before they began."""
        return False

    def set_closed(self) -> None:
        """Do nothing, for the same reason."""

    def num_nodes_waiting(self) -> int:
        """Return 0: no other node can come."""
        return 0

    def shutdown(self) -> bool:
        """Leave. Rank 0, which serves the store, waits for the others to leave before, half a minute at most."""
        try:
            self._seat.leave(CLOSE_TIMEOUT_S)
        except RendezvousError:
            return False
        return True


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make a handler from ``params.endpoint``, with its port, and the options ``rank``, ``timeout``, ``store_port``.

    Raises ``ValueError`` when one of the first two is missing.
    """
    rank: Any = params.get("rank")
    if rank is None:
        raise ValueError("the static rendezvous needs the rank of this node; give it with --node-rank")
    endpoint = params.endpoint.strip()
    if not endpoint:
        raise ValueError(
            "the static rendezvous needs the endpoint of rank 0; give --master-addr and --master-port"
        )
    host, port = parse_rendezvous_endpoint(endpoint, NO_PORT)
    if port == NO_PORT:
        raise ValueError(f"the endpoint {endpoint!r} of rank 0 has no port; give it with --master-port")
    return StaticTCPRendezvous(
        host,
        port,
        int(rank),
        params.max_nodes,
        params.run_id,
        params.get_as_int("timeout", TIMEOUT_S) or TIMEOUT_S,
        store_port=params.get_as_int("store_port"),
    )
