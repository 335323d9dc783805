"""The store of a job on one machine, and of tests: the store machine, driven by this event loop.

``MemoryServer`` drives the machine: time, and the commands that a step returns. ``MemoryStore`` is one client of it.
A request is answered without yielding to the loop, which makes a transaction as cheap as a few calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from phalanx.store.machine import (
    Answered,
    DeadlinePassed,
    EndWatch,
    Failed,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    StoreMachine,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import Answer, Compare, Operation, Store, Unclear, Watch
from phalanx.store.watching import BatchQueue

__all__ = ["MemoryServer", "MemoryStore"]


class MemoryServer:
    """Drives one machine for any number of clients in one event loop, whose clock it uses.

    Watches are known to the machine as objects with ``notify(batch)`` and ``end(error)``.
    """

    def __init__(self, machine: StoreMachine | None = None) -> None:
        self.machine = machine or StoreMachine()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    def perform(self, event: object) -> Answer | int | None:
        """Take an event and return the answer to it. Raises the ``StoreError`` that the machine answers with."""
        loop = asyncio.get_running_loop()
        commands = self.machine.step(event, loop.time())
        self._set_timer(loop)
        answer: Answer | int | None = None
        error = None
        for command in commands:
            if isinstance(command, Answered):
                answer = command.answer
            elif isinstance(command, Failed):
                error = command.error
            else:
                _hand_out(command)
        if error is not None:
            raise error
        return answer

    def close(self) -> None:
        """Forget the timer: leases do not end any more. For who is done with the store."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._timer_at = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = self.machine.deadline
        if deadline == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = None if deadline is None else loop.call_at(deadline, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self._timer = self._timer_at = None
        self.perform(DeadlinePassed())


def _hand_out(command: Any) -> None:
    if isinstance(command, Notify):
        watch: Any
        for watch in command.watches:
            watch.notify(command.batch)
    elif isinstance(command, EndWatch):
        watch = command.watch
        watch.end(command.error)


class MemoryStore(Store):
    """One client of a ``MemoryServer``: of the one given, or of a new one."""

    def __init__(self, server: MemoryServer | StoreMachine | None = None) -> None:
        self.server = server if isinstance(server, MemoryServer) else MemoryServer(server)
        self._watches: set[BatchQueue] = set()
        self._is_open = True

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As every store does."""
        answer = self._ask(TransactionAsked(self, tuple(compares), tuple(then), tuple(otherwise)))
        assert isinstance(answer, Answer)
        return answer

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As every store does."""
        queue = BatchQueue(self._watch_closed)
        if not self._is_open:
            queue.end(_closed())
            return queue
        self._watches.add(queue)
        self._ask(WatchAsked(queue, prefix, from_revision))
        return queue

    @property
    def is_local(self) -> bool:
        """It is in this process."""
        return True

    async def grant(self, ttl_s: float) -> int:
        """As every store does."""
        lease = self._ask(GrantAsked(self, ttl_s))
        assert isinstance(lease, int)
        return lease

    async def renew(self, lease: int) -> None:
        """As every store does."""
        self._ask(RenewAsked(self, lease))

    async def revoke(self, lease: int) -> None:
        """As every store does."""
        self._ask(RevokeAsked(self, lease))

    async def close(self) -> None:
        """As every store does. The server stays as it is for its other clients."""
        self._is_open = False
        for queue in tuple(self._watches):
            queue.end(_closed())

    def _ask(self, event: object) -> Answer | int | None:
        if not self._is_open:
            raise _closed()
        return self.server.perform(event)

    def _watch_closed(self, queue: BatchQueue) -> None:
        self._watches.discard(queue)
        self.server.perform(WatchClosed(queue))


def _closed() -> Unclear:
    return Unclear("The connection to the store was closed on our side.")
