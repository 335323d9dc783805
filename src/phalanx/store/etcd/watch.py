"""A watch that goes from member to member without a gap and without a double."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import groupby
from typing import Self

from phalanx.store.etcd.answers import NotDone, Silent, StaleToken
from phalanx.store.etcd.connection import Call
from phalanx.store.etcd.messages import Message
from phalanx.store.etcd.session import Session, next_pause
from phalanx.store.port import Batch, Change, Compacted, Refused, Watch

__all__ = ["EtcdWatch"]

_WATCH = Call("Watch/Watch", "Watch", is_stream=True)

# A reader that is this far behind stops the stream by HTTP/2's flow control; etcd keeps the rest.
_WAITING_BATCHES = 1000

_DELETE = 1


class EtcdWatch(Watch, AsyncIterator[Batch]):
    """See the port. ``change`` makes a change of etcd's event."""

    def __init__(
        self,
        session: Session,
        key: bytes,
        range_end: bytes,
        *,
        from_revision: int,
        change: Callable[[Message, bool], Change],
    ) -> None:
        self._session = session
        self._range = (key, range_end)
        self.next_revision = max(1, from_revision)  # etcd takes 0 for "from now on"
        """Where it would resume."""
        self._change = change
        self._was_turned_away = False
        self._batches: deque[Batch] = deque()
        self._has_news, self._has_room = asyncio.Event(), asyncio.Event()
        self._is_told = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._wake)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come, but what waits to be read."""
        return self._task.done()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        while not self._batches:
            if self._task.done():
                if not self._is_told and not self._task.cancelled():
                    self._is_told = True
                    self._task.result()  # which raises
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        self._has_room.set()
        return self._batches.popleft()

    async def join(self) -> None:
        """Wait until it is over, which the session's end makes it. What came before can still be read."""
        await asyncio.wait((self._task,))

    async def aclose(self) -> None:
        """Stop watching. Idempotent."""
        self._batches.clear()
        self._is_told = True
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _wake(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.exception()  # looked at, for perhaps nobody reads
        self._has_news.set()

    async def _run(self) -> None:
        pause_s = 0.0
        while True:
            resumed_at = self.next_revision
            try:
                await self._session.read(_WATCH, self._request(), self._take)
            except (NotDone, Silent):
                if self.next_revision > resumed_at:
                    pause_s = 0.0
                await asyncio.sleep(pause_s)
                pause_s = next_pause(pause_s)

    def _request(self) -> Message:
        key, range_end = self._range
        request = _WATCH.request()
        request.create_request.key = key
        request.create_request.range_end = range_end
        request.create_request.start_revision = self.next_revision
        # Now and then etcd tells a quiet watch how far it is, so that it does not resume from what is compacted.
        request.create_request.progress_notify = True
        return request

    async def _take(self, answer: Message) -> None:
        self._session.check_cluster(answer.header)
        if answer.canceled:
            raise self._reason(answer)
        if answer.created:
            # Its revision says nothing: older changes are still to come.
            self._was_turned_away = False
            return
        for batch in self._batches_of(answer.events):
            while len(self._batches) >= _WAITING_BATCHES:
                self._has_room.clear()
                await self._has_room.wait()
            self._batches.append(batch)
            self._has_news.set()
            self.next_revision = batch.revision + 1
        if not answer.events and answer.watch_id >= 0:
            self.next_revision = max(self.next_revision, answer.header.revision + 1)

    def _batches_of(self, events: Iterable[Message]) -> Iterable[Batch]:
        for revision, group in groupby(events, key=lambda event: int(event.kv.mod_revision)):
            if revision >= self.next_revision:  # a member that was far behind may tell what we know already
                yield Batch(revision, tuple(self._change(it.kv, it.type == _DELETE) for it in group))

    def _reason(self, answer: Message) -> Exception:
        if answer.compact_revision:
            return Compacted(
                f"etcd has forgotten what was before revision {answer.compact_revision}; "
                f"the watch was at {self.next_revision}."
            )
        reason = answer.cancel_reason.removeprefix("etcdserver: ")
        if "permission denied" not in reason and "auth" not in reason:
            return Silent(reason or "the watch was cancelled")
        # A stale token looks like this too: log in once.
        if self._was_turned_away:
            return Refused(f"etcd does not permit this user to watch: {reason}.")
        self._was_turned_away = True
        return StaleToken(reason)
