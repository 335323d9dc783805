"""A server that says whether an agent is alive, to whoever asks over HTTP: an orchestrator's probe, a person.

torchelastic's of this name only logs. The standard library's HTTP server loads when one starts.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.agent.environment import HEALTH_CHECK_PORT
from phalanx.logger import get_logger

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

__all__ = [
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "HealthCheckServer",
    "create_healthcheck_server",
    "server_from_environment",
]

TORCHELASTIC_HEALTH_CHECK_PORT = HEALTH_CHECK_PORT
TIMEOUT_S = 60  # torchelastic's


class HealthCheckServer:
    """Answers each GET with 200 while the last sign of life is at most ``timeout`` seconds old, else with 503.

    ``alive_callback`` returns the moment of that sign, whole seconds since the epoch. ``port`` 0: a free one. The
    answer's body is JSON: ``alive`` and ``age_s``. Without effect: a second ``start``, or ``stop`` without one.

    >>> import time, urllib.request
    >>> server = create_healthcheck_server(lambda: int(time.time()), port=0, timeout=60)
    >>> server.start()
    >>> urllib.request.urlopen(f"http://localhost:{server.port}/").status
    200
    >>> server.stop()
    """

    def __init__(self, alive_callback: Callable[[], int], port: int, timeout: int) -> None:
        self._alive_callback = alive_callback
        self._port = port
        self._timeout = timeout
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def alive_callback(self) -> Callable[[], int]:
        """What is asked for the last sign of life."""
        return self._alive_callback

    @property
    def port(self) -> int:
        """The port on which it answers, on all addresses of this machine."""
        return self._port if self._server is None else int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to answer, in a daemon thread. Raises ``OSError`` when the port is taken."""
        if self._server is not None:
            return
        self._server = _server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="phalanx-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join()

    def answer(self) -> tuple[bool, int]:
        """Whether the agent is alive, and the age of its last sign of life in seconds."""
        age_s = max(0, int(time.time()) - int(self._alive_callback()))
        return age_s <= self._timeout, age_s


def create_healthcheck_server(
    alive_callback: Callable[[], int], port: int, timeout: int
) -> HealthCheckServer:
    """Make a server, which is not started yet. Others may put their own in this name's place.

    >>> create_healthcheck_server(lambda: 0, port=0, timeout=60).answer()[0]
    False
    """
    return HealthCheckServer(alive_callback, port, timeout)


def server_from_environment(alive_callback: Callable[[], int]) -> HealthCheckServer | None:
    """Make and start a server on ``TORCHELASTIC_HEALTH_CHECK_PORT``; None where that is not set, or no port.

    It is logged, and no error, when the server cannot be started: a job does not fail for a probe.
    """
    text = os.environ.get(TORCHELASTIC_HEALTH_CHECK_PORT)
    if not text:
        return None
    logger = get_logger(__name__)
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and int(text) < 65536):
        logger.warning(
            "%s is %r, which is no port: no health checks are answered", TORCHELASTIC_HEALTH_CHECK_PORT, text
        )
        return None
    server = create_healthcheck_server(alive_callback, int(text), TIMEOUT_S)
    try:
        server.start()
    except OSError as error:
        logger.warning("no health checks are answered: port %s cannot be used: %s", text, error)
        return None
    return server


def _server(checks: HealthCheckServer) -> ThreadingHTTPServer:
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Answers(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a request: who connects and says nothing does not hold a thread

        def do_GET(self) -> None:  # the standard library's name
            is_alive, age_s = checks.answer()
            body = f'{{"alive": {str(is_alive).lower()}, "age_s": {age_s}}}\n'.encode()
            self.send_response(200 if is_alive else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: a probe asks every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

        def server_bind(self) -> None:
            if self.address_family == socket.AF_INET6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind(self.server_address)
            # Not HTTPServer's: that asks a name server for our name.
            self.server_address = self.socket.getsockname()
            self.server_name, self.server_port = "localhost", int(self.server_address[1])

    return Server(("", checks.port), Answers)
