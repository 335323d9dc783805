"""How a job stands, folded from what happened; and lines that say the same."""

from __future__ import annotations

import pytest

from phalanx.events import JobStatus, from_line, job, to_line
from phalanx.events.lines import event_name

SETTLED = job.RoundSettled(
    at_ns=1, round=1, restart_count=0, run_id="7", group_rank=1, group_world_size=2, ranks=(2, 3), world_size=4,
    role_ranks=(2, 3), role_world_size=4, master_addr="a", master_port=1, waited_s=2.0,
)  # fmt: skip
FAILED = job.WorkerFailed(
    at_ns=1,
    round=1,
    rank=3,
    local_rank=1,
    pid=71,
    exit_code=1,
    message="ValueError: ü",
    traceback="Trace\nback",
)
RUNNING = (
    job.JobStarted(
        at_ns=1,
        name="train.py",
        entry_point="python",
        role="r",
        run_id="",
        host="h",
        backend="c10d",
        nproc=2,
        pid=4,
    ),
    job.RoundOpened(at_ns=1, round=1),
    job.WaitingFor(at_ns=1, sentence="1 of 2 nodes is here"),
    SETTLED,
    job.WorkersStarted(at_ns=1, round=1, pids={0: 70, 1: 71}),
)
STOPPING = (
    *RUNNING,
    job.WorkerProgress(at_ns=1, step=9),
    job.TimerProgress(at_ns=2),
    job.CheckpointSaved(at_ns=1, step=5),
    job.WorkerEnded(at_ns=1, round=1, rank=3, local_rank=1, pid=71, exit_code=1),
    job.StopBegan(at_ns=1, round=1, signal=15, grace_s=30.0, reason="rank 3 failed"),
)
EVERY = (
    *STOPPING,
    job.SignalPassedOn(at_ns=1, signal=10),
    job.WorkerEnded(
        at_ns=1, round=1, rank=2, local_rank=0, pid=70, exit_code=-15, was_asked=True, why_not_started=""
    ),
    FAILED,
    job.RoundEnded(at_ns=1, round=1, outcome="failed"),
    job.RestartDecided(at_ns=1, round=2, reason="rank 3 failed", is_charged=True, restart_count=1, left=2),
    job.EventsDropped(at_ns=1, count=3),
    job.JobEnded(at_ns=1, ending="failed", exit_code=1, reason="enough", cause=FAILED),
)


def folded(*job_events: job.JobEvent) -> JobStatus:
    status = JobStatus()
    for one in job_events:
        status = status.after(one)
    return status


def test_before_and_in_a_rendezvous() -> None:
    assert folded().phase == "rendezvous"
    status = folded(*RUNNING[:3])
    assert (status.phase, status.name, status.waiting_for) == (
        "rendezvous",
        "train.py",
        "1 of 2 nodes is here",
    )


def test_while_workers_run() -> None:
    status = folded(*RUNNING)
    assert (status.phase, status.round, status.run_id, status.waiting_for) == ("running", 1, "7", "")
    assert (status.group_rank, status.nodes, status.world_size) == (1, 2, 4)
    assert [(one.rank, one.local_rank, one.pid, one.state) for one in status.workers] == [
        (2, 0, 70, "running"),
        (3, 1, 71, "running"),
    ]


def test_while_they_are_stopped() -> None:
    status = folded(*STOPPING)
    assert (status.phase, status.reason, status.step, status.checkpoint) == (
        "stopping",
        "rank 3 failed",
        9,
        5,
    )
    assert [(one.state, one.exit_code) for one in status.workers] == [("running", None), ("failed", 1)]


def test_between_rounds_and_at_the_end() -> None:
    waiting = folded(*EVERY[:-1])
    assert (waiting.phase, waiting.restarts, waiting.restarts_left) == ("waiting", 1, 2)
    assert [one.state for one in waiting.workers] == ["stopped", "failed"]
    ended = folded(*EVERY)
    assert (ended.phase, ended.ending, ended.exit_code, ended.reason) == ("ended", "failed", 1, "enough")


def test_what_a_worker_left_tells_whether_it_was_stopped_or_had_failed_before() -> None:
    late = job.WorkerEnded(at_ns=1, round=1, rank=3, local_rank=1, pid=71, exit_code=1, was_asked=True)
    status = folded(*RUNNING, late)
    assert status.workers[1].state == "stopped"
    assert status.after(FAILED).workers[1].state == "failed"


def test_a_worker_that_runs_again_is_not_marked_by_its_last_life() -> None:
    again = job.WorkersStarted(at_ns=1, round=1, pids={1: 99})
    status = folded(*STOPPING[:-1], FAILED, again)
    assert (status.workers[1].state, status.workers[1].pid, status.workers[1].exit_code) == (
        "running",
        99,
        None,
    )


@pytest.mark.parametrize("one", EVERY, ids=event_name)
def test_a_line_says_all_of_it(one: job.JobEvent) -> None:
    line = to_line(one)
    assert line.endswith("\n")
    assert line.isascii()
    assert line.count("\n") == 1
    assert from_line(line) == one


def test_every_kind_of_job_event_is_tried_here() -> None:
    kinds = {one for one in vars(job).values() if isinstance(one, type) and issubclass(one, job.JobEvent)}
    assert kinds == {type(one) for one in EVERY} | {job.JobEvent}


def test_progress_is_a_step_a_checkpoint_or_a_timer_and_of_this_round() -> None:
    assert folded(*RUNNING).progress_at_ns is None
    for one in (
        job.WorkerProgress(at_ns=5, step=1),
        job.CheckpointSaved(at_ns=5, step=1),
        job.TimerProgress(at_ns=5),
    ):
        assert folded(*RUNNING, one).progress_at_ns == 5
        assert folded(*RUNNING, one, SETTLED).progress_at_ns is None
