"""The base of every state machine: a table of arrows, a deadline, and nothing else.

A machine decides and never acts: it has no input, no output, no thread and no clock. Who drives it calls
``step(event, now)``, performs the commands that come back in order, and calls again when ``deadline`` has passed.
``now`` is the driver's monotonic time in seconds; only differences of it mean anything.

The table lists *every* (event, state) pair that can happen. "Nothing happens" is written down as ``Void`` with the
reason. A pair that nobody listed is a bug of ours, and ``step`` says so instead of guessing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

__all__ = ["Arrow", "Machine", "UnlistedEvent", "Void"]

StateT = TypeVar("StateT", bound=Enum)


class Void:
    """The entry of a pair in which nothing happens; ``reason`` says why that is right."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __repr__(self) -> str:
        return f"Void({self.reason!r})"


Arrow = Callable[[Any, Any, float], "list[Any] | None"]


class UnlistedEvent(Exception):
    """An event arrived in a state for which the table has no entry: a bug in the table, not in the world."""

    def __init__(self, machine: str, state: str, event: object) -> None:
        super().__init__(f"{machine}: nobody listed {type(event).__name__} in state {state} ({event!r})")
        self.event = event


class Machine(Generic[StateT]):
    """A table-driven machine. Subclasses set ``table``, ``state`` and (when they wait) ``deadline``.

    ``table`` maps an event type to ``{state: method}``; a method takes ``(self, event, now)`` and returns the
    commands to perform, or ``None`` for none. ``check()`` raises ``AssertionError`` when an invariant is broken; it
    runs after each step, in production too: it costs microseconds, and a wrong decision costs a job.
    """

    table: ClassVar[Mapping[type, Mapping[Any, Arrow | Void]]]
    state: StateT
    deadline: float | None = None

    def step(self, event: object, now: float) -> list[Any]:
        """Take one event and return the commands to perform, in order.

        Raises ``UnlistedEvent`` for a pair that the table does not have; the machine is unchanged then.
        """
        arrow = self.table.get(self.row(event), {}).get(self.state)
        if arrow is None:
            raise UnlistedEvent(type(self).__name__, self.state.name, event)
        if isinstance(arrow, Void):
            return []
        commands = arrow(self, event, now) or []
        self.check()
        return commands

    def row(self, event: object) -> type:
        """The row of the table that is asked: the event's type, or a base of it that stands for many."""
        return type(event)

    def check(self) -> None:
        """Assert the machine's invariants. The base has none."""
