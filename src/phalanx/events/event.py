"""torchelastic's events as data: the same fields, the same JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, TypeAlias

__all__ = ["Event", "EventMetadataValue", "EventSource", "NodeState", "RdzvEvent"]

EventMetadataValue: TypeAlias = str | int | float | bool | None


class EventSource(str, Enum):  # noqa: UP042 # prints as torchelastic's does
    """Who tells it.

    >>> EventSource("AGENT").value
    'AGENT'
    """

    AGENT = "AGENT"
    WORKER = "WORKER"


@dataclass
class Event:
    """Something that happened to a job: ``name``, who tells it, when (milliseconds since the epoch), and data about it.

    A ``timestamp`` of 0 is filled in by ``record``; torchelastic's stays 0.

    >>> print(Event("job.checked", EventSource.AGENT, 1700000000000, {"nodes": 2}))
    {"name": "job.checked", "source": "AGENT", "timestamp": 1700000000000, "metadata": {"nodes": 2}}
    """

    name: str
    source: EventSource
    timestamp: int = 0
    metadata: dict[str, EventMetadataValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | Event) -> Event:
        """The event in this text; an event stays what it is. Raises ``ValueError``, with a sentence.

        >>> Event.deserialize('{"name": "a", "source": "WORKER", "timestamp": 0, "metadata": {}}').source.name
        'WORKER'
        """
        if isinstance(data, Event):
            return data
        read = _object(data, "Event")
        try:
            return Event(**{**read, "source": EventSource(read.get("source"))})
        except TypeError as reason:
            raise ValueError(f"no Event: {reason}") from None

    def serialize(self) -> str:
        """The event as one line of JSON.

        >>> Event("a", EventSource.WORKER).serialize()
        '{"name": "a", "source": "WORKER", "timestamp": 0, "metadata": {}}'
        """
        return json.dumps(asdict(self))


class NodeState(str, Enum):  # noqa: UP042 # as above
    """Where a node is in a rendezvous.

    >>> NodeState.SUCCEEDED.value
    'SUCCEEDED'
    """

    INIT = "INIT"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class RdzvEvent:
    """Something that happened in a rendezvous, as a node tells it.

    >>> RdzvEvent("handler.py:join", "7", "joined", "host-a", 4, NodeState.RUNNING, rank=1).rank
    1
    """

    name: str
    run_id: str
    message: str
    hostname: str
    pid: int
    node_state: NodeState
    master_endpoint: str = ""
    rank: int | None = None
    local_id: int | None = None
    error_trace: str = ""

    def __str__(self) -> str:
        return self.serialize()

    @staticmethod
    def deserialize(data: str | RdzvEvent) -> RdzvEvent:
        """The event in this text; an event stays what it is. Raises ``ValueError``, with a sentence.

        >>> event = RdzvEvent("a", "7", "joined", "host-a", 4, NodeState.INIT)
        >>> RdzvEvent.deserialize(event.serialize()) == event
        True
        """
        if isinstance(data, RdzvEvent):
            return data
        read = _object(data, "RdzvEvent")
        try:
            return RdzvEvent(**{**read, "node_state": NodeState(read.get("node_state"))})
        except TypeError as reason:
            raise ValueError(f"no RdzvEvent: {reason}") from None

    def serialize(self) -> str:
        """The event as one line of JSON.

        >>> RdzvEvent("a", "7", "joined", "host-a", 4, NodeState.INIT).serialize()[:28]
        '{"name": "a", "run_id": "7",'
        """
        return json.dumps(asdict(self))


def _object(text: str, what: str) -> dict[str, Any]:
    read = json.loads(text)
    if not isinstance(read, dict):
        raise ValueError(f"no {what}: {text[:60]!r}")  # noqa: TRY004 # what was written is wrong
    return read
