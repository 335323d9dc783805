"""How long the steps of a rendezvous may take: torchelastic's names and defaults."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from phalanx.records import Struct

__all__ = ["RendezvousSettings", "RendezvousTimeout"]


class RendezvousTimeout:
    """Four limits. Raises ``ValueError`` for one that is not positive."""

    DEFAULTS: ClassVar[dict[str, timedelta]] = {
        "join": timedelta(seconds=600),
        "last_call": timedelta(seconds=30),
        "close": timedelta(seconds=30),
        "heartbeat": timedelta(seconds=5),
    }

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        given = {"join": join, "last_call": last_call, "close": close, "heartbeat": heartbeat}
        self._limits = {
            name: self.DEFAULTS[name] if limit is None else limit for name, limit in given.items()
        }
        for name, limit in self._limits.items():
            if limit <= timedelta(0):
                raise ValueError(f"the {name} timeout of a rendezvous is more than zero, not {limit}")

    @property
    def join(self) -> timedelta:
        """How long a round may take to get its minimum of nodes."""
        return self._limits["join"]

    @property
    def last_call(self) -> timedelta:
        """How long a round that has its minimum waits for more."""
        return self._limits["last_call"]

    @property
    def close(self) -> timedelta:
        """How long closing may take."""
        return self._limits["close"]

    @property
    def heartbeat(self) -> timedelta:
        """How long one operation on the backend may take."""
        return self._limits["heartbeat"]


class RendezvousSettings(Struct):
    """What all nodes of a job agree on beforehand."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    keep_alive_max_attempt: int

    @property
    def ttl_s(self) -> float:
        """How long a node may be silent before it counts as lost, in seconds; one at least."""
        return max(1.0, self.keep_alive_interval.total_seconds() * self.keep_alive_max_attempt)
