"""``C10dRendezvousBackend``: a rendezvous backend in one key of any store with torch's methods.

``create_backend`` makes one over a store of ours: the hosted one, or that in a shared folder.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Awaitable, Callable
from typing import Any

from phalanx.rendezvous.backend import RendezvousBackend
from phalanx.rendezvous.endpoint import parse_rendezvous_endpoint
from phalanx.rendezvous.errors import RendezvousConnectionError, RendezvousStateError
from phalanx.rendezvous.parameters import RendezvousParameters
from phalanx.rendezvous.seat import key_of
from phalanx.store.port import Store, StoreError, Unclear
from phalanx.store.synchronous import SynchronousStore

__all__ = ["C10dRendezvousBackend", "create_backend"]

PORT = 29400  # torchelastic's
READ_TIMEOUT_S = 60  # torchelastic's
OPEN_AGAIN_S = 0.2

# torchelastic's key and mark: its stores cannot say "no such key" without waiting, so the first look puts a mark there.
KEY = "torch.rendezvous.{}"
NOTHING = b"Y2FuaW1hZGFt"


class C10dRendezvousBackend(RendezvousBackend):
    """``store`` needs ``compare_set`` as torch's stores have it; a value travels as base64, and is its own token.

    What it writes, torchelastic's class of this name reads, and the other way round.
    """

    def __init__(self, store: Any, run_id: str) -> None:
        if not run_id:
            raise ValueError("a rendezvous needs a run id, and it is empty")
        self._store = store
        self._key = KEY.format(run_id)

    @property
    def name(self) -> str:
        """``c10d``."""
        return "c10d"

    def get_state(self) -> tuple[bytes, Any] | None:
        """As the interface says."""
        return _decode(self._swap(b"", NOTHING))

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """As the interface says."""
        if token is not None and not isinstance(
            token, bytes
        ):  # it is of another backend, and nothing equals it
            found = self.get_state()
            return None if found is None else (*found, False)
        desired = b64encode(state)
        held = self._swap(token or NOTHING, desired)
        if held == b"" or (token is None and held == NOTHING):
            held = self._swap(b"", desired)
        found = _decode(held)
        return None if found is None else (*found, held == desired)

    def _swap(self, expected: bytes, desired: bytes) -> bytes:
        """Put ``desired`` where ``expected`` is; what is there afterwards."""
        try:
            held = self._store.compare_set(self._key, expected.decode(), desired.decode())
        except (OSError, RuntimeError, ValueError) as error:  # what torch's stores raise, and ours
            raise RendezvousConnectionError(f"the store behind the rendezvous failed: {error}") from error
        return bytes(held)


def _decode(held: bytes) -> tuple[bytes, Any] | None:
    if held in (b"", NOTHING):
        return None
    try:
        return b64decode(held, validate=True), held
    except NoBase64 as error:
        raise RendezvousStateError(f"what the store holds is no state of a rendezvous: {error}") from None


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, SynchronousStore]:
    """Open the store at ``params.endpoint``, and make a backend in it.

    Options: ``store_type`` (``tcp``: whoever can bind the endpoint serves the others; ``file``: the endpoint is a
    folder that all nodes share, which is made), ``is_host``, ``read_timeout`` in seconds. Raises ``ValueError`` for
    what is wrong with them, and ``RendezvousConnectionError`` when the store was not reached within ``read_timeout``.
    """
    kind = str(params.get("store_type", "tcp")).strip().lower()
    limit_s = params.get_as_int("read_timeout", READ_TIMEOUT_S)
    if limit_s is None or limit_s <= 0:
        raise ValueError(f"read_timeout is more than zero seconds, not {limit_s}")
    if kind not in ("tcp", "file"):
        raise ValueError(f"store_type is tcp or file, not {kind!r}")
    open_store = _hosted(params) if kind == "tcp" else _shared_folder(params)
    prefix = f"/phalanx/{key_of(params.run_id)}/kv/0/"  # of no round: theirs begin with 1
    try:
        store = SynchronousStore.open(
            lambda: _patiently(open_store, limit_s), prefix=prefix, timeout_s=float(limit_s)
        )
    except (StoreError, OSError) as error:
        raise RendezvousConnectionError(
            f"the store at {params.endpoint!r} cannot be used: {error}"
        ) from error
    return C10dRendezvousBackend(store, params.run_id), store


def _hosted(params: RendezvousParameters) -> Callable[[], Awaitable[Store]]:
    host, port = parse_rendezvous_endpoint(params.endpoint, PORT)
    is_host = params.get_as_bool("is_host")

    async def open_store() -> Store:
        from phalanx.store.hosting import open_hosted

        return await open_hosted(host, port, is_host=is_host, run_id=key_of(params.run_id))

    return open_store


def _shared_folder(params: RendezvousParameters) -> Callable[[], Awaitable[Store]]:
    folder = params.endpoint.strip()
    if not folder:  # torchelastic makes a file of its own, too: for a job on one node
        from tempfile import mkdtemp

        folder = mkdtemp(prefix="phalanx_rendezvous_")
    if os.path.isfile(
        folder
    ):  # torchelastic's file store is one file, which somebody may have made beforehand
        folder += ".phalanx"

    async def open_store() -> Store:
        from phalanx.store.file import open_file

        return await open_file(folder)

    return open_store


async def _patiently(open_store: Callable[[], Awaitable[Store]], limit_s: float) -> Store:
    reason: Exception | None = None
    try:
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    return await open_store()
                except (Unclear, OSError) as error:
                    reason = error
                await asyncio.sleep(OPEN_AGAIN_S)
    except TimeoutError:
        raise reason or Unclear(f"nothing was heard for {limit_s:g} s") from None
