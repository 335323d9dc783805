"""Who hosts the store, and where: names, addresses, and who comes first."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.store.stories import PATIENCE_S, changes, seen
from tests.system.launch import two_free_ports

from phalanx.store import hosting
from phalanx.store.client import HostedStore
from phalanx.store.hosting import LOCALHOST, HostStore, open_hosted
from phalanx.store.port import Refused, Unclear
from phalanx.store.sockets import NotOurs, is_loopback, listen, resolve

A = "/phalanx/job/a"


@pytest.fixture
def port() -> int:
    """A port that nobody uses. It is below those that the kernel hands out, so that nobody is given it meanwhile."""
    return two_free_ports()


@pytest.fixture
def _patient_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of this machine is found, however long a look-up takes here."""
    monkeypatch.setattr(hosting, "ATTEMPT_S", PATIENCE_S)


class Stores:
    """Opens stores, and closes them all in the end."""

    def __init__(self) -> None:
        self.open_ones: list[HostedStore | HostStore] = []

    async def open(self, host: str, port: int, **settings: Any) -> HostedStore | HostStore:
        given = {
            "run_id": "job",
            "attempt_s": PATIENCE_S,
            "connect_timeout_s": PATIENCE_S,  # who finds nobody there is told at once
            **settings,
        }
        store = await open_hosted(host, port, **given)
        self.open_ones.append(store)
        return store


@asynccontextmanager
async def stores() -> AsyncIterator[Stores]:
    found = Stores()
    try:
        async with asyncio.timeout(4 * PATIENCE_S):
            yield found
    finally:
        for store in reversed(found.open_ones):
            await store.close()


