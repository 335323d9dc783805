"""The agent's answers to an orchestrator's probe, over real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable

import pytest

from phalanx.agent import health
from phalanx.agent.health import CONNECTIONS_MAX, HealthEndpoint


@pytest.fixture(autouse=True)
def _who_is_slow_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends are in one loop: a pause of this process is one between a connection and what it asks."""
    monkeypatch.setattr(health, "REQUEST_S", 60.0)


def asked(
    alive: Callable[[], int], request: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", *, idle: int = 0
) -> tuple[bytes, bytes]:
    """The head and the body of the answer; `idle` others have connected, and say nothing."""

    async def ask() -> bytes:
        said: list[str] = []
        async with HealthEndpoint(0, alive, said.append, timeout_s=60) as endpoint:
            others = [await asyncio.open_connection("localhost", endpoint.port) for _ in range(idle)]
            reader, writer = await asyncio.open_connection("localhost", endpoint.port)
            writer.write(request)
            writer.write_eof()
            try:
                answer = await reader.read()
            except ConnectionResetError:  # it was closed with our request unread
                answer = b""
            for _, one in [*others, (reader, writer)]:
                one.close()
        assert said == []
        return answer

    head, _, body = asyncio.run(ask()).partition(b"\r\n\r\n")
    return head, body


def test_who_gets_on_is_alive() -> None:
    head, body = asked(lambda: int(time.time()))
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert json.loads(body)["alive"] is True


def test_who_has_not_got_on_for_a_minute_is_not() -> None:
    head, body = asked(lambda: int(time.time()) - 1000)
    assert head.startswith(b"HTTP/1.1 503 ")
    found = json.loads(body)
    assert found["alive"] is False
    assert found["age_s"] >= 1000


@pytest.mark.parametrize(
    ("request_", "first"),
    [
        (b"HEAD /healthz HTTP/1.0\r\n\r\n", b"HTTP/1.1 200 OK"),
        (b"POST / HTTP/1.1\r\n\r\n", b"HTTP/1.1 405 Method Not Allowed"),
        (b"\x00\xff", b""),
        (b"GET / HTTP/1.1\r\n" + b"x" * 100_000, b""),
        (b"", b""),
    ],
)
def test_other_requests_hurt_nobody(request_: bytes, first: bytes) -> None:
    head, body = asked(lambda: int(time.time()), request_)
    assert head.split(b"\r\n")[0] == first
    assert not body or b"405" in head


@pytest.mark.parametrize("idle", [3, CONNECTIONS_MAX, 5 * CONNECTIONS_MAX])
def test_who_connects_and_says_nothing_keeps_no_probe_out(idle: int) -> None:
    assert asked(lambda: 0, idle=idle)[0].startswith(b"HTTP/1.1 503 ")


def test_the_one_that_has_said_nothing_for_the_longest_makes_room() -> None:
    async def fill() -> tuple[bytes, int]:
        async with HealthEndpoint(0, lambda: 0, lambda _: None) as endpoint:
            ones = [await asyncio.open_connection("localhost", endpoint.port) for _ in range(CONNECTIONS_MAX)]
            ones.append(await asyncio.open_connection("localhost", endpoint.port))
            first = await ones[0][0].read()
            left = 0
            for reader, writer in ones[1:]:
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                left += bool(await reader.read())
                writer.close()
            ones[0][1].close()
            return first, left

    assert asyncio.run(fill()) == (b"", CONNECTIONS_MAX)


def test_a_port_that_is_taken_is_said_and_no_error() -> None:
    said: list[str] = []

    async def start(port: int) -> int:
        async with HealthEndpoint(port, lambda: 0, said.append) as endpoint:
            return endpoint.port

    with socket.create_server(("", 0)) as other:
        assert asyncio.run(start(other.getsockname()[1])) == 0
    assert "no health checks are answered" in said[0]
