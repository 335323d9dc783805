"""Whether a failed job is tried again, with real processes on one node: what decides, and the one line that says so."""

from __future__ import annotations

import re
import signal

import pytest
from tests.system.launch import Job, Launch, Script

AT_ONCE = ("--restart-backoff", 0)

# Tells that it has begun, and ends by what the arguments say for this attempt; the last one goes for all later ones.
ENDS = """
    import os, signal, sys
    from telling import tell

    attempt = int(os.environ["PHALANX_ROUND"]) - 1
    tell("begun", round=os.environ["PHALANX_ROUND"], reason=os.environ.get("PHALANX_RESTART_REASON"))
    if os.environ["RANK"] == "1":  # one rank fails, and the other has begun by then
        signal.pause()
    if int(os.environ["WORLD_SIZE"]) > 1:
        while not os.path.exists(f"go-{attempt}"):
            os.sched_yield()
    end = sys.argv[1:][min(attempt, len(sys.argv) - 2)]
    if end.isdecimal():
        sys.exit(int(end))
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError(end)
"""


def lines(job: Job) -> list[str]:
    """What the launcher itself said before its report."""
    said = [line for line in job.stderr.decode().splitlines() if line.startswith("phalanx: ")]
    return [line.removeprefix("phalanx: ") for line in said]


def decision(job: Job) -> list[str]:
    """Its lines about restarts, in their order; none of them is said twice."""
    said = [
        line
        for line in lines(job)
        if re.search(r"\(restart \d|^not restarted|not charged|before it starts", line)
    ]
    assert len(set(said)) == len(said), f"said twice\n{job.so_far()}"
    return said


def begun(job: Job) -> list[int]:
    """The restart count that each worker of rank 0 saw."""
    return [event.restart for event in job.events if event.name == "begun" and event.rank == 0]


# What cannot heal (case 11)


@pytest.mark.parametrize(
    ("source", "error", "why"),
    [
        ("import no_such_module", "ModuleNotFoundError", "a module that cannot be imported"),
        ("from os import no_such_name", "ImportError", "a module that cannot be imported"),
        ("def f(:", "SyntaxError", "a syntax error"),
    ],
    ids=["module", "name", "syntax"],
)
def test_what_cannot_heal_runs_twice_and_the_launcher_says_why_no_more(
    launch: Launch, script: Script, source: str, error: str, why: str
) -> None:
    train = script(source)

    job = launch("--standalone", "--nproc-per-node", 1, "--max-restarts", 3, *AT_ONCE, train)

    assert job.wait() == 1
    said = decision(job)
    assert len(said) == 2
    assert re.fullmatch(
        rf"rank 0 failed: {error}: .* at \S*train.py:1 \(restart 1 of 3\); starting the worker anew", said[0]
    )
    assert said[1] == f"not restarted: {why}, twice in a row: another try would not help"
    assert error in job.summary


def test_arguments_that_the_script_refuses_are_refused_twice(launch: Launch, script: Script) -> None:
    train = script(
        """
        import argparse
        from telling import tell

        tell("begun")
        argparse.ArgumentParser().parse_args()
        """
    )

    job = launch(
        "--standalone", "--nproc-per-node", 1, "--max-restarts", 3, *AT_ONCE, train, "--learning-rat"
    )

    assert job.wait() == 2
    assert begun(job) == [0, 1]
    assert decision(job)[-1] == (
        "not restarted: arguments that the script refuses, twice in a row: another try would not help"
    )
    assert "--learning-rat" in job.summary


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("--no-python", "no-such-command"), 127, "a command that cannot be executed"),
        (("--no-python", "sh", "-c", "no-such-command"), 127, "a command that cannot be executed"),
        (("--no-python", "sh", "-c", "/dev/null"), 126, "a command that cannot be executed"),
        (("-m", "no_such_module"), 1, "a module that cannot be imported"),
    ],
    ids=["command", "not found by a shell", "not executed by a shell", "module"],
)
def test_a_program_that_is_not_there_is_looked_for_twice(
    launch: Launch, arguments: tuple[str, ...], code: int, why: str
) -> None:
    job = launch("--standalone", "--nproc-per-node", 1, "--max-restarts", 3, *AT_ONCE, *arguments)

    assert job.wait() == code
    said = decision(job)
    assert len(said) == 2
    assert said[1] == f"not restarted: {why}, twice in a row: another try would not help"


