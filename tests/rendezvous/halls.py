"""A rendezvous as somebody else would write it: it knows torchelastic's interface and nothing of Phalanx's agents.

Nodes are threads of one process, and meet in a ``Hall``: a round forms when enough of them wait in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.rendezvous import (
    RendezvousClosedError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

__all__ = ["Hall", "HallHandler", "Values"]

PATIENCE_S = 30.0


class Values:
    """As much of a store of torch as a rendezvous needs: ``get`` waits for the key."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str | bytes) -> None:
        with self._changed:
            self.values[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, PATIENCE_S):
                raise RuntimeError(f"nobody has set {key}")
            return self.values[key]

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return all(key in self.values for key in keys)


class Hall:
    """Where nodes meet. ``size``: how many a round needs; ``store``: given out in every round, else a new one each."""

    def __init__(self, size: int, *, store: Any = None) -> None:
        self.size = size
        self.is_closed = False
        self.closings = 0
        self.waiting: list[HallHandler] = []
        self.members: list[HallHandler] = []
        self.changed = threading.Condition()
        self._store = store

    def new_store(self) -> Any:
        return Values() if self._store is None else self._store


class HallHandler(RendezvousHandler):
    """One node's way into the hall. ``before_call`` runs first in each call, with the method's name; it may raise."""

    def __init__(
        self,
        hall: Hall,
        *,
        where: RendezvousStoreInfo | None = None,
        use_agent_store: bool = False,
        before_call: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._hall = hall
        self._where = where
        self._use_agent_store = use_agent_store
        self._before_call = before_call
        self._given: list[RendezvousInfo] = []

    def get_backend(self) -> str:
        return "hall"

    @property
    def use_agent_store(self) -> bool:
        return self._use_agent_store

    def get_run_id(self) -> str:
        return "job"

    def next_rendezvous(self) -> RendezvousInfo:
        self._before_call("next_rendezvous")
        hall = self._hall
        with hall.changed:
            self._given.clear()
            hall.waiting.append(self)
            if len(hall.waiting) >= hall.size:
                self._form()
            hall.changed.notify_all()
            hall.changed.wait_for(lambda: self._given or hall.is_closed, PATIENCE_S)
            if self._given:
                return self._given[0]
            hall.waiting.remove(self)
            raise RendezvousClosedError("closed") if hall.is_closed else RendezvousTimeoutError("nobody came")

    def _form(self) -> None:
        hall = self._hall
        store, nodes = hall.new_store(), hall.waiting
        for rank, node in enumerate(nodes):
            node._given.append(RendezvousInfo(store, rank, len(nodes), self._where))
        hall.waiting, hall.members = [], nodes

    def is_closed(self) -> bool:
        self._before_call("is_closed")
        return self._hall.is_closed

    def set_closed(self) -> None:
        self._before_call("set_closed")
        with self._hall.changed:
            self._hall.is_closed = True
            self._hall.changed.notify_all()

    def num_nodes_waiting(self) -> int:
        self._before_call("num_nodes_waiting")
        return len(self._hall.waiting)

    def shutdown(self) -> bool:
        self._before_call("shutdown")
        self._hall.closings += 1
        return True
