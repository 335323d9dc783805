"""Code of others that blocks, called from an event loop: one daemon thread, one call at a time, in order.

The thread is a daemon, unlike those of ``concurrent.futures``: a plug-in that hangs in a call must not keep this
process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["BlockingCalls"]

ResultT = TypeVar("ResultT")

_Call = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class BlockingCalls:
    """Runs functions in a thread of its own, which starts with the first one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, function: Callable[[], ResultT]) -> asyncio.Future[ResultT]:
        """Call the function in the thread, when those before it have returned.

        What it returns or raises is in the future, which lives in the running loop. A call that was cancelled before
        it began is never made.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()
        self._calls.put((function, future, loop))
        return future

    def close(self) -> None:
        """Let the thread end when the call that runs has returned. Does not wait for it."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future, loop = call
            if future.cancelled():
                continue
            result, error = None, None
            try:
                result = function()
            except BaseException as raised:  # noqa: BLE001 # the border to code of others: it is raised in the loop
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
                loop.call_soon_threadsafe(_hand_over, future, result, error)


def _hand_over(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration):
        future.set_exception(error)
    else:  # a future takes no StopIteration, and SystemExit in a loop would end everything
        wrapped = RuntimeError(f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
