"""What happens to a job: typed happenings, how it stands, and torchelastic's events.

``phalanx.events.job`` has the happenings. Names load on first use: an agent that nobody looks at pays for none.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than what is here

if TYPE_CHECKING:
    from phalanx.events.event import Event, EventMetadataValue, EventSource, NodeState, RdzvEvent
    from phalanx.events.handlers import UnknownDestination, get_logging_handler
    from phalanx.events.job import Happening
    from phalanx.events.lines import from_line, to_line
    from phalanx.events.making import EventMaker
    from phalanx.events.recording import construct_and_record_rdzv_event, record, record_rdzv_event
    from phalanx.events.status import JobStatus, WorkerStatus

__all__ = [
    "Event",
    "EventMaker",
    "EventMetadataValue",
    "EventSource",
    "Happening",
    "JobStatus",
    "NodeState",
    "RdzvEvent",
    "UnknownDestination",
    "WorkerStatus",
    "construct_and_record_rdzv_event",
    "from_line",
    "get_logging_handler",
    "record",
    "record_rdzv_event",
    "to_line",
]

_HOMES = {
    "EventMaker": "making",
    "Happening": "job",
    "JobStatus": "status",
    "UnknownDestination": "handlers",
    "WorkerStatus": "status",
    "construct_and_record_rdzv_event": "recording",
    "from_line": "lines",
    "get_logging_handler": "handlers",
    "record": "recording",
    "record_rdzv_event": "recording",
    "to_line": "lines",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value: object = getattr(importlib.import_module(f"phalanx.events.{_HOMES.get(name, 'event')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
