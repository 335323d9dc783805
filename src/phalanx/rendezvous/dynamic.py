"""``DynamicRendezvousHandler``: torchelastic's interface, and our rounds behind it.

Whoever wrote an agent of their own against torchelastic's handler gets the membership of our own agents: leases, one
settled membership for all, and no clock of another node. The state is in the backend's one value.

What differs, and is meant: a lost node is told to the others as ``num_nodes_waiting() > 0`` (torchelastic tells
nobody), and workers never share the agents' store.
"""

from __future__ import annotations

import os
import secrets
from datetime import timedelta
from typing import Any

from phalanx.rendezvous.backend import RendezvousBackend
from phalanx.rendezvous.backend_store import BackendStore
from phalanx.rendezvous.errors import RendezvousError
from phalanx.rendezvous.handler import RendezvousHandler, RendezvousInfo
from phalanx.rendezvous.limits import RendezvousSettings, RendezvousTimeout
from phalanx.rendezvous.parameters import RendezvousParameters
from phalanx.rendezvous.prefixed_store import prefixed
from phalanx.rendezvous.seat import Seat, boot_id, key_of
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.store_info import RendezvousStoreInfo
from phalanx.store.port import Store

__all__ = [
    "DynamicRendezvousHandler",
    "RendezvousBackend",
    "RendezvousSettings",
    "RendezvousTimeout",
    "create_handler",
]


class DynamicRendezvousHandler(RendezvousHandler):
    """A job whose nodes come and go. Made by ``from_backend``; ``next_rendezvous`` gives out parts of ``store``."""

    def __init__(
        self,
        settings: RendezvousSettings,
        backend: RendezvousBackend,
        store: Any,
        *,
        local_addr: str | None = None,
    ) -> None:
        self._settings = settings
        self._backend_name = backend.name
        self._store = store
        source_address = getattr(store, "source_address", None)

        async def open_store() -> Store:
            attempt_s = settings.timeout.heartbeat.total_seconds()
            return BackendStore(backend, attempt_s=attempt_s, source_address=source_address)

        join_s = settings.timeout.join.total_seconds()
        self._seat = Seat(
            MembershipSettings(
                run_id=key_of(settings.run_id),
                node_id=secrets.token_hex(8),
                host=os.uname().nodename,
                slots=1,
                min_nodes=settings.min_nodes,
                max_nodes=settings.max_nodes,
                local_addr=local_addr,
                boot_id=boot_id(),
                ttl_s=settings.ttl_s,
                last_call_s=settings.timeout.last_call.total_seconds(),
                join_timeout_s=join_s,
            ),
            open_store,
            join_s=join_s,
            ask_s=settings.timeout.close.total_seconds(),
        )

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: int = 5,
        keep_alive_max_attempt: int = 3,
    ) -> DynamicRendezvousHandler:
        """Make the handler of one node. A node is lost after ``interval`` (seconds) times ``max_attempt`` of silence.

        Raises ``ValueError`` for an empty run id and for limits that no job can meet.
        """
        if not run_id:
            raise ValueError("a rendezvous needs a run id, and it is empty")
        if min_nodes < 1:
            raise ValueError(f"a job needs at least one node, and min_nodes is {min_nodes}")
        if max_nodes < min_nodes:
            raise ValueError(f"max_nodes is {max_nodes}, which is less than min_nodes, {min_nodes}")
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            timeout or RendezvousTimeout(),
            timedelta(seconds=keep_alive_interval),
            keep_alive_max_attempt,
        )
        return cls(settings, backend, store, local_addr=local_addr)

    @property
    def settings(self) -> RendezvousSettings:
        """What the nodes of the job agree on."""
        return self._settings

    def get_backend(self) -> str:
        """Return the backend's own name."""
        return self._backend_name

    def get_run_id(self) -> str:
        """Return the run id."""
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """As the interface says. A node that is not needed waits without limit until it is, or the job ends.

        The port in ``bootstrap_store_info`` is free at this moment, and was held until now.
        """
        settled = self._seat.next_round()
        return RendezvousInfo(
            prefixed(self._store, f"phalanx.rendezvous.{self._settings.run_id}.{settled.number}"),
            settled.group_rank,
            settled.group_world_size,
            RendezvousStoreInfo(settled.master_addr, settled.master_port),
        )

    def is_closed(self) -> bool:
        """As the interface says."""
        return self._seat.is_closed()

    def set_closed(self) -> None:
        """As the interface says. Raises ``RendezvousConnectionError`` when the close timeout passes before."""
        self._seat.close_job("the rendezvous was closed by a node")

    def num_nodes_waiting(self) -> int:
        """As the interface says; also more than zero when a member was lost or wants another round."""
        return self._seat.nodes_waiting()

    def shutdown(self) -> bool:
        """Close the rendezvous and leave it. Return False, and leave, if closing it is not possible."""
        try:
            self._seat.close_job("the rendezvous was shut down by a node")
            return True
        except RendezvousError:
            return False
        finally:
            self._seat.leave(self._settings.timeout.close.total_seconds())


def create_handler(
    store: Any, backend: RendezvousBackend, params: RendezvousParameters
) -> DynamicRendezvousHandler:
    """Make a handler from parameters: ``join_timeout``, ``last_call_timeout``, ``close_timeout``,
    ``heartbeat_timeout``, ``keep_alive_interval``, ``keep_alive_max_attempt``, in seconds and whole numbers.

    Raises ``ValueError``.
    """
    limits = {
        name: params.get_as_int(f"{name}_timeout") for name in ("join", "last_call", "close", "heartbeat")
    }
    given = {name: timedelta(seconds=limit) for name, limit in limits.items() if limit is not None}
    return DynamicRendezvousHandler.from_backend(
        params.run_id,
        store,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        RendezvousTimeout(**given),
        keep_alive_interval=params.get_as_int("keep_alive_interval", 5) or 0,
        keep_alive_max_attempt=params.get_as_int("keep_alive_max_attempt", 3) or 0,
    )
