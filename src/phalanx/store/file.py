"""The file store: a shared folder in which the nodes of a job meet. For clusters that share nothing else.

The one store that polls: a change of another client is seen within 0.2 s, plus the time for which a network file system
keeps what it knows about a folder (``actimeo``; short ones are better here). What is written is decided by the file
server alone, and never depends on that. The folder stays when the job has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from phalanx.store.dialogue import Request
from phalanx.store.file_replica import NOBODY, News, Replica
from phalanx.store.machine import (
    EndWatch,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import (
    Answer,
    Compare,
    Operation,
    Store,
    StoreError,
    StoreReset,
    Unclear,
    Watch,
)
from phalanx.store.watching import BatchQueue

__all__ = ["FileStore", "open_file"]

POLL_S = 0.2
ATTEMPT_S = 5.0  # a file server is slow at times, and many writers take turns
CLOSE_S = 1.0


async def open_file(folder: str, *, attempt_s: float = ATTEMPT_S, poll_s: float = POLL_S) -> Store:
    """A client of the store in ``folder``, which is made if it is not there, for this user alone.

    ``attempt_s`` is how long a request waits for the file server before it raises ``Unclear``. Raises ``Refused`` for
    a folder that others can write to, or that holds something else, and ``Unclear`` if it cannot be read or written.
    """
    store = FileStore(folder, attempt_s=attempt_s, poll_s=poll_s)
    try:
        await store.open()
    except BaseException:
        await store.close()
        raise
    return store


_Call = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class FileStore(Store):
    """See ``open_file``. A daemon thread does what may block: a file server that hangs must not keep us from ending."""

    def __init__(self, folder: str, *, attempt_s: float, poll_s: float) -> None:
        self._folder = folder
        self._attempt_s = attempt_s
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._replica = Replica(folder)
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._ended = asyncio.Event()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._watches: set[BatchQueue] = set()
        self._error: StoreError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thread = threading.Thread(target=self._run, name="phalanx-file-store", daemon=True)
        self._thread.start()

    async def open(self) -> None:
        """Read the store for the first time, and begin to poll."""
        await self._call(self._replica.open)
        self._look_later()

    # The port

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As every store does."""
        answer = await self._ask(TransactionAsked(NOBODY, tuple(compares), tuple(then), tuple(otherwise)))
        assert isinstance(answer, Answer)
        return answer

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As every store does; changes of other clients are seen when this one polls."""
        watch = BatchQueue(self._watch_closed)
        if self._error is not None:
            watch.end(self._error)
        else:
            self._watches.add(watch)
            self._start(partial(self._replica.perform, WatchAsked(watch, prefix, from_revision)))
        return watch

    async def grant(self, ttl_s: float) -> int:
        """As every store does."""
        lease = await self._ask(GrantAsked(NOBODY, ttl_s))
        assert isinstance(lease, int)
        return lease

    async def renew(self, lease: int) -> None:
        """As every store does."""
        await self._ask(RenewAsked(NOBODY, lease))

    async def revoke(self, lease: int) -> None:
        """As every store does."""
        await self._ask(RevokeAsked(NOBODY, lease))

    async def close(self) -> None:
        """As every store does. Waits a moment for what is being written."""
        self._fail(Unclear("The store was closed on our side."))
        self._calls.put(None)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), CLOSE_S)

    # Requests

    async def _ask(self, event: Request) -> Any:
        return await self._call(partial(self._replica.perform, event))

    async def _call(self, function: Callable[[], Any]) -> Any:
        if self._error is not None:
            raise self._error
        try:
            async with asyncio.timeout(self._attempt_s):
                return await self._start(function)
        except TimeoutError:
            raise Unclear(
                f"The store in {self._folder} did not answer within {self._attempt_s:g} s."
            ) from None
        except OSError as problem:
            raise Unclear(f"The store in {self._folder} cannot be used: {problem}.") from problem

    def _start(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Have the thread do it, after what it was asked before. One that is cancelled before its turn is not done."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        self._calls.put((function, future))
        return future

    def _watch_closed(self, watch: BatchQueue) -> None:
        self._watches.discard(watch)
        self._start(partial(self._replica.perform, WatchClosed(watch)))

    # Polling

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._poll_s, self._look)

    def _look(self) -> None:
        self._start(self._replica.look).add_done_callback(self._looked)

    def _looked(self, future: asyncio.Future[Any]) -> None:
        if self._error is not None or future.cancelled():
            return
        error = future.exception()
        if isinstance(error, StoreError):
            self._fail(error)
        elif error is None or isinstance(error, OSError):  # a file server that fails may come back
            self._look_later()

    def _fail(self, error: StoreError) -> None:
        """No request has an answer from now on, and no watch another batch."""
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        for future in tuple(self._waiting):
            if not future.done():
                future.set_exception(error)
                future.exception()  # nobody may be waiting for it
        for watch in tuple(self._watches):
            watch.end(error)

    # The thread

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future = call
            if future.done():
                continue
            result, error = None, None
            try:
                result = function()
            except Exception as raised:  # noqa: BLE001 # it is raised in the loop
                error = raised
            news, self._replica.news = self._replica.news, []
            self._tell(self._hand_over, future, result, error, news)
        self._tell(self._ended.set)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            self._loop.call_soon_threadsafe(function, *arguments)

    def _hand_over(
        self, future: asyncio.Future[Any], result: Any, error: Exception | None, news: News
    ) -> None:
        for one in news:
            _hand_out(one)
        if future.done():
            return
        if isinstance(error, StoreReset):
            self._fail(error)
        elif error is not None:
            future.set_exception(error)
            future.exception()  # nobody may be waiting for it
        else:
            future.set_result(result)


def _hand_out(news: Notify | EndWatch) -> None:
    watch: Any
    if isinstance(news, Notify):
        for watch in news.watches:
            watch.notify(news.batch)
    else:
        watch = news.watch
        watch.end(news.error)
