"""`python -m bench.settle [--quick]`: how long n agents need to agree on a round, and how many messages each takes.

The agents are ours but for their processes: real drivers, machines, sessions and clients, each with a connection of
its own, all in one process with the hosted store; etcd runs beside it. torchrun's rendezvous handler is measured in
the same run, one thread per node, as far as it comes within its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import gc
import resource
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

from phalanx.agent.driver import Driver
from phalanx.agent.events import AnnounceCheckpoint, CollectEvidence, EvidenceCollected, JobBegan, PassOn
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    AnnounceStop,
    Say,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.multiprocessing.machine import SignalTree, SignalWorkers
from phalanx.rendezvous.events import Fence, HoldPort, PortHeld, ReleasePort
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.session import Session
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.store.port import Answer, Batch, Compare, Operation, Store, Watch

SIZES = (1, 8, 64, 256, 1000)
TORCHRUN_LIMIT_S = 120.0
OURS_LIMIT_S = 300.0
# One process is a thousand agents, and late with everything; leases and time-outs are not what is measured.
TTL_S = 600.0
ATTEMPT_S = 120.0


class Count:
    """Messages of all agents: requests, answers and batches of watches."""

    def __init__(self) -> None:
        self.messages = 0


class CountedStore(Store):
    """Another store, and a count of what goes over its connection."""

    def __init__(self, store: Store, count: Count) -> None:
        self._store = store
        self._count = count

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As the store does."""
        self._count.messages += 2
        return await self._store.transaction(compares, then, otherwise)

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As the store does."""
        self._count.messages += 2
        return CountedWatch(self._store.watch(prefix, from_revision), self._count)

    async def grant(self, ttl_s: float) -> int:
        """As the store does."""
        self._count.messages += 2
        return await self._store.grant(ttl_s)

    async def renew(self, lease: int) -> None:
        """As the store does."""
        self._count.messages += 2
        await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        """As the store does."""
        self._count.messages += 2
        await self._store.revoke(lease)

    async def close(self) -> None:
        """As the store does."""
        await self._store.close()

    @property
    def source_address(self) -> str | None:
        """As the store does."""
        return self._store.source_address

    @property
    def is_host(self) -> bool:
        """As the store does."""
        return self._store.is_host


class CountedWatch(Watch):
    """The same for a watch."""

    def __init__(self, watch: Watch, count: Count) -> None:
        self._watch = watch
        self._count = count

    async def __aiter__(self) -> AsyncIterator[Batch]:
        async for batch in self._watch:
            self._count.messages += 1
            yield batch

    async def aclose(self) -> None:
        """As the watch does."""
        await self._watch.aclose()


class Agent:
    """One agent whose worker is a number. ``round`` is the last one whose worker it started."""

    def __init__(
        self, number: int, nodes: int, open_store: Callable[[], Awaitable[Store]], news: asyncio.Event
    ) -> None:
        self.round = 0
        self.world_size = 0
        self._news = news
        settings = MembershipSettings(
            run_id="bench",
            node_id=f"{number}-{secrets.token_hex(4)}",
            host=f"node{number}",
            slots=1,
            min_nodes=1 if nodes == 1 else nodes - 1,
            max_nodes=nodes,
            local_addr=f"10.0.{number // 256}.{number % 256}",
            ttl_s=TTL_S,
            last_call_s=OURS_LIMIT_S,
            drain_s=0.0,
        )
        membership = MemberMachine(settings, leader_policy(RestartPolicy()))
        self.driver = Driver(
            AgentMachine(1, membership=membership, restarts=RestartPolicy(), graces=Graces.alike(1.0))
        )
        self._session = Session(open_store, self.driver.post, ttl_s=TTL_S, on_bug=self.driver.found_bug)
        own: dict[type, Callable[[Any], None]] = {
            AnnounceStop: _nothing,
            CollectEvidence: lambda _: self._later(EvidenceCollected(())),
            Fence: _nothing,
            HoldPort: lambda command: self.driver.post(PortHeld(command.number, 29500)),
            AnnounceCheckpoint: _nothing,
            PassOn: _nothing,
            ReleasePort: _nothing,
            Say: _nothing,
            SignalTree: lambda _: self._later(TreeEmptied()),
            SignalWorkers: lambda _: self._later(WorkersExited({0: -15})),
            SpawnWorkers: self._spawn,
        }
        self.driver.bind(own, self._session.perform)

    def start(self) -> None:
        """Begin to take part."""
        self.driver.post(JobBegan())

    def leave(self) -> None:
        """Leave, as if told by SIGTERM."""
        self.driver.post(StopAsked(15, 1.0))

    async def close(self) -> None:
        """Drop the connection."""
        await self._session.aclose()

    def _spawn(self, command: SpawnWorkers) -> None:
        self.round, self.world_size = command.round.number, command.round.world_size
        self.driver.post(WorkersSpawned({0: 1}))
        self._news.set()

    def _later(self, event: object) -> None:
        asyncio.get_running_loop().call_soon(self.driver.post, event)


def _nothing(_command: object) -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """What was measured for one number of nodes; None: not within the limit."""

    first_s: float | None
    again_s: float | None
    messages: float | None


async def wait_for_round(agents: Sequence[Agent], size: int, news: asyncio.Event) -> None:
    """Until each of the agents has started a worker in a world of that size."""
    while not all(agent.world_size == size for agent in agents):
        news.clear()
        for agent in agents:
            if agent.driver.bug is not None:
                raise agent.driver.bug
        await news.wait()


async def measure(nodes: int, connect: Callable[[], Awaitable[Store]]) -> Settled:
    """Let so many agents meet, and then one of them leave."""
    news, count = asyncio.Event(), Count()

    async def open_store() -> Store:
        return CountedStore(await connect(), count)

    agents = [Agent(number, nodes, open_store, news) for number in range(nodes)]
    try:
        async with asyncio.timeout(OURS_LIMIT_S):
            began = time.perf_counter()
            for agent in agents:
                agent.start()
            await wait_for_round(agents, nodes, news)
            first_s, messages = time.perf_counter() - began, count.messages / nodes
            if nodes == 1:
                return Settled(first_s, None, messages)
            began = time.perf_counter()
            agents[-1].leave()
            await wait_for_round(agents[:-1], nodes - 1, news)
            return Settled(first_s, time.perf_counter() - began, messages)
    except TimeoutError:
        return Settled(None, None, None)
    finally:
        for agent in reversed(agents):
            await agent.close()


def hosted(nodes: int) -> Settled:
    """Over the store that one of the agents hosts, on the loopback interface."""
    from phalanx.store.hosting import open_hosted

    port = free_port()

    async def connect() -> Store:
        return await open_hosted(
            "127.0.0.1",
            port,
            run_id="bench",
            is_host=False,
            connect_timeout_s=ATTEMPT_S,
            attempt_s=ATTEMPT_S,
        )

    async def run() -> Settled:
        host = await open_hosted("127.0.0.1", port, run_id="bench", is_host=True)
        try:
            return await measure(nodes, connect)
        finally:
            await host.close()

    return asyncio.run(run())


def etcd(nodes: int) -> Settled:
    """Over one member of etcd, which writes to a temporary folder."""
    from phalanx.rendezvous.etcd_server import EtcdServer
    from phalanx.store.etcd import open_etcd

    server = EtcdServer()
    server.start(stderr=subprocess.DEVNULL)
    try:
        return asyncio.run(measure(nodes, lambda: open_etcd(server.get_endpoint(), attempt_s=ATTEMPT_S)))
    finally:
        server.stop()


def torchrun(nodes: int) -> Settled:
    """The handler of torchelastic over its TCPStore; after a first meeting it has no second one without an agent."""
    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    port = free_port()
    master = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    stores = [TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False) for _ in range(nodes)]
    handlers = []
    for store in stores:
        parameters = RendezvousParameters(
            "c10d",
            f"127.0.0.1:{port}",
            "bench",
            nodes,
            nodes,
            local_addr="127.0.0.1",
            join_timeout=TORCHRUN_LIMIT_S,
        )
        handlers.append(create_handler(store, C10dRendezvousBackend(store, "bench"), parameters))
    errors: list[Exception] = []

    def meet(handler: Any) -> None:
        try:
            handler.next_rendezvous()
        except Exception as error:  # noqa: BLE001 # a time-out, or whatever it ends with
            errors.append(error)

    threads = [threading.Thread(target=meet, args=(handler,), daemon=True) for handler in handlers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, began + TORCHRUN_LIMIT_S - time.perf_counter()))
    took_s = time.perf_counter() - began
    is_done = not errors and not any(thread.is_alive() for thread in threads)
    for handler in handlers:
        with contextlib.suppress(Exception):
            handler.shutdown()
    del master
    return Settled(took_s if is_done else None, None, None)


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection in the middle of a measurement."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(value: float | None) -> str:
    """Three digits, or a dash."""
    return "-" if value is None else f"{value:.3g} s"


def main() -> int:
    """Print the table, a line as soon as it is known."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.settle", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="up to 64 nodes")
    parser.add_argument("--sizes", type=int, nargs="*", default=None)
    parser.add_argument("--without", nargs="*", default=(), choices=("etcd", "torchrun"))
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kinds: dict[str, Callable[[int], Settled]] = {"hosted": hosted, "etcd": etcd, "torchrun": torchrun}
    print("| nodes | store | settle | per node | one leaves, settle again | messages per node |")
    print("|---|---|---|---|---|---|")
    has_given_up: set[str] = set()
    for nodes in options.sizes or [size for size in SIZES if size <= 64 or not options.quick]:
        for kind, run in kinds.items():
            if kind in options.without or kind in has_given_up:
                continue
            with quiet():
                found = run(nodes)
            if found.first_s is None:
                has_given_up.add(kind)
            each = "-" if found.first_s is None else f"{1000 * found.first_s / nodes:.3g} ms"
            messages = "-" if found.messages is None else f"{found.messages:.1f}"
            first = "not within its limit" if found.first_s is None else seconds(found.first_s)
            print(
                f"| {nodes} | {kind} | {first} | {each} | {seconds(found.again_s)} | {messages} |", flush=True
            )
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return 0


if __name__ == "__main__":
    sys.exit(main())
