"""Job events as lines of JSON, and back: between an agent and its host, and in the file of ``--events-file``. Pure.

One object a line, ASCII: ``event`` is the name of the record in words, ``at`` the wall time in seconds, ``at_ns``
the same in nanoseconds, the rest are the record's fields. A reader passes over names and fields that it does not know.
"""

from __future__ import annotations

import json
import re
from typing import Any

from phalanx.events import job

__all__ = ["event_name", "from_line", "to_line"]

_SIMPLE = {"int", "str", "bool", "float", "int | None"}


def event_name(job_event: job.JobEvent) -> str:
    """``worker_ended`` for a ``WorkerEnded``.

    >>> event_name(job.CheckpointSaved(at_ns=0, step=5))
    'checkpoint_saved'
    """
    return _words(type(job_event))


def to_line(job_event: job.JobEvent) -> str:
    r"""The job event as one line, which ends with a newline.

    >>> to_line(job.CheckpointSaved(at_ns=1_500_000_000, step=5))
    '{"event": "checkpoint_saved", "at": 1.5, "at_ns": 1500000000, "step": 5}\n'
    """
    head = {"event": _words(type(job_event)), "at": job_event.at_ns / 1e9}
    return json.dumps({**head, **_plain(job_event)}) + "\n"


def from_line(line: str | bytes) -> job.JobEvent | None:
    """What ``to_line`` wrote; None where the name is not known. Raises ``ValueError`` for anything else.

    >>> from_line('{"event": "checkpoint_saved", "at_ns": 7, "step": 5}')
    CheckpointSaved(at_ns=7, step=5)
    """
    read = json.loads(line)
    if not isinstance(read, dict) or not isinstance(read.get("event"), str):
        raise ValueError(f"no job event: {str(line)[:60]!r}")  # noqa: TRY004 # what was written is wrong
    kind = _KINDS.get(read["event"])
    return None if kind is None else _build(kind, read)


def _words(kind: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


_KINDS: dict[str, type[job.JobEvent]] = {
    _words(one): one for one in vars(job).values() if isinstance(one, type) and issubclass(one, job.JobEvent)
}


def _plain(record: job.JobEvent) -> dict[str, Any]:
    fields = ((name, getattr(record, name)) for name in record.__struct_fields__)
    return {name: _plain(one) if isinstance(one, job.JobEvent) else one for name, one in fields}


def _build(kind: type[job.JobEvent], read: dict[str, Any]) -> job.JobEvent:
    kinds = {"at_ns": "int", **kind.__annotations__}
    fields = {name: _field(of, read[name]) for name, of in kinds.items() if name in read}
    try:
        return kind(**fields)
    except TypeError as reason:
        raise ValueError(f"a job event is not whole: {reason}") from None


def _field(kind: str, value: Any) -> Any:
    """JSON knows neither tuples nor numbers as keys."""
    if kind in _SIMPLE or value is None:
        return value
    if kind == "tuple[int, ...]":
        return tuple(value)
    if kind == "dict[int, int]":
        return {int(key): one for key, one in value.items()}
    assert kind == "WorkerFailed | None", kind
    return _build(job.WorkerFailed, value)
