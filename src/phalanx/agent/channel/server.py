"""The agent's end of the worker channel: one Unix socket per agent, typed JSON lines, a few messages.

Workers are outsiders: a line that is malformed, too long, of another round or version, or from another user ends that
connection with one reason, and the agent goes on. The worker's end is ``phalanx.errors.channel``; what can be said is
in ``messages``. What they ask of the values of their round goes to ``SharedValues`` and never reaches the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from phalanx.agent.channel.listening import Door, peer_uid
from phalanx.agent.channel.messages import (
    MESSAGES,
    READS,
    REQUESTS,
    Fields,
    Foreign,
    Message,
    line_of,
    packed,
)
from phalanx.agent.channel.wills import Wills
from phalanx.errors._channel_protocol import CAUSES_WITHOUT_A_STEP, LINE_BYTES_MAX, VERSION
from phalanx.records import Struct
from phalanx.store.values import SharedValues, ValueRefused, ValuesUnreachable

__all__ = ["ChannelServer"]

REQUESTS_MAX = 32  # of one connection that are under way at a time; each may hold a value
UNSENT_BYTES_MAX = 4 * LINE_BYTES_MAX  # of answers that a worker does not read
LAST_WORDS_S = 0.5  # for the reasons of the last connections to be read, before they are cut


class ChannelServer:
    """Serves the channel at ``path``. ``on_message(local_rank, message)`` is called in the event loop.

    ``connections_max`` is how many are served at a time. ``on_refusal`` is told, in one sentence, why a connection was
    ended. Only connections of the present round are served; the first ``new_round`` is to come before the first worker.
    """

    def __init__(
        self,
        path: str,
        on_message: Callable[[int, Message], None],
        *,
        connections_max: int = 1024,
        on_refusal: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.on_message = on_message
        self._connections_max = connections_max
        self._on_refusal = on_refusal
        self.round = 0
        self.stop_line: bytes | None = None
        self.checkpoint_line: bytes | None = None
        self._cause = ""
        """Why the workers of this round are being stopped; empty: they are not."""
        self.connections: set[_Connection] = set()
        """Those that are served; one that was ended is in ``leaving`` until its last words are out."""
        self.leaving: dict[_Connection, asyncio.Transport] = {}
        self._values: SharedValues | None = None
        self.wills = Wills()
        self._requests: dict[asyncio.Task[None], _Request] = {}
        self._door = Door(path, lambda: _Connection(self), self._why_full, self.refused)
        self._nobody_leaves: asyncio.Event | None = None

    async def start(self) -> None:
        """Listen. Raises OSError when the path cannot be used."""
        self._door.open()

    async def hear_out(self, local_ranks: Collection[int]) -> None:
        """Wait until all is heard that these workers had said when they ended. Children of theirs may never be silent.

        The end of a process and its last words, perhaps on a new connection, come to this loop in one turn.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + LAST_WORDS_S
        await self._door.let_in(LAST_WORDS_S)
        while loop.time() < give_up_at and self._has_more(local_ranks):  # noqa: ASYNC110
            await asyncio.sleep(0)  # a turn of this loop, in which it reads: there is no other event

    def _has_more(self, local_ranks: Collection[int]) -> bool:
        ranks = {None, *local_ranks}  # None: its greeting is under way
        return any(one.has_more for one in self.connections if one.local_rank in ranks)

    @property
    def connected(self) -> set[int]:
        """Local ranks of this round that hear what is announced."""
        return {one.local_rank for one in self.connections if one.local_rank is not None}

    @property
    def deaf(self) -> set[int]:
        """Local ranks that SIGTERM does not end, in a stop for which the ranks cannot agree on a step.

        They had it do nothing because they leave at such a step (``should_stop``). As it is they may hang for ever.
        """
        if self._cause not in CAUSES_WITHOUT_A_STEP:
            return set()
        return {one.local_rank for one in self.connections if one.leaves and one.local_rank is not None}

    def new_round(self, number: int, values: SharedValues | None = None) -> None:
        """Serve the workers of round ``number`` from now on; values, stops and connections of others are over.

        ``values`` is what they share; without any, who asks for them is told that there are none.
        """
        self.round = number
        self.stop_line = self.checkpoint_line = None
        self._cause = ""
        self._values = values
        self.wills.new_round(values)
        for request in self._give_up(lambda _: True):
            request.connection.answer(request.number, error="the round is over")
        for connection in [one for one in self.connections if one.round not in (None, number)]:
            connection.end(f"round {connection.round} is over")

    def announce_checkpoint(self, reason: str, request: str) -> None:
        """Ask all workers of this round for a checkpoint; who connects later is told, too."""
        self.checkpoint_line = line_of({"type": "checkpoint", "reason": reason, "request": request})
        for connection in [one for one in self.connections if one.round is not None]:
            connection.send(self.checkpoint_line)

    def announce_stop(self, signal_name: str, grace_s: float, cause: str = "asked") -> None:
        """Tell the workers of this round, also those that connect later, that they are being stopped."""
        # As it began: who is told of a loss in the warning is saving, and keeps the time that it is told.
        self._cause = self._cause or cause
        said = {
            "signal": signal_name,
            "grace_s": grace_s,
            "cause": cause,
            "monotonic_ns": time.monotonic_ns(),
        }
        self.stop_line = line_of({"type": "stop", **said})
        self.wills.stop_announced()
        for connection in [one for one in self.connections if one.round is not None]:
            connection.send(self.stop_line)

    async def close(self) -> None:
        """End all connections and remove the socket. Idempotent."""
        self._give_up(lambda _: True)
        if self._requests:
            await asyncio.wait(self._requests, timeout=LAST_WORDS_S)
        await self.wills.close(LAST_WORDS_S)
        if not self._door.is_open:
            return
        await self._door.close()
        for connection in list(self.connections):
            connection.end("the agent is leaving")
        if self.leaving:
            self._nobody_leaves = asyncio.Event()
            try:
                await asyncio.wait_for(self._nobody_leaves.wait(), LAST_WORDS_S)
            except TimeoutError:
                for transport in self.leaving.values():
                    transport.abort()
                await self._nobody_leaves.wait()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def left(self, connection: _Connection) -> None:
        """Take note that a connection is closed."""
        self.leaving.pop(connection, None)
        if not self.leaving and self._nobody_leaves is not None:
            self._nobody_leaves.set()

    def _why_full(self, coming: int) -> str:
        is_full = len(self.connections) + coming >= self._connections_max
        return f"there are {self._connections_max} already" if is_full else ""

    def refused(self, reason: str) -> None:
        """Tell the agent why a connection was ended."""
        if self._on_refusal is not None:
            self._on_refusal(reason)

    def ask(self, connection: _Connection, number: int, kind: str, what: _Work) -> None:
        """Have a request performed, and answered when it is done."""
        if self._values is None:
            connection.answer(number, error="the workers of this round share no values")
        elif connection.asking >= REQUESTS_MAX:
            sentence = f"{REQUESTS_MAX} requests of this connection are under way already"
            connection.answer(number, error=sentence)
        else:
            connection.asking += 1
            request = _Request(connection, number, kind)
            task = asyncio.get_running_loop().create_task(_perform(request, what, self._values))
            self._requests[task] = request
            task.add_done_callback(self._performed)

    def _performed(self, task: asyncio.Task[None]) -> None:
        self._requests.pop(task).connection.asking -= 1

    def nobody_listens(self, connection: _Connection) -> None:
        """Take note that a connection is not served any more: what it wanted to read is of no use."""
        self._give_up(lambda request: request.connection is connection and request.kind in READS)

    def _give_up(self, is_over: Callable[[_Request], bool]) -> list[_Request]:
        """Cancel some of the requests; returns them."""
        over = {
            task: request
            for task, request in self._requests.items()
            if is_over(request) and not task.done() and not task.cancelling()
        }
        for task in over:
            task.cancel()
        return list(over.values())


