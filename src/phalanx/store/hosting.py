"""Who hosts the store of a job: the agent that can bind its endpoint, unless somebody there answers already."""

from __future__ import annotations

import asyncio
import errno
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from phalanx.store.admission import Admission
from phalanx.store.client import ATTEMPT_S, HostedStore
from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Refused, Unclear
from phalanx.store.server import StoreServer
from phalanx.store.sockets import Address, NotOurs, is_loopback, listen, resolve

if TYPE_CHECKING:
    import ssl

__all__ = ["HostStore", "open_hosted"]

LOCALHOST = ("localhost", "localhost.localdomain", "ip6-localhost", "localhost6")


class HostStore(MemoryStore):
    """The host's own way to the store that it serves: direct. Closing it ends the store for everybody."""

    def __init__(
        self, memory: MemoryServer, admission: Admission, *, report: Callable[[str], None] | None
    ) -> None:
        super().__init__(memory)
        self.serving = StoreServer(memory, admission, report=report)
        self._source_address: str | None = None

    @property
    def run_id(self) -> str:
        """The id of our job: given, or drawn here."""
        return self.serving.admission.run_id

    @property
    def is_host(self) -> bool:
        """True."""
        return True

    @property
    def source_address(self) -> str | None:
        """The address that we serve on, at which the others reach us; None when we serve on all."""
        return self._source_address

    @property
    def is_local(self) -> bool:
        """It is in this process."""
        return True

    def tell_refusals(self, tell: Callable[[str], None]) -> None:
        """Why connections were ended, one sentence each."""
        self.serving.report_to(tell)

    async def serve(self, addresses: list[Address], *, everywhere: bool, tls: ssl.SSLContext | None) -> None:
        """Begin to serve. Raises what ``listen`` does."""
        listeners = listen(addresses, everywhere=everywhere)
        name = str(listeners[0].getsockname()[0])
        self._source_address = None if name in ("0.0.0.0", "::") else name
        await self.serving.start(listeners, tls=tls)

    async def others_gone(self, limit_s: float) -> None:
        """Wait until nobody else is connected, for so long at most."""
        await self.serving.others_gone(limit_s)

    async def close(self) -> None:
        """As every store does, and stop serving."""
        await super().close()
        await self.serving.close()


async def open_hosted(
    host: str,
    port: int,
    *,
    secret: bytes | None = None,
    run_id: str | None = None,
    fingerprint: str = "",
    is_host: bool | None = None,
    connect_timeout_s: float = ATTEMPT_S,
    attempt_s: float = ATTEMPT_S,
    server_tls: ssl.SSLContext | None = None,
    client_tls: ssl.SSLContext | None = None,
    report: Callable[[str], None] | None = None,
) -> HostedStore | HostStore:
    """A client of the store at ``host:port``, or, if there is none and the address is ours, the store itself.

    ``host`` is used as given: an address stays one, and nothing is looked up in reverse. ``is_host`` says who serves;
    None: whoever can bind the endpoint when nobody answers there. Without ``secret`` the key follows from the run id.
    Without ``run_id`` the host's is adopted if its ``fingerprint`` is ours; a host without one draws one. ``report``
    gets a sentence for each connection that the server ended.

    Raises ``Unclear`` when there is no store yet, and trying again may help; ``Refused`` when it cannot.
    """
    host = host.removeprefix("[").removesuffix("]")  # as an IPv6 address is written before a port
    client = HostedStore(
        host,
        port,
        secret=secret,
        run_id=run_id,
        fingerprint=fingerprint,
        attempt_s=attempt_s,
        tls=client_tls,
    )
    if is_host is not True:
        try:
            await client.open(connect_timeout_s)
            return client
        except Unclear:
            if is_host is False:
                raise
    admission = Admission(run_id=run_id or secrets.token_hex(8), fingerprint=fingerprint, secret=secret)
    store = HostStore(MemoryServer(StoreMachine()), admission, report=report)
    try:
        addresses = await _resolve(host, port)
        # The others reach this machine by the name's true address, which this machine's own hosts file hides.
        everywhere = all(map(is_loopback, addresses)) and _is_name(host)
        await store.serve(addresses, everywhere=everywhere, tls=server_tls)
    except OSError as error:
        await store.close()
        if isinstance(error, NotOurs) and is_host:
            raise Refused(f"The store cannot be served at {host}, because {error}.") from None
        if error.errno == errno.EADDRINUSE and is_host is None:  # we asked, and it said nothing of ours
            raise Unclear(f"What listens at {host}:{port} does not answer as a store of ours does") from None
        if is_host is None:
            raise Unclear(f"nobody serves the store at {host}:{port} ({error})") from None
        raise Unclear(f"The store cannot be served at {host}:{port}: {error}.") from None
    except BaseException:
        await store.close()
        raise
    return store


async def _resolve(host: str, port: int) -> list[Address]:
    try:
        async with asyncio.timeout(ATTEMPT_S):
            return await resolve(host, port)
    except TimeoutError:
        raise Unclear(f"The name {host} was not resolved within {ATTEMPT_S:g} s.") from None
    except OSError as error:
        raise Unclear(f"The name {host} is not known: {error}.") from None


def _is_name(host: str) -> bool:
    return (
        host.lower().rstrip(".") not in LOCALHOST and not host.replace(".", "").isdigit() and ":" not in host
    )
