"""A key-value store that one process serves to others: torchelastic's ``create_c10d_store`` and its ports.

The store is ours, or torch's own ``TCPStore`` in a program that has imported ``torch.distributed``: process groups
take no other. All processes of one store have to be alike in that.
"""

from __future__ import annotations

import socket
import sys
import time
from datetime import timedelta
from typing import Any

__all__ = ["create_c10d_store", "get_free_port", "get_socket_with_port"]

_TRY_AGAIN_S = 0.5
_RUN_ID = "c10d"  # it tells these stores from those of jobs, where somebody mistakes one port for another
_CAME, _ALL_CAME = "init/num_members", "init/last_member"


def get_socket_with_port() -> socket.socket:
    """Return a socket that listens on a free port of ``localhost``. Raises ``RuntimeError``.

    >>> with get_socket_with_port() as listener:
    ...     listener.getsockname()[1] > 0
    True
    """
    for family, kind, protocol, _, _ in socket.getaddrinfo("localhost", None, type=socket.SOCK_STREAM):
        found = socket.socket(family, kind, protocol)
        try:
            found.bind(("localhost", 0))
            found.listen(0)
            return found
        except OSError:
            found.close()
    raise RuntimeError("no port of localhost is free")


def get_free_port() -> int:
    """Return a port of ``localhost`` that is free at this moment; the next one who asks may take it.

    >>> get_free_port() > 0
    True
    """
    with get_socket_with_port() as held:
        return int(held.getsockname()[1])


def create_c10d_store(
    is_server: bool,  # torchelastic's parameter
    server_addr: str,
    server_port: int = -1,
    world_size: int = 1,
    timeout: float = 600,
    wait_for_workers: bool = True,  # torchelastic's parameter
    retries: int = 3,
    use_libuv: bool | None = None,
) -> Any:
    """Serve a store on ``server_port`` (-1: a free one), or connect to one. ``timeout`` in seconds.

    With ``wait_for_workers`` returns when ``world_size`` processes have come. A server tries ``retries`` ports if -1
    was asked for. ``use_libuv`` is for torch's store alone. Raises ``ValueError`` for a client without a port, and
    what the store raises when it cannot be served or reached: ``OSError`` or ``RuntimeError``.

    >>> store = create_c10d_store(is_server=True, server_addr="localhost", server_port=-1)
    >>> store.set("step", b"1")
    >>> store.get("step")
    b'1'
    >>> del store
    """
    if server_port == -1 and not is_server:
        raise ValueError("server_port: a client needs the port on which the store is served")
    store = None
    for left in reversed(range(retries if server_port == -1 else 1)):
        port = get_free_port() if server_port == -1 else server_port
        try:
            store = _open(is_server, server_addr, port, world_size, timeout, use_libuv)
            break
        except (OSError, RuntimeError):
            if not left:
                raise
    if wait_for_workers and world_size > 1:
        try:
            _wait_for_all(store, world_size, timeout)
        except BaseException:
            if close := getattr(store, "close", None):  # torch's has none
                close()
            raise
    return store


def _open(
    is_server: bool,
    host: str,
    port: int,
    world_size: int,
    timeout_s: float,
    use_libuv: bool | None,
) -> Any:
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is not None and hasattr(torch_distributed, "TCPStore"):
        further = {} if use_libuv is None else {"use_libuv": use_libuv}
        return torch_distributed.TCPStore(
            host_name=host,
            port=port,
            world_size=world_size,
            is_master=is_server,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            **further,
        )
    return _open_ours(host, port, is_server=is_server, timeout_s=timeout_s)


def _open_ours(host: str, port: int, *, is_server: bool, timeout_s: float) -> Any:
    from phalanx.store.hosting import open_hosted
    from phalanx.store.port import Store, StoreError, Unclear
    from phalanx.store.synchronous import StoreUnreachable, SynchronousStore

    async def open_store() -> Store:
        import asyncio

        gives_up_at = time.monotonic() + timeout_s
        while True:
            try:
                return await open_hosted(host, port, run_id=_RUN_ID, is_host=is_server)
            except (Unclear, OSError):  # the server may start later
                if is_server or time.monotonic() >= gives_up_at:
                    raise
            await asyncio.sleep(_TRY_AGAIN_S)

    try:
        return SynchronousStore.open(open_store, prefix=f"/phalanx/{_RUN_ID}/kv/0/", timeout_s=timeout_s)
    except StoreError as error:
        raise StoreUnreachable(str(error)) from error


def _wait_for_all(store: Any, world_size: int, timeout_s: float) -> None:
    if store.add(_CAME, 1) == world_size:
        store.set(_ALL_CAME, b"1")
    store.wait([_ALL_CAME], timedelta(seconds=timeout_s))
