"""The worker's end of the channel to its agent: what a training script can tell, ask and share.

``progress``, ``checkpoint_done`` and ``exclude_node`` notify: they never raise, never wait longer than 0.2 s, and do
nothing without an agent. ``should_stop`` and ``should_checkpoint`` look at what the agent has said; with a step the
ranks agree on one, see ``_agreed_steps``. ``values`` are requests and can fail: ``NoAgent``, ``ValuesTimeout``, or
``ValueError``. All of it is safe in threads; a forked child opens a connection of its own when it has to say something.
"""

from __future__ import annotations

import os
import time

from ._connection import ANSWER_S, Connection, NoAgent, value_of

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ._agreed_steps import AgreedSteps
    from ._values import RoundValues

__all__ = [
    "NoAgent",
    "ValuesTimeout",
    "checkpoint_done",
    "checkpoint_taken",
    "exclude_node",
    "progress",
    "should_checkpoint",
    "should_stop",
    "values",
]

_PATH = "PHALANX_AGENT"
_NOTIFY_S = 0.1  # for other threads, and then for the agent: a training step may be late by both, once
_RETRY_S = 5.0  # before the next try after a failed one: no agent must not cost 0.2 s in every step
_PROGRESS_S = 0.1  # progress is for people and for finding hangs: no thousand messages a second
_REQUESTS_AT_ONCE = 4  # on one connection: the agent keeps their answers for who does not read yet
_MESSAGE_CHARACTERS = 4096  # of an exception's message: the agent reads the rest from the error file


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
    A process that calls ``checkpoint_taken`` has said that before.

    >>> checkpoint_done(1000)
    """
    client = _client()
    if not client.tells_taken:
        client.wanted.clear()
    client.notify(lambda: {"type": "checkpoint", "step": int(step)})


def checkpoint_taken() -> None:
    """This process has taken its state for a checkpoint: ``should_checkpoint()`` is False until the next request.

    From then on ``checkpoint_done`` answers no request here: one that came while it was written asks for newer state.

    >>> checkpoint_taken()
    """
    client = _client()
    client.tells_taken = True
    client.wanted.clear()


def exclude_node(reason: str) -> None:
    """Tell the agent that this node should not be used further, for a ``reason`` that people will read.

    >>> exclude_node("ECC errors on GPU 3")
    """
    _client().notify(lambda: {"type": "exclude", "reason": str(reason)[:_MESSAGE_CHARACTERS]})


def should_stop(step: int | None = None, *, margin: int = 2) -> bool:
    """Whether the agent is stopping this worker: save and leave. Stays True. Costs about a microsecond or two.

    With ``step``, the number of the step that this rank has finished, the ranks of the round agree on one that none of
    them has passed, however far they are apart, and it is True from that step on: all leave at the same step. Call it
    once in each step, on every rank. It never waits for another rank. A greater ``margin`` makes the step later by as
    much, and lets so many steps pass in which the job's store is silent. It is True at once when there is nothing to
    agree on (a rank failed or was lost) or no time left (half of the grace is over).

    Who asks leaves by itself: from the first call in a worker's main thread on, SIGTERM does nothing there, unless the
    script has a handler for it, or sets one later; forked children die of it. Blocking calls go on after it (PEP 475):
    whoever sleeps or waits in one sees the stop when that returns. Who does not leave is killed after the grace.

    >>> should_stop(), should_stop(1000)
    (False, False)
    """
    client = _client()
    client.leave_by_itself()
    is_told = client.is_told_to_stop()
    return is_told if step is None or not is_told else client.agreed_steps.should_stop(step, margin)


def should_checkpoint(step: int | None = None, *, margin: int = 2) -> bool:
    """Whether somebody asks for a checkpoint now: by a signal, or to change the job's size; and when it is to stop.

    True until this process saves (``Checkpointer.save``), or calls ``checkpoint_done``. With ``step``, as in
    ``should_stop``, the ranks agree: it is True at one step, the same on all ranks, once for each request; and SIGTERM
    does nothing any more, as there.

    >>> should_checkpoint(), should_checkpoint(1000)
    (False, False)
    """
    client = _client()
    if step is None:
        return client.is_told_to_stop() or bool(client.wanted)
    client.leave_by_itself()
    is_told = client.is_told_to_stop()
    is_asked = is_told or client.has_request or step == client.acted_at
    return is_asked and client.agreed_steps.should_checkpoint(step, margin)


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


class _Client:
    """This process's connections: one for notices, and for each request that is under way one of its own."""

    def __init__(self) -> None:
        import _thread

        self.pid = os.getpid()
        self._path = os.environ.get(_PATH, "")
        self._lock = _thread.allocate_lock()
        self._notices: Connection | None = None
        self._idle: list[Connection] = []
        self._retry_at = 0.0
        self._progress_at = 0.0
        self._agreed_steps: AgreedSteps | None = None
        self.stop: dict[str, Any] | None = None
        """The stop, as the agent has told of it last."""
        self.requests: dict[str, None] = {}
        """For checkpoints, which the ranks have not agreed about yet."""
        self._last_request = ""
        self.wanted: set[str] = set()
        """Those of them, or of earlier ones, that this process has not answered by a checkpoint."""
        self.acted_at: int | None = None
        """The step at which some thread was last told to save."""
        self.tells_taken = False
        self._has_looked = not self._path  # at the stop signal; without an agent there is none
        self._is_ours: Callable[[], bool] | None = None  # whether SIGTERM does nothing by our doing
        self._has_told = False  # the agent, on this connection, that it is so

    def leave_by_itself(self) -> None:
        """See ``_stop_signal``. The agent is told, because where nothing can be saved it has to end us otherwise."""
        if not self._has_looked:
            from ._stop_signal import is_ours, leave_by_itself

            self._has_looked = leave_by_itself()
            self._is_ours = is_ours if is_ours() else None
        self._tell_whether_we_leave()

    def _tell_whether_we_leave(self) -> None:
        if self._is_ours is None:
            return
        is_so = self._is_ours()
        if is_so != self._has_told:
            self._has_told = is_so
            self.notify(lambda: {"type": "leaves", "is_so": int(is_so)})

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
        self._tell_whether_we_leave()  # a script that evaluates, or saves, may say nothing else for a long time
        if not self._lock.acquire(timeout=_NOTIFY_S):
            return
        try:
            connection = self._connected()
            if connection is not None:
                connection.send(message, _NOTIFY_S)
        except Exception:  # noqa: BLE001 # a border: training goes on whatever is wrong with the channel
            self._lose()
        except BaseException:  # of a handler of the script: part of a line may be out
            self._lose(retry_s=0.0)
            raise
        finally:
            self._lock.release()

    @property
    def has_request(self) -> bool:
        """Whether the ranks have to agree about a checkpoint."""
        return bool(self.requests) or (self._agreed_steps is not None and self._agreed_steps.is_open)

    @property
    def agreed_steps(self) -> AgreedSteps:
        """This process's part in what the ranks agree on."""
        if self._agreed_steps is None:
            from ._agreed_steps import AgreedSteps
            from .ranks import own_ranks

            self._agreed_steps = AgreedSteps(self, self._path, own_ranks())
        return self._agreed_steps

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
        except BaseException:  # what was read may be lost: who connects again is told again
            self._lose(retry_s=0.0)
            raise
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
            # Without a lock, for which a signal handler that asks would wait: each of the two is one step.
            connection = self._idle.pop()
        except IndexError:
            try:
                connection = Connection(self._path, ANSWER_S)
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
                answers += connection.answers(some, rest_s + ANSWER_S)
        except BaseException as error:
            connection.socket.close()
            if isinstance(error, OSError) and not isinstance(error, NoAgent):
                raise NoAgent(f"the agent does not answer: {error}") from error
            raise
        self._idle.append(connection)
        return [value_of(answer) for answer in answers]

    def forget(self) -> None:
        """Close a parent's connections in this forked child, without a word to the agent."""
        for connection in (self._notices, *self._idle):
            if connection is not None:
                connection.socket.close()
        if self._agreed_steps is not None:
            self._agreed_steps.close()

    def _connected(self) -> Connection | None:
        if self._notices is None and time.monotonic() >= self._retry_at:
            try:
                self._notices = Connection(self._path, _NOTIFY_S)
            except BlockingIOError as full:  # and not "nothing was said"
                raise NoAgent("the agent accepts no connection just now") from full
        return self._notices

    def _lose(self, retry_s: float = _RETRY_S) -> None:
        self._has_told = False
        self._retry_at = time.monotonic() + retry_s
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
