"""A round: one agreed membership with ranks. Pure records; the machine that agrees on them lives beside them.

Semantics of the rank fields are torchelastic's (``RANK``, ``LOCAL_RANK``, ``GROUP_RANK``, ``ROLE_RANK`` and their
world sizes). The round number only grows; the restart count is what the restart policy has charged so far.
"""

from __future__ import annotations

from phalanx.records import Struct

__all__ = ["Round"]


class Round(Struct, kw_only=True):
    """What one node knows of the round it belongs to."""

    number: int
    """1, 2, …: grows with every round, also with those that cost nothing."""
    restart_count: int
    """How many restarts were charged to the budget when this round opened."""
    reason: str
    """Why this round was opened, in words for people (empty for the first)."""
    group_rank: int
    """This node's place among the nodes of the round."""
    group_world_size: int
    """Nodes in the round."""
    first_rank: int
    """The global rank of this node's local rank 0."""
    local_world_size: int
    """Workers on this node."""
    world_size: int
    """Workers in the round."""
    master_addr: str
    master_port: int
    delay_s: float = 0.0
    """How long it waited before it started; its reason was told then."""
    role_first_rank: int | None = None
    """The role rank of this node's local rank 0: counted over the nodes of its role. None: all have one role."""
    role_world_size: int | None = None

    def rank(self, local_rank: int) -> int:
        """The global rank of a worker of this node."""
        return self.first_rank + local_rank

    def role_rank(self, local_rank: int) -> int:
        """The rank of a worker of this node among the workers of its role."""
        return (self.first_rank if self.role_first_rank is None else self.role_first_rank) + local_rank

    @property
    def role_size(self) -> int:
        """Workers of this node's role."""
        return self.world_size if self.role_world_size is None else self.role_world_size
