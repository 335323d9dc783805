"""A worker's connection to its agent: lines of JSON over a Unix socket.

The socket is the C module's: it loads in a millisecond, and no ``socket.py`` beside the script takes its place.
"""

from __future__ import annotations

import os
import time

from ._channel_protocol import LINE_BYTES_MAX, VERSION
from ._writing import encode

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

__all__ = ["ANSWER_S", "Connection", "NoAgent", "number_of", "value_of"]

ANSWER_S = 60.0  # an agent that says nothing for that long, beyond the wait that was asked for, is gone


class NoAgent(ConnectionError):
    """There is no agent to ask: this process was not started by Phalanx, the round is over, or the agent has gone.

    >>> from phalanx import values
    >>> try:
    ...     values().set("seed", "17")
    ... except NoAgent as reason:
    ...     print(reason)
    there is no agent: this process was not started by phalanx
    """


class Connection:
    """A greeted connection. Not safe in threads: its user holds it alone."""

    def __init__(self, path: str, timeout_s: float) -> None:
        import _socket

        from .ranks import own_ranks

        self.socket: socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._rest = b""
        self._asked = 0
        self._timeout_s = timeout_s
        try:
            self.socket.settimeout(timeout_s)
            self.socket.connect(path)
            self.send(
                {
                    "v": VERSION,
                    "type": "hello",
                    # As the agent counts: whatever the script has made of its ranks.
                    "local_rank": number_of("PHALANX_LOCAL_RANK", "LOCAL_RANK"),
                    "rank": own_ranks().rank,
                    "pid": os.getpid(),
                    "round": number_of("PHALANX_ROUND"),
                },
                timeout_s,
            )
        except BaseException:
            self.socket.close()
            raise

    def answers(
        self, requests: list[dict[str, Any]], timeout_s: float, send_s: float = ANSWER_S
    ) -> list[dict[str, Any]]:
        """Send requests, and wait for all of their answers; raises OSError."""
        first, self._asked = self._asked, self._asked + len(requests)  # an answer that comes late is nobody's
        for number, request in enumerate(requests, first):
            self.send({"id": number, **request}, send_s)
        ends_at = time.monotonic() + timeout_s
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(requests):
            for message in self.receive(max(ends_at - time.monotonic(), 0.001)):
                if message.get("type") == "answer" and message["id"] >= first:
                    found[message["id"]] = message
                if message.get("type") == "refused":
                    raise NoAgent(f"the agent refused: {message.get('reason')}")
        return [found[number] for number in range(first, self._asked)]

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send one line, whole or not at all: the connection is of no more use after an exception."""
        line = encode(message).encode("ascii") + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise ValueError(f"a message of {len(line)} bytes; {LINE_BYTES_MAX} are possible")
        self._set_timeout(timeout_s)
        self.socket.sendall(line)

    def receive(self, timeout_s: float) -> list[dict[str, Any]]:
        """The messages that are there, waiting for some; raises OSError at the end or when time is over."""
        self._set_timeout(timeout_s)
        data = self.socket.recv(65536)
        import json  # what a look in each step does not need

        if not data:
            raise NoAgent("the agent closed the channel")
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:  # a system call
            self._timeout_s = timeout_s
            self.socket.settimeout(timeout_s)


def value_of(answer: dict[str, Any]) -> Any:
    """What was asked for; raises ``NoAgent`` or ``ValueError`` if it could not be had."""
    if "error" in answer:
        raise NoAgent(answer["error"]) if answer.get("lost") else ValueError(answer["error"])
    return answer["value"]


def number_of(*variables: str) -> int:
    """The first of these variables of the environment that holds a whole number; else 0."""
    for variable in variables:
        try:
            return int(os.environ[variable])
        except (KeyError, ValueError):
            continue
    return 0
