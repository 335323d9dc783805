"""torchelastic's metrics, made from what a hosted agent tells."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.events import job
from phalanx.launcher.elastic.job_metrics import JobMetrics

S = 1_000_000_000


def settled(at_s: int, restart_count: int) -> job.RoundSettled:
    return job.RoundSettled(
        at_ns=at_s * S,
        round=1 + restart_count,
        restart_count=restart_count,
        run_id="job",
        group_rank=0,
        group_world_size=1,
        ranks=(0,),
        world_size=1,
        role_ranks=(0,),
        role_world_size=1,
        master_addr="here",
        master_port=1,
        waited_s=1.5,
    )


def put(*job_events: job.JobEvent, max_restarts: int = 3) -> dict[str, int]:
    """The last number under each name."""
    numbers = JobMetrics("trainer", max_restarts=max_restarts)
    return {name: value for one in job_events for name, value in numbers.of(one)}


def started() -> job.JobEvent:
    settings: dict[str, Any] = {
        "name": "x",
        "role": "trainer",
        "run_id": "job",
        "host": "here",
        "entry_point": "x",
    }
    return job.JobStarted(at_ns=0, backend="memory", nproc=1, pid=1, **settings)


def test_a_round_has_durations_under_the_names_of_torchelastics_methods() -> None:
    found = put(
        started(),
        settled(2, 0),
        job.WorkersStarted(at_ns=3 * S, round=1, pids={0: 7}),
        job.StopBegan(at_ns=5 * S, round=1, signal=15, grace_s=30.0, reason=""),
        job.RoundEnded(at_ns=6 * S, round=1, outcome="failed"),
    )
    assert found["SimpleElasticAgent._rendezvous.success"] == 1
    assert found["SimpleElasticAgent._rendezvous.duration.ms"] == 1500
    assert found["LocalElasticAgent._start_workers.duration.ms"] == 1000
    assert found["LocalElasticAgent._stop_workers.duration.ms"] == 1000
    assert found["workers.trainer.healthy"] == 1
    assert "SimpleElasticAgent._restart_workers.success" not in found


@pytest.mark.parametrize(
    ("ending", "used", "expected"),
    [
        ("succeeded", 0, {"run_success_no_retries": 1, "flakiness": 0}),
        ("succeeded", 1, {"run_success_with_retries": 1, "flakiness": 25}),
        ("failed", 0, {"run_failed_no_retries": 1, "flakiness": 100}),
        ("failed", 3, {"run_failed_with_retries": 1, "flakiness": 100}),
    ],
)
def test_the_end_says_how_much_of_the_budget_was_needed(
    ending: str, used: int, expected: dict[str, int]
) -> None:
    restarts = [
        job.RestartDecided(
            at_ns=4 * S, round=2, reason="rank 0 failed", is_charged=True, restart_count=used, left=3 - used
        ),
        settled(5, used),
        job.WorkersStarted(at_ns=6 * S, round=2, pids={0: 8}),
    ]
    end = job.JobEnded(at_ns=9 * S, ending=ending, exit_code=int(ending == "failed"))
    found = put(started(), settled(2, 0), *(restarts if used else []), end)
    runs = dict.fromkeys(("run_success_no_retries", "run_success_with_retries"), 0)
    runs |= dict.fromkeys(("run_failed_no_retries", "run_failed_with_retries"), 0)
    for name, value in {**runs, **expected}.items():
        assert found[f"workers.trainer.{name}"] == value, name
    assert found["workers.trainer.run_total"] == 1
    assert found["workers.trainer.remaining_restarts"] == 3 - used
    assert found["SimpleElasticAgent.run.success"] == 1
    assert found["SimpleElasticAgent.run.duration.ms"] == 9000
    assert ("SimpleElasticAgent._restart_workers.duration.ms" in found) is bool(used)


def test_a_job_that_was_stopped_is_no_run_that_failed() -> None:
    found = put(started(), job.JobEnded(at_ns=9 * S, ending="stopped", exit_code=143))
    assert found == {"SimpleElasticAgent.run.failure": 1, "SimpleElasticAgent.run.duration.ms": 9000}
