"""The local etcd server with torchelastic's names."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.marks import shows_names

from phalanx.rendezvous import etcd_server
from phalanx.rendezvous.etcd_server import EtcdServer, find_free_port, stop_etcd
from phalanx.store.port import Refused

VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"


def program(folder: Path, text: str) -> str:
    """A program that is no etcd."""
    path = folder / "etcd"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@shows_names("same", "elastic.rendezvous.etcd_server", "EtcdServer")
def test_it_serves_where_it_says_until_it_is_stopped() -> None:
    server = EtcdServer()
    assert (server.get_port(), server.get_host(), server.get_endpoint()) == (-1, "localhost", "localhost:-1")
    server.start(stderr=subprocess.DEVNULL)
    try:
        assert server.get_endpoint() == f"localhost:{server.get_port()}"
        client = server.get_client()
        try:
            revision = client.write(lambda store: store.put("/t", b"1"))
            item = client.read(lambda store: store.get("/t"))
            assert item is not None
            assert (item.value, item.mod_revision) == (b"1", revision)
        finally:
            client.close()
    finally:
        server.stop()
    server.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("localhost", server.get_port()), timeout=10)


def test_a_second_start_leaves_no_server_behind_and_a_given_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    server = EtcdServer(str(tmp_path))
    server.start(stderr=subprocess.DEVNULL)
    first = server.get_port()
    server.start(stderr=subprocess.DEVNULL)
    server.stop()
    for port in (first, server.get_port()):
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("localhost", port), timeout=10)
    assert (tmp_path / "mine").exists()


@pytest.mark.compat("variable TORCHELASTIC_ETCD_BINARY_PATH", "same")
def test_a_server_that_ends_by_itself_is_tried_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, program(tmp_path, f"echo x >> {tmp_path}/tries; exit 3"))
    with pytest.raises(RuntimeError, match="exit code 3"):
        EtcdServer().start(num_retries=2)
    assert (tmp_path / "tries").read_text() == "x\nx\n"


def test_a_server_that_is_never_ready_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, program(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600"))
    with pytest.raises(TimeoutError):
        EtcdServer().start(timeout=5, num_retries=1)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_without_a_program_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(Refused, match=VARIABLE):
        EtcdServer().start()


@shows_names("same", "elastic.rendezvous.etcd_server", "find_free_port")
def test_a_free_port_is_kept_until_its_socket_is_closed() -> None:
    with find_free_port() as reserved, socket.socket(reserved.family) as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(reserved.getsockname())
        assert reserved.getsockname()[0] in ("127.0.0.1", "::1")


@shows_names("same", "elastic.rendezvous.etcd_server", "stop_etcd")
def test_stopping_takes_what_there_is(tmp_path: Path) -> None:
    stop_etcd(None)
    process = subprocess.Popen(["sleep", "600"])
    stop_etcd(process, str(tmp_path))
    assert process.returncode == -15
    assert not tmp_path.exists()
    stop_etcd(process, str(tmp_path))


def test_a_server_that_nobody_stopped_is_stopped_at_exit() -> None:
    code = """
import subprocess
from phalanx.rendezvous.etcd_server import EtcdServer
server = EtcdServer()
server.start(stderr=subprocess.DEVNULL)
print(server.get_port(), server._made_dir)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    port, folder = done.stdout.split()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("localhost", int(port)), timeout=10)
    assert not os.path.exists(folder)


@pytest.mark.torch
def test_its_public_face_is_torchelastics() -> None:
    from torch.distributed.elastic.rendezvous import etcd_server as theirs

    def parameters(function: object) -> list[tuple[str, object]]:
        assert callable(function)
        return [(one.name, one.default) for one in inspect.signature(function).parameters.values()]

    for name in ("EtcdServer", "find_free_port", "stop_etcd"):
        assert parameters(getattr(etcd_server, name)) == parameters(getattr(theirs, name))
    public = [name for name in vars(theirs.EtcdServer) if not name.startswith("_")]
    for name in public:
        assert parameters(getattr(EtcdServer, name)) == parameters(getattr(theirs.EtcdServer, name))
    assert len(public) >= 6
