"""The worker's end of the channel to its agent: what a training script can tell, ask and share.

``progress``, ``checkpoint_done`` and ``exclude_node`` notify: they never raise, never wait longer than 0.2 s, and do
nothing without an agent. ``should_stop`` and ``should_checkpoint`` look at what the agent has said; with a step the
ranks agree on one, see ``_agreeing``. ``values`` are requests and can fail: ``NoAgent``, ``ValuesTimeout``, or
``ValueError``. All of it is safe in threads; a forked child opens a connection of its own when it has to say something.
The socket is the C module's: it loads in a millisecond, and no ``socket.py`` beside the script takes its place.
"""

from __future__ import annotations

import os
import time

from ._writing import encode

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable
    from typing import Any

    from ._agreeing import Agreeing
    from ._values import RoundValues

__all__ = [
    "NoAgent",
    "ValuesTimeout",
    "checkpoint_done",
    "exclude_node",
    "progress",
    "should_checkpoint",
    "should_stop",
    "values",
]

_PATH = "PHALANX_AGENT"
_NOTIFY_S = 0.2  # a training step may be late by that, once
_ANSWER_S = 60.0  # an agent that says nothing for that long, beyond the wait that was asked for, is gone
_RETRY_S = 5.0  # before the next try after a failed one: no agent must not cost 0.2 s in every step
_PROGRESS_S = (
    0.1  # progress is for people and for finding hangs; a thousand steps a second need no thousand messages
)
_LINE_BYTES_MAX = 1024 * 1024
_REQUESTS_AT_ONCE = (
    4  # on one connection: their answers fit into what the agent keeps for who does not read yet
)
_MESSAGE_CHARACTERS = 4096  # of an exception's message: the agent reads the rest from the error file


class NoAgent(ConnectionError):
    """There is no agent to ask: this process was not started by Phalanx, the round is over, or the agent has gone.

    >>> from phalanx import values
    >>> try:
    ...     values().set("seed", "17")
    ... except NoAgent as reason:
    ...     print(reason)
    there is no agent: this process was not started by phalanx
    """


class ValuesTimeout(TimeoutError, RuntimeError):
    """Nobody set a value in time. A RuntimeError too, because what torch's stores raise is one."""


def progress(step: int) -> None:
    """Tell the agent that this worker has come to ``step``. Cheap: at most ten messages a second are sent.

    >>> for step in range(3):
    ...     progress(step)
    """
    _client().progress(step)


def checkpoint_done(step: int) -> None:
    """Tell the agent that the checkpoint of ``step`` is complete. One rank of the job tells it.

    For this process, what asked for a checkpoint has one then: ``should_checkpoint()`` is False until the next request.

    >>> checkpoint_done(1000)
    """
    client = _client()
    client.wanted.clear()
    client.notify(lambda: {"type": "checkpoint", "step": int(step)})


def exclude_node(reason: str) -> None:
    """Tell the agent that this node should not be used further, for a ``reason`` that people will read.

    >>> exclude_node("ECC errors on GPU 3")
    """
    _client().notify(lambda: {"type": "exclude", "reason": str(reason)[:_MESSAGE_CHARACTERS]})


def should_stop(step: int | None = None, *, margin: int = 2) -> bool:
    """Whether the agent is stopping this worker: save and leave. Stays True. Costs about a microsecond or two.

    With ``step``, the number of the step that this rank has finished, the ranks of the round agree on one that none of
    them has passed, and it is True from that step on: all leave at the same step. Call it once in each step, on every
    rank. It never waits for another rank, and holds if no rank comes to step s + ``margin`` while another is in s; an
    all-reduce in each step sees to that. It is True at once when there is nothing to agree on (a rank failed or was
    lost) or no time left (half of the grace is over).

    >>> should_stop(), should_stop(1000)
    (False, False)
    """
    client = _client()
    is_told = client.is_told_to_stop()
    return is_told if step is None or not is_told else client.agreeing.should_stop(step, margin)


def should_checkpoint(step: int | None = None, *, margin: int = 2) -> bool:
    """Whether somebody asks for a checkpoint now: by a signal, or to change the job's size; and when it is to stop.

    True until this process calls ``checkpoint_done``. With ``step``, as in ``should_stop``, the ranks agree: it is True
    at one step, the same on all ranks, once for each request.

    >>> should_checkpoint(), should_checkpoint(1000)
    (False, False)
    """
    client = _client()
    is_told = client.is_told_to_stop()
    if step is None:
        return is_told or bool(client.wanted)
    return (is_told or client.has_request) and client.agreeing.should_checkpoint(step, margin)


