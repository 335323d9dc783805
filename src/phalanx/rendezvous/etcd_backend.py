"""``EtcdRendezvousBackend``: a rendezvous backend in one key of etcd v3."""

from __future__ import annotations

from typing import Any

from phalanx.rendezvous.backend import RendezvousBackend
from phalanx.rendezvous.endpoint import parse_rendezvous_endpoint
from phalanx.rendezvous.etcd_client import EtcdClient
from phalanx.rendezvous.etcd_store import EtcdStore
from phalanx.rendezvous.parameters import RendezvousParameters
from phalanx.store.port import Compare, Field, Get, KeyValue, LeaseExpired, Put, Store

__all__ = ["EtcdRendezvousBackend", "create_backend"]

# torchelastic's
PORT = 2379
TTL_S = 7200
STATE_PREFIX = "/torch/elastic/rendezvous"
STORE_PREFIX = "/torch/elastic/store"
READ_TIMEOUT_S = 60


class EtcdRendezvousBackend(RendezvousBackend):
    """The value is at ``key_prefix/run_id``, and is gone ``ttl`` seconds after the last one who wrote it did so."""

    def __init__(
        self,
        client: EtcdClient,
        run_id: str,
        key_prefix: str | None = None,
        ttl: int | None = None,
        *,
        name: str = "etcd-v2",
    ) -> None:
        if not run_id:
            raise ValueError("a rendezvous needs a run id, and it is empty")
        self.client = client
        self._name = name
        self._key = f"{(key_prefix or STATE_PREFIX).rstrip('/')}/{run_id}"
        self._ttl_s = TTL_S if ttl is None or ttl <= 0 else ttl
        self._lease = 0

    @property
    def name(self) -> str:
        """``etcd-v2`` or ``etcd``, as it was asked for; it is etcd v3 all the same."""
        return self._name

    def get_state(self) -> tuple[bytes, Any] | None:
        """As the interface says; the token is the key's revision."""
        kv = self.client.read(lambda store: store.get(self._key))
        return None if kv is None else (kv.value, kv.mod_revision)

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """As the interface says. Raises ``RendezvousConnectionError`` also when it may have been set."""
        if token is not None and (
            not isinstance(token, int) or token < 1
        ):  # of another backend: nothing equals it
            found = self.get_state()
            return None if found is None else (*found, False)
        return self.client.write(lambda store: self._set(store, state, token or 0))

    async def _set(self, store: Store, state: bytes, revision: int) -> tuple[bytes, Any, bool] | None:
        unchanged = Compare(self._key, Field.MOD_REVISION, revision)
        put = Put(self._key, state, await self._fresh_lease(store))
        answer = await store.transaction((unchanged,), (put,), (Get(self._key),))
        if answer.succeeded:
            return state, answer.revision, True
        held: tuple[KeyValue, ...] = answer.results[0]
        return (held[0].value, held[0].mod_revision, False) if held else None

    async def _fresh_lease(self, store: Store) -> int:
        """A lease that lasts the ttl from now on."""
        if self._lease:
            try:
                await store.renew(self._lease)
                return self._lease
            except LeaseExpired:
                pass
        self._lease = await store.grant(self._ttl_s)
        return self._lease


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """Connect to the etcd at ``params.endpoint``, and make a backend and a store there.

    Options: ``protocol`` (http, https), ``ssl_cert``, ``ssl_cert_key``, ``ca_cert``, ``read_timeout`` in seconds.
    Raises ``ValueError`` for what is wrong with them and ``RendezvousConnectionError``.
    """
    endpoints = [
        "[{}]:{}".format(*parsed) if ":" in parsed[0] else "{}:{}".format(*parsed)
        for parsed in (parse_rendezvous_endpoint(one, PORT) for one in params.endpoint.split(","))
    ]
    protocol = str(params.get("protocol", "http")).strip().lower()
    if protocol not in ("http", "https"):
        raise ValueError(f"the protocol of etcd is http or https, not {protocol!r}")
    cert, key = params.get("ssl_cert"), params.get("ssl_cert_key")
    if bool(cert) != bool(key):
        raise ValueError("ssl_cert and ssl_cert_key go together; one of them is missing")
    client = EtcdClient(
        endpoints,
        tls=protocol == "https",
        ca_cert=params.get("ca_cert"),
        cert=cert,
        key=key,
        timeout_s=_read_timeout_s(params),
    )
    store = EtcdStore(client, f"{STORE_PREFIX}/{params.run_id}")
    return EtcdRendezvousBackend(client, params.run_id, name=params.backend), store


def _read_timeout_s(params: RendezvousParameters) -> float:
    read_timeout_s = params.get_as_int("read_timeout", READ_TIMEOUT_S)
    if read_timeout_s is None or read_timeout_s <= 0:
        raise ValueError(f"read_timeout is more than zero seconds, not {read_timeout_s}")
    return read_timeout_s
