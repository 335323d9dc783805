"""torchelastic's events of a job: which, when, and with what in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.events import Event, EventMaker, EventSource, job

SECOND = 1_000_000_000
STARTED = job.JobStarted(
    at_ns=10 * SECOND, name="train.py", entry_point="python", role="trainer", run_id="", host="host-a",
    backend="c10d", nproc=2, pid=4,
)  # fmt: skip


def settled(number: int = 1, *, restart_count: int = 0, at_s: int = 12) -> job.RoundSettled:
    return job.RoundSettled(
        at_ns=at_s * SECOND, round=number, restart_count=restart_count, run_id="7", group_rank=1, group_world_size=2,
        ranks=(2, 3), world_size=4, role_ranks=(0, 1), role_world_size=2, master_addr="a", master_port=1, waited_s=2.0,
    )  # fmt: skip


def started(first_pid: int, number: int = 1) -> job.WorkersStarted:
    return job.WorkersStarted(at_ns=13 * SECOND, round=number, pids={0: first_pid, 1: first_pid + 1})


def ended(local_rank: int, exit_code: int, *, was_asked: bool = False) -> job.WorkerEnded:
    return job.WorkerEnded(
        at_ns=14 * SECOND, round=1, rank=2 + local_rank, local_rank=local_rank, pid=70 + local_rank,
        exit_code=exit_code, was_asked=was_asked,
    )  # fmt: skip


def failed(local_rank: int, exit_code: int, **more: Any) -> job.WorkerFailed:
    return job.WorkerFailed(
        at_ns=14 * SECOND, round=1, rank=2 + local_rank, local_rank=local_rank, pid=70 + local_rank,
        exit_code=exit_code, **{"message": "ValueError: bad data", **more},
    )  # fmt: skip


def made(*job_events: job.JobEvent) -> list[Event]:
    maker = EventMaker()
    return [event for one in job_events for event in maker.from_job_event(one)]


def states(events: list[Event]) -> list[tuple[str, str, object]]:
    return [(one.source.value, str(one.metadata["state"]), one.metadata["global_rank"]) for one in events]


SUCCEEDED = job.JobEnded(at_ns=15 * SECOND, ending="succeeded", exit_code=0)


def test_a_job_that_succeeds() -> None:
    events = made(STARTED, settled(), started(70), ended(0, 0), ended(1, 0), SUCCEEDED)
    assert states(events) == [
        ("AGENT", "RENDEZVOUS", None),
        ("WORKER", "START", 2),
        ("WORKER", "START", 3),
        ("WORKER", "SUCCEEDED", 2),
        ("WORKER", "SUCCEEDED", 3),
        ("AGENT", "SUCCEEDED", None),
    ]
    assert {one.name for one in events} == {
        f"torchelastic.worker.status.{state}" for state in ("RENDEZVOUS", "START", "SUCCEEDED")
    }
    assert [one.timestamp for one in events] == [12000, 13000, 13000, 15000, 15000, 15000]


def test_what_an_event_of_a_worker_says() -> None:
    *_, event = made(STARTED, settled(), started(70))
    assert event.source is EventSource.WORKER
    inner = json.loads(str(event.metadata.pop("metadata")))
    assert event.metadata == {
        "run_id": "7",
        "global_rank": 3,
        "group_rank": 1,
        "worker_id": "71",
        "role": "trainer",
        "hostname": "host-a",
        "state": "START",
        "total_run_time": 3,
        "rdzv_backend": "c10d",
        "raw_error": None,
        "agent_restarts": 0,
        "duration_ms": None,
    }
    assert inner == {
        "group_world_size": 2,
        "entry_point": "python",
        "local_rank": 1,
        "role_rank": 1,
        "role_world_size": 2,
        "exit_code": None,
        "worker_pid": 71,
    }


def test_how_long_a_meeting_took() -> None:
    (event,) = made(STARTED, settled())
    assert event.metadata["duration_ms"] == 2000.0
    assert json.loads(str(event.metadata["metadata"])) == {"group_world_size": 2, "entry_point": "python"}


def test_a_worker_that_was_ended_for_the_failure_of_another_has_not_failed() -> None:
    events = made(
        STARTED,
        settled(),
        started(70),
        ended(1, 1),
        ended(0, -15, was_asked=True),
        failed(0, -15, is_collateral=True),
        failed(1, 1, traceback="Traceback…", error_file="/e/error.json"),
        job.JobEnded(
            at_ns=15 * SECOND, ending="failed", exit_code=1, reason="no restart is left", cause=failed(1, 1)
        ),
    )
    assert states(events)[3:] == [
        ("WORKER", "TERMINATED", 2),
        ("WORKER", "FAILED", 3),
        ("AGENT", "FAILED", None),
    ]
    first, second, agent = events[3:]
    assert json.loads(str(first.metadata["metadata"]))["exit_code"] == -15
    assert json.loads(str(second.metadata["raw_error"])) == {
        "message": {"message": "ValueError: bad data", "extraInfo": {"py_callstack": "Traceback…"}}
    }
    assert agent.metadata["raw_error"] == "rank 3: ValueError: bad data; no restart is left"


def test_only_the_last_round_has_ends_and_restarts_are_counted() -> None:
    events = made(
        STARTED,
        settled(),
        started(50),
        ended(0, 1),
        failed(0, 1),
        settled(2, restart_count=1),
        started(70, 2),
        ended(0, 0),
        ended(1, 0),
        SUCCEEDED,
    )
    assert [state for _, state, _ in states(events)] == [
        "RENDEZVOUS", "START", "START", "RENDEZVOUS", "START", "START", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED",
    ]  # fmt: skip
    assert [one.metadata["agent_restarts"] for one in events] == [0, 0, 0, *[1] * 6]


def test_a_worker_that_is_started_again_alone_is_told_by_its_last_life() -> None:
    again = job.WorkersStarted(at_ns=14 * SECOND, round=1, pids={1: 99})
    events = made(
        STARTED, settled(), started(70), ended(1, 1), failed(1, 1), again, ended(0, 0), ended(1, 0), SUCCEEDED
    )
    assert [state for _, state, _ in states(events)[3:]] == ["START", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED"]


@pytest.mark.parametrize("ending", ["failed", "stopped"])
def test_an_agent_that_never_had_a_round(ending: str) -> None:
    (event,) = made(job.JobEnded(at_ns=SECOND, ending=ending, exit_code=75, reason="nobody came"))
    assert (event.metadata["state"], event.metadata["raw_error"]) == ("FAILED", "nobody came")


def test_what_the_program_and_the_way_to_meet_are_called() -> None:
    maker = EventMaker(entry_point="train", rdzv_backend="static")
    maker.from_job_event(STARTED)
    (event,) = maker.from_job_event(SUCCEEDED)
    assert json.loads(str(event.metadata["metadata"]))["entry_point"] == "train"
    assert event.metadata["rdzv_backend"] == "static"
