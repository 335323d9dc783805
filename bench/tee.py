"""Throughput of `-t 3`: four workers write lines of 100 bytes; from the first worker's start to the launcher's exit."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from pathlib import Path

from bench.benchmark import Benchmark, Row, Samples, at_least_times_torchrun, at_most
from bench.launchers import WORKERS, Job, Launcher

RANKS = 4
LINE = 100
PREFIX = len("[default0]:")
SHOWN = PREFIX + LINE


class Console:
    """Reads the launcher's stdout and checks at C speed that each line is whole: all have one length."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.whole_lines = 0
        self.size = 0
        self._rest = b""
        self._thread = threading.Thread(target=self._read)

    def start(self) -> None:
        """To be called when the launcher has its own copy of the writing end."""
        os.close(self.writer)
        self._thread.start()

    def join(self) -> None:
        """Wait until the launcher has closed its stdout."""
        self._thread.join()
        os.close(self.reader)

    def _read(self) -> None:
        while chunk := os.read(self.reader, 1 << 20):
            self.size += len(chunk)
            data = self._rest + chunk
            lines = len(data) // SHOWN
            whole = data[: lines * SHOWN]
            self._rest = data[lines * SHOWN :]
            # A line counts if it begins with a bracket, its text follows the prefix, and it ends where it must.
            if (
                whole[::SHOWN].count(b"[") == whole[PREFIX::SHOWN].count(b"r") == lines
                and whole[SHOWN - 1 :: SHOWN].count(b"\n") == whole.count(b"\n") == lines
            ):
                self.whole_lines += lines


def sample(launcher: Launcher, lines: int = 1_000_000) -> Samples:
    """`lines` are what each worker writes."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="bench-logs-") as logs:
        flags = ("--standalone", "--nproc-per-node", RANKS, "-t", 3, "--log-dir", logs)
        with Job(launcher, *flags, WORKERS / "writer.py", lines, stdout=console.writer) as job:
            console.start()
            begun_at = min(stamp.at for stamp in job.stamped("begun", RANKS))
            took_s = job.wait() - begun_at
            console.join()
        in_files = sum(path.stat().st_size for path in Path(logs).rglob("stdout.log"))
    if in_files != RANKS * lines * LINE:
        raise ValueError(f"{launcher.name}: {in_files} bytes in the files for {RANKS * lines * LINE}")
    return {
        "throughput": [RANKS * lines * LINE / 1e6 / took_s],
        "harmed": [RANKS * lines - console.whole_lines],
    }


BENCHMARK = Benchmark(
    name="tee",
    rows=(
        Row("throughput", "tee: 4 workers x 100 MB, `-t 3`", "MB/s", at_least_times_torchrun(4)),
        Row("harmed", "tee: lines not known to be whole", "lines", at_most(0, "")),
    ),
    sample=sample,
    quick_sample=functools.partial(sample, lines=100_000),
    runs=3,
    warm_up=False,
)
