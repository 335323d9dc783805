"""Workers that are restarted one by one: where it cannot be had, and functions, for which it can."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.spec import JobSpec
from phalanx.cli.run import run_options
from phalanx.launcher.command import job_of
from phalanx.launcher.rendezvous.meeting import meeting_of
from phalanx.launcher.scope import check_scope
from phalanx.multiprocessing.logs import DefaultLogsSpecs

LIMIT_S = 90


def spec(tmp_path: Path, **changes: Any) -> JobSpec:
    """A job of one node, as the command line makes it, but for what is changed."""
    script = tmp_path / "w.py"
    script.touch()
    options = run_options(["--restart-scope", "worker", str(script)])
    made = job_of(options, DefaultLogsSpecs(os.devnull), meeting_of(options))
    assert made.restart_scope == "worker"
    return JobSpec(**{**{name: getattr(made, name) for name in made.__struct_fields__}, **changes})


def test_a_handler_of_somebody_else_is_refused_with_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one by one: the rendezvous handler of the backend 'zk'"):
        check_scope(spec(tmp_path, make_handler=lambda: None, backend="zk"))


def test_functions_that_are_forked_are_refused_and_others_are_not(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="made by fork"):
        check_scope(spec(tmp_path, entrypoint=print, start_method="fork"))
    for method in ("spawn", "forkserver"):
        assert check_scope(spec(tmp_path, entrypoint=print, start_method=method)).start_method == method


def test_commands_have_no_start_method_and_groups_no_limits(tmp_path: Path) -> None:
    check_scope(spec(tmp_path, start_method="fork"))
    check_scope(spec(tmp_path, restart_scope="group", make_handler=lambda: None, start_method="fork"))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_function_that_fails_is_called_again_alone(tmp_path: Path, method: str) -> None:
    """In a launcher of its own: an agent takes its process over."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(f"""
            import os, sys, time
            from pathlib import Path

            def work(folder):
                rank, count = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
                Path(folder, f"{{rank}}-{{count}}-{{os.getpid()}}").touch()
                if rank == "1" and int(count) < 2:
                    raise RuntimeError("not yet")
                while not list(Path(folder).glob("1-2-*")):
                    time.sleep(0.02)

            if __name__ == "__main__":
                from phalanx.agent.run import run_job
                from phalanx.agent.spec import JobSpec
                from phalanx.cli.run import run_options
                from phalanx.launcher.command import job_of
                from phalanx.launcher.rendezvous.meeting import meeting_of
                from phalanx.launcher.scope import check_scope
                from phalanx.multiprocessing.logs import DefaultLogsSpecs

                words = ["--nproc-per-node", "2", "--max-restarts", "3", "--restart-scope", "worker"]
                options = run_options([*words, "--restart-backoff", "0", __file__])
                made = job_of(options, DefaultLogsSpecs(os.devnull), meeting_of(options))
                fields = {{name: getattr(made, name) for name in made.__struct_fields__}}
                fields |= {{"entrypoint": work, "start_method": {method!r}}}
                fields["arguments"] = lambda local_rank: ({str(tmp_path)!r},)
                sys.exit(run_job(check_scope(JobSpec(**fields))))
        """)
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    lives = sorted(path.name.rpartition("-")[0] for path in tmp_path.glob("[0-9]-*"))
    assert lives == ["0-0", "1-0", "1-1", "1-2"]
    assert done.stderr.count("started again alone") == 2
