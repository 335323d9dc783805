"""One node's seat in a job, for callers that block: what ``dynamic`` and ``static`` have in common.

The membership runs in an event loop of its own thread. Each method here is one question or one wait, and turns what a
store or a member machine says into the errors of a rendezvous.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import weakref
from collections.abc import Awaitable, Callable
from typing import TypeVar

from phalanx.records import changed
from phalanx.rendezvous.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.loop_thread import LoopThread
from phalanx.rendezvous.participant import NOT_FORMED, JobEnded, Participant
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.shared_store import SharedStore
from phalanx.rendezvous.stored import BadRecord, Members, Phase, RoundRecord, VerdictRecord, decode, encode
from phalanx.rendezvous.view import Nodes
from phalanx.rendezvous.waiting import who_is_here
from phalanx.store.port import Compare, Field, Get, KeyValue, Put, Store, StoreError, Unclear
from phalanx.store.synchronous import SynchronousStore

__all__ = ["Seat", "boot_id", "key_of"]

ResultT = TypeVar("ResultT")

ASK_AGAIN_S = 0.2
# The leader, too, has a limit for a round that does not form, and ends the job then. Here each node has its own limit
# and may try again, so the leader's is only for what no node notices.
LEADERS_PATIENCE_S = 60.0


class _Unanswered(RendezvousConnectionError):
    """There was no answer; there may be one to the next attempt."""


class Seat:
    """Holds a store open from the first question to ``leave``. ``ask_s``: how long one question may go unanswered."""

    def __init__(
        self,
        settings: MembershipSettings,
        open_store: Callable[[], Awaitable[Store]],
        *,
        join_s: float,
        ask_s: float,
    ) -> None:
        self._settings = settings
        self._keys = JobKeys(settings.run_id)
        self._join_s = join_s
        self._ask_s = ask_s
        self._open_store = open_store
        self._thread: LoopThread | None = None
        self._store: SharedStore | None = None
        self._participant: Participant | None = None
        self._was_closed = False

    # For callers in other threads

    def next_round(self) -> Round:
        """Wait for the next round with this node in it. Its last one's workers are gone when this is called.

        Raises ``RendezvousError`` as ``RendezvousHandler.next_rendezvous`` does.
        """
        return self._loop().run(self._next_round())

    def is_closed(self) -> bool:
        """Whether the job is over. Asks the store until it is. Raises ``RendezvousConnectionError``."""
        if not self._was_closed:
            self._was_closed = self._loop().run(self._ask(self._has_verdict))
        return self._was_closed

    def close_job(self, verdict: str) -> None:
        """Say that the job is over, unless that was said already. Raises ``RendezvousConnectionError``."""
        self._loop().run(self._ask(lambda store: self._write_verdict(store, verdict)))
        self._was_closed = True

    def nodes_waiting(self) -> int:
        """Return how many nodes want another round; at least 1 when the present one is over, or may be."""
        participant = self._participant
        if participant is None or not participant.is_round_over or self._was_closed:
            return 0
        try:
            return max(1, self._loop().run(self._ask_once(self._count_waiting)))
        except RendezvousError:  # that is why it may be over; workers must stop all the same
            return 1

    def values_of(self, settled: Round) -> SynchronousStore:
        """Return what the nodes of a round share: torch's store methods, on keys that nobody had before."""
        thread = self._loop()
        assert self._store is not None
        store = thread.run(self._store.get())
        return SynchronousStore(store, thread.loop, prefix=self._keys.values(settled.number))

    def leave(self, within_s: float) -> None:
        """Leave the job, close the store, end the thread. Idempotent; another call of any method begins anew."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.run(self._leave(within_s))
        finally:
            thread.stop()

    # In the loop

    def _loop(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread("phalanx-rendezvous")
            self._store = self._thread.run(self._make_store())
            weakref.finalize(self, self._thread.stop)
        return self._thread

    async def _make_store(self) -> SharedStore:
        return SharedStore(self._open_store)

    async def _next_round(self) -> Round:
        assert self._store is not None
        if self._participant is None:
            self._participant = Participant(_new_life(self._settings, self._join_s), self._store)
        waiting = asyncio.ensure_future(self._participant.next_round())
        try:
            return await self._patiently(waiting)
        except JobEnded as ended:
            raise await self._why_over(str(ended)) from None
        finally:
            if not waiting.done() or waiting.cancelled() or waiting.exception() is not None:
                waiting.cancel()
                await self._stand_up(self._ask_s)

    async def _patiently(self, waiting: asyncio.Future[Round]) -> Round:
        """Wait as long as the join timeout allows; a spare waits for ever, and a last call is waited for.

        To a spare each round that may take it in is a new wait: that it waited before was no fault of that round.
        """
        done, _ = await asyncio.wait([waiting], timeout=self._join_s)
        if not done:
            text, is_last_call = await self._who_is_here()
            last_call_s = self._settings.last_call_s + self._settings.ttl_s
            if is_last_call:
                done, _ = await asyncio.wait([waiting], timeout=last_call_s)
            may_hope, hope = False, None  # that a round takes it in, and which
            while not done:
                patience_s = self._join_s
                if await self._ask(self._is_spare):
                    may_hope = True
                else:
                    number, follows_its_wait = await self._ask(self._present_round)
                    has_hope = waiting.done() or (number != hope and (may_hope or follows_its_wait))
                    if not has_hope:
                        if hope is not None:
                            text, _ = await self._who_is_here()  # others may have come and gone since
                        raise RendezvousTimeoutError(f"{text}, after {self._join_s:g} s (join timeout)")
                    may_hope, hope = True, number
                    patience_s += last_call_s
                done, _ = await asyncio.wait([waiting], timeout=patience_s)
        return waiting.result()

    async def _leave(self, within_s: float) -> None:
        await self._stand_up(within_s)
        if self._store is not None:
            store, self._store = self._store, None
            await store.close()

    async def _stand_up(self, within_s: float) -> None:
        participant, self._participant = self._participant, None
        if participant is not None:
            await participant.leave(within_s)

    async def _ask(self, question: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
        """Ask the store, again if it does not answer: no question here is spoilt by being asked twice."""
        reason: _Unanswered | None = None
        try:
            async with asyncio.timeout(self._ask_s):
                while True:
                    try:
                        return await self._ask_once(question)
                    except _Unanswered as error:
                        reason = error
                    await asyncio.sleep(ASK_AGAIN_S)
        except TimeoutError:
            why = f": {reason}" if reason is not None else ""
            raise RendezvousConnectionError(
                f"the store has not answered for {self._ask_s:g} s{why}"
            ) from reason

    async def _ask_once(self, question: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
        assert self._store is not None
        try:
            return await question(await self._store.get())
        except (Unclear, OSError) as error:
            raise _Unanswered(str(error)) from error
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error
        except BadRecord as error:
            raise RendezvousStateError(str(error)) from error

    # Questions

    async def _has_verdict(self, store: Store) -> bool:
        return await store.get(self._keys.verdict) is not None

    async def _write_verdict(self, store: Store, verdict: str) -> None:
        unsaid = Compare(self._keys.verdict, Field.CREATE_REVISION, 0)
        await store.transaction((unsaid,), (Put(self._keys.verdict, encode(VerdictRecord(text=verdict))),))

    async def _membership(self, store: Store) -> tuple[RoundRecord | None, set[str]]:
        """The present round, and the node ids of its members."""
        kv = await store.get(self._keys.round)
        if kv is None:
            return None, set()
        record = decode(RoundRecord, kv.value)
        return record, await self._members(store, record.number)

    async def _members(self, store: Store, number: int) -> set[str]:
        kv = await store.get(self._keys.members(number))
        found = () if kv is None else decode(Members, kv.value).members
        return {member.node_id for member in found}

    async def _count_waiting(self, store: Store) -> int:
        _, members = await self._membership(store)
        listing = await store.list(self._keys.all_here)
        return sum(kv.key.removeprefix(self._keys.all_here) not in members for kv in listing.items)

    async def _is_spare(self, store: Store) -> bool:
        """Whether there is a round that has all the nodes it may have, without this one.

        Also while it is being ended: for how long is up to its members, and no other round is formed meanwhile.
        """
        record, members = await self._membership(store)
        return record is not None and record.phase is not Phase.JOINING and self._are_all_others(members)

    async def _present_round(self, store: Store) -> tuple[int, bool]:
        """Its number (0: none), and whether this node, which was here then, was a spare of the one before."""
        keys = (self._keys.here(self._settings.node_id), self._keys.round)
        here, found = (await store.transaction(then=tuple(map(Get, keys)))).results
        if not found:
            return 0, False
        record = decode(RoundRecord, found[0].value)
        # A round is written when it opens, when it settles and when it is ended. Who came between two of these is not
        # told from who was here before the first; it waits a little longer, that is all.
        was_here = bool(here) and here[0].create_revision < found[0].mod_revision
        return record.number, was_here and self._are_all_others(await self._members(store, record.previous))

    def _are_all_others(self, members: set[str]) -> bool:
        return len(members) >= self._settings.max_nodes and self._settings.node_id not in members

    async def _who_is_here(self) -> tuple[str, bool]:
        """A line about who is here, and whether they are enough: then only the last call is still waited for."""

        async def look(store: Store) -> tuple[str, bool]:
            kv = await store.get(self._keys.round)
            record = None if kv is None else decode(RoundRecord, kv.value)
            nodes = Nodes(self._keys)
            nodes.put((await store.list(self._keys.nodes)).items)
            view = nodes.view(record, ())
            ready = [node_id for node_id in view.joined if node_id in view.here]
            text = who_is_here(self._settings, view, ready, ())
            return text, len(ready) >= self._settings.min_nodes

        return await self._ask_once(look)

    async def _why_over(self, verdict: str) -> RendezvousError:
        if verdict.startswith(NOT_FORMED):
            return RendezvousTimeoutError(verdict.removeprefix(NOT_FORMED))
        self._was_closed = True
        if await self._ask(self._was_spare_at_the_end):
            return RendezvousGracefulExitError("the job is over; this node was a spare and was not needed")
        return RendezvousClosedError("the rendezvous is closed: the job is over")

    async def _was_spare_at_the_end(self, store: Store) -> bool:
        keys = (self._keys.here(self._settings.node_id), self._keys.verdict)
        here, verdict = (await store.transaction(then=tuple(map(Get, keys)))).results
        return _is_before(here, verdict) and await self._is_spare(store)


def _is_before(one: tuple[KeyValue, ...], other: tuple[KeyValue, ...]) -> bool:
    return bool(one and other) and one[0].create_revision < other[0].create_revision


def _new_life(settings: MembershipSettings, join_s: float) -> MembershipSettings:
    return changed(settings, join_timeout_s=join_s + LEADERS_PATIENCE_S)


def key_of(run_id: str) -> str:
    """The run id as one part of a key, so that no job's keys begin like another's."""
    return run_id.replace("%", "%25").replace("/", "%2F")


def boot_id() -> str:
    """The running kernel and the network namespace: who shares both reaches our loopback address."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/net')}"
    except OSError:  # no proc: nobody can be sure to share this machine
        return secrets.token_hex(16)
