"""The store port: what the agents of a job ask of the key-value store that they share.

Modelled on etcd v3: revisions are global and only grow; each change has one; a lease ends when nobody renews it, and
takes its keys along. Keys are text, values bytes. Every implementation passes the same suite (``tests/store``).

Nothing here repeats a write: when an answer is missing the caller is told so (``Unclear``), and whoever repeats must
guard the write with a comparison that the first one would have broken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum

from phalanx.records import Struct

__all__ = [
    "Answer",
    "Batch",
    "Change",
    "Compacted",
    "Compare",
    "Delete",
    "Field",
    "Get",
    "KeyValue",
    "LeaseExpired",
    "Listing",
    "Operation",
    "Put",
    "Refused",
    "Store",
    "StoreError",
    "StoreReset",
    "Unclear",
    "Watch",
]


class KeyValue(Struct):
    """A key as it is at some revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    """1 for a key that was just created; grows with each put."""
    lease: int = 0
    """The lease that it goes with; 0: none."""


# Operations of a transaction


class Put(Struct):
    """Write a key, under a lease if one is given. Fails the transaction with ``LeaseExpired`` if that has ended."""

    key: str
    value: bytes
    lease: int = 0


class Delete(Struct):
    """Delete a key, or every key that begins with it."""

    key: str
    is_prefix: bool = False


class Get(Struct):
    """Read a key, or every key that begins with it, in the order of the keys' bytes."""

    key: str
    is_prefix: bool = False


Operation = Put | Delete | Get


class Field(Enum):
    """What of a key is compared. A key that is not there has revisions and version 0, and no value equals it."""

    CREATE_REVISION = "create_revision"
    MOD_REVISION = "mod_revision"
    VERSION = "version"
    VALUE = "value"


class Compare(Struct):
    """A guard: the transaction's ``then`` happens only if ``field`` of ``key`` equals ``value``."""

    key: str
    field: Field
    value: int | bytes


class Answer(Struct):
    """What a transaction did. ``results`` has one entry per operation: the keys read, or those deleted, or nothing.

    All changes of a transaction have one revision, ``revision``; without a change it is the store's current one.
    """

    succeeded: bool
    revision: int
    results: tuple[tuple[KeyValue, ...], ...] = ()


class Listing(Struct):
    """The keys under a prefix, all as of one revision, in the order of their bytes."""

    revision: int
    items: tuple[KeyValue, ...]


class Change(Struct):
    """A key was written, or deleted (then ``kv`` has the key, the revision of the deletion, and no value)."""

    kv: KeyValue
    is_delete: bool = False


class Batch(Struct):
    """All changes of one revision that a watch covers."""

    revision: int
    changes: tuple[Change, ...]


# Errors


class StoreError(Exception):
    """Base of what a store raises. The message is a sentence."""


class Unclear(StoreError):
    """No answer came in time. The store is silent, perhaps only for a moment; a write may have been applied or not,
    or may yet be.
    """


class StoreReset(StoreError):
    """The store that answers is another one than before, without its data: leases and watches are lost for good."""


class LeaseExpired(StoreError):
    """The lease has ended, or never was. Its keys are gone."""


class Compacted(StoreError):
    """History from the revision asked for is gone: list anew, and watch from the listing's revision + 1."""


class Refused(StoreError):
    """The store will not serve us, now or later: wrong secret, another version, a request that is too large."""


class Watch(ABC):
    """Changes under a prefix, in order, each once. Survives lost connections without a gap.

    Iterating raises ``Compacted`` or ``StoreReset``, and then ends. Close it when it is no longer read.
    """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Batch]:
        """The batches from the revision that was asked for on; waits while there is none."""

    @abstractmethod
    async def aclose(self) -> None:
        """Stop watching. Idempotent."""


class Store(ABC):
    """One client of a store. Its methods may be called from many tasks of one event loop.

    Every method raises ``Unclear`` when no answer came within the store's own short deadline, ``StoreReset`` once the
    store has lost its data, and ``Refused`` when asking again cannot help.
    """

    @abstractmethod
    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """Do ``then`` if all comparisons hold, else ``otherwise``, at one revision. A key is written once at most."""

    @abstractmethod
    def watch(self, prefix: str, from_revision: int) -> Watch:
        """Watch the keys that begin with ``prefix``, from (and with) a revision, past or to come."""

    @abstractmethod
    async def grant(self, ttl_s: float) -> int:
        """A new lease, which ends when it is not renewed for ``ttl_s`` seconds (etcd knows whole ones: rounded up)."""

    @abstractmethod
    async def renew(self, lease: int) -> None:
        """Make the lease last its ttl from now on. Raises ``LeaseExpired``."""

    @abstractmethod
    async def revoke(self, lease: int) -> None:
        """End the lease and delete its keys. Nothing happens when it has ended already."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection; calls that wait raise ``Unclear``. Leases live on until they expire. Idempotent."""

    @property
    def source_address(self) -> str | None:
        """Our own address on the connection that reached the store, which others can probably reach; None: unknown."""
        return None

    @property
    def is_host(self) -> bool:
        """Whether this process serves the store to the others, who lose it when we go."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether all of the store is in this process: it is silent only while we are frozen, and then it was, too."""
        return False

    async def others_gone(self, limit_s: float) -> None:  # noqa: B027 # most serve nobody
        """Who serves the store to others waits until none of them is connected, for so long at most."""

    def tell_refusals(self, tell: Callable[[str], None]) -> None:  # noqa: B027 # most have nothing to tell
        """Who serves the store to others says through ``tell`` why it ended a connection, one sentence each."""

    @property
    def run_id(self) -> str | None:
        """The id of the job that this client was admitted to, if the store can tell it."""
        return None

    # The same in fewer words

    async def get(self, key: str) -> KeyValue | None:
        """The key, or None."""
        answer = await self.transaction(then=(Get(key),))
        return answer.results[0][0] if answer.results[0] else None

    async def list(self, prefix: str) -> Listing:
        """All keys under a prefix, as of one revision."""
        answer = await self.transaction(then=(Get(prefix, is_prefix=True),))
        return Listing(answer.revision, answer.results[0])

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Write a key; returns the revision."""
        return (await self.transaction(then=(Put(key, value, lease),))).revision

    async def delete(self, key: str, *, is_prefix: bool = False) -> int:
        """Delete a key or a prefix; returns how many keys there were."""
        answer = await self.transaction(then=(Delete(key, is_prefix),))
        return len(answer.results[0])
