"""A way to etcd for code that does not await: one connection, in a thread of its own."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from phalanx.rendezvous.errors import RendezvousConnectionError
from phalanx.rendezvous.loop_thread import LoopThread
from phalanx.store.port import Store, StoreError, Unclear

__all__ = ["EtcdClient"]

ResultT = TypeVar("ResultT")

TIMEOUT_S = 60.0  # torchelastic's read_timeout
ASK_AGAIN_S = 0.2


class EtcdClient:
    """Connects to one of ``endpoints`` (``host:port``). Needs the extra ``etcd``.

    Raises ``RendezvousConnectionError`` when etcd was not reached within ``timeout_s`` seconds, or refuses us.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: bool = False,
        ca_cert: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._endpoints = ", ".join(endpoints)
        self._timeout_s = timeout_s

        async def connect() -> Store:
            from phalanx.store.etcd import open_etcd

            return await open_etcd(
                list(endpoints), tls=tls, ca_cert=ca_cert, cert=cert, key=key, user=user, password=password
            )

        self.thread = LoopThread("phalanx-etcd")
        try:
            self.store = self.thread.run(self._patiently(connect))
        except BaseException:
            self.thread.stop()
            raise
        self.close = weakref.finalize(self, _close, self.thread, self.store)
        """Disconnect and end the thread; done also when nobody has this client any more. Idempotent."""

    def read(self, question: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
        """Ask something that may be asked twice: it is, until there is an answer or the time is over."""
        return self.thread.run(self._patiently(lambda: question(self.store)))

    def write(self, request: Callable[[Store], Awaitable[ResultT]]) -> ResultT:
        """Ask for something once. Raises ``RendezvousConnectionError`` when it is not known whether it happened."""
        return self.thread.run(self._once(lambda: request(self.store)))

    async def _patiently(self, ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
        reason: Exception | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await ask()
                    except (Unclear, OSError) as error:
                        reason = error
                    await asyncio.sleep(ASK_AGAIN_S)
        except TimeoutError:
            raise RendezvousConnectionError(
                f"etcd at {self._endpoints} has not answered for {self._timeout_s:g} s: {reason}"
            ) from reason
        except StoreError as error:
            raise RendezvousConnectionError(str(error)) from error

    async def _once(self, ask: Callable[[], Awaitable[ResultT]]) -> ResultT:
        try:
            return await ask()
        except (StoreError, OSError) as error:
            raise RendezvousConnectionError(str(error)) from error


def _close(thread: LoopThread, store: Store) -> None:
    thread.run(store.close())
    thread.stop()