@pytest.mark.parametrize("ends", [("2",), ("1", "3", "4", "5"), ("a", "b", "c", "d"), ("127",)])
def test_other_failures_are_tried_as_often_as_the_limit_says(
    launch: Launch, script: Script, ends: tuple[str, ...]
) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 3, *AT_ONCE),
        *(script(ENDS), *ends),
    )

    assert job.wait() == (int(ends[-1]) if ends[-1].isdecimal() else 1)
    assert begun(job) == [0, 1, 2, 3]
    said = decision(job)
    assert [re.findall(r"\(restart . of 3\)", line) for line in said[:3]] == [
        [f"(restart {number} of 3)"] for number in (1, 2, 3)
    ]
    assert said[3:] == ["not restarted: all 3 restarts are used"]


# Exit codes


@pytest.mark.parametrize(
    ("options", "ends", "restarts", "reason"),
    [
        (("--no-restart-on", "78"), ("77", "78"), 1, "exit code 78 is in --no-restart-on"),
        (("--no-restart-on", "SIGKILL"), ("1", "kill"), 1, "exit code 137 is in --no-restart-on"),
        (("--no-restart-on", "137"), ("kill",), 0, "exit code 137 is in --no-restart-on"),
        (("--restart-on", "75"), ("75", "75", "1"), 2, "exit code 1 is not in --restart-on"),
        (("--restart-on", "64-78,137"), ("78", "kill", "79"), 2, "exit code 79 is not in --restart-on"),
    ],
)
def test_exit_codes_that_were_named_decide(
    launch: Launch,
    script: Script,
    options: tuple[str, ...],
    ends: tuple[str, ...],
    restarts: int,
    reason: str,
) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 9, *AT_ONCE, *options),
        *(script(ENDS), *ends),
    )

    assert job.wait() == (137 if ends[-1] == "kill" else int(ends[-1]))
    assert begun(job) == list(range(restarts + 1))
    assert decision(job)[restarts:] == [f"not restarted: {reason}"]


# The budget


@pytest.mark.parametrize("call", ["progress", "checkpoint_done"])
def test_progress_makes_the_budget_whole(launch: Launch, script: Script, call: str) -> None:
    """It comes further three times, and then no more."""
    train = script(
        f"""
        import os, sys, time
        import phalanx
        from telling import tell

        attempt = int(os.environ["PHALANX_ROUND"])
        phalanx.{call}(100 * min(attempt, 3))
        phalanx.values().set("here", b"")  # answered: the agent has read what this worker said before
        tell("begun")
        sys.exit(attempt)
        """
    )

    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, *AT_ONCE),
        *("--restart-refill", "progress", train),
    )

    assert job.wait() == 4
    assert begun(job) == [0, 1, 2, 3]
    assert [re.findall(r"\(.*\)", line) for line in decision(job)] == [
        ["(restart 1 of 1)"],
        ["(restart 2, 1 of 1 since the budget was refilled)"],
        ["(restart 3, 1 of 1 since the budget was refilled)"],
        [],
    ]
    assert decision(job)[-1] == "not restarted: the one restart is used"


def test_only_the_restarts_of_the_window_count(launch: Launch) -> None:
    # A shell: the third round has to fail within the window, and an interpreter's start would take of it.
    program = (
        'echo "{\\"event\\": \\"begun\\", \\"rank\\": $RANK, \\"restart\\": $TORCHELASTIC_RESTART_COUNT}" '
        '> "$BLACK_BOX_PIPE"; [ "$PHALANX_ROUND" = 2 ] && sleep 9; exit "$PHALANX_ROUND"'
    )

    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, *AT_ONCE),
        *("--restart-window", "8s", "--no-python", "sh", "-c", program),
    )

    assert job.wait() == 3
    assert begun(job) == [0, 1, 2]
    said = decision(job)
    assert "(restart 2, 1 of 1 in 8 s)" in said[1]
    assert said[2:] == ["not restarted: the one restart of the last 8 s is used"]


# Giving up


