"""A process that the kernel does not let go: waited for a while, named, and this node starts nothing beside it.

Theme D7. The wait is the grace and five seconds; nothing here waits for less by the clock.
"""

from __future__ import annotations

import signal

import pytest
from tests.system.freezing import Freezer, a_freezer  # noqa: F401 # fixture
from tests.system.launch import Job, Launch, Script
from tests.system.machines import TOGETHER, Agents, Network, begin_together, c10d

RANK_1_FAILS = """
    import os, sys, time
    from telling import stay, tell

    tell("ready")
    if os.environ["RANK"] == "0":
        stay()
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(7)
"""
CHILD = """
    import os, subprocess, sys, time
    from telling import tell

    child = subprocess.Popen(["sleep", "1000"])
    tell("ready", child=child.pid)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


SINGLE = """
    import os, subprocess, sys, time
    from telling import stay, tell

    child = subprocess.Popen(["sleep", "1000"])
    tell("ready", child=child.pid)
    if os.environ["RANK"] != "1":
        stay()
    while not os.path.exists("go"):
        time.sleep(0.01)
    sys.exit(7)
"""


def go(job: Job) -> None:
    (job.folder / "go").touch()


def is_named(job: Job, pid: int) -> bool:
    lines = [line for line in job.stderr.splitlines() if b"the kernel does not let it go" in line]
    return [line.split()[2] for line in lines] == [b"%d" % pid] and b"state D" in lines[0]


@pytest.mark.parametrize("streams", [(), ("-t", "3")], ids=["plain", "teed"])
def test_after_a_failure_nothing_is_started_beside_a_stuck_worker_and_the_failures_code_stays(
    launch: Launch, script: Script, streams: tuple[str, ...], freezer: Freezer
) -> None:
    train = script(RANK_1_FAILS)
    job = launch(
        "--standalone", "--nproc-per-node", 2, "--max-restarts", 3, "--shutdown-timeout", 1, *streams, train
    )
    pids = {event.rank: event.pid for event in job.told("ready", 2)}
    freezer.freeze(pids[0])

    go(job)

    assert job.wait() == 7
    assert is_named(job, pids[0])
    assert b"gives up its place" in job.stderr
    assert {event.restart for event in job.events} == {0}
    freezer.thaw()
    job.wait_nobody()


def test_a_single_worker_is_not_started_again_beside_a_stuck_child_of_its_own(
    launch: Launch, script: Script, freezer: Freezer
) -> None:
    scope = ("--restart-scope", "worker", "--max-restarts", 3, "--shutdown-timeout", 1)
    job = launch("--standalone", "--nproc-per-node", 3, *scope, script(SINGLE))
    ready = {event.rank: event for event in job.told("ready", 3)}
    freezer.freeze(ready[1]["child"])

    go(job)

    assert job.wait() == 7
    assert len(job.told("ready")) == 3, "nobody is started beside it"
    assert (
        b"rank 1 failed and left something that cannot be killed: asked 2 workers to stop, 1 s" in job.stderr
    )
    assert is_named(job, ready[1]["child"])
    assert b"gives up its place" in job.stderr
    freezer.thaw()
    job.wait_nobody()


@pytest.mark.parametrize("streams", [(), ("-t", "3")], ids=["plain", "teed"])
def test_a_stop_signal_ends_the_launcher_with_its_own_code_also_when_a_worker_is_stuck(
    launch: Launch, script: Script, streams: tuple[str, ...], freezer: Freezer
) -> None:
    train = script(RANK_1_FAILS)
    job = launch("--standalone", "--nproc-per-node", 2, "--shutdown-timeout", 1, *streams, train)
    pids = {event.rank: event.pid for event in job.told("ready", 2)}
    freezer.freeze(pids[0])

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert is_named(job, pids[0])
    freezer.thaw()
    job.wait_nobody()


@pytest.mark.parametrize("streams", [(), ("-t", "3")], ids=["plain", "teed"])
@pytest.mark.compat(
    "variable TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "better",
    "needs no switch: a process that the kernel does not let end is named, and its job is no success as it is there",
)
def test_a_stuck_child_of_workers_that_all_succeeded_is_no_success(
    launch: Launch, script: Script, streams: tuple[str, ...], freezer: Freezer
) -> None:
    job = launch("--standalone", *streams, script(CHILD))
    (ready,) = job.told("ready")
    freezer.freeze(ready["child"])

    go(job)

    assert job.wait() == 75
    assert is_named(job, ready["child"])
    assert b"gives up its place" in job.stderr
    freezer.thaw()
    job.wait_nobody()


def test_the_other_nodes_form_a_round_without_the_node_that_cannot_clean_up(
    network: Network, agents: Agents, script: Script, freezer: Freezer
) -> None:
    a, b = network.host(1), network.host(2)
    train = script("from meeting import attend; attend()")
    arguments = (*c10d(a, "1:2", **TOGETHER), "--max-restarts", 1, "--shutdown-timeout", 1, train)
    healthy, stuck = agents(a, *arguments), agents(b, *arguments)
    number = begin_together([healthy, stuck], world=2)
    pid = stuck.begun(round=number).pid
    freezer.freeze(pid)

    network.order("exit 3", a)

    alone = healthy.until("begun", world=1, restart=1)
    older = f"{number}-n2-0"
    assert alone["older"] == [older], "what nobody can kill is the exception that docs/machines.md names"
    assert stuck.wait() == 75
    assert is_named(stuck, pid)
    network.order("exit 0", a)
    assert healthy.wait() == 0
    freezer.thaw()
    stuck.wait_nobody()
