"""Case 7 on one machine: the machine's own name means nothing to anybody, and the name server never answers."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

# Its own host name, and a mount namespace in which one address is the only name server.
ODD_HOST = (
    "unshare",
    "--uts",
    "--mount",
    "sh",
    "-c",
    'hostname odd-name && mount --bind "$0" /etc/resolv.conf && exec "$@"',
)
ONE_LOOKUP_S = 30  # the longest time that a resolver can be told to wait
SILENT_SERVER = "127.0.0.153"


def _can_unshare() -> bool:
    return (
        bool(shutil.which("unshare"))
        and os.geteuid() == 0
        and subprocess.run(
            ["unshare", "--uts", "--mount", "true"], capture_output=True, check=False
        ).returncode
        == 0
    )


pytestmark = pytest.mark.skipif(not _can_unshare(), reason="needs the right to make UTS and mount namespaces")


class OddHost:
    """Command prefixes that run the rest on a machine whose name cannot be resolved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def wrapper(self, *, lookup_s: int) -> tuple[str, ...]:
        """Each look-up there waits `lookup_s` seconds (at most 30, a limit of resolvers) and fails."""
        resolv_conf = self.folder / "resolv.conf"
        resolv_conf.write_text(f"nameserver {SILENT_SERVER}\noptions timeout:{lookup_s} attempts:1\n")
        return (*ODD_HOST, str(resolv_conf))


@pytest.fixture
def odd_host(tmp_path: Path) -> Iterator[OddHost]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # other test processes hold theirs
        silent.bind((SILENT_SERVER, 53))
        yield OddHost(tmp_path)


MEET = """
    import os, socket
    from telling import tell

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        with socket.create_server(address) as server:
            server.accept()[0].sendall(b"hello")
    else:
        while True:
            try:
                with socket.create_connection(address) as link:
                    tell("met", said=link.recv(5).decode())
                    break
            except ConnectionRefusedError:
                pass
"""

ENDPOINTS = {
    "standalone": ("--standalone",),
    "c10d": ("--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "odd"),
    "no flags": (),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=ENDPOINTS)
def test_workers_start_and_meet_at_the_master_address(
    launch: Launch, script: Script, odd_host: OddHost, endpoint: tuple[str, ...]
) -> None:
    started_at = time.monotonic()
    job = launch(
        *endpoint, "--nproc-per-node", 2, script(MEET), wrapper=odd_host.wrapper(lookup_s=ONE_LOOKUP_S)
    )

    (met,) = job.told("met")
    assert met["said"] == "hello"
    assert met.at - started_at < ONE_LOOKUP_S
    assert job.wait() == 0, job.stderr


def test_a_failure_is_reported_without_a_name_server(
    launch: Launch, script: Script, odd_host: OddHost
) -> None:
    started_at = time.monotonic()
    job = launch(
        "--standalone", script("import sys; sys.exit(7)"), wrapper=odd_host.wrapper(lookup_s=ONE_LOOKUP_S)
    )

    assert job.wait() == 7
    assert time.monotonic() - started_at < ONE_LOOKUP_S
    assert "odd-name" in job.summary


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_a_gloo_group_forms(launch: Launch, script: Script, odd_host: OddHost) -> None:
    """torch itself asks for names of loopback peers, so here a look-up fails after a second."""
    train = script(
        """
        import torch, torch.distributed
        from telling import tell

        torch.distributed.init_process_group("gloo")
        total = torch.ones(1)
        torch.distributed.all_reduce(total)
        tell("sum", value=total.item())
        torch.distributed.destroy_process_group()
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, train, wrapper=odd_host.wrapper(lookup_s=1))

    assert job.wait() == 0, job.stderr
    assert [event["value"] for event in job.told("sum", 2)] == [2.0, 2.0]
