"""What agents write into the store, and how: one JSON object per key, read back only if it is well formed. Pure.

Everybody with the job's secret can write these keys, and a job may mix releases: unknown fields are passed over,
fields with a default may be missing, and anything else that does not fit is refused with one sentence (``BadRecord``).
"""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, ClassVar, TypeVar

from phalanx.records import PLAIN_KINDS, Struct, fits

__all__ = [
    "Answer",
    "BadRecord",
    "Joined",
    "Member",
    "Members",
    "NodeRecord",
    "Outcome",
    "Phase",
    "Report",
    "RoundRecord",
    "SignalRecord",
    "VerdictRecord",
    "Waiting",
    "decode",
    "encode",
]

StructT = TypeVar("StructT", bound=Struct)


class BadRecord(ValueError):
    """A key of the store does not hold what belongs there."""


class Phase(Enum):
    """Where a round is."""

    JOINING = "joining"
    SETTLED = "settled"
    COLLECTING = "collecting"


class Outcome(Enum):
    """How a member's part in a round ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class NodeRecord(Struct, kw_only=True):
    """``nodes/here/<node id>``: a node is present."""

    host: str
    address: str
    """Where the store saw it come from, or what the user says."""
    outside_address: str = ""
    """Where other machines reach it if ``address`` is a loopback one; empty: unknown."""
    boot_id: str = ""
    slots: int
    role: str = "default"
    order_hint: int | None = None
    topology: str = ""
    is_leaving: bool = False
    excluded: str = ""
    """Why this node should not be used while there are others; empty: it may be."""
    excluded_in: int = 0
    """The round that it ran when it was excluded."""
    is_busy: bool = False
    """Workers of an earlier round may be alive until this node has joined one."""
    last_round: int = 0
    """The last settled round that it saw: a store that lost its data learns the count of rounds from survivors."""
    last_restart_count: int = 0
    last_policy_state: str = ""
    last_ran: int = 0
    """The last round that ran on it, and what it was there."""
    last_group_rank: int = -1
    last_group_world_size: int = 0


class RoundRecord(Struct, kw_only=True):
    """``job/round``: the current round."""

    number: int
    phase: Phase
    previous: int = 0
    """The last round that settled before this one; 0: none."""
    reason: str = ""
    restart_count: int = 0
    is_failure: bool = False
    """What ended it was a worker's failure, and no change of membership."""
    is_planned: bool = False
    """What ended it was a node that joins, or leaves in peace."""
    has_stragglers: bool = False
    """Members that have not ended by now have failed by that."""
    policy_state: str = ""
    """What the restart policy remembers; its own affair."""
    delay_s: float = 0.0
    """How long after its opening it settles at the earliest."""
    master_addr: str = ""
    master_port: int = 0


class Joined(Struct, kw_only=True):
    """``nodes/joined/<round>/<node id>``: my old workers are gone, and I hold this port for rank 0."""

    registration: int
    """The create-revision of the node's registration: which life of the node this is."""
    port: int = 0


class Member(Struct, kw_only=True):
    """One node of a round. It *is* the pair (node id, registration): another registration is another member."""

    node_id: str
    registration: int
    host: str
    slots: int
    role: str = "default"


class Members(Struct, kw_only=True):
    """``members/<round>``: in the order of the group ranks."""

    members: tuple[Member, ...]


class Report(Struct, kw_only=True):
    """``nodes/reports/<round>/<node id>/outcome``: a member's workers are gone, and this is how it went."""

    outcome: Outcome
    has_own_reason: bool = False
    """The node stopped its workers by itself: it left, or could not hear the store."""
    step: int | None = None
    """The furthest that its workers have told of in this round."""
    checkpoint: int | None = None
    """The step of the last checkpoint that they have told of."""
    evidence: str = ""
    """The failures, as the verdict wrote them; its own affair."""
    life_s: float | None = None
    """Not the outcome but a question for a single restart: that worker had run for so long."""


class Answer(Struct, kw_only=True):
    """``job/single/<node id>``: the leader's answer to a node that asked for a single restart: it is granted."""

    number: int
    """The round."""
    sequence: int
    """Which question of the node in this round."""
    restart_count: int
    reason: str
    delay_s: float = 0.0


class AskReport(Struct, kw_only=True):
    """``nodes/reports/<round>/<node id>/<kind>``: which asks this node has done."""

    ids: str
    """One in each line."""


class AskRecord(Struct, kw_only=True):
    """``job/asks/<kind>/…``: what is asked of all nodes of a round."""

    id: str
    node_id: str
    """Who asks; empty: the leader, for the job."""
    round: int
    reason: str = ""
    is_answered: bool = False
    """All members have done it, as the leader knows."""


class SignalRecord(Struct, kw_only=True):
    """``job/signals/<number>``: the last time that an agent was sent this signal."""

    node_id: str


class VerdictRecord(Struct, kw_only=True):
    """``job/verdict``: written once."""

    text: str
    """The verdict, as the agent wrote it; its own affair."""


class Waiting(Struct, kw_only=True):
    """``job/waiting``: who is here, who is missing, and when it starts, for people."""

    text: str


_ENUMS: dict[str, type[Enum]] = {"Phase": Phase, "Outcome": Outcome}


class _Rows:
    """A tuple of records as a list of lists: a thousand members are to stay small."""

    kinds: ClassVar[dict[str, type[Struct]]] = {"tuple[Member, ...]": Member}


def encode(record: Struct) -> bytes:
    """The record as the bytes of a key."""
    return json.dumps(_plain(record), separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def _plain(record: Struct) -> dict[str, Any]:
    return {field: _plain_value(getattr(record, field)) for field in record.__struct_fields__}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [[getattr(row, field) for field in row.__struct_fields__] for row in value]
    return value


def decode(kind: type[StructT], value: bytes) -> StructT:
    """The record in the bytes of a key. Raises ``BadRecord``."""
    try:
        read = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"a {kind.__name__} in the store is no JSON: {error}") from None
    if not isinstance(read, dict):
        raise BadRecord(f"a {kind.__name__} in the store is no object but {value[:60]!r}")
    return _build(kind, read)


def _build(kind: type[StructT], read: dict[str, Any]) -> StructT:
    annotations = kind.__annotations__
    fields = {name: _field(kind, name, annotations[name], read[name]) for name in annotations if name in read}
    try:
        return kind(**fields)
    except TypeError as error:
        raise BadRecord(f"a record in the store is not whole: {error}") from None


def _field(kind: type[Struct], name: str, annotation: str, value: Any) -> Any:
    if annotation in PLAIN_KINDS:
        if fits(annotation, value):
            return value
    elif annotation in _ENUMS:
        try:
            return _ENUMS[annotation](value)
        except ValueError:
            pass
    elif isinstance(value, list):
        row_kind = _Rows.kinds[annotation]
        names = row_kind.__struct_fields__
        least = len(names) - len(row_kind.__struct_defaults__)
        # Each agent reads all members of a round, which may be a thousand: one look per cell, and no more.
        kinds = [PLAIN_KINDS[row_kind.__annotations__[one]] for one in names]
        if all(
            isinstance(row, list)
            and len(row) >= least
            and all(type(cell) in allowed for cell, allowed in zip(row, kinds, strict=False))
            for row in value
        ):
            return tuple(row_kind(**dict(zip(names, row, strict=False))) for row in value)
    raise BadRecord(f"{kind.__name__}.{name} in the store is {str(value)[:60]!r}, not {annotation}")
