"""What a node brings to the rendezvous, and the limits that the job's members agree on. Pure record."""

from __future__ import annotations

from enum import Enum

from phalanx.records import Struct

__all__ = ["Growth", "MembershipSettings"]


class Growth(Enum):
    """When a settled round below ``max_nodes`` takes newcomers in."""

    NOW = "now"
    AT_CHECKPOINT = "at-checkpoint"
    NEVER = "never"


class MembershipSettings(Struct, kw_only=True):
    """One agent's part in a job. Times in seconds; names and defaults of limits are torchelastic's if it has them."""

    run_id: str
    node_id: str
    """Random, one per agent process."""
    host: str
    """The name of this machine, for people."""
    slots: int
    """How many workers this node runs."""
    role: str = "default"
    min_nodes: int
    max_nodes: int
    order_hint: int | None = None
    """``--node-rank``: nodes of a new membership are ordered by it, before their addresses."""
    topology: str = ""
    """A key (a switch, a rack) that keeps neighbours together: nodes with equal keys get adjacent ranks."""
    local_addr: str | None = None
    """``--local-addr``: what the others are told. None: the address that reached the store."""
    boot_id: str = ""
    """Which running kernel this is: two agents with one boot id share the machine, and loopback reaches both."""
    master_addr: str | None = None
    """Given by the user: workers get it as it is, instead of the address of group rank 0."""
    master_port: int | None = None
    is_static: bool = False
    """The members are known beforehand: node i of ``min_nodes`` has ``order_hint`` i, which is its group rank."""
    ttl_s: float = 15.0
    """The lease: a node that is silent for so long is lost (keep_alive_interval times keep_alive_max_attempt)."""
    last_call_s: float = 30.0
    join_timeout_s: float = 600.0
    store_timeout_s: float = 60.0
    """How long a store that was lost may take to come back."""
    drain_s: float = 30.0
    """How long the host of the store stays for the others when its own part is over."""
    growth: Growth = Growth.NOW
    exit_barrier_s: float | None = None
    """How long a node whose workers have succeeded waits for the others; None: as long as they run."""
    straggler_s: float | None = None
    """How long workers may run on after the first has succeeded; None: as long as they like."""
    exclude_for_s: float = 600.0
    """How long a node is not used when it was excluded for the first time; the time doubles with each."""
