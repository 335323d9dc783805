"""A store for code that does not await: torch's ``Store`` methods over any store, which lives in another thread's loop.

What it holds is what the workers of the same round share: both go through ``SharedValues``, under the same prefix.
Errors are those that code written for torch's stores expects to catch: all but ``ValueError`` and ``TypeError`` are
``RuntimeError``.

::

    values = SynchronousStore.open(open_store, prefix="/phalanx/job/kv/1/")
    values.set("address", "node0:1234")
    values.close()
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from phalanx.store.port import Store
from phalanx.store.values import PATIENCE_S, SharedValues, ValueRefused, ValuesUnreachable

__all__ = ["StoreTimeout", "StoreUnreachable", "SynchronousStore"]

TIMEOUT_S = 300.0  # torch's
# A call that takes longer than the store's own patience was lost with its loop.
SPARE_S = 30.0

T = TypeVar("T")


class StoreTimeout(TimeoutError, RuntimeError):
    """Nobody has set what was waited for. Torch raises ``DistStoreError``, a ``RuntimeError``."""


class StoreUnreachable(ConnectionError, RuntimeError):
    """The store does not answer, or is closed. What was asked for may have happened."""


class SynchronousStore:
    """Values under ``prefix`` (which ends with a slash) of a store that lives in ``loop``, run by another thread.

    Its methods may be called from any thread but the loop's. Keys are texts of up to 1 KiB; values are bytes of up to
    512 KiB (a text is stored as UTF-8), 16 MiB together. A write happens once, also when the store has to be asked
    again. Raises ``StoreTimeout``, ``StoreUnreachable``, ``ValueError`` for what is refused, and ``TypeError``.
    """

    def __init__(
        self, store: Store, loop: asyncio.AbstractEventLoop, *, prefix: str, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._loop = loop
        self._store = store
        self._timeout_s = timeout_s
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._is_open = True
        self._thread: threading.Thread | None = None
        self._finalizer: weakref.finalize[..., SynchronousStore] | None = None
        self._values = SharedValues(store, prefix)

    @classmethod
    def open(
        cls, open_store: Callable[[], Awaitable[Store]], *, prefix: str, timeout_s: float = TIMEOUT_S
    ) -> SynchronousStore:
        """Open a store in a thread of its own. Raises what ``open_store`` does.

        Both end with ``close``, or when nobody holds the store any more, as torch's do.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_live, args=(loop,), name="phalanx-store", daemon=True)
        thread.start()
        try:
            store = asyncio.run_coroutine_threadsafe(_opened(open_store), loop).result()
        except BaseException:
            _end(loop, thread)
            raise
        found = cls(store, loop, prefix=prefix, timeout_s=timeout_s)
        found._thread = thread
        found._finalizer = weakref.finalize(found, _abandon, loop, store, os.getpid())
        found._finalizer.atexit = False
        return found

    @property
    def timeout(self) -> timedelta:
        """How long ``get``, ``multi_get`` and ``wait`` wait."""
        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set how long to wait; a number is in seconds."""
        self._timeout_s = _seconds(timeout)

    def get(self, key: str) -> bytes:
        """The value, once there is one."""
        [value] = self.multi_get([key])
        return value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys, once they are there; not a picture of one moment."""
        wait_s = self._timeout_s
        names = _keys(keys)
        found = self._run(self._values.multi_get(names, wait_s=wait_s), wait_s)
        values = [value for value in found if value is not None]
        if len(values) < len(found):
            raise _nobody_set([key for key, value in zip(names, found, strict=True) if value is None], wait_s)
        return values

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Wait until each key has a value, or has had one since the call."""
        wait_s = self._timeout_s if timeout is None else _seconds(timeout)
        names = _keys(keys)
        if not self._run(self._values.wait(names, wait_s=wait_s), wait_s):
            raise _nobody_set(names, wait_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        return self._run(self._values.check(_keys(keys)))

    def set(self, key: str, value: bytes | str) -> None:
        """Store a value, whatever was there."""
        self._run(self._values.set(_key(key), _bytes(value)))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Store several values; others may see some of them before the rest."""
        self._run(self._values.multi_set(dict(zip(_keys(keys), map(_bytes, values), strict=True))))

    def add(self, key: str, amount: int) -> int:
        """Add to a decimal number, 0 if there is none yet; returns the sum."""
        if not isinstance(amount, int):
            raise TypeError(f"a whole number is needed, not {type(amount).__name__}")
        return self._run(self._values.add(_key(key), amount))

    def compare_set(self, key: str, expected: bytes | str, desired: bytes | str) -> bytes:
        """Store ``desired`` if the value is ``expected``, or if both are nothing; returns the value afterwards.

        If there is no value where one was expected, returns ``expected``, as torch's stores do.
        """
        wanted = _bytes(expected)
        value = self._run(self._values.compare_set(_key(key), wanted, _bytes(desired)))
        return wanted if value is None else value

    def delete_key(self, key: str) -> bool:
        """Remove a value; returns whether there was one."""
        return self._run(self._values.delete(_key(key)))

    def num_keys(self) -> int:
        """How many keys have a value."""
        return self._run(self._values.num_keys())

    def close(self) -> None:
        """Let calls that wait raise ``StoreUnreachable``; close the store, if ``open`` opened it. Idempotent."""
        if not self._is_open:
            return
        self._is_open = False
        for call in tuple(self._calls):
            call.cancel()
        if self._thread is not None:
            assert self._finalizer is not None, "they come together"
            self._finalizer.detach()
            try:
                asyncio.run_coroutine_threadsafe(self._store.close(), self._loop).result()
            finally:
                _end(self._loop, self._thread)

    def _run(self, asked: Coroutine[Any, Any, T], wait_s: float = 0.0) -> T:
        """Run a coroutine in the loop, and wait for what it returns."""
        if _is_running_here(self._loop):
            asked.close()
            raise RuntimeError("a call from the loop's own thread would wait for itself")
        try:
            if not self._is_open:
                raise RuntimeError
            call = asyncio.run_coroutine_threadsafe(asked, self._loop)
        except RuntimeError:  # ours, or the loop's, which is closed
            asked.close()
            raise StoreUnreachable("the store is closed") from None
        self._calls.add(call)
        try:
            return call.result(wait_s + PATIENCE_S + SPARE_S)
        except ValueRefused as refusal:
            raise ValueError(str(refusal)) from None
        except ValuesUnreachable as loss:
            raise StoreUnreachable(str(loss)) from loss
        except concurrent.futures.CancelledError:
            raise StoreUnreachable("the store was closed while a call waited") from None
        except TimeoutError:
            raise StoreUnreachable("the store's thread does not answer") from None
        finally:
            call.cancel()
            self._calls.discard(call)


