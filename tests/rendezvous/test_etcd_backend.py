"""torchelastic's etcd backend and store, on a real etcd."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests.compat.marks import shows_names

pytest.importorskip("grpclib")
pytest.importorskip("google.protobuf")

from tests.store.etcd.servers import FAST, cluster  # after the packages that it needs

from phalanx.rendezvous.errors import RendezvousConnectionError
from phalanx.rendezvous.etcd_backend import EtcdRendezvousBackend, create_backend
from phalanx.rendezvous.etcd_client import EtcdClient
from phalanx.rendezvous.etcd_store import EtcdStore
from phalanx.rendezvous.parameters import RendezvousParameters


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    loop = asyncio.new_event_loop()
    members = cluster(1, arguments=FAST)
    [member] = loop.run_until_complete(members.__aenter__())
    yield member.endpoint
    loop.run_until_complete(members.__aexit__(None, None, None))
    loop.close()


@pytest.fixture
def client(endpoint: str) -> Iterator[EtcdClient]:
    client = EtcdClient([endpoint])
    yield client
    client.close()


@shows_names(
    "better",
    "elastic.rendezvous.etcd_rendezvous_backend",
    "EtcdRendezvousBackend",
    how="on etcd's v3 protocol: torch's speaks v2, which etcd no longer has",
)
def test_a_backend_keeps_one_value_under_compare_and_set(client: EtcdClient) -> None:
    backend = EtcdRendezvousBackend(client, "one-value")
    assert backend.name == "etcd-v2"
    assert backend.get_state() is None
    first = backend.set_state(b"one\0\xff")
    assert first is not None
    assert (first[0], first[2]) == (b"one\0\xff", True)
    assert backend.set_state(b"two") == (*first[:2], False)
    assert backend.set_state(b"two", "no token") == (*first[:2], False)
    second = backend.set_state(b"two", first[1])
    assert second is not None
    assert second[2]
    assert backend.set_state(b"three", first[1]) == (*second[:2], False)
    assert backend.get_state() == second[:2]


def test_the_value_is_at_the_prefix_and_ends_some_time_after_its_last_write(client: EtcdClient) -> None:
    backend = EtcdRendezvousBackend(client, "ends", key_prefix="/mine/", ttl=3)
    backend.set_state(b"state")
    found = client.read(lambda store: store.get("/mine/ends"))
    assert found is not None
    assert found.value == b"state"

    async def wait_for_the_end(store: Any) -> None:
        watch = store.watch("/mine/ends", found.mod_revision + 1)
        async for batch in watch:
            if batch.changes[0].is_delete:
                return

    client.read(wait_for_the_end)
    assert backend.get_state() is None
    result = backend.set_state(b"again")
    assert result is not None
    assert result[2]


@shows_names(
    "better",
    "elastic.rendezvous.etcd_store",
    "EtcdStore",
    how="on etcd's v3 protocol: torch's speaks v2, which etcd no longer has",
)
def test_a_store_has_torchs_methods_and_says_what_nobody_has_set(client: EtcdClient) -> None:
    store = EtcdStore(client, "/mine/store", timeout=timedelta(seconds=0.2))
    store.set("key", "value")
    assert store.get("key") == b"value"
    assert (store.add("n", 2), store.add("n", 3)) == (2, 5)
    assert store.check(["key", "n"])
    assert not store.check(["key", "other"])
    store.wait(["key"])
    with pytest.raises(LookupError, match="nobody has set 'other'"):
        store.get("other")
    with pytest.raises(LookupError, match="nobody has set"):
        store.wait(["other"], timedelta(seconds=0.1))
    other = EtcdStore(client, "/mine/elsewhere", timeout=timedelta(seconds=0.1))
    assert not other.check(["key"])
    store.close()
    assert other.add("n", 1) == 1


@shows_names(
    "better",
    "elastic.rendezvous.etcd_rendezvous_backend",
    "create_backend",
    how="on etcd's v3 protocol: torch's speaks v2, which etcd no longer has",
)
def test_parameters_make_a_backend_and_a_store(endpoint: str) -> None:
    backend, store = create_backend(RendezvousParameters("etcd", endpoint, "made", 1, 2, protocol="HTTP"))
    assert backend.name == "etcd"
    result = backend.set_state(b"state")
    assert result is not None
    store.set("key", "value")
    same, other = create_backend(RendezvousParameters("etcd-v2", endpoint, "made", 1, 2))
    assert same.get_state() == result[:2]
    assert other.get("key") == b"value"
    for one in (backend, same):
        one.client.close()


@pytest.mark.parametrize(
    "options",
    [
        {"protocol": "ftp"},
        {"ssl_cert": "cert.pem"},
        {"ssl_cert_key": "key.pem"},
        {"read_timeout": 0},
        {"read_timeout": "x"},
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # one sentence each
        create_backend(RendezvousParameters("etcd", "localhost:1", "job", 1, 2, **options))


def test_an_etcd_that_does_not_answer_is_a_lost_connection() -> None:
    with pytest.raises(RendezvousConnectionError, match=r"127\.0\.0\.1:1"):
        EtcdClient(["127.0.0.1:1"], timeout_s=1)


def test_a_client_that_nobody_has_any_more_is_closed(endpoint: str) -> None:
    client = EtcdClient([endpoint])
    thread = client.thread
    assert client.read(lambda store: store.get("key")) is None
    del client
    gc.collect()
    with pytest.raises(RuntimeError):
        thread.run(asyncio.sleep(0))


def test_a_backend_without_a_run_id_is_refused(client: EtcdClient) -> None:
    with pytest.raises(ValueError, match="run id"):
        EtcdRendezvousBackend(client, "")
