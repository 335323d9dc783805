"""Which member of a cluster is used, and which comes next when it is silent."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import ssl
from collections import deque
from collections.abc import Sequence

from phalanx.store.etcd.answers import NotDone
from phalanx.store.etcd.connection import Connection
from phalanx.store.etcd.endpoints import Endpoint
from phalanx.store.sockets import resolve

__all__ = ["Members"]


class Members:
    """The addresses behind the endpoints, one after the other, each name looked up anew in each turn."""

    def __init__(
        self, endpoints: Sequence[Endpoint], *, context: ssl.SSLContext | None, look_up_s: float
    ) -> None:
        # Each client begins elsewhere, or all would hang on the first member.
        self._endpoints = random.sample(endpoints, len(endpoints))
        self._context = context
        self._look_up_s = look_up_s
        self._next: deque[tuple[Endpoint, str]] = deque()
        self._choosing = asyncio.Lock()
        self._left: set[Connection] = set()
        self._is_closed = False
        self.current: Connection | None = None

    @property
    def turn(self) -> int:
        """How many tries it takes at least until each endpoint had its turn."""
        return len(self._endpoints)

    async def connection(self) -> Connection:
        """The connection in use, or a new one to the next address. Raises ``NotDone`` when there is no address."""
        if self.current is None:
            async with self._choosing:
                if self.current is None:
                    chosen = await self._choose()
                    if self._is_closed:  # while names were looked up
                        chosen.retire()
                        raise NotDone("closed")
                    self.current = chosen
        return self.current

    def leave(self, connection: Connection | None) -> None:
        """Go on with another member, unless that has happened already."""
        if connection is not None and connection is self.current:
            self.current = None
            self._left = {left for left in self._left if not left.is_closed} | {connection}
            connection.retire()

    async def close(self) -> None:
        """Close what is open, for good."""
        self._is_closed = True
        self.leave(self.current)
        for connection in self._left:
            await connection.close()

    async def _choose(self) -> Connection:
        if not self._next:
            self._next.extend(await self._all_addresses())
        endpoint, address = self._next.popleft()
        return Connection(endpoint, address, self._context if endpoint.is_tls else None)

    async def _all_addresses(self) -> list[tuple[Endpoint, str]]:
        answers = await asyncio.gather(*map(self._look_up, self._endpoints), return_exceptions=True)
        found: list[tuple[Endpoint, str]] = []
        troubles: list[str] = []
        for endpoint, answer in zip(self._endpoints, answers, strict=True):
            if isinstance(answer, TimeoutError):
                troubles.append(f"{endpoint.host}: the name was not found within {self._look_up_s:.2g} s")
            elif isinstance(answer, OSError):
                troubles.append(f"{endpoint.host}: {answer.strerror or answer}")
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += [(endpoint, address) for address in answer]
        if not found:
            raise NotDone("; ".join(troubles))
        return found

    async def _look_up(self, endpoint: Endpoint) -> list[str]:
        try:
            return [str(ipaddress.ip_address(endpoint.host))]
        except ValueError:
            pass
        async with asyncio.timeout(self._look_up_s):
            found = await resolve(endpoint.host, endpoint.port)
        return list(dict.fromkeys(str(place[0]) for _, place in found))
