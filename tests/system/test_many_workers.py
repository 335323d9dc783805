"""A hundred and more workers on one machine: a large node, and no limit of the launcher's own."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Launch, Script

WORKERS = 128


def test_all_workers_run_and_end_well(launch: Launch, script: Script) -> None:
    train = script("from telling import tell; tell('ran')")

    job = launch("--standalone", "--nproc-per-node", WORKERS, train)

    assert job.wait() == 0, job.stderr
    assert sorted(event.rank for event in job.told("ran", WORKERS)) == list(range(WORKERS))


@pytest.mark.parametrize("streams", ["-r", "-t"])
def test_all_workers_have_logs_within_the_usual_limit_of_open_files(
    launch: Launch, script: Script, tmp_path: Path, streams: str
) -> None:
    train = script("import os, sys; print('rank', os.environ['RANK']); print('err', file=sys.stderr)")

    job = launch(
        *("--standalone", "--nproc-per-node", WORKERS, streams, 3, "--log-dir", tmp_path / "logs", train),
        wrapper=("sh", "-c", 'ulimit -Sn 1024 && exec "$@"', "sh"),
    )

    assert job.wait() == 0, job.stderr
    for rank in range(WORKERS):
        (log,) = tmp_path.glob(f"logs/*/attempt_0/{rank}/stdout.log")
        assert log.read_text() == f"rank {rank}\n"
    shown = sorted(job.stdout.decode().splitlines())
    assert shown == (sorted(f"[default{n}]:rank {n}" for n in range(WORKERS)) if streams == "-t" else [])


def has_ended(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_all_that_fail_at_once_are_told_however_many_they_are(launch: Launch, tmp_path: Path) -> None:
    program = (
        'echo "{\\"event\\": \\"ready\\"}" > "$BLACK_BOX_PIPE"; while [ ! -e go ]; do sleep 0.1; done; exit 3'
    )
    report = tmp_path / "report.json"
    arguments = ("--standalone", "--nproc-per-node", WORKERS, "--report-file", report, "--no-python")
    job = launch(*arguments, "sh", "-c", program)
    job.told("ready", WORKERS)
    job.send(signal.SIGSTOP)  # it looks when all have ended
    pid = job.process.pid
    workers = [
        int(child)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if b"LOCAL_RANK=" in Path(f"/proc/{child}/environ").read_bytes()
    ]
    assert len(workers) == WORKERS

    (job.folder / "go").touch()
    give_up_at = time.monotonic() + LIMIT_S
    while not all(map(has_ended, workers)):
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    job.send(signal.SIGCONT)

    assert job.wait() == 3
    data = json.loads(report.read_text())
    assert (data["failed_ranks"], data["stopped_ranks"]) == (list(range(WORKERS)), [])
    assert data["tied_ranks"] == list(range(WORKERS))
    assert "  and ranks 17-127\n" in job.summary


def test_all_workers_are_stopped_when_one_fails(launch: Launch) -> None:
    program = (
        'echo "{\\"event\\": \\"ready\\"}" > "$BLACK_BOX_PIPE"; [ $RANK = 100 ] && exit 7; exec sleep 1000'
    )

    job = launch("--standalone", "--nproc-per-node", WORKERS, "--no-python", "sh", "-c", program)

    assert job.wait() == 7
    job.wait_nobody()


def test_all_workers_are_gone_after_the_launcher_was_killed(launch: Launch) -> None:
    program = 'echo "{\\"event\\": \\"ready\\"}" > "$BLACK_BOX_PIPE"; setsid sleep 1000 & exec sleep 1000'
    job = launch("--standalone", "--nproc-per-node", WORKERS, "--no-python", "sh", "-c", program)
    job.told("ready", WORKERS)

    job.send(signal.SIGKILL)

    job.wait()
    job.wait_nobody()
