"""`--event-log-handler` and `--events-file`: what happens is written, by whatever handler, and holds up no job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import LIMIT_S, Job, Launch, Script

FAILS_ONCE = """
    import os, sys
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        sys.exit(7)
"""
SLEEPER = """
    from telling import stay, tell

    tell("ready")
    stay()
"""


def events_of(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith(b'{"name"')]


def states(text: bytes) -> list[str]:
    return [f"{one['source']} {one['metadata']['state']}" for one in events_of(text)]


def job_events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plug_in(folder: Path, source: str) -> dict[str, str]:
    """A distribution with the handler of events "theirs", as pip would have left it; what finds it."""
    (folder / "their_events.py").write_text(source)
    info = folder / "their_events-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-events\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[phalanx.event_handlers]\ntheirs = their_events:Handler\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def ends(job: Job, code: int) -> None:
    assert job.wait() == code, job.so_far()


@pytest.mark.compat(
    "flag --event-log-handler", "better", "an agent has succeeded only where its job has; timestamps"
)
def test_the_console_has_an_event_for_each_state(launch: Launch, script: Script) -> None:
    train = script(FAILS_ONCE)
    job = launch("--nproc-per-node", 2, "--max-restarts", 1, "--event-log-handler", "console", train)
    ends(job, 0)
    assert states(job.stderr) == [
        "AGENT RENDEZVOUS",
        "WORKER START",
        "WORKER START",
        "AGENT RENDEZVOUS",
        "WORKER START",
        "WORKER START",
        "WORKER SUCCEEDED",
        "WORKER SUCCEEDED",
        "AGENT SUCCEEDED",
    ]
    assert {one["metadata"]["rdzv_backend"] for one in events_of(job.stderr)} == {"static"}
    assert all(one["timestamp"] > 1_700_000_000_000 for one in events_of(job.stderr))


@pytest.mark.compat("variable PET_EVENT_LOG_HANDLER", "better", "as the flag")
def test_a_variable_names_the_handler_too(launch: Launch, script: Script) -> None:
    job = launch(script("raise SystemExit(3)"), env={"PET_EVENT_LOG_HANDLER": "console"})
    ends(job, 3)
    assert states(job.stderr)[-2:] == ["WORKER FAILED", "AGENT FAILED"]


def test_a_job_that_is_stopped_says_so(launch: Launch, script: Script) -> None:
    job = launch("--standalone", "--event-log-handler", "console", script(SLEEPER))
    job.told("ready")
    job.send(signal.SIGTERM)
    ends(job, 128 + signal.SIGTERM)
    assert states(job.stderr)[-2:] == ["WORKER TERMINATED", "AGENT FAILED"]
    last = events_of(job.stderr)[-1]["metadata"]
    assert (last["raw_error"], last["rdzv_backend"]) == ("stopped by SIGTERM", "c10d")


def test_nothing_is_written_unless_it_is_asked_for(launch: Launch, script: Script) -> None:
    job = launch(script("pass"))
    ends(job, 0)
    assert b"torchelastic" not in job.stderr


def test_an_unknown_handler_is_a_mistake_with_the_known_ones(launch: Launch, script: Script) -> None:
    job = launch("--event-log-handler", "nowhere", script("pass"))
    ends(job, 2)
    assert (
        b"--event-log-handler: no handler of events is called 'nowhere' (there are: console, " in job.stderr
    )


def test_an_installed_package_can_offer_a_handler(launch: Launch, script: Script, tmp_path: Path) -> None:
    env = plug_in(
        tmp_path,
        "import logging\n"
        "class Handler(logging.FileHandler):\n"
        "    def __init__(self):\n"
        "        super().__init__('theirs.log')\n",
    )
    job = launch("--event-log-handler", "theirs", script("pass"), env=env)
    ends(job, 0)
    assert states((job.folder / "theirs.log").read_bytes())[-1] == "AGENT SUCCEEDED"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import moon\n", "cannot be used: ModuleNotFoundError: No module named 'moon'"),
        ("def Handler():\n    raise OSError('no network')\n", "cannot be used: OSError: no network"),
        ("Handler = dict\n", "makes a dict and no logging.Handler"),
        (
            "import logging\nclass Handler(logging.Handler):\n    def emit(self, _): raise RuntimeError('full')\n",
            "failed and is not used any more: RuntimeError: full",
        ),
    ],
    ids=["no module", "not made", "no handler", "fails"],
)
def test_a_handler_that_is_broken_is_told_of_once_and_the_job_goes_on(
    launch: Launch, script: Script, tmp_path: Path, source: str, reason: str
) -> None:
    env = plug_in(tmp_path, source)
    job = launch("--event-log-handler", "theirs", script("pass"), env=env)
    ends(job, 0)
    assert job.stderr.decode().count(reason) == 1
    assert b"the job goes on" in job.stderr
    assert b"Traceback" not in job.stderr


def test_a_handler_that_blocks_holds_up_no_worker_and_the_end_only_for_a_while(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    env = plug_in(
        tmp_path,
        "import logging, time\n"
        "class Handler(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        time.sleep(1000)\n",
    )
    flags = ("--nproc-per-node", 2, "--max-restarts", 1)
    job = launch(*flags, "--event-log-handler", "theirs", script(FAILS_ONCE), env=env)
    ends(job, 0)
    assert b"events were lost: the handler of events 'theirs' took longer than 5 s at the end" in job.stderr


def test_a_console_that_nobody_reads_holds_up_no_worker(launch: Launch, script: Script) -> None:
    reader, writer = os.pipe()
    filled = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(filled, b"x" * 4096)
    except BlockingIOError:
        os.close(filled)
    train = script(
        """
        from telling import tell

        tell("done")
        """
    )
    job = launch("--event-log-handler", "console", train, streams={"stderr": writer})
    os.close(writer)
    job.told("done")
    with os.fdopen(reader, "rb") as rest:
        text = rest.read()  # until the launcher has ended, and its keeper
    ends(job, 0)
    assert states(text.replace(b"x{", b"\n{").replace(b"x" * 4096, b""))[-1] == "AGENT SUCCEEDED"


def test_lines_of_events_and_of_workers_do_not_tear(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, sys
        for number in range(2000):
            os.write(2, b"worker %d line %d\\n" % (int(os.environ["RANK"]), number))
        if os.environ["TORCHELASTIC_RESTART_COUNT"] != "8":
            sys.exit(1)
        """
    )
    flags = ("--nproc-per-node", 2, "--max-restarts", 8, "--restart-backoff", 0, "--tee", 2)
    job = launch(*flags, "--event-log-handler", "console", train)
    ends(job, 0)
    lines = job.stderr.split(b"\n")
    assert len(events_of(job.stderr)) == 9 * 3 + 3
    odd = [
        one for one in lines if b'"name"' in one and not (one.startswith(b'{"name"') and one.endswith(b"}"))
    ]
    assert odd == []


