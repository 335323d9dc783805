"""The handlers that are built in, asked for by name as a program asks: two nodes of this process meet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.store.etcd.servers import free_ports

from phalanx.rendezvous import RendezvousClosedError, RendezvousHandler, RendezvousInfo, RendezvousParameters
from phalanx.rendezvous.registry import get_rendezvous_handler


def meet(handlers: list[RendezvousHandler]) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(handlers)) as threads:
        return list(threads.map(lambda handler: handler.next_rendezvous(), handlers))


def two_nodes_meet_twice_and_part(handlers: list[RendezvousHandler]) -> None:
    for _ in range(2):
        infos = meet(handlers)
        assert sorted(info.rank for info in infos) == [0, 1]
        assert len({info.bootstrap_store_info for info in infos}) == 1
        assert infos[0].store.add("met", 1) + infos[1].store.add("met", 1) == 3
    for handler in handlers:
        assert handler.shutdown()
    for handler in handlers:
        with pytest.raises(RendezvousClosedError):
            handler.next_rendezvous()


@contextmanager
def two_nodes(backend: str, endpoint: str, **options: Any) -> Iterator[list[RendezvousHandler]]:
    with ExitStack() as open_stores:
        handlers: list[Any] = []
        for _ in range(2):
            params = RendezvousParameters(backend, endpoint, "job/1", 2, 2, **options)
            handlers.append(get_rendezvous_handler(params))
            store = handlers[-1]._store
            open_stores.callback(
                getattr(store, "client", store).close
            )  # which ends with the process otherwise
            open_stores.callback(handlers[-1].shutdown)
            assert handlers[-1].get_backend() == backend
        yield handlers


def test_c10d_over_a_store_that_the_first_node_serves() -> None:
    [port] = free_ports(1)
    with two_nodes("c10d", f"127.0.0.1:{port}") as handlers:
        two_nodes_meet_twice_and_part(handlers)


def test_c10d_over_a_shared_folder(tmp_path: Path) -> None:
    with two_nodes("c10d", str(tmp_path / "shared"), store_type="file") as handlers:
        two_nodes_meet_twice_and_part(handlers)


@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
@shows_names(
    "better",
    "elastic.rendezvous.etcd_rendezvous",
    "create_rdzv_handler",
    how="a handler on etcd's v3 protocol: torch's speaks v2, which etcd no longer has",
)
def test_etcd_by_both_of_its_names(backend: str) -> None:
    pytest.importorskip("grpclib")
    from tests.store.etcd.servers import FAST, cluster

    async def story() -> None:
        async with cluster(1, arguments=FAST) as [member]:
            await asyncio.to_thread(run, member.endpoint)

    def run(endpoint: str) -> None:
        with two_nodes(backend, endpoint) as handlers:
            two_nodes_meet_twice_and_part(handlers)

    asyncio.run(story())


def test_static_with_a_rank_for_each_node() -> None:
    port, store_port = free_ports(2)
    handlers = [
        get_rendezvous_handler(
            RendezvousParameters("static", f"127.0.0.1:{port}", "job", 2, 2, rank=rank, store_port=store_port)
        )
        for rank in range(2)
    ]
    for _ in range(2):
        assert [info.rank for info in meet(handlers)] == [0, 1]
    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(lambda handler: handler.shutdown(), handlers))