def exception_recorded(info: dict[str, Any], message: str, error_file: str | None) -> None:
    """Tell the agent what was just written to the error file; ``info`` is its ``extraInfo``."""
    place = info["place"]
    said = {
        "type": "exception",
        "wall_ns": info["wall_ns"],
        "monotonic_ns": info["monotonic_ns"],
        "message": message[:_MESSAGE_CHARACTERS],
        "place": f"{place['file']}:{place['line']}" if place else None,
        "thread": info["thread"],
        "error_file": error_file,
    }
    _client().notify(lambda: said)


def values() -> RoundValues:
    """The key-values that the workers of this round share; a new round starts empty.

    >>> def agree():
    ...     import os
    ...     from phalanx import values
    ...     if os.environ["RANK"] == "0":
    ...         values().set("seed", "17")
    ...     return values().get("seed")
    >>> import phalanx
    >>> phalanx.launch(agree, nproc=2).values
    (b'17', b'17')
    """
    from ._values import RoundValues

    return RoundValues()


class _Connection:
    """A greeted connection. Not safe in threads: its user holds it alone."""

    def __init__(self, path: str, timeout_s: float) -> None:
        import _socket

        self.socket: socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._rest = b""
        self._timeout_s = timeout_s
        try:
            self.socket.settimeout(timeout_s)
            self.socket.connect(path)
            self.send(
                {
                    "v": 1,
                    "type": "hello",
                    # With a virtual local rank LOCAL_RANK is 0 in every worker, and the true one is told beside it.
                    "local_rank": _number("PHALANX_LOCAL_RANK", "LOCAL_RANK"),
                    "rank": _number("RANK"),
                    "pid": os.getpid(),
                    "round": _number("PHALANX_ROUND"),
                },
                timeout_s,
            )
        except BaseException:
            self.socket.close()
            raise

    def answers(
        self, requests: list[dict[str, Any]], timeout_s: float, send_s: float = _ANSWER_S
    ) -> list[dict[str, Any]]:
        """Send requests, and wait for all of their answers; raises OSError."""
        for number, request in enumerate(requests):
            self.send({"id": number, **request}, send_s)
        ends_at = time.monotonic() + timeout_s
        found: dict[int, dict[str, Any]] = {}
        while len(found) < len(requests):
            for message in self.receive(max(ends_at - time.monotonic(), 0.001)):
                if message.get("type") == "answer":
                    found[message["id"]] = message
                if message.get("type") == "refused":
                    raise NoAgent(f"the agent refused: {message.get('reason')}")
        return [found[number] for number in range(len(requests))]

    def send(self, message: dict[str, Any], timeout_s: float) -> None:
        """Send one line, whole or not at all: the connection is of no more use after an exception."""
        line = encode(message).encode("ascii") + b"\n"
        if len(line) > _LINE_BYTES_MAX:
            raise ValueError(f"a message of {len(line)} bytes; {_LINE_BYTES_MAX} are possible")
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


