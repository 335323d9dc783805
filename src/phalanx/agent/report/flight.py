"""The flight record: the last events that the agent's machine saw, and what it decided.

The core is deterministic, so that replaying the record in a test reproduces a decision seen in the field. It is kept
in memory, bounded, and written when a job fails or a bug of ours ends the agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

__all__ = ["FlightRecord"]

ENTRIES_MAX = 4096  # some 2 MB at worst: hours of a quiet job, minutes of a mad one


class FlightRecord:
    """A bounded log of ``(now, state, event, commands)``."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries: deque[tuple[float, str, object, list[Any]]] = deque(maxlen=entries_max)

    def add(self, now: float, state: str, event: object, commands: list[Any]) -> None:
        """Remember one step; ``state`` is the state after it."""
        self._entries.append((now, state, event, commands))

    def __iter__(self) -> Iterator[tuple[float, str, object, list[Any]]]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def lines(self) -> Iterator[str]:
        """One line of JSON per step: ``at`` in monotonic seconds, the rest as the records print themselves."""
        import json

        for now, state, event, commands in self._entries:
            entry = {
                "at": now,
                "event": repr(event),
                "state": state,
                "commands": [repr(one) for one in commands],
            }
            yield json.dumps(entry)
