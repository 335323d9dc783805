"""Real etcd servers for tests: a cluster on loopback whose members can be killed, frozen and started again."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.system.launch import two_free_ports

from phalanx.store.etcd import open_etcd
from phalanx.store.etcd.binary import find_etcd
from phalanx.store.port import Unclear

T = TypeVar("T")

PATIENCE_S = 60

# Elections within a tenth of a second. The shortest lease that etcd grants is one and a half election timeouts.
FAST = ("--heartbeat-interval", "10", "--election-timeout", "100")


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, nor takes soon: neighbours, two by two."""
    pairs = [two_free_ports() for _ in range((count + 1) // 2)]
    return [port for first in pairs for port in (first, first + 1)][:count]


class Member:
    """One etcd server."""

    def __init__(
        self, name: str, folder: Path, *, port: int, peer_port: int, arguments: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.endpoint = f"127.0.0.1:{port}"
        self.peer_url = f"http://127.0.0.1:{peer_port}"
        self.folder = folder / name
        self.log = folder / f"{name}.log"
        self.scheme = "http"
        self.arguments = list(arguments)
        self.cluster: list[Member] = [self]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        url = f"{self.scheme}://{self.endpoint}"
        command = [
            find_etcd(),
            *("--name", self.name, "--data-dir", str(self.folder), "--unsafe-no-fsync"),
            *("--listen-client-urls", url, "--advertise-client-urls", url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", ",".join(f"{it.name}={it.peer_url}" for it in self.cluster)),
            *("--bcrypt-cost", "4", *self.arguments),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        shutil.rmtree(self.folder)

    def __str__(self) -> str:
        tail = self.log.read_text(errors="replace").splitlines()[-5:] if self.log.exists() else []
        return "\n".join([f"{self.name} on {self.endpoint}:", *tail])


@asynccontextmanager
async def cluster(
    size: int = 1, *, arguments: Sequence[str] = (), scheme: str = "http", **options: Any
) -> AsyncIterator[list[Member]]:
    """Members that have found one another, on loopback, in a short folder of their own. ``options`` open them."""
    with tempfile.TemporaryDirectory(prefix="etcd-", ignore_cleanup_errors=True) as name:
        ports = iter(free_ports(2 * size))
        members = [
            Member(f"m{number}", Path(name), port=next(ports), peer_port=next(ports), arguments=arguments)
            for number in range(size)
        ]
        try:
            for member in members:
                member.cluster, member.scheme = members, scheme
                member.start()
            await serving(members, **options)
            yield members
        finally:
            for member in members:
                member.kill()


async def serving(members: Sequence[Member], **options: Any) -> None:
    """Wait until each member answers by itself."""
    for member in members:
        try:
            store = await answered(
                partial(open_etcd, f"{member.scheme}://{member.endpoint}", attempt_s=0.5, **options)
            )
        except TimeoutError:
            raise AssertionError("\n".join(map(str, members))) from None
        await store.close()


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """What comes of it. An attempt that lasts too long on a busy machine, or finds no majority yet, is made again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await ask()
            except Unclear:
                await asyncio.sleep(0.1)