def test_a_file_has_a_line_for_each_job_event(launch: Launch, script: Script, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    flags = ("--nproc-per-node", 2, "--max-restarts", 1, "--events-file", path)
    ends(launch(*flags, script(FAILS_ONCE)), 0)
    first = job_events_of(path)
    assert [one["event"] for one in first][:4] == [
        "job_started",
        "round_opened",
        "round_settled",
        "workers_started",
    ]
    (decided,) = [one for one in first if one["event"] == "restart_decided"]
    assert (decided["is_charged"], decided["restart_count"], decided["left"]) == (True, 1, 0)
    assert first[-1]["event"] == "job_ended"
    assert first[-1]["exit_code"] == 0
    ends(launch(script("pass"), env={"PET_EVENTS_FILE": str(path)}), 0)
    both = job_events_of(path)
    assert both[: len(first)] == first
    assert both[-1]["event"] == "job_ended"


def test_workers_do_not_inherit_the_name_of_the_file(launch: Launch, script: Script, tmp_path: Path) -> None:
    train = script("import os; print(os.environ.get('PET_EVENTS_FILE'))")
    job = launch(train, env={"PET_EVENTS_FILE": str(tmp_path / "events.jsonl")})
    ends(job, 0)
    assert job.stdout == b"None\n"


@pytest.mark.parametrize(
    ("path", "reason"),
    [("/missing/events.jsonl", "there is no folder '/missing'"), ("/tmp", "'/tmp' is a folder")],
)
def test_a_file_that_cannot_be_written_is_a_mistake(
    launch: Launch, script: Script, path: str, reason: str
) -> None:
    job = launch("--events-file", path, script("pass"))
    ends(job, 2)
    assert reason.encode() in job.stderr


def test_a_file_on_a_full_disk_is_told_of_and_the_job_goes_on(launch: Launch, script: Script) -> None:
    job = launch("--events-file", "/dev/full", script("pass"))
    ends(job, 0)
    assert b"the file of job events '/dev/full' failed and is not used any more: OSError" in job.stderr


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.elastic.events.api.Event", "better", "values are not wrapped in lists"
)
def test_torchrun_says_the_same_but_for_what_is_mended(launch: Launch, script: Script) -> None:
    train = script("pass")
    flags = ("--standalone", "--nproc-per-node", "2", "--event-log-handler", "console")
    torchs = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *flags, str(train)],
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    job = launch(*flags, train)
    ends(job, 0)
    # Ranks are assigned as a round settles: that is no step of its own here.
    expected = [one for one in states(torchs.stderr) if one != "AGENT ASSIGN_WORKER_RANKS"]
    assert states(job.stderr) == expected
    for ours, theirs in zip(
        events_of(job.stderr),
        [one for one in events_of(torchs.stderr) if one["metadata"]["state"] != "ASSIGN_WORKER_RANKS"],
        strict=True,
    ):
        assert (ours["name"], ours["source"], ours.keys()) == (
            theirs["name"],
            theirs["source"],
            theirs.keys(),
        )
        assert ours["metadata"].keys() == theirs["metadata"].keys()
        inner, their_inner = (json.loads(one["metadata"]["metadata"]) for one in (ours, theirs))
        assert inner.keys() == their_inner.keys()
        for name in ("role", "global_rank", "rdzv_backend", "agent_restarts", "raw_error"):
            assert ours["metadata"][name] == theirs["metadata"][name]
        for name in ("local_rank", "role_rank", "role_world_size"):
            assert [inner.get(name)] == their_inner.get(name, [None])