def test_the_same_failure_twice_ends_the_job_when_that_was_asked_for(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os
        from telling import tell

        tell("begun")
        raise RuntimeError(f"process {os.getpid()} at {os.environ['MASTER_PORT']} is out of luck")
        """
    )

    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 9, *AT_ONCE, "--give-up-after", 2, train)
    )

    assert job.wait() == 1
    assert begun(job) == [0, 1]
    assert decision(job)[1:] == ["not restarted: it failed in the same way twice in a row (--give-up-after)"]


def test_different_failures_are_not_given_up(launch: Launch, script: Script) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 3, *AT_ONCE, "--give-up-after", 2),
        *(script(ENDS), "a", "b", "a", "3"),
    )

    assert job.wait() == 3
    assert begun(job) == [0, 1, 2, 3]
    assert decision(job)[-1] == "not restarted: all 3 restarts are used"


# Waiting


def test_a_wait_is_told_and_all_ranks_learn_the_count_and_the_reason(launch: Launch, script: Script) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 2, "--max-restarts", 9, "--restart-backoff", "0.2"),
        *(script(ENDS), "a", "b", "c", "0"),
    )
    for attempt in range(4):
        job.told("begun", 2 * attempt + 2)
        (job.folder / f"go-{attempt}").touch()
    job.send(signal.SIGTERM)  # rank 1 waits for ever

    assert job.wait() == 143
    told = job.told("begun", 8)
    by_restart = {n: [event for event in told if event.restart == n] for n in range(4)}
    for n, events in by_restart.items():
        assert {event.rank for event in events} == {0, 1}
        assert {event["round"] for event in events} == {str(n + 1)}
        assert len({event["reason"] for event in events}) == 1
    reasons = [by_restart[n][0]["reason"] for n in range(4)]
    assert reasons[0] in (None, "")
    assert "RuntimeError: a" in reasons[1]
    assert "(restart 2 of 9)" in reasons[2]
    said = decision(job)
    assert re.search(r"\(restart 1 of 9\); starting all 2 workers anew$", said[0])
    for line, rounds in zip(said[1:], (3, 4), strict=True):
        assert re.search(
            rf"; {rounds - 1} rounds in a row failed within 1 min; "
            rf"round {rounds} waits 0\.\d s before it starts",
            line,
        )


def test_a_stop_signal_during_the_wait_ends_the_job(launch: Launch, script: Script) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 9, "--restart-backoff", "1h:1h"),
        *(script(ENDS), "3"),
    )
    job.told("begun", 2)
    job.printed("before it starts")

    job.send(signal.SIGTERM)

    assert job.wait() == 143
    assert begun(job) == [0, 1]
    assert lines(job)[-1] == "SIGTERM: no workers run here now, so this node ends at once"


# Nodes


def test_a_lone_node_that_is_excluded_goes_on_and_says_so(launch: Launch, script: Script) -> None:
    train = script(
        """
        import os, sys
        import phalanx
        from telling import stay, tell

        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
            tell("again")
            sys.exit(0)
        phalanx.exclude_node("GPU 3\\nhas fallen off the bus")
        phalanx.exclude_node("GPU 4")
        tell("asked")
        while not os.path.exists("go"):
            os.sched_yield()
        sys.exit(5)
        """
    )
    job = launch("--standalone", "--nproc-per-node", 1, "--max-restarts", 1, *AT_ONCE, train)
    job.told("asked")
    job.printed("GPU 3")
    (job.folder / "go").touch()

    assert job.wait() == 0
    job.told("again")
    said = lines(job)
    told = [one for one in said if "should not be used" in one]
    what = "this node should not be used: GPU 3 (said by local rank 0)"
    assert told == [f"{what}; it is used all the same, since the job has one node"]
    assert decision(job) == ["rank 0 failed: exit code 5 (restart 1 of 1); starting the worker anew"]


def test_a_lone_node_whose_worker_ends_with_such_a_code_is_charged(launch: Launch, script: Script) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 1, "--max-restarts", 2, *AT_ONCE, "--exclude-on", "42"),
        *("--exclude-for", "1h", script(ENDS), "42", "42", "7"),
    )

    assert job.wait() == 7
    assert begun(job) == [0, 1, 2]
    assert sum("should not be used: rank 0 ended with exit code 42" in line for line in lines(job)) == 1
    assert len(decision(job)) == 3
