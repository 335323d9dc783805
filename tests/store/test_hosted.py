"""The hosted store between its two ends: strangers, bad networks, other jobs. The rest is in ``test_conformance``."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from tests.store.proxy import Proxy
from tests.store.stories import PATIENCE_S, batches, changes, quiet, seen, within

from phalanx.store.admission import Admission
from phalanx.store.client import HostedStore
from phalanx.store.machine import StoreMachine
from phalanx.store.memory import MemoryServer
from phalanx.store.port import Batch, Compare, Field, LeaseExpired, Put, Refused, StoreReset, Unclear
from phalanx.store.server import StoreServer

A, B = "/phalanx/job/a", "/phalanx/job/b"


class Host:
    """A server, and what it tells."""

    def __init__(self, server: StoreServer, port: int, told: list[str]) -> None:
        self.server = server
        self.port = port
        self.told = told
        self.clients: list[HostedStore] = []

    async def client(self, port: int | None = None, **settings: object) -> HostedStore:
        given = {"secret": None, "run_id": "job", "attempt_s": PATIENCE_S, **settings}
        client = HostedStore("127.0.0.1", port or self.port, **given)  # type: ignore[arg-type]
        self.clients.append(client)
        await client.open()
        return client


@asynccontextmanager
async def host(
    admission: Admission | None = None,
    *,
    port: int = 0,
    memory: MemoryServer | None = None,
    tls: ssl.SSLContext | None = None,
    **limits: float,
) -> AsyncIterator[Host]:
    told: list[str] = []
    server = StoreServer(
        memory or MemoryServer(),
        admission or Admission(run_id="job"),
        report=told.append,
        **limits,  # type: ignore[arg-type]
    )
    listener = socket.create_server(("127.0.0.1", port))
    listener.setblocking(False)
    found = Host(server, listener.getsockname()[1], told)
    await server.start([listener], tls=tls)
    try:
        yield found
    finally:
        for client in found.clients:
            await client.close()
        await server.close()


def story(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(4 * PATIENCE_S):
                await test()

        asyncio.run(bounded())

    run.__name__ = test.__name__
    return run


def hurry(client: HostedStore) -> None:
    """What is asked from here on may be in vain; what came before was not to be, on a machine that is busy."""
    client._attempt_s = 1.0


@contextmanager
def kept_port() -> Iterator[int]:
    """A port for a server that goes and comes back: nobody else is given it meanwhile."""
    with socket.socket() as keeper:  # never listens, and so is in no server's way
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 # of code that has no event for a test
            await asyncio.sleep(0.01)


async def last_words(port: int, words: bytes, *, is_over: bool = False) -> bytes:
    """Say something to a server, as a stranger would, and return all that it says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    if is_over:
        writer.write_eof()
    try:
        return await within(reader.read())
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


# Who is who


@story
async def test_a_client_with_another_secret_is_told_so_and_the_server_goes_on() -> None:
    async with host(Admission(run_id="job", secret=b"right")) as there:
        for wrong in (None, b"wrong"):
            with pytest.raises(Refused, match="another secret"):
                await there.client(secret=wrong)
        right = await there.client(secret=b"right")
        await right.put(A, b"1")


@story
async def test_a_client_with_a_secret_does_not_trust_a_server_without() -> None:
    async with host() as there:
        with pytest.raises(Refused, match="another secret"):
            await there.client(secret=b"mine")


