"""The store of a simulated job: the production store machine in virtual time, behind the simulated network.

A place is where a store can be: it may have a server or, for a while, none. A server that is started again has its
data still (as etcd) or is another one (as the hosted store): then its incarnation differs.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from phalanx.store.machine import (
    DeadlinePassed,
    EndWatch,
    Failed,
    Notify,
    StoreMachine,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import Batch
from phalanx.testing.loop import HAIR_S
from phalanx.testing.network import Network, Wire
from phalanx.testing.timeline import Entry, NodeClock

__all__ = ["Connection", "StorePlace", "StoreServer"]

EVERYTHING = object()
"""The watch of who looks on: it is told at once, and not over the network."""


class Connection:
    """A client's connection, seen by both ends. ``take`` is called with what the server sends."""

    __slots__ = ("down", "is_open", "source", "take", "up", "watches")

    def __init__(self, network: Network, source: str, target: str, take: Callable[..., None]) -> None:
        self.source = source
        self.up = Wire(network, source, target)
        self.down = Wire(network, target, source)
        self.take = take
        self.is_open = True
        self.watches: dict[object, None] = {}  # in an order that depends on nothing but the seed

    def leave(self) -> None:
        """The client hangs up. What it sent may still arrive, what is sent to it not."""
        self.up.close()
        self.down.break_off()


class StoreServer:
    """One running server. ``incarnation`` tells it from one with other data."""

    def __init__(self, place: StorePlace, clock: NodeClock, machine: StoreMachine, incarnation: int) -> None:
        self.machine = machine
        self.incarnation = incarnation
        self._place = place
        self._clock = clock
        self._timer: Entry | None = None
        self._timer_at: float | None = None
        self._connections: dict[Connection, None] = {}
        self._is_frozen = False
        self._is_gone = False
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        if place.observe is not None:
            self._step(WatchAsked(EVERYTHING, "/", machine.revision + 1))

    def freeze(self) -> None:
        """Take nothing until ``thaw()``, which finds everything that came meanwhile."""
        self._is_frozen = True

    def thaw(self) -> None:
        """Go on."""
        self._is_frozen = False
        self._deadline_passed()
        inbox, self._inbox = self._inbox, []
        for take, args in inbox:
            take(*args)

    def end(self) -> None:
        """The process is gone; its kernel tells the clients, if anything reaches them."""
        self._is_gone = True
        if self._timer is not None:
            self._timer.cancel()
        for connection in self._connections:
            connection.up.break_off()
            connection.down.send(connection.take, connection, "lost", None)
            connection.down.close()
        self._connections.clear()

    # What arrives over the network

    def accept(self, connection: Connection) -> None:
        """A client has connected."""
        if self._is_frozen:
            self._inbox.append((self.accept, (connection,)))
            return
        self._connections[connection] = None
        connection.down.send(connection.take, connection, "welcome", self.incarnation)

    def request(self, connection: Connection, event: object) -> None:
        """A client asks the machine. Callers and watches of events are pairs of the connection and a number."""
        if self._is_gone:
            return
        if self._is_frozen:
            self._inbox.append((self.request, (connection, event)))
            return
        self._step(event)

    def hang_up(self, connection: Connection) -> None:
        """A client has gone."""
        if self._is_frozen:
            self._inbox.append((self.hang_up, (connection,)))
            return
        self._connections.pop(connection, None)
        for watch in connection.watches:
            self._step(WatchClosed(watch))
        connection.watches.clear()

    # The machine

    def _step(self, event: object) -> None:
        for command in self.machine.step(event, self._clock.monotonic()):
            self._perform(command)
        self._set_timer()

    def _perform(self, command: Any) -> None:
        if isinstance(command, Notify):
            watches: Any = command.watches
            for watch in watches:
                if watch is EVERYTHING:
                    assert self._place.observe is not None, "somebody looks on"
                    self._place.observe(self.incarnation, command.batch)
                    continue
                connection, number = watch
                connection.down.send(connection.take, connection, "batch", (number, command.batch))
        elif isinstance(command, EndWatch):
            ended: Any = command.watch
            connection, number = ended
            connection.watches.pop(ended, None)
            connection.down.send(connection.take, connection, "watch ended", (number, command.error))
        else:
            caller: Any = command.caller
            connection, number = caller
            told = (None, command.error) if isinstance(command, Failed) else (command.answer, None)
            connection.down.send(connection.take, connection, "answer", (number, *told))

    def _set_timer(self) -> None:
        deadline = self.machine.deadline
        if deadline == self._timer_at and self._timer is not None and self._timer.callback is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = deadline, None
        if deadline is not None:
            due = self._clock.true_at_monotonic(deadline) + HAIR_S
            self._timer = self._place.network.timeline.at(due, self._deadline_passed)

    def _is_due(self) -> bool:
        deadline = self.machine.deadline
        return deadline is not None and deadline <= self._clock.monotonic()

    def _deadline_passed(self) -> None:
        if self._is_frozen or self._is_gone:
            return
        if self._is_due():
            self._step(DeadlinePassed())
        else:
            self._timer = None
            self._set_timer()


class StorePlace:
    """An address at which a store can be reached, and the server that is there now."""

    def __init__(self, network: Network, name: str, rng: Random) -> None:
        self.network = network
        self.name = name
        self.server: StoreServer | None = None
        self.is_down = False
        """The whole machine is off: connections are not even refused."""
        self.observe: Callable[[int, Batch], None] | None = None
        """Told of everything that is written, by the number of the store's data."""
        self._rng = rng
        self._last: StoreServer | None = None

    def start(self, clock: NodeClock, *, keeps_data: bool) -> StoreServer:
        """Start a server; with the data of the last one if it kept any."""
        if keeps_data and self._last is not None:
            snapshot = self._last.machine.snapshot()
            machine = StoreMachine.restore(snapshot, clock.monotonic())
            self.server = StoreServer(self, clock, machine, self._last.incarnation)
        else:
            self.server = StoreServer(self, clock, StoreMachine(), self._rng.getrandbits(64))
        self._last = self.server
        return self.server

    def stop(self) -> None:
        """Kill the server, if there is one."""
        if self.server is not None:
            self.server.end()
            self.server = None

    def connect(self, connection: Connection) -> None:
        """Somebody knocks; for the network."""
        if self.is_down:
            return
        if self.server is None:
            connection.down.send(connection.take, connection, "lost", None)
            return
        self.server.accept(connection)

    def request(self, connection: Connection, event: object) -> None:
        """A request has come through; for the network."""
        if self.server is not None and not self.is_down:
            self.server.request(connection, event)

    def hang_up(self, connection: Connection) -> None:
        """A client has gone; for the network."""
        if self.server is not None:
            self.server.hang_up(connection)
