"""Which worker has the standard streams of the program that starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HOST = """
import sys
from phalanx.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext

folder, settings = sys.argv[1], eval(sys.argv[2])
ranks = range(3)
context = SubprocessContext(
    "shells",
    "sh",
    {one: ("-c", f"read line; echo out {one} $line; echo err {one} $line >&2") for one in ranks},
    {one: {} for one in ranks},
    DefaultLogsSpecs(folder, redirects=Std.ALL, tee={2: Std.ALL}),
)
for name, rank in settings.items():
    setattr(context, name, rank)
context.start()
assert context.wait(60) is not None
"""


def run(tmp_path: Path, settings: dict[str, int | None]) -> tuple[list[bytes], list[bytes], dict[str, bytes]]:
    """What comes out of the host, line by line, and the log files of its workers."""
    logs = tmp_path / "logs"
    done = subprocess.run(
        [sys.executable, "-c", HOST, logs, repr(settings)], input=b"typed\n", capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    files = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in logs.glob("*/*/*/std*.log")}
    return sorted(done.stdout.splitlines()), sorted(done.stderr.splitlines()), files


def test_the_first_worker_reads_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    _, _, files = run(tmp_path, {})
    assert [files[f"{one}/stdout.log"] for one in range(3)] == [b"out 0 typed\n", b"out 1\n", b"out 2\n"]


@pytest.mark.parametrize("rank", [1, None])
def test_another_worker_reads_or_none_does(tmp_path: Path, rank: int | None) -> None:
    _, _, files = run(tmp_path, {"stdin_rank": rank})
    read = [one for one in range(3) if b"typed" in files[f"{one}/stdout.log"]]
    assert read == ([] if rank is None else [rank])


def test_a_worker_at_the_terminal_writes_there_whatever_the_logs_say_of_it(tmp_path: Path) -> None:
    out, err, files = run(tmp_path, {"stdin_rank": 2, "terminal_rank": 2})
    assert (out, err) == ([b"out 2 typed"], [b"err 2 typed"])
    assert sorted(files) == ["0/stderr.log", "0/stdout.log", "1/stderr.log", "1/stdout.log"]