@story
async def test_strangers_are_shown_out_with_one_reason_each_and_nobody_is_disturbed() -> None:
    async with host() as there:
        client = await there.client()
        watch = client.watch(A, 1)
        strange = [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\0\0\0\x02{}", b"\xff" * 100_000, b"\0\0\0\0"]
        for words in strange:
            await last_words(there.port, words)
        await until(lambda: len(there.told) == len(strange))
        assert all(
            reason.startswith("The store closed a connection from 127.0.0.1: ") for reason in there.told
        )
        assert there.server.connection_count == 1
        await client.put(A, b"1")
        assert seen(await changes(watch, 1)) == [(A, b"1")]


@story
async def test_a_stranger_that_says_nothing_is_shown_out_after_a_while() -> None:
    async with host(stranger_s=1.0) as there:
        assert await last_words(there.port, b"") == b""
        assert "did not authenticate itself in time" in there.told[0]
        while True:
            try:
                client = await there.client()
                break
            except Unclear:  # on a busy machine it may be too slow itself, and be shown out
                continue
        told = len(there.told)
        await asyncio.sleep(1.5)  # who is known may be silent for longer
        await client.put(A, b"1")
        assert len(there.told) == told


@story
async def test_many_strangers_leave_room_for_a_client() -> None:
    async with host(strangers_max=5) as there:
        strangers = [await asyncio.open_connection("127.0.0.1", there.port) for _ in range(20)]
        client = await there.client()
        await client.put(A, b"1")
        assert there.server.connection_count <= 6
        for _, writer in strangers:
            writer.transport.abort()


@story
async def test_who_is_known_does_not_make_room_for_strangers() -> None:
    async with host(strangers_max=3) as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        await client.put(A, b"1")
        strangers = [await asyncio.open_connection("127.0.0.1", there.port) for _ in range(20)]
        await until(lambda: len(there.told) == 17)
        await client.put(A, b"2")
        assert network.connections == 1
        for _, writer in strangers:
            writer.transport.abort()


@story
async def test_a_recorded_conversation_cannot_be_replayed() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        await client.put(A, b"1")
        recorded = bytes(network.to_server)
        await client.close()
        revision = there.server.memory.machine.revision
        await last_words(there.port, recorded, is_over=True)
        await until(lambda: bool(there.told))
        assert "not authentic" in there.told[0]
        assert there.server.memory.machine.revision == revision


@story
async def test_what_is_no_store_of_ours_is_named_so() -> None:
    answers = (
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\x02{}",
        b'\0\0\0\x21{"phalanx-store": 2, "is": "hello"}\n',
    )

    async def answer(words: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(words)
        await writer.drain()
        writer.close()

    for words in answers:
        server = await asyncio.start_server(functools.partial(answer, words), "127.0.0.1", 0)
        client = HostedStore("127.0.0.1", server.sockets[0].getsockname()[1], secret=None, run_id="job")
        with pytest.raises(Refused, match="no store of this version"):
            await client.open(PATIENCE_S)
        await client.close()
        server.close()
        await asyncio.sleep(0.01)


@story
async def test_a_client_of_another_version_hears_which_one_is_spoken() -> None:
    async with host() as there:
        hello = b'{"phalanx-store": 9, "is": "hello"}'
        words = await last_words(there.port, len(hello).to_bytes(4, "big") + hello)
        assert words[4:].startswith(b'{"phalanx-store": 1, "is": "denial"')
        assert "version 9" in there.told[0]


# Jobs


@story
async def test_two_jobs_on_one_endpoint_do_not_see_each_other() -> None:
    async with host() as there:
        job, other = await there.client(), await there.client(run_id="other")
        await job.put(A, b"1")
        await other.put("/phalanx/other/a", b"2")
        for call in (
            other.get(A),
            other.list("/phalanx/"),
            other.put("/phalanx/otherwise", b""),
            other.delete("", is_prefix=True),
            other.transaction((Compare(A, Field.VERSION, 1),)),
            other.transaction((), (), (Put(A, b""),)),
            batches(other.watch("/phalanx/", 1), 1),
        ):
            with pytest.raises(Refused, match="not among this job's"):
                await call
        item = await job.get(A)
        assert item is not None
        assert item.value == b"1"
        assert len((await other.list("/phalanx/other/")).items) == 1


@story
async def test_a_job_without_an_id_adopts_the_host_s_if_it_is_the_same_job() -> None:
    async with host(Admission(run_id="drawn", fingerprint="f")) as there:
        client = await there.client(run_id=None, fingerprint="f")
        assert client.run_id == "drawn"
        await client.put("/phalanx/drawn/a", b"1")
        with pytest.raises(Refused, match="--rdzv-id"):
            await there.client(run_id=None, fingerprint="g")
        assert "Another job" in there.told[0]


@story
async def test_one_job_ends_no_lease_of_another() -> None:
    async with host() as there:
        job, other = await there.client(), await there.client(run_id="other")
        await job.put(A, b"1", lease=await job.grant(30))
        for number in range(1, 20):
            await other.revoke(number)
        assert await job.get(A) is not None


# Bad networks


@story
async def test_watches_go_on_without_a_gap_or_a_double_however_often_the_network_is_cut() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        reader, writer = await there.client(network.port), await there.client()
        start = await writer.put(A, b"")
        watch = reader.watch("/phalanx/job/", start + 1)
        found: list[Batch] = []

        async def cut() -> None:
            while True:
                last = len(found)
                await asyncio.sleep(0.02)
                while len(found) == last:  # noqa: ASYNC110 # a handshake may need more time, and would never be done
                    await asyncio.sleep(0.01)
                network.cut()

        async def write() -> None:
            number = 0
            while number < 500 or network.connections <= 5:
                number += 1
                await writer.put(A, b"%d" % number)
                await asyncio.sleep(0.001)
            await writer.put(B, b"the end")

        async def read() -> None:
            async for batch in watch:
                found.append(batch)
                if batch.changes[0].kv.key == B:
                    return

        cutting = asyncio.ensure_future(cut())
        try:
            await asyncio.gather(read(), write())
        finally:
            cutting.cancel()
        assert [batch.revision for batch in found] == list(range(start + 1, start + 1 + len(found)))
        assert len(found) > 500


@story
async def test_an_answer_that_is_late_says_nothing_about_the_write_and_it_is_not_repeated() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client, other = await there.client(network.port), await there.client()
        await client.put(A, b"0")
        hurry(client)
        network.fall_silent()
        with pytest.raises(Unclear, match=r"did not answer within 1 s"):
            await client.put(A, b"1")
        with pytest.raises(Unclear):  # nothing can be sent at all
            await client.put(B, b"1")
        network.heal()
        watch = client.watch("/phalanx/job/", 1)
        while True:
            try:
                await client.put(B, b"2")
                break
            except Unclear:
                continue
        item = await other.get(A)
        assert item is not None
        assert (item.value, item.version) in {(b"0", 1), (b"1", 2)}
        assert seen(await changes(watch, 1)) == [(A, b"0")]


@story
async def test_a_write_that_was_applied_although_its_answer_was_lost_is_seen_once() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client, other = await there.client(network.port), await there.client()
        start = await client.put(B, b"")
        watch = other.watch(A, start + 1)

        def lose(data: bytes) -> bytes:
            network.cut()
            return data

        network.change = lose
        with pytest.raises(Unclear):
            await client.put(A, b"1")
        network.change = bytes
        assert seen(await changes(watch, 1)) == [(A, b"1")]
        item = await client.get(A)
        assert item is not None
        assert item.version == 1


@story
async def test_a_silent_network_that_heals_is_used_again() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client, other = await there.client(network.port), await there.client()
        lease = await client.grant(60)
        watch = client.watch(A, 1)
        hurry(client)
        network.fall_silent()
        with pytest.raises(Unclear):
            await client.renew(lease)
        await other.put(A, b"while it was silent")
        network.heal()
        assert seen(await changes(watch, 1)) == [(A, b"while it was silent")]

        async def renewed() -> None:
            while True:
                try:
                    return await client.renew(lease)
                except Unclear:
                    continue

        await within(renewed())


@story
async def test_a_connection_that_is_silent_for_ever_is_left_for_a_new_one() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        watch = client.watch(A, 1)
        await client.put(A, b"1")
        hurry(client)
        network.swallow()
        with pytest.raises(Unclear):
            await client.put(B, b"")
        while True:
            try:
                await client.put(A, b"2")
                break
            except Unclear:
                continue
        assert seen(await changes(watch, 2)) == [(A, b"1"), (A, b"2")]
        assert network.connections > 1


@story
async def test_a_failure_nobody_thought_of_is_told_and_the_next_attempt_may_do() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        watch = client.watch(A, 1)
        await client.put(A, b"1")
        hurry(client)
        reach = client._reach

        async def fail(timeout_s: float) -> NoReturn:
            raise KeyError("unheard of")

        client._reach = fail  # type: ignore[method-assign]
        network.cut()
        told = ""
        while "unheard of" not in told:  # the first calls may have come before the failure
            with pytest.raises(Unclear) as unclear:
                await client.put(B, b"")
            told = str(unclear.value)
        assert "did not answer" in told
        client._reach = reach  # type: ignore[method-assign]
        while True:
            try:
                await client.put(A, b"2")
                break
            except Unclear:
                continue
        assert seen(await changes(watch, 2)) == [(A, b"1"), (A, b"2")]


@story
async def test_a_damaged_stream_is_given_up_and_made_anew() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        watch = client.watch(A, 1)
        await client.put(A, b"1")
        network.change = lambda data: data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(Unclear, match="not authentic"):
            await client.get(A)
        network.change = bytes
        await client.put(A, b"2")
        assert seen(await changes(watch, 2)) == [(A, b"1"), (A, b"2")]


@story
async def test_calls_that_wait_for_a_connection_are_served_when_there_is_one() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        network.fall_silent()
        network.cut()
        calls = [asyncio.ensure_future(client.put(f"{A}/{number}", b"")) for number in range(10)]
        await asyncio.sleep(0.05)
        network.heal()
        done = await asyncio.gather(*calls, return_exceptions=True)
        # A call that was made before the cut was noticed may have gone with the old connection.
        assert all(isinstance(one, int | Unclear) for one in done)
        await client.put(A, b"after")


@story
async def test_a_quiet_watch_survives_that_history_is_forgotten_meanwhile() -> None:
    memory = MemoryServer(StoreMachine(history_max=10))
    async with host(memory=memory) as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        watch = client.watch(A, 1)
        for number in range(50):
            await client.put(B, b"%d" % number)
        network.cut()
        await until(lambda: network.connections == 2)
        await quiet(watch, client, A)


@story
async def test_an_answer_to_what_was_asked_before_a_watch_does_not_move_it_on() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        client = await there.client(network.port)
        await client.put(A, b"history")

        def first_frame_only(data: bytes) -> bytes:
            asyncio.get_running_loop().call_later(0.05, network.cut)
            network.change = lambda _: b""
            return data[: 4 + int.from_bytes(data[:4], "big")]

        network.change = first_frame_only
        answer = asyncio.ensure_future(client.get(A))
        await asyncio.sleep(0)
        watch = client.watch(A, 1)
        assert await answer is not None
        await asyncio.sleep(0.1)
        network.change = bytes
        network.cut()  # or the attempt that was made meanwhile would wait in vain for its limit
        assert seen(await changes(watch, 1)) == [(A, b"history")]


@story
async def test_a_watch_that_lost_history_for_good_is_told_so() -> None:
    memory = MemoryServer(StoreMachine(history_max=10))
    async with host(memory=memory) as there, Proxy(there.port).running() as network:
        client, other = await there.client(network.port), await there.client()
        watch = client.watch(A, 1)
        await client.put(A, b"1")
        assert len(await batches(watch, 1)) == 1
        network.fall_silent()
        for _ in range(50):
            await other.put(A, b"2")
        network.cut()
        network.heal()
        with pytest.raises(Exception, match="History begins") as raised:
            await batches(watch, 1)
        assert type(raised.value).__name__ == "Compacted"


# The store goes, and comes back


@story
async def test_a_store_that_was_started_anew_is_another_one() -> None:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(host(port=stack.enter_context(kept_port())))
        client = await there.client()
        lease = await client.grant(60)
        watch = client.watch(A, 1)
        hurry(client)
        await there.server.close()
        with pytest.raises(Unclear):
            await client.renew(lease)
        again = await stack.enter_async_context(host(port=there.port))
        with pytest.raises(StoreReset):
            await batches(watch, 1)
        for call in (client.renew(lease), client.get(A), batches(client.watch(A, 1), 1)):
            with pytest.raises(StoreReset, match="started anew"):
                await call
        new = await again.client()
        with pytest.raises(LeaseExpired):
            await new.renew(lease)


@story
async def test_a_store_that_is_gone_is_silent() -> None:
    with kept_port() as port:
        async with host(port=port) as there:
            client = await there.client()
            hurry(client)
            await there.server.close()
            for _ in range(2):
                with pytest.raises(Unclear):
                    await client.get(A)
        with pytest.raises(Unclear, match="cannot be reached"):
            await client.open(0.5)


@story
async def test_a_store_that_changes_its_mind_about_us_refuses_for_good() -> None:
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(host(port=stack.enter_context(kept_port())))
        client = await there.client()
        watch = client.watch(A, 1)
        await there.server.close()
        await stack.enter_async_context(host(Admission(run_id="other", secret=b"s"), port=there.port))
        with pytest.raises(Refused, match="serves one job"):
            await batches(watch, 1)
        with pytest.raises(Refused, match="serves one job"):
            await client.get(A)


# Load


@story
async def test_a_client_that_does_not_read_is_cut_off_and_the_others_are_served() -> None:
    async with host(unsent_max=200_000) as there, Proxy(there.port).running() as network:
        slow, quick = await there.client(network.port), await there.client()
        await slow.get(A)
        start = 1 + await quick.put(A, b"")
        lazy, prompt = slow.watch(A, start), quick.watch(A, start)
        await slow.get(A)
        network.hold_answers()
        value = b"x" * 100_000
        written = 0
        while not there.told:
            await quick.put(A, value)
            written += 1
            assert len(await batches(prompt, 1)) == 1
        assert "does not read" in there.told[0]
        network.heal()
        found = await batches(lazy, written)  # it has come back, and lost nothing
        assert [batch.revision for batch in found] == list(range(start, start + written))


@story
async def test_answers_that_nobody_reads_stop_the_questions_and_nothing_else() -> None:
    async with host() as there, Proxy(there.port).running() as network:
        greedy, other = await there.client(network.port), await there.client()
        await other.put(A, b"x" * 1_000_000)
        network.hold_answers()
        calls = [asyncio.ensure_future(greedy.get(A)) for _ in range(60)]
        await until(lambda: there.server.unsent_bytes > 1_000_000)
        await other.put(B, b"served meanwhile")
        assert there.server.unsent_bytes < 4_000_000
        network.heal()
        items = await within(asyncio.gather(*calls))
        assert {len(item.value) for item in items if item is not None} == {1_000_000}
        assert not there.told


@story
async def test_two_hundred_clients_hear_every_change() -> None:
    async with host() as there:
        # Forty thousand notices: the story as a whole is bounded.
        clients = [await there.client(attempt_s=4 * PATIENCE_S) for _ in range(200)]
        start = await clients[0].put(A, b"")
        watches = [client.watch("/phalanx/job/", start + 1) for client in clients]
        puts = [client.put(f"{A}/{number}", b"") for number, client in enumerate(clients)]
        revisions = await asyncio.gather(*puts)
        found = await asyncio.gather(*(batches(watch, 200) for watch in watches))
        assert sorted(revisions) == list(range(start + 1, start + 201))
        assert all(one == found[0] for one in found)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    subject = ["-subj", "/CN=store", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *words, *subject, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key


def test_with_tls_the_client_checks_the_server(certificate: tuple[Path, Path]) -> None:
    @story
    async def run() -> None:
        ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ours.load_cert_chain(*certificate)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        async with host(tls=ours) as there:
            client = await there.client(tls=trusting)
            watch = client.watch(A, 1)
            await client.put(A, b"x" * 500_000)
            assert [len(change.kv.value) for change in await changes(watch, 1)] == [500_000]
            with pytest.raises(Refused, match="certificate"):
                await there.client(tls=ssl.create_default_context())
            with pytest.raises((Refused, Unclear)):
                await there.client(attempt_s=1.0)
            await client.put(A, b"still here")

    run()
