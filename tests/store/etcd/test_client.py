"""What the client sends, and what it makes of answers: at what a real server does only in rare moments."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.server import Stream
from tests.store.etcd.scripted import (
    KEEP_ALIVE,
    RANGE,
    STATUS,
    TXN,
    WATCH,
    Scripted,
    header,
    never,
    reset,
    scripted,
    silent_for,
    time_passes,
    until,
)

from phalanx.store.etcd import open_etcd
from phalanx.store.etcd.connection import Connection
from phalanx.store.etcd.messages import message
from phalanx.store.etcd.store import EtcdV3Store
from phalanx.store.port import Compacted, LeaseExpired, Refused, StoreReset, Unclear

PATIENCE_S = 30
# Of one attempt. Where it is meant to be in vain, the server lets that time pass.
ATTEMPT_S = 30.0
silent = silent_for(ATTEMPT_S)


def on_servers(count: int, story: Callable[..., Awaitable[None]], **options: Any) -> None:
    """Run a story with a client and so many scripted servers, the first of which the client has chosen."""

    async def run() -> None:
        # Servers may let the time of three attempts pass.
        async with asyncio.timeout(2 * PATIENCE_S + 3 * ATTEMPT_S):
            async with scripted() as first, scripted() as second:
                servers = [first, second][:count]
                store = await open_etcd(
                    [server.endpoint for server in servers], **{"attempt_s": ATTEMPT_S, **options}
                )
                servers.sort(key=lambda server: -len(server.requests))
                assert len(servers[0].requests) == 1
                try:
                    await story(store, *servers)
                finally:
                    await store.close()

    asyncio.run(run())


def fails_with(status: Status, text: str) -> Callable[[Any, Stream[Any, Any]], Awaitable[None]]:
    async def fail(request: Any, stream: Stream[Any, Any]) -> None:
        raise GRPCError(status, text)

    return fail


@pytest.mark.parametrize(
    "script", [silent, reset, fails_with(Status.UNAVAILABLE, "etcdserver: request timed out")]
)
def test_a_write_without_an_answer_is_sent_once_and_the_next_call_goes_elsewhere(script: Any) -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        first.on(TXN, script)
        with pytest.raises(Unclear):
            await store.put("/t/", b"1")
        await store.put("/t/", b"2")
        sent = [
            [request.success[0].request_put.value for request in server.asked(TXN)]
            for server in (first, second)
        ]
        assert sent == [[b"1"], [b"2"]]

    on_servers(2, story)


@pytest.mark.parametrize(
    "script", [silent, reset, fails_with(Status.UNAVAILABLE, "etcdserver: request timed out")]
)
def test_a_read_without_an_answer_is_asked_of_the_next_member(script: Any) -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        first.on(TXN, script)

        async def answer(request: Any, stream: Stream[Any, Any]) -> None:
            found = message("ResponseOp")(response_range={"kvs": [{"key": b"/t/", "value": b"1"}]})
            await stream.send_message(TXN.reply(header=header(), succeeded=True, responses=[found]))

        second.on(TXN, answer)
        item = await store.get("/t/")
        assert item is not None
        assert item.value == b"1"
        assert (len(first.asked(TXN)), len(second.asked(TXN))) == (1, 1)

    on_servers(2, story)


def test_a_write_that_was_turned_away_for_want_of_a_leader_goes_to_the_next_member() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        first.on(TXN, fails_with(Status.UNAVAILABLE, "etcdserver: no leader"))
        await store.put("/t/", b"1")
        assert (len(first.asked(TXN)), len(second.asked(TXN))) == (1, 1)

    on_servers(2, story)


def test_every_request_wants_a_member_that_has_a_leader() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        server.on(WATCH, never)
        await store.put("/t/", b"1")
        store.watch("/t/", 1)
        await until(lambda: server.asked(WATCH))
        assert {metadata.get("hasleader") for _, _, metadata in server.requests} == {"true"}

    on_servers(1, story)


def test_the_answer_that_a_watch_is_there_does_not_move_it_on() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        async def create_and_vanish(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(WATCH.reply(header=header(50), created=True))
            await stream.cancel()

        async def go_on(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(WATCH.reply(header=header(50), created=True))
            event = {"kv": {"key": b"/t/", "mod_revision": 7}}
            await stream.send_message(WATCH.reply(header=header(50), events=[event]))
            await never(request, stream)

        first.on(WATCH, create_and_vanish)
        second.on(WATCH, go_on)
        assert (await anext(aiter(store.watch("/t/", 5)))).revision == 7
        asked = [
            request.create_request.start_revision for request in (*first.asked(WATCH), *second.asked(WATCH))
        ]
        assert asked == [5, 5]

    on_servers(2, story)


def test_a_notice_of_progress_moves_a_quiet_watch_on_and_what_was_seen_is_not_seen_again() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        has_moved = asyncio.Event()

        def event(revision: int) -> Any:
            return {"kv": {"key": b"/t/", "mod_revision": revision}}

        async def tell(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(WATCH.reply(header=header(6), created=True))
            await stream.send_message(WATCH.reply(header=header(6), events=[event(6)]))
            await stream.send_message(
                WATCH.reply(header=header(20), watch_id=-1)
            )  # of no watch: an answer, no more
            await stream.send_message(WATCH.reply(header=header(9)))
            await has_moved.wait()
            await stream.cancel()

        async def repeat(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(
                WATCH.reply(header=header(12), events=[event(6), event(9), event(10), event(10)])
            )
            await never(request, stream)

        first.on(WATCH, tell)
        second.on(WATCH, repeat)
        watch = store.watch("/t/", 5)
        found = [await anext(aiter(watch))]
        await until(lambda: watch.next_revision == 10)
        has_moved.set()
        found.append(await anext(aiter(watch)))
        assert [(batch.revision, len(batch.changes)) for batch in found] == [(6, 1), (10, 2)]
        assert [request.create_request.start_revision for request in second.asked(WATCH)] == [10]

    on_servers(2, story)


def test_a_watch_from_what_is_compacted_is_told_once_and_ends() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        async def refuse(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(WATCH.reply(header=header(), created=True))
            await stream.send_message(WATCH.reply(header=header(), canceled=True, compact_revision=8))

        server.on(WATCH, refuse)
        watch = store.watch("/t/", 5)
        with pytest.raises(Compacted, match="before revision 8"):
            await anext(aiter(watch))
        with pytest.raises(StopAsyncIteration):
            await anext(aiter(watch))
        assert len(server.asked(WATCH)) == 1

    on_servers(1, story)


def test_a_renewal_goes_round_the_members_within_the_time_of_a_short_lease() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        async def renew(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(KEEP_ALIVE.reply(header=header(), TTL=3))

        now = asyncio.get_running_loop().time
        store._ttls[5] = 80  # an attempt is a quarter of it, and shorter than the session's
        first.on(KEEP_ALIVE, silent_for(20.0))
        second.on(KEEP_ALIVE, renew)
        begun_at = now()
        await store.renew(5)
        assert now() - begun_at < 60.0
        assert (len(first.asked(KEEP_ALIVE)), len(second.asked(KEEP_ALIVE))) == (1, 1)

    on_servers(2, story, attempt_s=60.0)


def test_a_silent_renewal_moves_the_watches_too() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        for server in (first, second):
            server.on(WATCH, never)
        first.on(KEEP_ALIVE, silent)
        store.watch("/t/", 5)
        await until(lambda: first.asked(WATCH))
        with pytest.raises(LeaseExpired):  # an answer without a ttl
            await store.renew(5)
        await until(lambda: second.asked(WATCH))
        assert not second.asked(STATUS)

    on_servers(2, story, pulse_s=1000.0)


def test_a_watched_member_that_is_silent_is_asked_and_left_when_it_does_not_answer() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        for server in (first, second):
            server.on(WATCH, never)
        first.on(STATUS, silent)
        store.watch("/t/", 5)
        await until(lambda: second.asked(STATUS))
        assert [len(server.asked(WATCH)) for server in (first, second)] == [1, 1]

    on_servers(2, story, pulse_s=0.1)


def test_a_failure_nobody_thought_of_does_not_end_the_watch_over_a_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        first.on(WATCH, never)
        second.on(WATCH, never)
        exchange, failures = Connection.exchange, iter([KeyError("once")])

        async def fail_once(self: Connection, *arguments: Any, **options: Any) -> Any:
            for failure in failures:
                raise failure
            return await exchange(self, *arguments, **options)

        monkeypatch.setattr(Connection, "exchange", fail_once)
        store.watch("/t/", 1)
        await until(lambda: second.asked(WATCH) and second.asked(STATUS))
        assert "could not be asked whether it lives" in caplog.text

    on_servers(2, story, pulse_s=0.2)


def test_an_empty_answer_is_no_answer() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        async def nothing(request: Any, stream: Stream[Any, Any]) -> None:
            if len(server.asked(KEEP_ALIVE)) > 1:
                time_passes(3 * ATTEMPT_S)  # all that a call may take
            await stream.send_initial_metadata()
            await stream.send_trailing_metadata(status=Status.OK)

        server.on(KEEP_ALIVE, nothing)
        with pytest.raises(Unclear, match="empty answer"):
            await store.renew(5)
        assert len(server.asked(KEEP_ALIVE)) > 1

    on_servers(1, story)


def test_bytes_that_are_no_message_are_no_answer_and_the_client_lives_on() -> None:
    async def story(store: EtcdV3Store, first: Scripted, second: Scripted) -> None:
        async def babble(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(b"\xff\xff\xff")

        first.on(TXN, babble)
        first.on(WATCH, babble)
        second.on(WATCH, never)
        with pytest.raises(Unclear):
            await store.put("/t/", b"")
        await store.put("/t/", b"")
        store.watch("/t/", 1)
        await until(lambda: second.asked(WATCH))

    on_servers(2, story)


def test_a_server_that_speaks_something_else_is_unclear() -> None:
    async def run(words: bytes) -> None:
        speaking: list[asyncio.Task[Any] | None] = []

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            speaking.append(asyncio.current_task())
            with contextlib.suppress(OSError):
                writer.write(words)
                await reader.read()
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(Unclear):
                await open_etcd(f"127.0.0.1:{port}", attempt_s=0.2)
        await asyncio.gather(*filter(None, speaking))

    for words in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 1000, b""):
        asyncio.run(run(words))


@pytest.mark.parametrize(
    ("status", "text", "error", "words"),
    [
        (Status.NOT_FOUND, "etcdserver: requested lease not found", LeaseExpired, "has ended"),
        (Status.INVALID_ARGUMENT, "etcdserver: request is too large", Refused, "too large"),
        (Status.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Refused, "space"),
        (Status.PERMISSION_DENIED, "etcdserver: permission denied", Refused, "does not permit"),
        (Status.UNAUTHENTICATED, "etcdserver: invalid auth token", Refused, "user and a password"),
        (Status.INVALID_ARGUMENT, "etcdserver: user name is empty", Refused, "user and a password"),
        (Status.UNIMPLEMENTED, "unknown service", Refused, "no etcd of version 3"),
        (Status.UNKNOWN, "what is that", Unclear, "what is that"),
        (Status.INTERNAL, "", Unclear, "internal"),
    ],
)
def test_what_etcd_says_becomes_an_error_of_the_port(
    status: Status, text: str, error: Any, words: str
) -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        server.on(TXN, fails_with(status, text))
        with pytest.raises(error, match=words):
            await store.put("/t/", b"")
        assert len(server.asked(TXN)) == 1

    on_servers(1, story)


def test_an_older_revision_than_before_is_another_store() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        async def forget(request: Any, stream: Stream[Any, Any]) -> None:
            await stream.send_message(TXN.reply(header=header(9), succeeded=True))

        server.on(WATCH, never)
        watch = store.watch("/t/", 5)
        server.on(TXN, forget)
        for _ in range(2):
            with pytest.raises(StoreReset, match="9 after 10"):
                await store.put("/t/", b"")
        with pytest.raises(StoreReset):
            await anext(aiter(watch))
        assert len(server.asked(TXN)) == 1

    on_servers(1, story)


def test_answers_that_overtake_one_another_are_no_sign_of_loss() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        arrived, overtaken = asyncio.Event(), asyncio.Event()

        async def turn_round(request: Any, stream: Stream[Any, Any]) -> None:
            if arrived.is_set():
                await stream.send_message(TXN.reply(header=header(12), succeeded=True))
                return
            arrived.set()
            await overtaken.wait()
            await stream.send_message(TXN.reply(header=header(11), succeeded=True))

        server.on(TXN, turn_round)
        first = asyncio.ensure_future(store.put("/t/", b""))
        await arrived.wait()
        assert await store.put("/t/", b"") == 12
        overtaken.set()
        assert await first == 11

    on_servers(1, story)


def test_a_reader_that_is_far_behind_stops_the_stream_and_loses_nothing() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        async def flood(request: Any, stream: Stream[Any, Any]) -> None:
            for revision in range(request.create_request.start_revision, 3001):
                event = {"kv": {"key": b"/t/", "mod_revision": revision}}
                await stream.send_message(WATCH.reply(header=header(revision), events=[event]))
            await never(request, stream)

        server.on(WATCH, flood)
        watch = store.watch("/t/", 1)
        await asyncio.sleep(0.5)
        assert [(await anext(aiter(watch))).revision for _ in range(3000)] == list(range(1, 3001))

    on_servers(1, story)


def test_closing_ends_what_waits() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        server.on(TXN, never)
        server.on(WATCH, never)
        waiting = [
            asyncio.ensure_future(store.put("/t/", b"")),
            asyncio.ensure_future(anext(aiter(store.watch("/", 1)))),
        ]
        await until(lambda: server.asked(TXN) and server.asked(WATCH))
        await store.close()
        for ended in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(ended, Unclear)

    on_servers(1, story)


def test_a_cancelled_call_leaves_the_connection_usable() -> None:
    async def story(store: EtcdV3Store, server: Scripted) -> None:
        server.on(TXN, never)
        call = asyncio.ensure_future(store.put("/t/", b""))
        await until(lambda: server.asked(TXN))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        server.on(
            TXN, lambda request, stream: stream.send_message(TXN.reply(header=header(), succeeded=True))
        )
        await store.put("/t/", b"")
        assert len(server.asked(RANGE)) == 1

    on_servers(1, story)