_Work = Callable[[SharedValues], Awaitable[Any]]


class _Request(Struct):
    """A request that is under way."""

    connection: _Connection
    number: int
    kind: str


async def _perform(request: _Request, what: _Work, values: SharedValues) -> None:
    answer = request.connection.answer
    try:
        answer(request.number, await what(values))
    except ValueRefused as refusal:
        answer(request.number, error=str(refusal))
    except ValuesUnreachable as loss:
        answer(request.number, error=str(loss), is_lost=True)
    except Exception as bug:  # noqa: BLE001 # the border to outsiders, as in _take
        request.connection.end(f"asked what this agent could not answer ({type(bug).__name__}: {bug})")


class _Connection(asyncio.Protocol):
    """One connection of a worker. ``round`` and ``local_rank`` are None until it has said hello."""

    def __init__(self, server: ChannelServer) -> None:
        self.server = server
        self.round: int | None = None
        self.local_rank: int | None = None
        self.pid = 0
        self.leaves = False
        """SIGTERM does nothing in the process at the other end."""
        self.asking = 0
        """How many of its requests are under way."""
        self._transport: asyncio.Transport | None = None
        self._rest = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream server makes nothing else"
        self._transport = transport
        self.server.connections.add(self)
        uid = peer_uid(transport)
        if uid not in (os.geteuid(), 0):
            self.end(f"comes from another user (uid {uid})")

    def data_received(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._transport is None:
                return
            self._take(bytes(self._rest + line))
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > LINE_BYTES_MAX:
            self.end(f"sent a line of more than {LINE_BYTES_MAX} bytes")

    @property
    def has_more(self) -> bool:
        """Whether there is something to read that was not heard yet, or the end."""
        if self._transport is None or self._transport.is_closing():  # then nothing is read any more
            return False
        poller = select.poll()
        poller.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return bool(poller.poll(0))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest and self._transport is not None:
            self.server.refused(f"{self._name()} ended within a line")
        self._forget()
        self.server.left(self)

    def end(self, reason: str) -> None:
        """Say why, once, and close."""
        transport = self._transport
        if transport is None:
            return
        self._forget()
        self.server.refused(f"{self._name()} {reason}")
        transport.write(line_of({"type": "refused", "reason": reason}))
        transport.close()

    def send(self, line: bytes) -> None:
        """Send without waiting; who does not read its answers is ended."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            transport = self._transport
            self._forget()
            self.server.refused(f"{self._name()} does not read its answers")
            transport.abort()
        else:
            self._transport.write(line)

    def answer(
        self,
        number: int,
        value: bytes | int | bool | None = None,
        *,
        error: str | None = None,
        is_lost: bool = False,
    ) -> None:
        """Answer the request ``number``; ``is_lost``: it failed because the store cannot be reached."""
        said: dict[str, Any] = {"value": packed(value)} if error is None else {"error": error}
        if is_lost:
            said["lost"] = True
        self.send(line_of({"type": "answer", "id": number, **said}))

    def _forget(self) -> None:
        if self._transport is not None:
            self.server.leaving[self] = self._transport
            self._transport = None
        if self in self.server.connections:
            self.server.connections.remove(self)
            self.server.nobody_listens(self)

    def _name(self) -> str:
        return (
            "a connection" if self.local_rank is None else f"the connection of local rank {self.local_rank}"
        )

    def _take(self, line: bytes) -> None:
        try:
            if len(line) > LINE_BYTES_MAX:
                raise Foreign(f"sent a line of more than {LINE_BYTES_MAX} bytes")
            fields = Fields(line)
            kind = fields.text("type")
            if self.local_rank is None:
                self._greet(fields)
            elif kind == "will":
                number, wills = fields.integer("id"), self.server.wills
                self.answer(
                    number, error=wills.take(self.local_rank, fields.text("key"), fields.binary("value"))
                )
            elif kind == "leaves":
                self.leaves = fields.integer("is_so") != 0
            elif kind in REQUESTS:
                self.server.ask(self, fields.integer("id"), kind, REQUESTS[kind](fields))
            elif kind in MESSAGES:
                message = MESSAGES[kind](self.pid, self.round or 0, fields)
                self.server.on_message(self.local_rank, message)
            else:
                raise Foreign(f"sent a message of an unknown type: {kind[:80]!r}")
        except Foreign as reason:
            self.end(str(reason))
        except Exception as bug:  # noqa: BLE001 # the border to outsiders: whatever a line can break, it ends itself
            self.end(f"sent what this agent could not take ({type(bug).__name__}: {bug})")

    def _greet(self, fields: Fields) -> None:
        if fields.text("type") != "hello":
            raise Foreign("did not say hello")
        if fields.integer("v") != VERSION:
            raise Foreign(f"speaks version {fields.integer('v')}, and this agent {VERSION}")
        if fields.integer("round") != self.server.round:
            raise Foreign(f"is of round {fields.integer('round')}, and this is round {self.server.round}")
        local_rank = fields.integer("local_rank")
        if local_rank < 0:
            raise Foreign(f"has no local rank {local_rank}")
        self.pid = fields.integer("pid")
        self.round = self.server.round
        self.local_rank = local_rank
        for line in (self.server.checkpoint_line, self.server.stop_line):
            if line is not None:
                self.send(line)