def run(story: Callable[[Stores], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with stores() as opener:
            await story(opener)

    asyncio.run(bounded())


def test_the_first_agent_hosts_and_the_others_are_its_clients(port: int) -> None:
    async def story(stores: Stores) -> None:
        host = await stores.open("127.0.0.1", port)
        clients = [await stores.open("127.0.0.1", port) for _ in range(3)]
        assert [store.is_host for store in (host, *clients)] == [True, False, False, False]
        assert {store.source_address for store in (host, *clients)} == {"127.0.0.1"}
        watch = clients[0].watch(A, 1)
        await host.put(A, b"from the host")
        await clients[1].put(A, b"from a client")
        assert seen(await changes(watch, 2)) == [(A, b"from the host"), (A, b"from a client")]

    run(story)


def test_of_agents_that_come_at_once_one_hosts(port: int) -> None:
    async def story(stores: Stores) -> None:
        async def insist() -> HostedStore | HostStore:
            while True:
                try:
                    return await stores.open("127.0.0.1", port)
                except Unclear:
                    await asyncio.sleep(0.01)

        found = await asyncio.gather(*(insist() for _ in range(10)))
        assert sum(store.is_host for store in found) == 1
        await asyncio.gather(*(store.put(f"{A}/{number}", b"") for number, store in enumerate(found)))
        assert len((await found[0].list(A)).items) == 10

    run(story)


def test_who_is_told_not_to_host_waits_for_a_host(port: int) -> None:
    async def story(stores: Stores) -> None:
        with pytest.raises(Unclear, match=f"127.0.0.1:{port} cannot be reached"):
            await stores.open("127.0.0.1", port, is_host=False)
        host = await stores.open("127.0.0.1", port, is_host=True)
        assert host.is_host
        assert not (await stores.open("127.0.0.1", port, is_host=False)).is_host

    run(story)


def test_who_is_told_to_host_never_joins_another_host(port: int) -> None:
    async def story(stores: Stores) -> None:
        await stores.open("127.0.0.1", port)
        with pytest.raises(Unclear, match="cannot be served"):
            await stores.open("127.0.0.1", port, is_host=True)

    run(story)


# 192.0.2.0/24 is for documentation (RFC 5737): no machine has it, and no packet for it comes back.
@pytest.mark.parametrize("is_host", [None, True])
def test_an_address_of_another_machine_is_not_served_here(port: int, is_host: bool | None) -> None:
    async def story(stores: Stores) -> None:
        with pytest.raises(Refused if is_host else Unclear, match="another machine"):
            await stores.open("192.0.2.1", port, is_host=is_host, connect_timeout_s=0.2)

    run(story)


def test_a_name_that_nobody_knows_may_be_known_later(port: int) -> None:
    async def story(stores: Stores) -> None:
        with pytest.raises(Unclear, match=r"not known|not resolved"):
            await stores.open("no-such-host.invalid", port, connect_timeout_s=0.5)
        for name in ("a" * 70 + ".invalid", "bad..name"):
            with pytest.raises(Refused, match="no host name"):
                await stores.open(name, port)

    run(story)


def test_a_host_waits_for_its_last_client_and_not_for_ever(port: int) -> None:
    async def story(all_stores: Stores) -> None:
        host = await all_stores.open("127.0.0.1", port)
        await host.others_gone(PATIENCE_S)
        client = await all_stores.open("127.0.0.1", port)
        assert not client.is_host
        await client.get(A)  # the host knows it by now
        await host.others_gone(0.05)
        waiting = asyncio.create_task(host.others_gone(PATIENCE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        await client.close()
        await waiting

    run(story)


def test_the_host_comes_back_as_another_store(port: int) -> None:
    async def story(stores: Stores) -> None:
        first = await stores.open("127.0.0.1", port)
        await first.put(A, b"1")
        await first.close()
        second = await stores.open("127.0.0.1", port)
        assert second.is_host
        assert await second.get(A) is None

    run(story)


def test_a_host_without_an_id_draws_one_and_equal_jobs_adopt_it(port: int) -> None:
    async def story(stores: Stores) -> None:
        host = await stores.open("127.0.0.1", port, run_id=None, fingerprint="f")
        assert len(host.run_id) == 16
        client = await stores.open("127.0.0.1", port, run_id=None, fingerprint="f")
        assert client.run_id == host.run_id
        with pytest.raises(Refused, match="Another job meets at this endpoint"):
            await stores.open("127.0.0.1", port, run_id=None, fingerprint="g")
        other = await stores.open("127.0.0.1", port, run_id="other", fingerprint="g")
        await other.put("/phalanx/other/a", b"")

    run(story)


def test_two_hosts_without_an_id_draw_two(port: int) -> None:
    async def story(stores: Stores) -> None:
        first = await stores.open("127.0.0.1", port, run_id=None)
        await first.close()
        second = await stores.open("127.0.0.1", port, run_id=None)
        assert first.run_id != second.run_id

    run(story)


def test_a_secret_keeps_others_out(port: int) -> None:
    async def story(stores: Stores) -> None:
        told: list[str] = []
        await stores.open("127.0.0.1", port, secret=b"s", report=told.append)
        for wrong in (None, b"t"):
            with pytest.raises(Refused, match="another secret"):
                await stores.open("127.0.0.1", port, secret=wrong)
        assert not (await stores.open("127.0.0.1", port, secret=b"s")).is_host
        await asyncio.sleep(0)
        assert all("127.0.0.1" in sentence for sentence in told)

    run(story)


# Where it listens


def _listening(store: HostedStore | HostStore) -> list[str]:
    assert isinstance(store, HostStore)
    return sorted(str(name[0]) for name in store.serving.addresses)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_address_is_served_as_such(port: int, host: str) -> None:
    async def story(stores: Stores) -> None:
        store = await stores.open(host, port)
        assert _listening(store) == ["::1"]
        client = await stores.open(host, port)
        assert (client.source_address, client.is_host) == ("::1", False)
        await client.put(A, b"1")
        with pytest.raises(Unclear):
            await stores.open("127.0.0.1", port, is_host=False)

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    run(story)


def test_an_address_stays_an_address(port: int) -> None:
    async def story(stores: Stores) -> None:
        store = await stores.open("127.0.0.2", port)
        assert _listening(store) == ["127.0.0.2"]
        assert store.source_address == "127.0.0.2"

    run(story)


@pytest.mark.usefixtures("_patient_resolver")
def test_localhost_is_served_to_this_machine_only(port: int) -> None:
    async def story(stores: Stores) -> None:
        store = await stores.open("localhost", port)
        assert set(_listening(store)) <= {"127.0.0.1", "::1"}
        assert not (await stores.open("localhost", port)).is_host

    run(story)


def _leads_here_only(name: str) -> bool:
    try:
        found = socket.getaddrinfo(name, 1, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return name not in LOCALHOST and all(is_loopback((family, place)) for family, _, _, _, place in found)


@pytest.mark.usefixtures("_patient_resolver")
def test_a_name_that_leads_here_by_loopback_is_served_everywhere(port: int) -> None:
    # Case 7 of the system tests has a host file for this; here whatever this machine offers has to do.
    names = [socket.gethostname(), "ip6-loopback", "phalanx.localhost"]
    name = next(filter(_leads_here_only, names), None)
    if name is None:
        pytest.skip("this machine knows no name of loopback but localhost")

    async def story(stores: Stores) -> None:
        store = await stores.open(name, port)
        assert _listening(store) in (["::"], ["0.0.0.0"])
        assert store.source_address is None
        for address in ("127.0.0.1", "127.0.0.3"):
            assert not (await stores.open(address, port, is_host=False)).is_host

    run(story)


def test_all_interfaces_take_both_families(port: int) -> None:
    [listener] = listen([(socket.AF_INET, ("127.0.0.1", port))], everywhere=True)
    with listener:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET6 and listener.family != family:
                continue
            with socket.socket(family) as client:
                client.connect((host, port))


def test_of_several_addresses_those_that_are_ours_are_served(port: int) -> None:
    ours, theirs = (socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET, ("192.0.2.1", port))
    [listener] = listen([theirs, ours], everywhere=False)
    listener.close()
    with pytest.raises(NotOurs):
        listen([theirs], everywhere=False)


def test_a_port_that_is_taken_leaves_nothing_open(port: int) -> None:
    with socket.create_server(("127.0.0.2", port)), pytest.raises(OSError, match="in use"):
        listen(
            [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET, ("127.0.0.2", port))], everywhere=False
        )
    listen([(socket.AF_INET, ("127.0.0.1", port))], everywhere=False)[0].close()


@pytest.mark.parametrize(
    ("host", "is_ours_alone"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("fe80::1", False),
        ("::", False),
        ("1.127.0.0", False),
    ],
)
def test_loopback_addresses_are_known(host: str, is_ours_alone: bool) -> None:
    assert is_loopback((socket.AF_INET, (host, 1))) is is_ours_alone


def test_an_address_needs_no_resolver(port: int) -> None:
    before = set(threading.enumerate())  # a look-up of another test may still go on

    async def story() -> None:
        assert await resolve("127.0.0.1", port) == [(socket.AF_INET, ("127.0.0.1", port))]
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert "phalanx-resolver" not in names

    asyncio.run(story())
