"""The same groups under torchelastic and under Phalanx: what a caller sees is the same, but for what is meant."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

pytestmark = [pytest.mark.torch, pytest.mark.slow]

PROGRAM = """
import importlib, json, operator, sys, time
module = importlib.import_module(sys.argv[1])
METHOD = {"start_method": sys.argv[3]}

def run(entrypoint, *args, **options):
    ranks = range(len(args))
    try:
        context = module.start_processes(
            "test", entrypoint, dict(enumerate(args)), {i: {} for i in ranks},
            module.DefaultLogsSpecs(sys.argv[2]), **options
        )
    except Exception as error:
        return isinstance(error, OSError)
    result = context.wait(60, 0.01)
    seen = {
        "type": type(context).__name__,
        "failed": result.is_failed(),
        "returned": sorted(result.return_values.items()),
        "failures": {
            rank: [one.exitcode, one.local_rank, one.signal_name(), one.pid == context.pids()[rank]]
            for rank, one in sorted(result.failures.items())
        },
        "logs": [sorted(result.stdouts), sorted(result.stderrs)],
        "pids": sorted(context.pids()),
    }
    context.close()
    context.close()
    return seen

def construct(args, envs):
    try:
        context = module.SubprocessContext("test", "true", args, envs, module.DefaultLogsSpecs(sys.argv[2]))
    except Exception as error:
        return type(error).__name__
    return [context.name, context.nprocs, context.entrypoint, context.pids(), context.close()]

if __name__ == "__main__":
    sh = lambda script: ("-c", script)
    print("RESULT", json.dumps({
        "commands that succeed": run("sh", sh("exit 0"), sh("exit 0")),
        "a command that fails": run("sh", sh("exit 3")),
        "a command killed by a signal": run("sh", sh("kill -9 $$")),
        "a command beside a failure": run("sh", sh("sleep 0.5; exit 3"), sh("exec sleep 1000")),
        "an unknown command": run("no-such-command", ()),
        "functions that return": run(operator.add, (1, 2), (3, 4)),
        "a function that raises": run(operator.truediv, (1, 0), (1, 1), **METHOD),
        "a function that exits": run(sys.exit, (4,), **METHOD),
        "a function that exits with 0": run(sys.exit, (0,), (0,), **METHOD),
        "a forked function": run(operator.add, (1, 2), start_method="fork"),
        "a served function": run(operator.add, (1, 2), start_method="forkserver"),
        "a function beside a failure": run(time.sleep, (-1,), (1000,), **METHOD),
        "before the start": construct({0: ()}, {0: {}}),
    }))
"""

TORCH = "torch.distributed.elastic.multiprocessing"


def results_of(module: str, method: str, folder: Path) -> dict[str, Any]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    (folder / "logs").mkdir()
    done = subprocess.run(
        [sys.executable, str(program), module, str(folder / "logs"), method],
        capture_output=True,
        text=True,
        timeout=170,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@shows_names("same", "elastic.multiprocessing", "MultiprocessContext", "RunProcsResult")
@shows_names(
    "better",
    "elastic.multiprocessing",
    "PContext",
    "SubprocessContext",
    "start_processes",
    how="a command that was stopped for the failure of another is no failure",
)
def test_a_caller_sees_the_same_but_for_what_is_meant(tmp_path: Path) -> None:
    for name in ("torch", "ours"):
        (tmp_path / name).mkdir()
    # How a function ends does not depend on how its process starts; each that torch spawns imports torch for seconds.
    expected = results_of(TORCH, "fork", tmp_path / "torch")
    actual = results_of("phalanx.multiprocessing", "spawn", tmp_path / "ours")

    # Meant: a command that we stopped ourselves is not a failure (for functions torchelastic does the same).
    stopped = expected["a command beside a failure"]["failures"]
    assert stopped.pop("1")[0] == -15
    assert actual == expected


@pytest.mark.parametrize(
    "name",
    [
        "start_processes",
        "PContext",
        "SubprocessContext",
        "MultiprocessContext",
        "RunProcsResult",
        "SignalException",
    ],
)
def test_signatures_take_what_torchelastics_take_in_the_same_order(name: str) -> None:
    import importlib

    def parameters(module: str) -> list[tuple[str, Any]]:
        found = inspect.signature(getattr(importlib.import_module(module), name)).parameters.values()
        return [(one.name, one.default) for one in found if one.kind is not one.KEYWORD_ONLY]

    expected, actual = parameters(TORCH), parameters("phalanx.multiprocessing")
    if name == "RunProcsResult":  # defaults are factories
        expected, actual = [(key, None) for key, _ in expected], [(key, None) for key, _ in actual]
    assert actual == expected
