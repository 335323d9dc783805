"""Answers an orchestrator's probe over HTTP: whether this agent, and the job's workers, still get on.

It runs on the agent's own loop, so that a loop that hangs does not call itself alive. Every GET is answered with 200
while the last sign of life is fresh, else with 503. With a watchdog that sign is the last block that a worker has begun
or ended; without one, that the loop answers. Loads only where ``TORCHELASTIC_HEALTH_CHECK_PORT`` names a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from typing import Self

from phalanx.agent.elastic.health_check import TIMEOUT_S, TORCHELASTIC_HEALTH_CHECK_PORT

__all__ = ["HealthEndpoint"]

REQUEST_BYTES_MAX = 8192
REQUEST_S = 2.0  # who connects and says nothing is left; a probe asks as soon as it has connected
# That have not asked yet: a probe is one for a moment; more would eat the agent's descriptors.
CONNECTIONS_MAX = 16
_REASONS = {200: "OK", 405: "Method Not Allowed", 503: "Service Unavailable"}


class HealthEndpoint:
    """``async with`` it. ``alive`` tells when the last sign of life was, in whole seconds since the epoch.

    A port that cannot be used is said, and no error: a job does not fail for a probe. ``port`` 0 is a free one.
    """

    def __init__(
        self, port: int, alive: Callable[[], int], say: Callable[[str], None], *, timeout_s: int = TIMEOUT_S
    ) -> None:
        self._port = port
        self._alive = alive
        self._say = say
        self._timeout_s = timeout_s
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()
        self._silent: dict[asyncio.Task[None], None] = {}  # those who have not asked, the oldest first

    async def __aenter__(self) -> Self:
        try:
            # One socket for both families, so that both have the same port.
            is_dual = socket.has_dualstack_ipv6()
            listening = socket.create_server(
                ("", self._port),
                family=socket.AF_INET6 if is_dual else socket.AF_INET,
                dualstack_ipv6=is_dual,
            )
            try:
                self._server = await asyncio.start_server(
                    self._answer, sock=listening, limit=REQUEST_BYTES_MAX
                )
            except BaseException:
                listening.close()
                raise
        except OSError as error:
            reason = error.strerror or str(error)
            self._say(
                f"{TORCHELASTIC_HEALTH_CHECK_PORT}: no health checks are answered, as port {self._port} cannot be "
                f"used: {reason}"
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for one in self._answering:  # nobody waits for a probe
            one.cancel()
        if self._answering:
            await asyncio.wait(self._answering)

    @property
    def port(self) -> int:
        """The port on which it answers, on all addresses of this machine; 0: it does not."""
        return 0 if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server has made one"
        self._answering.add(task)
        try:
            self._make_room()
            self._silent[task] = None
            async with asyncio.timeout(REQUEST_S):
                request = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(task, None)
                writer.write(self._response(request))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # it was no probe, or has gone
        except asyncio.CancelledError:
            pass  # the job has ended, and so does this task: its maker would call a cancelled one a bug
        finally:
            self._answering.discard(task)
            self._silent.pop(task, None)
            with contextlib.suppress(OSError):
                writer.close()

    def _make_room(self) -> None:
        """Close the one that has said nothing for the longest: idle connections of others keep no probe out."""
        if len(self._silent) >= CONNECTIONS_MAX:
            oldest = next(iter(self._silent))
            del self._silent[oldest]
            oldest.cancel()

    def _response(self, request: bytes) -> bytes:
        method = request.partition(b" ")[0]
        age_s = max(0, int(time.time()) - int(self._alive()))
        is_alive = age_s <= self._timeout_s
        status = (200 if is_alive else 503) if method in (b"GET", b"HEAD") else 405
        body = b'{"alive": %s, "age_s": %d}\n' % (b"true" if is_alive else b"false", age_s)
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else body)
