"""A watch as a queue of batches: one side hands them in, the other iterates; or as the number that a client gave it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from phalanx.store.port import Batch, Compacted, StoreError, Watch

__all__ = ["BatchQueue", "RemoteWatch", "WatchSender"]

# A reader that far behind is stuck; it lists anew sooner than it reads all this.
WAITING_MAX = 100_000


class BatchQueue(Watch):
    """Batches in order, and at last the reason why there are no more. One task iterates at a time.

    ``closed`` is called once when nothing more shall be handed in.
    """

    def __init__(self, closed: Callable[[BatchQueue], None]) -> None:
        self._closed = closed
        self._batches: deque[Batch] = deque()
        self._error: StoreError | None = None
        self._is_open = True
        self._is_over = False
        self._reader: asyncio.Future[None] | None = None

    def notify(self, batch: Batch) -> None:
        """Hand in a batch. Nothing happens after the end."""
        if not self._is_open:
            return
        self._batches.append(batch)
        if len(self._batches) > WAITING_MAX:
            self._batches.clear()
            self.end(Compacted(f"The watch was not read: more than {WAITING_MAX} batches were waiting."))
        self._wake()

    def end(self, error: StoreError) -> None:
        """Raise the error in the reader once it has read what was handed in before."""
        if self._is_open:
            self._error = error
            self._leave()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while not self._batches:
            if not self._is_open:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._batches.popleft()

    async def aclose(self) -> None:
        """Stop watching: the reader's iteration ends."""
        self._batches.clear()
        self._error = None
        self._leave()

    def _leave(self) -> None:
        if self._is_open:
            self._is_open = False
            self._closed(self)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class WatchSender(Protocol):
    """A connection to a client that has watches."""

    def send_batch(self, number: int, batch: Batch) -> None:
        """Send what a watch covers."""

    def watch_ended(self, number: int, error: StoreError) -> None:
        """Tell the client that a watch gets no more."""


class RemoteWatch:
    """What the machine knows of a watch at the other end of a connection."""

    __slots__ = ("_connection", "_number")

    def __init__(self, connection: WatchSender, number: int) -> None:
        self._connection = connection
        self._number = number

    def notify(self, batch: Batch) -> None:
        """Hand in a batch."""
        self._connection.send_batch(self._number, batch)

    def end(self, error: StoreError) -> None:
        """There are no more."""
        self._connection.watch_ended(self._number, error)
