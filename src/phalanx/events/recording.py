"""torchelastic's events, written: through the logger ``torchelastic-events-<destination>``, one line of JSON each."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from dataclasses import replace

from phalanx.events.event import Event, NodeState, RdzvEvent
from phalanx.events.handlers import get_logging_handler

__all__ = ["construct_and_record_rdzv_event", "record", "record_rdzv_event"]

RENDEZVOUS = "dynamic_rendezvous"


def record(event: Event, destination: str = "null") -> None:
    """Hand the event to the handler that this destination has now; the moment is filled in if it has none.

    Raises ``UnknownDestination``, a ``KeyError``, for a name that no handler has.

    >>> from phalanx.events import Event, EventSource
    >>> record(Event("job.checked", EventSource.AGENT), "null")
    """
    logger = _logger(destination)
    if not event.timestamp:
        event = replace(event, timestamp=time.time_ns() // 1_000_000)
    logger.info(event.serialize())


def record_rdzv_event(event: RdzvEvent) -> None:
    """Hand the event to the handler of ``dynamic_rendezvous``.

    >>> record_rdzv_event(RdzvEvent("a.py:join", "7", "joined", "host-a", 4, NodeState.RUNNING))
    """
    _logger(RENDEZVOUS).info(event.serialize())


def construct_and_record_rdzv_event(
    run_id: str,
    message: str,
    node_state: NodeState,
    name: str = "",
    hostname: str = "",
    pid: int | None = None,
    master_endpoint: str = "",
    local_id: int | None = None,
    rank: int | None = None,
) -> None:
    """Make an event of a rendezvous and record it; without a handler that listens, nothing is made.

    The event's name is ``<file of the caller>:<name>``, and ``name`` is the calling function's if it is not given. A
    node state of ``FAILED`` has the traceback of the exception that is being handled, if there is one.

    >>> construct_and_record_rdzv_event("7", "joined", NodeState.RUNNING)
    """
    if isinstance(get_logging_handler(RENDEZVOUS), logging.NullHandler):
        return
    caller = sys._getframe(1)
    trace = ""
    if node_state is NodeState.FAILED and sys.exc_info()[0] is not None:
        import traceback

        trace = traceback.format_exc()
    event = RdzvEvent(
        name=f"{os.path.basename(caller.f_code.co_filename)}:{name or caller.f_code.co_name}",
        run_id=run_id,
        message=message,
        hostname=hostname or socket.getfqdn(),
        pid=os.getpid() if pid is None else pid,
        node_state=node_state,
        master_endpoint=master_endpoint,
        rank=rank,
        local_id=local_id,
        error_trace=trace,
    )
    record_rdzv_event(event)


def _logger(destination: str) -> logging.Logger:
    """The logger, with the handler of now: whoever takes a handler's place later is heard, too."""
    handler = get_logging_handler(destination)
    logger = logging.getLogger(f"torchelastic-events-{destination}")
    if logger.handlers != [handler]:
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(logging.INFO)
    return logger
