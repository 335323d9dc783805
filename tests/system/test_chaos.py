"""phalanx chaos against real jobs: each act, its lines, and that whatever lasts is healed however chaos ends."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.chaos import Start, is_stopped, pids, planned_and_done, runs, state_of, wait_state
from tests.system.launch import LIMIT_S, Job, Launch, Script

from phalanx.chaos.cut import why_no_cut

STAY = "from telling import tell, stay; tell('begun'); stay()"
# A worker that tells of each beat, and has a child; it ends when the file says so.
BEAT = """
    import os, subprocess, sys, time
    from telling import tell
    child = subprocess.Popen(["sleep", "1000"])
    tell("begun", child=child.pid)
    for beat in range(20_000):
        tell("beat")
        if os.path.exists(sys.argv[1]):
            break
        time.sleep(0.05)
    child.kill()
    child.wait()
"""


# kill


def test_a_given_rank_is_killed_and_the_line_says_which(launch: Launch, script: Script, chaos: Start) -> None:
    job = launch("--nproc-per-node", 2, "--max-restarts", 1, "--rdzv-id", "killed", script(STAY))
    pid = pids(job)[1]

    killer = chaos("kill", "--rank", 1, "--job", job.process.pid)

    assert killer.wait() == 0
    host = re.escape(os.uname().nodename)
    aimed, first, second = killer.lines
    assert re.fullmatch(
        rf"chaos: \d+\.\d s: aimed at killed \(agent pid {job.process.pid}; rank 0, 1; .*train\.py\)", aimed
    )
    assert re.fullmatch(
        r"chaos: \d+\.\d s: job killed: kill rank 1 on this machine, at once; seed [0-9a-f]{8}", first
    )
    assert re.fullmatch(
        rf"chaos: \d+\.\d s: killed rank 1 \(pid {pid}, host {host}, round 1\) by SIGKILL", second
    )
    assert pids(job, restart=1).keys() == {0, 1}
    job.printed("rank 1 failed: killed by SIGKILL")


@pytest.mark.parametrize(
    ("words", "killed"),
    [
        (("--rank", "1,2"), "ranks 1 and 2"),
        (("--rank", "all"), "ranks 0, 1, 2 and 3"),
        (("--node", 0), "ranks 0, 1, 2 and 3"),
        (("--local-rank", 3), "rank 3"),
    ],
)
def test_several_are_killed_at_once(
    launch: Launch, script: Script, chaos: Start, words: tuple[object, ...], killed: str
) -> None:
    job = launch("--nproc-per-node", 4, "--max-restarts", 1, script(STAY))
    pids(job, count=4)

    killer = chaos("kill", *words, "--job", job.process.pid)

    killer.said(rf"killed {killed} \(")
    assert killer.wait() == 0
    pids(job, restart=1, count=4)


def test_the_same_seed_kills_the_same_ranks_and_the_plan_says_so_before(
    launch: Launch, script: Script, chaos: Start
) -> None:
    job = launch("--nproc-per-node", 4, "--max-restarts", 3, script(STAY))
    pids(job, count=4)
    words = ("kill", "--every", 0, "--times", 3, "--seed", "a word", "--job", job.process.pid)

    planned, done = planned_and_done(chaos, *words)

    assert planned == done
    assert len(done) == 3
    pids(job, restart=3, count=4)


def test_another_signal_can_be_sent(launch: Launch, script: Script, chaos: Start) -> None:
    job = launch(
        script(
            "import signal; from telling import *; signal.signal(10, lambda *_: tell('heard')); tell('begun'); stay()"
        )
    )
    job.told("begun")

    killer = chaos("kill", "--signal", "usr1", "--job", job.process.pid)

    killer.said(r"signalled rank 0 \(.*\) by SIGUSR1")
    job.told("heard")


def test_a_killed_launcher_takes_its_workers_with_it(launch: Launch, script: Script, chaos: Start) -> None:
    job = launch("--nproc-per-node", 2, script(STAY))
    pids(job)

    killer = chaos("kill", "--agent", "--job", job.process.pid)

    killer.said(rf"killed the agent of node 0 \(pid {job.process.pid}, ")
    assert job.wait() == -signal.SIGKILL
    job.wait_nobody()


def test_a_launcher_is_killed_once_however_long_it_takes_to_die(script: Script, chaos: Start) -> None:
    run = chaos(
        "kill", "--agent", "--every", 0, "--times", 50, *command(script("import time; time.sleep(1000)"))
    )

    assert run.wait() == 128 + signal.SIGKILL
    assert re.search(r"injected 1 kill; the command ended with 137; seed", run.lines[-1])


# stop, slow, freeze


def beat_after(job: Job, rank: int, at: float) -> None:
    job.until("beat", after=at, rank=rank)


@pytest.fixture
def beating(launch: Launch, script: Script, tmp_path: Path) -> Iterator[Job]:
    """Two workers that tell of each beat; both have to end well."""
    end = tmp_path / "end"
    job = launch("--nproc-per-node", 2, "--max-restarts", 0, script(BEAT), end)
    pids(job)
    yield job
    end.touch()
    assert job.wait() == 0


def test_a_stopped_worker_stands_still_with_its_child_and_goes_on(beating: Job, chaos: Start) -> None:
    worker, other = (pids(beating)[rank] for rank in (1, 0))
    child = beating.until("begun", rank=1)["child"]

    stopper = chaos("stop", "--rank", 1, "--for", "1s", "--job", beating.process.pid)
    stopper.said(rf"stopped rank 1 \(pid {worker}, .* for 1 s by SIGSTOP")

    assert runs(state_of(other))
    stopper.said(rf"continued rank 1 \(pid {worker}, ")
    for pid in (worker, child):
        wait_state(pid, runs)
    assert stopper.wait() == 0
    beat_after(beating, 1, time.monotonic())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
@pytest.mark.parametrize("act", ["stop", "slow", "freeze"])
def test_whatever_ends_chaos_the_stopped_go_on(
    beating: Job, chaos: Start, act: str, number: signal.Signals
) -> None:
    words = ("--job", beating.process.pid) if act == "freeze" else ("--rank", 1, "--job", beating.process.pid)
    pid = beating.process.pid if act == "freeze" else pids(beating)[1]
    one = chaos(act, "--for", "1000s", *words)
    one.said(r" for 1000 s")
    wait_state(pid, is_stopped)

    one.process.send_signal(number)

    assert one.wait() == (-number if number == signal.SIGKILL else 128 + number)
    beat_after(beating, 1, time.monotonic())  # and the fixture sees that the launcher goes on
    still_for_s(pid, 0.5)


def still_for_s(pid: int, seconds: float) -> None:
    """Wait until a process was seen in another state than stopped for so long: nobody slows it any more."""
    since, deadline = time.monotonic(), time.monotonic() + LIMIT_S
    while (now := time.monotonic()) < since + seconds:
        if state_of(pid) == "T":
            since = now
        assert now < deadline, f"{pid} is stopped again and again"
        time.sleep(0.005)


def test_a_frozen_launcher_goes_on_when_it_thaws_and_its_workers_ran(beating: Job, chaos: Start) -> None:
    freezer = chaos("freeze", "--for", "2s", "--job", beating.process.pid)
    freezer.said(rf"froze the agent of node 0 \(pid {beating.process.pid}, .*\) for 2 s by SIGSTOP")

    beat_after(beating, 0, time.monotonic())
    freezer.said(r"the agent of node 0 \(.*\) goes on")

    assert freezer.wait() == 0


def test_a_slowed_worker_has_its_share_of_the_time(launch: Launch, script: Script, chaos: Start) -> None:
    job = launch(
        script("""
        from telling import tell
        tell("begun")
        while True:
            pass
        """)
    )
    pid = job.told("begun")[0].pid
    slower = chaos("slow", "--to", "25%", "--for", "4s", "--job", job.process.pid)
    slower.said(r"slowed rank 0 \(.*\) to 25% for 4 s")
    cpu_s, began = cpu_time_s(pid), time.monotonic()

    slower.said(r"at full speed again: rank 0 \(")

    # Nominally a quarter. A busy machine makes it less, and what it makes more of is the time between two signals.
    assert cpu_time_s(pid) - cpu_s < 0.6 * (time.monotonic() - began)
    assert slower.wait() == 0
    still_for_s(pid, 0.5)


def test_a_worker_that_another_chaos_has_stopped_is_waited_for(beating: Job, chaos: Start) -> None:
    pid = pids(beating)[1]
    words = ("--rank", 1, "--job", beating.process.pid)
    first = chaos("stop", "--for", "1000s", *words)
    first.said(r"stopped rank 1 .* for 1000 s")

    second = chaos("slow", "--for", "0.5s", *words)
    second.said(rf"waiting: pid {pid} is in the hands of another phalanx chaos")
    assert is_stopped(state_of(pid))

    first.process.kill()
    second.said(r"at full speed again: rank 1 ")
    assert second.wait() == 0
    assert sum("waiting" in line for line in second.lines) == 1


def test_a_worker_that_a_person_has_stopped_is_not_continued(beating: Job, chaos: Start) -> None:
    pid = pids(beating)[1]
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_state(pid, is_stopped)
        stopper = chaos("stop", "--for", "0.1s", "--rank", 1, "--job", beating.process.pid)
        stopper.said(rf"waiting: pid {pid} is stopped already, and not by chaos")
        stopper.process.terminate()
        assert stopper.wait() == 128 + signal.SIGTERM
        assert is_stopped(state_of(pid))
    finally:
        os.kill(pid, signal.SIGCONT)


def cpu_time_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_worker_that_ends_while_it_is_stopped_ends_the_act(
    launch: Launch, script: Script, chaos: Start
) -> None:
    job = launch("--nproc-per-node", 2, "--max-restarts", 0, script(STAY))
    worker = pids(job)[1]
    stopper = chaos("stop", "--rank", 1, "--for", "1000s", "--job", job.process.pid)
    stopper.said("stopped rank 1")

    os.kill(worker, signal.SIGKILL)

    stopper.said(rf"pid {worker} ended meanwhile")
    assert stopper.wait() == 0
    assert job.wait() == 128 + signal.SIGKILL


# Which job


def test_no_other_job_is_ever_touched(launch: Launch, script: Script, chaos: Start) -> None:
    ours, other = (launch("--nproc-per-node", 2, "--max-restarts", 3, script(STAY)) for _ in range(2))
    pids(ours)
    theirs = pids(other)

    killer = chaos("kill", "--rank", "all", "--every", 0, "--times", 3, "--job", ours.process.pid)

    assert killer.wait() == 0
    pids(ours, restart=3)
    other.look()
    assert {e.pid for e in other.events} == set(theirs.values())
    assert all(runs(state_of(pid)) for pid in theirs.values())


def test_who_is_killed_next_is_of_the_next_round_however_long_the_others_take(
    launch: Launch, script: Script, chaos: Start
) -> None:
    slow = "import signal; from telling import *; signal.signal(15, signal.SIG_IGN); tell('begun'); stay()"
    job = launch("--nproc-per-node", 3, "--max-restarts", 2, "--restart-timeout", "3s", script(slow))
    pids(job, count=3)

    killer = chaos("kill", "--every", 0, "--times", 2, "--job", job.process.pid)

    assert killer.wait() == 0
    rounds = [
        found[1] for line in killer.lines if (found := re.search(r"killed rank .* round (\d+)\)", line))
    ]
    assert rounds == ["1", "2"]
    pids(job, restart=2, count=3)


def test_several_jobs_are_listed(launch: Launch, script: Script, chaos: Start) -> None:
    jobs = [launch("--rdzv-id", f"several-{n}", script(STAY)) for n in (1, 2)]
    for job in jobs:
        job.told("begun")

    refused = chaos("kill", "--job", "any")

    assert refused.wait() == 2
    (line,) = refused.lines
    assert re.match(r"chaos: error: \d+ jobs are on this machine, name one with --job ID: ", line)
    for n, job in enumerate(jobs, 1):
        assert re.search(rf"several-{n} \(agent pid {job.process.pid}; rank 0; [^;]*train\.py\)", line)
        assert runs(state_of(job.told("begun")[0].pid))


@pytest.mark.parametrize("words", [("kill",), ("kill", "--rank", 0, "--wait", "1s"), ("freeze",), ("cut",)])
def test_a_job_that_is_not_named_is_left_alone(
    launch: Launch, script: Script, chaos: Start, words: tuple[object, ...]
) -> None:
    if words[0] == "cut" and why_no_cut() is not None:
        pytest.skip("nobody can be cut here")
    job = launch("--rdzv-id", "in-production", script(STAY))
    (begun,) = job.told("begun")

    refused = chaos(*words)

    assert refused.wait() == 2
    (line,) = refused.lines
    assert re.match(
        rf"chaos: error: it would {words[0]} .*, of a job that is not named: write --job ID, or ", line
    )
    assert f"in-production (agent pid {job.process.pid}; rank 0; " in line
    assert runs(state_of(begun.pid))
    assert runs(state_of(job.process.pid))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--rank", 5), "rank 5 is not on this machine, which has ranks 0 and 1 of the job"),
        (("--node", 1), "node 1 is not on this machine, which has node 0 of the job"),
        (
            ("--job", "no-such"),
            "no job 'no-such' has workers on this machine, which has: ",
        ),
    ],
)
def test_who_is_not_here_is_one_sentence(
    launch: Launch, script: Script, chaos: Start, words: tuple[object, ...], sentence: str
) -> None:
    job = launch("--nproc-per-node", 2, script(STAY))
    pids(job)

    refused = chaos("kill", *(() if "--job" in words else ("--job", job.process.pid)), *words)

    assert refused.wait() == 2
    (line,) = refused.lines
    assert line.startswith(f"chaos: error: {sentence}")
    assert line.endswith("; --wait 60s waits for one") == ("--job" in words)


def test_a_job_that_appears_later_is_waited_for(launch: Launch, script: Script, chaos: Start) -> None:
    killer = chaos("kill", "--wait", "60s", "--job", "later")
    job = launch("--rdzv-id", "later", "--nproc-per-node", 2, "--max-restarts", 1, script(STAY))

    killer.said(r"killed rank [01] \(")

    assert killer.wait() == 0
    job.until("begun", restart=1)


def test_a_plan_without_end_ends_with_the_job(launch: Launch, script: Script, chaos: Start) -> None:
    job = launch("--nproc-per-node", 2, "--max-restarts", 2, script(STAY))
    pids(job)

    killer = chaos("kill", "--every", "0.1s:0.2s", "--job", job.process.pid)

    assert job.wait() == 128 + signal.SIGKILL
    assert killer.wait() == 0
    assert len([line for line in killer.lines if "killed" in line]) == 3


# With a command


def command(*words: object) -> tuple[object, ...]:
    return ("--", sys.executable, "-m", "phalanx", "run", *words)


def test_a_command_is_started_and_its_exit_code_is_ours(script: Script, chaos: Start) -> None:
    train = script(
        """
        import os, sys, time
        time.sleep(1000 if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
        sys.exit(7)
        """
    )

    run = chaos("kill", "--rank", 0, *command("--max-restarts", 1, train))

    assert run.wait() == 7
    assert re.search(r"injected 1 kill; the command ended with 7; seed [0-9a-f]{8}$", run.lines[-1])


def test_a_signal_that_ends_nobody_is_no_kill(script: Script, chaos: Start, tmp_path: Path) -> None:
    is_over = tmp_path / "over"
    train = script(
        """
        import os, sys, time
        import phalanx
        step = 0
        while not os.path.exists(sys.argv[1]):
            step += 1
            assert not phalanx.should_stop(step)
            phalanx.progress(step)
            time.sleep(0.05)
        """
    )
    run = chaos("kill", "--signal", "SIGTERM", "--at-step", 2, *command(train, is_over))

    run.said(
        r" s: rank 0 still runs 5 s after SIGTERM: the script handles or ignores it, as one that asks should_stop does"
    )
    is_over.touch()

    assert run.wait() == 0
    assert "injected 1 signal, which ended nobody; the command ended with 0" in run.lines[-1]


def test_a_command_that_ended_before_anything_was_done_is_no_success(script: Script, chaos: Start) -> None:
    run = chaos("kill", "--after", "1000s", *command(script("")))

    assert run.wait() == 1
    assert re.search(
        r"injected nothing \((1000 s of waiting were not over|no job has workers below the command)\); "
        r"the command ended with 0",
        run.lines[-1],
    )


def test_a_command_of_which_another_job_is_named_is_no_success(script: Script, chaos: Start) -> None:
    run = chaos(
        "kill", "--job", "another", *command("--rdzv-id", "this", script("import time; time.sleep(1)"))
    )

    assert run.wait() == 1
    assert "injected nothing (no job 'another' has workers below the command" in run.lines[-1]


def test_a_command_starts_with_the_signals_that_it_would_have_without(chaos: Start) -> None:
    run = chaos("kill", "--", "sh", "-c", "exec grep SigIgn /proc/self/status")

    ignored = int(run.said(r"SigIgn:\s*(\w+)")[1], 16)

    ours = {signal.SIGPIPE, signal.SIGXFSZ, signal.SIGUSR1, signal.SIGUSR2}
    assert not [number for number in ours if ignored >> (number - 1) & 1]
    run.wait()


def test_a_command_whose_rank_is_not_there_is_told_to_stop(script: Script, chaos: Start) -> None:
    run = chaos("kill", "--rank", 9, *command(script("import time; time.sleep(1000)")))

    assert run.wait() == 2
    assert run.lines[-1] == "chaos: error: rank 9 is not on this machine, which has rank 0 of the job"


def test_a_command_that_is_none_is_one_sentence(chaos: Start) -> None:
    run = chaos("kill", "--", "no-such-command-here")
    assert run.wait() == 2
    assert run.lines == ["chaos: error: 'no-such-command-here' cannot be started: No such file or directory"]


def test_a_signal_to_chaos_reaches_the_command(chaos: Start, script: Script) -> None:
    run = chaos("stop", "--for", "1000s", *command(script("import time; time.sleep(1000)")))
    run.said("stopped rank 0")

    run.process.send_signal(signal.SIGTERM)

    assert run.wait() == 128 + signal.SIGTERM
    assert "injected 1 stop" in run.lines[-1]


def test_ctrl_c_reaches_the_command_once(tmp_path: Path) -> None:
    """It is sent to the foreground group, and the command is in it."""
    program = (
        "import signal, sys, time\n"
        "taken = []\n"
        "signal.signal(2, lambda *_: taken.append(2))\n"
        "print('ready', flush=True)\n"
        "while not taken: time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
        "sys.exit(40 + len(taken))\n"
    )
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "phalanx", "chaos", "kill", "--", sys.executable, "-c", program]
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *words], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        printed = b""
        while b"ready" not in printed:
            assert select.select([master], [], [], LIMIT_S)[0]
            printed += os.read(master, 4096)
        os.write(master, b"\x03")
        assert process.wait(LIMIT_S) == 41
    finally:
        process.kill()
        process.wait()
        os.close(master)


# Tells of its steps; the second life says which one the first had come to, and ends.
STEPS = """
    import os, sys, time
    from pathlib import Path
    import phalanx
    at = Path(sys.argv[1])
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        sys.exit(0)
    for step in range(1, 100_000):
        with at.open("a") as file:  # never shorter: the kill may come within any line
            print(step, file=file)
        phalanx.progress(step)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("is_named", [False, True])
def test_a_step_that_a_worker_tells_of_is_waited_for(
    script: Script, chaos: Start, tmp_path: Path, is_named: bool
) -> None:
    at = tmp_path / "at"
    named = ("--events-file", tmp_path / "events.jsonl") if is_named else ()
    with tempfile.TemporaryDirectory(prefix="black-box-") as temp:
        run = chaos(
            *("kill", "--at-step", 30, *named, *command("--max-restarts", 1, script(STEPS), at)),
            wrapper=("env", f"TMPDIR={temp}"),
        )

        assert run.wait() == 0
        assert not list(Path(temp).glob("phalanx-chaos-*"))
    assert "injected 1 kill" in run.lines[-1]
    assert any(", at step 30; seed" in line for line in run.lines)
    assert int(at.read_text().split()[-1]) >= 30


def test_a_step_that_nobody_tells_of_is_told_at_the_end(script: Script, chaos: Start, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    waits = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)"
    words = ("--events-file", elsewhere, script(waits), tmp_path / "end")
    run = chaos("kill", "--at-step", 30, "--events-file", tmp_path / "events.jsonl", *command(*words))
    run.said("at step 30; seed")
    (tmp_path / "end").touch()

    assert run.wait() == 1
    assert (
        f"injected nothing (no worker has told of step 30: {tmp_path}/events.jsonl: No such file or directory)"
        in run.lines[-1]
    )
