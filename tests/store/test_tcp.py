"""A store that one process serves to others, and ports for it."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.system.launch import two_free_ports

from phalanx.store.synchronous import StoreUnreachable, SynchronousStore
from phalanx.store.tcp import create_c10d_store, get_free_port, get_socket_with_port


@pytest.fixture
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have imported torch, and then the store would be torch's."""
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


@pytest.mark.compat("name torch.distributed.elastic.utils.distributed.create_c10d_store", "same")
@pytest.mark.usefixtures("_without_torch")
def test_a_server_and_its_clients_share_values_when_all_have_come() -> None:
    port = two_free_ports()
    stores: list[Any] = []

    def join(is_server: bool) -> None:
        stores.append(create_c10d_store(is_server, "127.0.0.1", port, world_size=3, timeout=60))

    threads = [threading.Thread(target=join, args=(one,)) for one in (False, True, False)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    try:
        assert all(isinstance(one, SynchronousStore) for one in stores)
        stores[0].set("greeting", b"hello")
        assert [one.get("greeting") for one in stores] == [b"hello"] * 3
    finally:
        for one in stores:
            one.close()


@pytest.mark.usefixtures("_without_torch")
def test_a_client_that_finds_no_server_says_so_and_one_without_a_port_is_refused() -> None:
    with pytest.raises(ValueError, match="server_port"):
        create_c10d_store(is_server=False, server_addr="127.0.0.1")
    with pytest.raises(StoreUnreachable):
        create_c10d_store(False, "127.0.0.1", two_free_ports(), timeout=0.1)


@pytest.mark.usefixtures("_without_torch")
def test_a_server_for_whom_not_all_come_serves_no_longer() -> None:
    port = two_free_ports()
    with pytest.raises(TimeoutError):
        create_c10d_store(True, "127.0.0.1", port, world_size=2, timeout=0.1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.usefixtures("_without_torch")
def test_a_port_that_is_taken_is_an_error_when_it_was_asked_for() -> None:
    with get_socket_with_port() as held, pytest.raises(StoreUnreachable):
        create_c10d_store(True, "127.0.0.1", held.getsockname()[1], timeout=5)


@pytest.mark.torch
def test_where_torch_is_imported_the_store_is_torchs_which_process_groups_take() -> None:
    program = (
        "import torch.distributed as dist\n"
        "from phalanx.store.tcp import create_c10d_store\n"
        "store = create_c10d_store(True, 'localhost')\n"
        "assert isinstance(store, dist.TCPStore), store\n"
        "dist.PrefixStore('x', store).set('a', 'b')\n"
        "print(store.get('x/a'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "b'b'\n", done.stderr


@pytest.mark.compat("name torch.distributed.elastic.utils.distributed.get_socket_with_port", "same")
@pytest.mark.compat("name torch.distributed.elastic.utils.distributed.get_free_port", "same")
def test_a_socket_with_a_port_listens() -> None:
    import socket

    with get_socket_with_port() as held:
        with socket.create_connection(held.getsockname()[:2], timeout=30):
            pass
        assert get_free_port() != held.getsockname()[1]