class _Client:
    """This process's connections: one for notices, and for each request that is under way one of its own."""

    def __init__(self) -> None:
        import _thread

        self.pid = os.getpid()
        self._path = os.environ.get(_PATH, "")
        self._lock = _thread.allocate_lock()
        self._notices: _Connection | None = None
        self._idle: list[_Connection] = []
        self._retry_at = 0.0
        self._progress_at = 0.0
        self._agreeing: Agreeing | None = None
        self.stop: dict[str, Any] | None = None
        """The stop, as the agent has told of it last."""
        self.requests: dict[str, None] = {}
        """For checkpoints, which the ranks have not agreed about yet."""
        self._last_request = ""
        self.wanted: set[str] = set()
        """Those of them, or of earlier ones, that this process did not answer by ``checkpoint_done``."""

    def progress(self, step: int) -> None:
        now = time.monotonic()
        if now >= self._progress_at:
            self._progress_at = now + _PROGRESS_S
            self.notify(lambda: {"type": "progress", "step": int(step)})

    def notify(self, make: Callable[[], dict[str, Any]]) -> None:
        """Send what ``make`` returns if that is possible at once. Never raises, never waits for long."""
        if not self._path:
            return
        try:
            message = make()
        except Exception:  # noqa: BLE001 # a step that is no number: nothing to say, and nothing to stop training for
            return
        if not self._lock.acquire(timeout=_NOTIFY_S):
            return
        try:
            connection = self._connected()
            if connection is not None:
                connection.send(message, _NOTIFY_S)
        except Exception:  # noqa: BLE001 # a border: training goes on whatever is wrong with the channel
            self._lose()
        finally:
            self._lock.release()

    @property
    def has_request(self) -> bool:
        """Whether the ranks have to agree about a checkpoint."""
        return bool(self.requests) or (self._agreeing is not None and self._agreeing.is_open)

    @property
    def agreeing(self) -> Agreeing:
        """This process's part in what the ranks agree on."""
        if self._agreeing is None:
            from ._agreeing import Agreeing

            self._agreeing = Agreeing(self, self._path, _number("WORLD_SIZE"))
        return self._agreeing

    def is_told_to_stop(self) -> bool:
        """Take what the agent has said by now."""
        if not self._path or not self._lock.acquire(False):
            return self.stop is not None
        try:
            connection = self._connected()
            if connection is not None:
                for message in connection.receive(0.0):
                    self._take(message)
        except BlockingIOError:
            pass  # nothing was said
        except Exception:  # noqa: BLE001 # as in notify
            self._lose()
        finally:
            self._lock.release()
        return self.stop is not None

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("type") == "stop":
            self.stop = message
        elif message.get("type") == "checkpoint":
            request = str(message["request"])
            if request != self._last_request:  # who connects again is told again
                self._last_request = request
                self.requests[request] = None
                self.wanted.add(request)

    def ask(self, request: dict[str, Any], wait_s: float = 0.0) -> Any:
        """Send a request on a connection that nobody else uses, and wait for the answer."""
        return self.ask_all([request], wait_s)[0]

    def ask_all(self, requests: list[dict[str, Any]], wait_s: float = 0.0) -> list[Any]:
        """The answers to several requests, a few of which are under way at a time; ``wait_s`` is for all of them."""
        if not self._path:
            raise NoAgent("there is no agent: this process was not started by phalanx")
        ends_at = time.monotonic() + max(wait_s, 0.0)
        try:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            connection = connection or _Connection(self._path, _ANSWER_S)
        except OSError as error:
            raise NoAgent(f"the agent cannot be reached: {error}") from error
        answers: list[dict[str, Any]] = []
        try:
            for start in range(0, len(requests), _REQUESTS_AT_ONCE):
                rest_s = max(ends_at - time.monotonic(), 0.0)
                some = requests[start : start + _REQUESTS_AT_ONCE]
                for request in some:
                    if "wait_s" in request:
                        request["wait_s"] = min(request["wait_s"], rest_s)
                answers += connection.answers(some, rest_s + _ANSWER_S)
        except BaseException as error:
            connection.socket.close()
            if isinstance(error, OSError) and not isinstance(error, NoAgent):
                raise NoAgent(f"the agent does not answer: {error}") from error
            raise
        with self._lock:
            self._idle.append(connection)
        return [value_of(answer) for answer in answers]

    def forget(self) -> None:
        """Close a parent's connections in this forked child, without a word to the agent."""
        for connection in (self._notices, *self._idle):
            if connection is not None:
                connection.socket.close()
        if self._agreeing is not None:
            self._agreeing.close()

    def _connected(self) -> _Connection | None:
        if self._notices is None and time.monotonic() >= self._retry_at:
            self._notices = _Connection(self._path, _NOTIFY_S)
        return self._notices

    def _lose(self) -> None:
        self._retry_at = time.monotonic() + _RETRY_S
        if self._notices is not None:
            self._notices.socket.close()
            self._notices = None


_the_client: _Client | None = None


def _client() -> _Client:
    global _the_client  # noqa: PLW0603 # one per process
    if _the_client is None or _the_client.pid != os.getpid():
        if _the_client is not None:
            _the_client.forget()
        _the_client = _Client()
    return _the_client


def value_of(answer: dict[str, Any]) -> Any:
    """What was asked for; raises ``NoAgent`` or ``ValueError`` if it could not be had."""
    if "error" in answer:
        raise NoAgent(answer["error"]) if answer.get("lost") else ValueError(answer["error"])
    return answer["value"]


def _number(*variables: str) -> int:
    for variable in variables:
        try:
            return int(os.environ[variable])
        except (KeyError, ValueError):
            continue
    return 0
