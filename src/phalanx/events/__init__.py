"""What happens to a job: typed job events, how it stands, and torchelastic's events.

``phalanx.events.job`` has the job events. Names load on first use: an agent that nobody looks at pays for none.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.events.event import Event as Event
    from phalanx.events.event import EventMetadataValue as EventMetadataValue
    from phalanx.events.event import EventSource as EventSource
    from phalanx.events.event import NodeState as NodeState
    from phalanx.events.event import RdzvEvent as RdzvEvent
    from phalanx.events.handlers import UnknownDestination as UnknownDestination
    from phalanx.events.handlers import add_handler as add_handler
    from phalanx.events.handlers import get_logging_handler as get_logging_handler
    from phalanx.events.job import JobEvent as JobEvent
    from phalanx.events.lines import from_line as from_line
    from phalanx.events.lines import to_line as to_line
    from phalanx.events.making import EventMaker as EventMaker
    from phalanx.events.recording import construct_and_record_rdzv_event as construct_and_record_rdzv_event
    from phalanx.events.recording import record as record
    from phalanx.events.recording import record_rdzv_event as record_rdzv_event
    from phalanx.events.status import JobStatus as JobStatus
    from phalanx.events.status import WorkerStatus as WorkerStatus

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.events.event": "Event EventMetadataValue EventSource NodeState RdzvEvent",
        "phalanx.events.handlers": "UnknownDestination add_handler get_logging_handler",
        "phalanx.events.job": "JobEvent",
        "phalanx.events.lines": "from_line to_line",
        "phalanx.events.making": "EventMaker",
        "phalanx.events.recording": "construct_and_record_rdzv_event record record_rdzv_event",
        "phalanx.events.status": "JobStatus WorkerStatus",
    },
)