async def _opened(open_store: Callable[[], Awaitable[Store]]) -> Store:
    return await open_store()


def _live(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End what still runs in the loop, then the loop, then its thread."""
    asyncio.run_coroutine_threadsafe(_settle(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def _settle() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_ending: set[asyncio.Task[None]] = set()  # a loop does not hold its tasks


def _abandon(loop: asyncio.AbstractEventLoop, store: Store, pid: int) -> None:
    """Nobody can close the store any more. This may be any thread, also the loop's own: it waits for nothing."""

    async def finish() -> None:
        with contextlib.suppress(Exception):  # there is nobody to tell
            await store.close()
        await _settle()
        loop.stop()

    def begin() -> None:
        task = loop.create_task(finish())
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    if os.getpid() == pid:  # a forked child has the store, and not the thread
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(begin)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _key(key: str) -> str:
    if not isinstance(key, str):
        raise TypeError(f"a key is a text, not {type(key).__name__}")
    return key


def _keys(keys: Sequence[str]) -> list[str]:
    if isinstance(keys, str):
        raise TypeError("a list of keys is needed, not a text")
    return [_key(key) for key in keys]


def _bytes(value: bytes | str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"a value is bytes or a text, not {type(value).__name__}")
    return bytes(value)


def _seconds(timeout: timedelta | float) -> float:
    return timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)


def _nobody_set(keys: Sequence[str], waited_s: float) -> StoreTimeout:
    named = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return StoreTimeout(f"nobody has set {named} within {waited_s:g} s")
