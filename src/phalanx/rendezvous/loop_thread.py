"""An event loop in a daemon thread, for an interface whose callers are not in one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

__all__ = ["LoopThread"]

ResultT = TypeVar("ResultT")


class LoopThread:
    """``run`` coroutines in it from any thread but its own, until ``stop``."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run the coroutine in the loop and return what it returns, or raise what it raises.

        An exception that interrupts the wait, such as ``KeyboardInterrupt``, cancels it.
        """
        try:
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:  # stopped
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the event loop was stopped while somebody waited for it") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and what runs in it, and wait for the thread. Idempotent."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has ended in between
                self.loop.call_soon_threadsafe(self.loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(self._cancel_rest())
            self.loop.close()

    async def _cancel_rest(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
