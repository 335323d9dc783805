"""Between the machine of a member and the session that performs: what it asks of the store, and what it hears. Pure.

Events are past tense, commands are imperative. Times are the driver's monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records import Struct
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.stored import Report
from phalanx.store.port import Batch, Compare, KeyValue, Operation

__all__ = [
    "WHY_LOST",
    "BarrierPassed",
    "CheckpointDone",
    "CloseSession",
    "ConfirmLease",
    "EndAsked",
    "Fence",
    "FirstSignSeen",
    "Heard",
    "HoldPort",
    "HurryAsked",
    "JobDecided",
    "KeyChanged",
    "KeyRead",
    "KeysListed",
    "LeaseEnded",
    "LeaseRenewed",
    "LeaveAsked",
    "MeetingBegan",
    "MeetingFailed",
    "NodeExcluded",
    "OpenSession",
    "PartEnded",
    "PortHeld",
    "PortNotHeld",
    "Read",
    "ReleasePort",
    "RenewLease",
    "RevokeLease",
    "RoundFormed",
    "SessionClosed",
    "SessionOpened",
    "SignalHeard",
    "SignalSent",
    "SingleFailed",
    "Slept",
    "StartSingle",
    "StartWatch",
    "StopRound",
    "StopWatch",
    "StoreFailed",
    "StoreNotReached",
    "StoreWasReset",
    "TimePassed",
    "Told",
    "Transact",
    "Transacted",
    "TransactionUnclear",
    "WorkerFailed",
    "WorkersGone",
]


class Heard(Struct):
    """Base of what the agent's machine passes on to its membership without a look."""


# Commands to the session


class OpenSession(Struct):
    """Reach the store and take a lease; keep trying, and renew the lease until it ends."""


class RevokeLease(Struct):
    """End the lease, and with it this node's registration; stay connected."""


class CloseSession(Struct):
    """Revoke the lease and leave the store. ``lingers``: who serves it waits a little for who is connected still."""

    lingers: bool = False


class StartWatch(Struct):
    """List the keys under ``prefix``, then tell each change."""

    prefix: str


class StopWatch(Struct):
    """Watch ``prefix`` no more."""

    prefix: str


class RenewLease(Struct):
    """Renew the lease now; its time runs short."""


class Read(Struct):
    """Read one key."""

    key: str


class Transact(Struct):
    """One attempt of a transaction. ``purpose`` comes back with the answer; one per purpose is under way at a time."""

    purpose: str
    compares: Sequence[Compare]
    then: Sequence[Operation]
    otherwise: Sequence[Operation] = ()


class ConfirmLease(Struct):
    """Renew the lease now; the answer shows that it was alive after this moment."""

    number: int


# Commands to the node


class Fence(Struct):
    """Nothing of the job may run on this node from ``at`` on, unless told again; None: no limit."""

    at: float | None


class HoldPort(Struct):
    """Bind a port that rank 0 could use in round ``number``."""

    number: int


class ReleasePort(Struct):
    """The held port is not needed any more."""


# Notices to the agent's machine


class Told(Struct):
    """One line for people."""

    text: str


class RoundFormed(Struct):
    """This node is a member of a settled round, and its lease was alive after that was seen: workers may start."""

    round: Round


class StopRound(Struct):
    """The round is over for everybody, or may be: stop the workers."""

    reason: str
    grace_s: float | None = None
    """A shorter grace than the user's, when time is short."""
    are_stragglers: bool = False
    """Workers that still run have failed by that."""
    is_own: bool = False
    """Nobody asked for it: this node cannot hear the store."""
    cause: StopCause = StopCause.LOSS


class JobDecided(Struct):
    """The leader has spoken the verdict; ``text`` is what the policy wrote."""

    text: str


class MeetingFailed(Struct):
    """No round can be formed, or the store is lost for good: this agent's part is over."""

    reason: str
    is_mistake: bool = False
    """Nothing was started, and what was asked for does not fit: another secret, another job at the endpoint."""


class StartSingle(Struct):
    """The leader has answered: a single restart of this worker, ``delay_s`` from now."""

    local_rank: int
    restart_count: int
    reason: str
    delay_s: float


