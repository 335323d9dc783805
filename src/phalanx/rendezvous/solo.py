"""The rendezvous of a node that is alone: every round settles at once, with a fresh MASTER_PORT.

It answers in the words that a rendezvous of many nodes uses (a settled ``Round``), so that the agent has one way
through its code for one machine and for a thousand.
"""

from __future__ import annotations

from phalanx.rendezvous.ports import HeldPort, hold_port
from phalanx.rendezvous.round import Round

__all__ = ["SoloRendezvous"]


class SoloRendezvous:
    """Opens rounds for one node.

    ``master_addr`` is what workers are told; the default, 127.0.0.1, needs no name server and works at once.
    """

    def __init__(
        self,
        local_world_size: int,
        *,
        master_addr: str | None = None,
        master_port: int | None = None,
        port_range: range | None = None,
    ) -> None:
        self._local_world_size = local_world_size
        self._master_addr = master_addr or "127.0.0.1"
        self._master_port = master_port
        self._port_range = port_range
        self._last_port: int | None = None

    def open_round(self, number: int, *, restart_count: int, reason: str) -> tuple[Round, HeldPort]:
        """Settle round ``number``. The caller releases the port when it spawns rank 0.

        Raises ``PortError`` when no port can be had.
        """
        earlier = () if self._last_port is None else (self._last_port,)
        port = hold_port(self._master_port, among=self._port_range, not_these=earlier)
        self._last_port = port.number
        settled = Round(
            number=number,
            restart_count=restart_count,
            reason=reason,
            group_rank=0,
            group_world_size=1,
            first_rank=0,
            local_world_size=self._local_world_size,
            world_size=self._local_world_size,
            master_addr=self._master_addr,
            master_port=port.number,
        )
        return settled, port
