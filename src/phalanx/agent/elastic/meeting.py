"""What the nodes of an in-process agent's round agree on through the store that their handler gives them.

A handler may give out the same store in every round, and torchelastic's does. So no key is used in two rounds, and the
workers do not share that store: rank 0 serves one of its own, on a port that node 0 offers.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from phalanx.multiprocessing.stopping import SignalException
from phalanx.rendezvous.foreign.agreement import NodeOffer, agree, welcome
from phalanx.rendezvous.handler import RendezvousHandler, RendezvousInfo
from phalanx.rendezvous.ports import HeldPort, hold_port

if TYPE_CHECKING:
    from phalanx.agent.elastic.worker_spec import WorkerSpec
    from phalanx.rendezvous.round import Round

__all__ = ["Meeting"]

DONE, SEEN, FAILED = "phalanx/agent/done/{}/{}", "phalanx/agent/seen/{}/{}", "phalanx/agent/failed/{}"
KNOWS = "phalanx/agent/knows/{}/{}"  # nodes but the first: that one has failed
LOOK_AGAIN_S = (
    0.1  # torchelastic's monitor interval; the store has nothing that all kinds of it could wait for
)
LAST_S = 10.0  # the others look every tenth of a second; who has not by then is gone


class Meeting:
    """This node's part in the rounds of one agent."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._info: RendezvousInfo | None = None
        self._round: Round | None = None
        self._port: HeldPort | None = None
        self._is_store_shared = False
        self.round_number = 0

    def meet(self, handler: RendezvousHandler) -> RendezvousInfo:
        """Wait for a round. Raises what the handler does."""
        self._round = None
        self._info = handler.next_rendezvous()
        # Older handlers have no such property.
        self._is_store_shared = bool(getattr(handler, "use_agent_store", False))
        if self._is_store_shared:
            welcome(self._info)
        self.round_number += 1
        return self._info

    def agree(self, store: Any, rank: int, world_size: int, *, restart_count: int) -> Round:
        """Agree on ranks. Raises ``RendezvousTimeoutError`` when a node of the round says nothing."""
        from phalanx.rendezvous.errors import RendezvousTimeoutError

        self.release_port()
        address, port = self._own_master()
        offer = NodeOffer(
            slots=self._spec.local_world_size,
            role=self._spec.role,
            number=self.round_number,
            restart_count=restart_count,
            reason="",
            master_addr=address,
            master_port=port,
        )
        try:
            self._round = agree(RendezvousInfo(store, rank, world_size, None), offer)
        except TimeoutError as silence:
            raise RendezvousTimeoutError(
                f"the nodes of a round did not agree on ranks: {silence}"
            ) from silence
        self.round_number = self._round.number
        return self._round

    def _own_master(self) -> tuple[str, int]:
        """Where rank 0 would be if it is ours. What the user gave counts first, then what the handler says.

        Not so where workers would share the handler's store: its own server has that port, and torchelastic's handler
        gives the address of the first round's node for ever.
        """
        spec = self._spec
        where = None if self._info is None or self._is_store_shared else self._info.bootstrap_store_info
        address = spec.master_addr or spec.local_addr or (where.master_addr if where is not None else "")
        if spec.master_port or where is not None:
            return address, spec.master_port or (where.master_port if where is not None else 0)
        self._port = hold_port()
        return address, self._port.number

    def master(self) -> tuple[str | None, int | None]:
        """MASTER_ADDR and MASTER_PORT of the round; where a subclass has assigned the ranks, as the handler says."""
        if self._round is not None:
            return (
                self._spec.master_addr or self._round.master_addr,
                self._spec.master_port or self._round.master_port,
            )
        where = None if self._info is None else self._info.bootstrap_store_info
        if where is None:
            return self._spec.master_addr, self._spec.master_port
        return self._spec.master_addr or where.master_addr, self._spec.master_port or where.master_port

    def release_port(self) -> None:
        """Let go of the port that was held for rank 0, which is about to start."""
        if self._port is not None:
            self._port.release()
            self._port = None

    # The end

    def tell_failure(self) -> None:
        """Say that this node has failed for good; nobody may be there to hear it."""
        if self._info is not None and self._info.world_size > 1:
            with suppress(Exception):
                self._info.store.set(FAILED.format(self.round_number), b"1")
            self.part()

    def part(self) -> None:
        """A node has failed, and this one is about to leave. Node 0 may be the store's host: it goes last.

        Who has not looked when the store is gone waits for its answer, a minute or longer.
        """
        info = self._info
        if info is None:
            return
        keys = [KNOWS.format(self.round_number, rank) for rank in range(1, info.world_size)]
        gives_up_at = time.monotonic() + LAST_S
        try:
            if info.rank != 0:
                info.store.set(keys[info.rank - 1], b"1")
                return
            while keys and not info.store.check(keys) and time.monotonic() < gives_up_at:
                time.sleep(LOOK_AGAIN_S)
        except SignalException:
            raise
        except Exception:  # noqa: BLE001 # a store of others; the job is over anyway
            return

    def has_other_failed(self) -> bool:
        """Whether another node has said so. A store that does not answer says nothing."""
        if self._info is None or self._info.world_size == 1:
            return False
        try:
            return bool(self._info.store.check([FAILED.format(self.round_number)]))
        except Exception:  # noqa: BLE001 # a store of others; workers need not suffer from it
            return False

    def wait_for_others(self, limit_s: float) -> None:
        """Wait until all nodes of the round are done, or one has failed. Raises ``TimeoutError``, and as the store."""
        info = self._info
        assert info is not None, "a round was given"
        keys = [DONE.format(self.round_number, rank) for rank in range(info.world_size)]
        info.store.set(keys[info.rank], b"1")
        gives_up_at = time.monotonic() + limit_s
        while not (info.store.check(keys) or self.has_other_failed()):
            if time.monotonic() >= gives_up_at:
                raise TimeoutError(f"the other nodes have not ended within {limit_s:g} s")
            time.sleep(LOOK_AGAIN_S)
        if not info.store.check(keys):
            self.part()
            return
        self._leave(info)

    def _leave(self, info: RendezvousInfo) -> None:
        """Node 0 may be the store's host: it goes last, when the others have seen that all are done."""
        keys = [SEEN.format(self.round_number, rank) for rank in range(1, info.world_size)]
        if info.rank != 0:
            info.store.set(keys[info.rank - 1], b"1")
            return
        gives_up_at = time.monotonic() + LAST_S
        while keys and not (info.store.check(keys) or self.has_other_failed()):
            if time.monotonic() >= gives_up_at:
                return
            time.sleep(LOOK_AGAIN_S)
