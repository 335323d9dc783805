"""What workers find around them, in real jobs: devices, threads, interpreter, variables of the user's."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.cli.run import run_options
from phalanx.launcher import start_agent
from phalanx.records import changed

PROBE = """
    import os, sys
    from telling import tell

    tell("found", python=sys.executable, prefix=sys.prefix, words=sys.argv[1:], **os.environ)
"""
OMP_LINE = b"phalanx: OMP_NUM_THREADS is 1 in each worker, as torchrun has it"


def test_each_worker_sees_the_devices_that_the_job_was_given(launch: Launch, script: Script) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "3,5,GPU-8f3b"}
    job = launch("--devices", "GPU-8f3b,3", "--nproc-per-node", "gpu", script(PROBE), env=env)

    assert job.wait() == 0
    found = job.told("found", 2)
    assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == ["GPU-8f3b,3"] * 2
    assert sorted(one["LOCAL_RANK"] for one in found) == ["0", "1"]


@pytest.mark.compat(
    "flag --virtual-local-rank",
    "better",
    "too few devices are told before anything starts; HIP and Level Zero too",
)
def test_a_virtual_rank_keeps_its_true_number_in_logs_channel_and_report(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(
        """
        import os, sys
        import phalanx
        from telling import tell

        tell("found", words=sys.argv[1:], **os.environ)
        phalanx.values().set(os.environ["RANK"], "told")
        phalanx.values().wait(["0", "1"])
        if os.environ["RANK"] == "1":
            phalanx.exclude_node("its device is odd")
            raise ValueError("of the second worker")
        while not phalanx.should_stop():
            pass
        """
    )
    flags = ("--virtual-local-rank", "--nproc-per-node", 2, "--log-dir", tmp_path / "logs", "-r", "3")
    env = {"CUDA_VISIBLE_DEVICES": "GPU-a,MIG-b"}
    job = launch(*flags, "--report-file", tmp_path / "report.json", train, "${local_rank}", env=env)

    assert job.wait() == 1
    found = {one.rank: one for one in job.told("found", 2)}
    assert [found[rank]["LOCAL_RANK"] for rank in (0, 1)] == ["0", "0"]
    assert [found[rank]["CUDA_VISIBLE_DEVICES"] for rank in (0, 1)] == ["GPU-a", "MIG-b"]
    assert [found[rank]["words"] for rank in (0, 1)] == [["0"], ["1"]]
    (failed,) = tmp_path.glob("logs/*/attempt_0/1/error.json")
    info = json.loads(failed.read_text())["message"]["extraInfo"]
    assert (info["rank"], info["local_rank"]) == (1, 1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["first_failure"]["local_rank"] == 1
    assert b"of the second worker" in job.stderr


def test_one_line_tells_of_the_threads_and_only_where_nobody_has_said_anything(
    launch: Launch, script: Script
) -> None:
    train = script("import sys; sys.exit(1)")
    restarted = launch("--nproc-per-node", 2, "--max-restarts", 1, "--restart-backoff", 0, train)
    assert restarted.wait() == 1
    assert restarted.stderr.count(OMP_LINE) == 1

    for flags, env in (
        (("--nproc-per-node", 2), {"OMP_NUM_THREADS": "3"}),
        (("--nproc-per-node", 2, "--omp-threads", 2), {}),
        (("--nproc-per-node", 1), {}),
    ):
        quiet = launch(*flags, script(PROBE), env=env)
        assert quiet.wait() == 0
        assert OMP_LINE not in quiet.stderr


def test_threads_are_shared_out_from_the_cpus_that_the_launcher_may_use(
    launch: Launch, script: Script
) -> None:
    cpu = min(os.sched_getaffinity(0))
    job = launch(
        "--nproc-per-node",
        2,
        "--omp-threads",
        "auto",
        script(PROBE),
        wrapper=("taskset", "--cpu-list", str(cpu)),
    )

    assert job.wait() == 0
    assert [one["OMP_NUM_THREADS"] for one in job.told("found", 2)] == ["1", "1"]


@pytest.fixture(scope="module")
def other_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of another environment, which has nothing of ours."""
    import venv

    folder = tmp_path_factory.mktemp("other") / "env"
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.mark.parametrize("how", ["--python", "PYTHON_EXEC"])
def test_workers_run_in_the_interpreter_that_was_named(
    launch: Launch, script: Script, other_python: Path, how: str
) -> None:
    """The boot file comes with it: its package need not be installed there."""
    given = how == "--python"
    job = launch(
        *(("--python", other_python) if given else ()),
        script(PROBE),
        env={} if given else {"PYTHON_EXEC": str(other_python)},
    )

    assert job.wait() == 0
    (found,) = job.told("found")
    assert found["prefix"] == str(other_python.parent.parent)


def test_a_launcher_of_one_environment_warns_in_another_and_runs_its_own_python(
    launch: Launch, script: Script, other_python: Path
) -> None:
    environment = other_python.parent.parent
    job = launch(script(PROBE), env={"VIRTUAL_ENV": str(environment)})

    assert job.wait() == 0
    assert job.stderr.count(b"phalanx: warning: the active environment is") == 1
    assert job.told("found")[0]["python"] == sys.executable


def test_variables_of_the_user_reach_each_worker_and_find_its_program(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/our-trainer"
    tool.write_text('#!/bin/sh\necho "$RANK $COLOUR $WORLD_SIZE" >> told\n')
    tool.chmod(0o755)
    options = changed(
        run_options(["--no-python", "--nproc-per-node", "2", "our-trainer"]),
        env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "COLOUR": "light blue", "WORLD_SIZE": "9"},
        restarts=RestartPolicy(max_restarts=0),
    )

    with start_agent(options, cwd=tmp_path) as agent:
        outcome = agent.wait(60)

    assert outcome is not None
    assert outcome.exit_code == 0, outcome.report
    assert sorted((tmp_path / "told").read_text().splitlines()) == ["0 light blue 2", "1 light blue 2"]


def test_a_variable_that_no_environment_can_hold_is_refused_before_anything_starts() -> None:
    options = changed(run_options(["--no-python", "true"]), env={"A=B": "1"})

    with start_agent(options, stderr=-3) as agent:  # DEVNULL
        outcome = agent.wait(60)

    assert outcome is not None
    assert outcome.exit_code == 2
    assert outcome.report.startswith("phalanx: error: env: 'A=B' is no name of a variable")