class SignalHeard(Struct):
    """Another agent was sent a signal that stops nothing."""

    number: int
    node_id: str


class BarrierPassed(Struct):
    """This node's workers have succeeded, and it has waited for the others as long as it was told to."""


# Events from the agent's machine


class MeetingBegan(Struct):
    """The agent is ready to meet the others."""


class FirstSignSeen(Struct):
    """A worker has recorded an exception."""

    text: str


class WorkerFailed(Struct):
    """A worker of the round failed; the others of this node are being stopped."""

    is_straggler: bool = False
    """By running on long after others had ended."""


class SingleFailed(Struct):
    """A worker of the round failed, nothing of it is left, and the others run on: it asks to start again."""

    local_rank: int
    report: Report


class WorkersGone(Struct):
    """No process of the round is left on this node."""

    report: Report


class SignalSent(Struct):
    """A signal that stops nothing was sent to this agent; workers of all nodes are to have it."""

    number: int


class CheckpointDone(Struct):
    """A worker has finished a checkpoint."""

    step: int


class NodeExcluded(Struct):
    """This node should not be used for a while, as a worker or the policy says."""

    reason: str


class LeaveAsked(Struct):
    """This node is to leave the job."""


class EndAsked(Struct):
    """The job is to end everywhere, with this verdict, as the agent wrote it."""

    text: str


class PartEnded(Struct):
    """Nothing of the job is left on this node, and nothing will be: leave the store."""


class Slept(Heard):
    """This computer was suspended, and the machine's clock with it; the store's was not."""

    seconds: float


class HurryAsked(Struct):
    """Somebody is impatient: do not wait for others any more."""


class TimePassed(Struct):
    """``deadline`` has come."""


# Events from the session


class SessionOpened(Heard, kw_only=True):
    """The store was reached and granted a lease, asked for at ``sent_at``."""

    lease: int
    sent_at: float
    run_id: str = ""
    """The job's id, if the store had to tell it."""
    address: str
    """Where the others reach this node, as far as the connection shows."""
    outside_address: str
    """Where other machines reach it, if ``address`` is a loopback one; empty: unknown."""
    is_host: bool
    """The others lose the store, or a voter of it, when this process ends."""
    is_local: bool = False
    """The store is in this process, and frozen whenever we are."""


class StoreNotReached(Heard):
    """An attempt to open the session failed; the session goes on trying."""

    reason: str


class StoreFailed(Heard):
    """The store refuses us, or cannot be used at all: trying again is useless."""

    reason: str


class SessionClosed(Heard):
    """The lease is revoked, or cannot be, and the store is left."""


class LeaseRenewed(Heard):
    """A renewal sent at ``sent_at`` was acknowledged; ``number`` is that of ``ConfirmLease``."""

    sent_at: float
    number: int | None = None


class LeaseEnded(Heard):
    """The store says that our lease has ended; others count this node as lost."""


class StoreWasReset(Heard):
    """Another store answers, without data. Lease and watches are gone."""


WHY_LOST: dict[type[Heard], str] = {
    LeaseEnded: "the lease of this node has ended, and the others go on without it",
    StoreWasReset: "the store has lost its data and is another one now",
}


class KeysListed(Heard):
    """All keys under a watched prefix, as of one revision: the start of a watch, or of a new one after a gap."""

    prefix: str
    revision: int
    items: tuple[KeyValue, ...]


class KeyChanged(Heard):
    """The changes of one revision under a watched prefix."""

    prefix: str
    batch: Batch


class KeyRead(Heard):
    """A key as ``Read`` found it; None: it is not there."""

    key: str
    kv: KeyValue | None


class Transacted(Heard):
    """A transaction was answered."""

    purpose: str
    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...], ...] = ()


class TransactionUnclear(Heard):
    """No answer came: the transaction was applied or not, or may yet be."""

    purpose: str
    reason: str = ""


# Events from the node


class PortHeld(Heard):
    """A port for round ``number`` is bound."""

    number: int
    port: int


class PortNotHeld(Heard):
    """No port can be had."""

    number: int
    reason: str
