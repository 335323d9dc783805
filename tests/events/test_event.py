"""torchelastic's events as data and as log records: what torch does with the same words, and where ours is better."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx import events
from phalanx.events import Event, EventSource, NodeState, RdzvEvent
from phalanx.events.handlers import get_logging_handler, handlers

EVENTS = "torch.distributed.elastic.events"


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A handler that a program has added, called "kept"."""
    handler = handlers["kept"] = Kept()
    yield handler
    del handlers["kept"]


@pytest.fixture
def rendezvous() -> Iterator[Kept]:
    before = handlers["dynamic_rendezvous"]
    handler = handlers["dynamic_rendezvous"] = Kept()
    yield handler
    handlers["dynamic_rendezvous"] = before


BOTH = """
    import json, logging
    from {events} import Event, EventSource, NodeState, RdzvEvent, construct_and_record_rdzv_event, record
    from {handlers} import {handlers_name} as _log_handlers, get_logging_handler

    said = []
    def say(*what): said.append([str(one) for one in what])

    class Kept(logging.Handler):
        def emit(self, record):
            say(record.name, record.levelname, record.args, type(record.msg).__name__, record.getMessage())

    event = Event("job.checked", EventSource.AGENT, 5, {{"nodes": 2, "share": 0.5, "is_well": True, "why": None}})
    say(event), say(repr(event)), say(event.serialize()), say(Event.deserialize(str(event)) == event)
    say(Event.deserialize(event) is event), say(EventSource.WORKER), say(EventSource("AGENT") == "AGENT")
    told = RdzvEvent("a.py:join", "7", "joined", "host-a", 4, NodeState.RUNNING, rank=1)
    say(told), say(repr(told)), say(RdzvEvent.deserialize(told.serialize()) == told), say(list(NodeState))
    say(sorted(_log_handlers), [type(_log_handlers[one]).__name__ for one in sorted(_log_handlers)])
    say(get_logging_handler() is _log_handlers["null"])
    _log_handlers["mine"] = Kept()
    record(event, "mine"), record(event), record(event, "null")
    logger = logging.getLogger("torchelastic-events-mine")
    say(logger.propagate, logger.level, [type(one).__name__ for one in logger.handlers])
    try:
        record(event, "nowhere")
    except KeyError:
        say("KeyError")
    construct_and_record_rdzv_event("7", "nobody listens", NodeState.RUNNING)
    _log_handlers["dynamic_rendezvous"] = Kept()

    def join():
        construct_and_record_rdzv_event("7", "m", NodeState.INIT, hostname="h", pid=3, local_id=1, rank=2)
        there = {{"hostname": "h", "master_endpoint": "e:1"}}
        construct_and_record_rdzv_event("7", "m", NodeState.RUNNING, name="next", pid=3, **there)
        try:
            raise LookupError("gone")
        except LookupError:
            construct_and_record_rdzv_event("7", "m", NodeState.FAILED, hostname="h", pid=3)
    join()
    print(json.dumps(said))
"""


def said_by(events_module: str, handlers_module: str, folder: Any) -> list[list[str]]:
    script = folder / "program.py"
    # Ours has a public name; torch's goes to it, see tests/compat.
    name = "handlers" if handlers_module.startswith("phalanx") else "_log_handlers"
    words = {"events": events_module, "handlers": handlers_module, "handlers_name": name}
    script.write_text(textwrap.dedent(BOTH.format(**words)))
    done = subprocess.run([sys.executable, script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.torch
@pytest.mark.compat(f"name {EVENTS}.api.EventSource", "same")
@pytest.mark.compat(f"name {EVENTS}.api.NodeState", "same")
@pytest.mark.compat(f"name {EVENTS}.api.RdzvEvent", "same")
@pytest.mark.compat(f"name {EVENTS}.handlers.get_logging_handler", "same")
@shows_names("same", "elastic.events", "record_rdzv_event")
def test_a_program_that_records_events_gets_the_same_from_both(tmp_path: Any) -> None:
    torchs = said_by(EVENTS, f"{EVENTS}.handlers", tmp_path)
    ours = said_by("phalanx.events", "phalanx.events.handlers", tmp_path)
    assert ours == torchs


@pytest.mark.compat(f"name {EVENTS}.record", "better", "an event without a timestamp gets one")
def test_an_event_without_a_timestamp_gets_one_when_it_is_recorded(kept: Kept) -> None:
    event = Event("job.checked", EventSource.AGENT)
    events.record(event, "kept")
    (record,) = kept.records
    assert json.loads(record.getMessage())["timestamp"] > 1_700_000_000_000
    assert event.timestamp == 0


@pytest.mark.compat(
    "extension events.handlers._log_handlers",
    "better",
    "who takes a handler's place later is heard, too; an installed package can add one",
)
def test_a_handler_that_takes_the_place_of_another_is_heard(kept: Kept) -> None:
    events.record(Event("first", EventSource.AGENT), "kept")
    later = handlers["kept"] = Kept()
    events.record(Event("second", EventSource.AGENT), "kept")
    assert len(kept.records) == len(later.records) == 1


@pytest.mark.compat(
    f"name {EVENTS}.construct_and_record_rdzv_event", "better", "no trace where no exception is being handled"
)
def test_a_failed_node_without_an_exception_has_no_trace(rendezvous: Kept) -> None:
    events.construct_and_record_rdzv_event("7", "left", NodeState.FAILED)
    (record,) = rendezvous.records
    told = RdzvEvent.deserialize(record.getMessage())
    assert told.error_trace == ""
    assert told.name == ("test_event.py:test_a_failed_node_without_an_exception_has_no_trace")


def test_an_unknown_destination_is_one_sentence_with_the_known_ones() -> None:
    with pytest.raises(KeyError) as caught:
        get_logging_handler("nowhere")
    assert "'nowhere'; there are console, dynamic_rendezvous, null" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"name": "a"}',
        '{"name": "a", "source": "MOON"}',
        '{"name": "a", "source": "AGENT", "moon": 1}',
    ],
)
@pytest.mark.compat(f"name {EVENTS}.api.Event", "better", "what is no event is one sentence")
def test_what_is_no_event_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # JSON's, the enumeration's or ours
        Event.deserialize(text)
    with pytest.raises(ValueError):  # noqa: PT011
        RdzvEvent.deserialize(text)


def test_the_names_of_the_package_load_when_they_are_used() -> None:
    program = "import sys, phalanx.events; print('logging' in sys.modules, 'json' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    for name in events.__all__:
        assert getattr(events, name) is not None
    assert set(events.__all__) <= set(dir(events))
    with pytest.raises(AttributeError, match="moon"):
        events.moon  # noqa: B018


def test_a_program_adds_a_handler_and_what_is_none_is_refused(kept: Kept) -> None:
    later = Kept()
    events.add_handler("kept", later)
    events.record(Event("first", EventSource.AGENT), "kept")
    assert (len(kept.records), len(later.records)) == (0, 1)
    assert get_logging_handler("kept") is later
    with pytest.raises(TypeError, match=r"is to be a logging\.Handler, not <built-in function print>"):
        events.add_handler("kept", print)  # type: ignore[arg-type]
