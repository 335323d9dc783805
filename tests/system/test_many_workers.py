"""A hundred and more workers on one machine: a large node, and no limit of the launcher's own."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

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
