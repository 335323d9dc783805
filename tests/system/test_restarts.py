"""A restart is a fresh round: new port, new folder, the old logs kept, and it is charged to the budget."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.system.launch import Launch, Script

FAILS_UNTIL = """
    import os, socket, sys, time
    from telling import tell

    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    rank = int(os.environ["RANK"])
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_MAX_RESTARTS", "WORLD_SIZE", "TORCHELASTIC_ERROR_FILE")
    can_bind = None
    if rank == 0:
        with socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))):
            can_bind = True
    tell("begun", can_bind=can_bind, **{name: os.environ[name] for name in names})
    print("attempt", restart, "rank", rank)
    open(f"begun-{restart}-{rank}", "w").close()
    # A rank that is asked to stop in its first moments would have told and printed nothing.
    while not os.path.exists(f"begun-{restart}-{1 - rank}"):
        time.sleep(0.01)
    if rank == 1 and restart < int(sys.argv[1]):
        raise RuntimeError(f"failure of attempt {restart}")
    if restart < int(sys.argv[1]):
        time.sleep(1000)
"""


def test_each_attempt_has_another_port_than_the_last_one_and_rank_0_can_bind_it(
    launch: Launch, script: Script
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, script(FAILS_UNTIL), 2)

    assert job.wait() == 0
    begun = job.told("begun", 6)
    assert sorted((event.restart, event.rank) for event in begun) == [
        (n, r) for n in range(3) for r in range(2)
    ]
    assert {event["TORCHELASTIC_MAX_RESTARTS"] for event in begun} == {"2"}
    by_restart = {n: {event["MASTER_PORT"] for event in begun if event.restart == n} for n in range(3)}
    assert all(len(ports) == 1 for ports in by_restart.values()), "ranks of one attempt agree"
    (first,), (second,), (third,) = by_restart.values()
    # The third may be the first one again: nobody reaches it any more.
    assert first != second != third
    assert all(event["can_bind"] for event in begun if event.rank == 0)


def test_each_attempt_has_a_folder_and_the_old_logs_are_kept(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"

    job = launch(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 2, "-r", 3, "--log-dir", logs),
        *(script(FAILS_UNTIL), 2),
    )

    assert job.wait() == 0
    (run,) = logs.iterdir()
    for attempt in range(3):
        for rank in range(2):
            assert (
                run / f"attempt_{attempt}/{rank}/stdout.log"
            ).read_text() == f"attempt {attempt} rank {rank}\n"
    for attempt in range(2):
        error = json.loads((run / f"attempt_{attempt}/1/error.json").read_text())
        assert error["message"]["message"] == f"RuntimeError: failure of attempt {attempt}"
    assert not (run / "attempt_2/1/error.json").exists()
    assert {Path(event["TORCHELASTIC_ERROR_FILE"]).parent.parent.name for event in job.told("begun", 6)} == {
        "attempt_0",
        "attempt_1",
        "attempt_2",
    }


def test_when_the_restarts_are_used_up_the_last_failure_is_the_summary(
    launch: Launch, script: Script
) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, script(FAILS_UNTIL), 9)

    assert job.wait() == 1
    assert len(job.told("begun", 4)) == 4
    assert "failure of attempt 1" in job.summary


def test_a_restart_is_announced_with_its_cause(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "-r", 3, script(FAILS_UNTIL), 1)

    assert job.wait() == 0
    assert b"failure of attempt 0" in job.stderr, "a healed failure must not pass in silence"


def test_workers_of_an_elastic_standalone_job_restart_too(launch: Launch, script: Script) -> None:
    job = launch(
        *("--standalone", "--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 1),
        *(script(FAILS_UNTIL), 1),
    )

    assert job.wait() == 0
    assert {(event.restart, event["WORLD_SIZE"]) for event in job.told("begun", 4)} == {(0, "2"), (1, "2")}


def test_a_worker_that_runs_on_is_asked_to_stop_before_the_next_attempt(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, signal, sys, time
        from telling import stay, tell

        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            tell("second attempt")
            sys.exit(0)

        def save(*_):
            time.sleep(1)
            tell("saved")
            sys.exit(0)

        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, save)
            open("listening", "w").close()
            stay()
        while not os.path.exists("listening"):
            time.sleep(0.01)
        sys.exit(3)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, train)

    assert job.wait() == 0
    assert [event.name for event in job.events] == ["saved", "second attempt", "second attempt"]


def test_a_stop_signal_while_the_old_workers_are_stopping_ends_the_job(
    launch: Launch, script: Script
) -> None:
    train = script(
        """
        import os, signal, sys, time
        from telling import stay, tell

        def save(*_):
            tell("saving")
            while not os.path.exists("saved"):
                time.sleep(0.01)
            sys.exit(0)

        tell("begun")
        if os.environ["RANK"] == "0":
            signal.signal(signal.SIGTERM, save)
            open("listening", "w").close()
            stay()
        while not os.path.exists("listening"):
            time.sleep(0.01)
        sys.exit(3)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 2, "--max-restarts", 3, "--shutdown-timeout", 60, train)
    job.told("saving")

    job.send(signal.SIGTERM)
    job.printed("SIGTERM: ")
    (job.folder / "saved").touch()

    assert job.wait() == 143
    assert [event.restart for event in job.told("begun", 2)] == [0, 0]
