"""Imported by the Python workers of the benchmarks."""

import os
import time


def stamp(name: str) -> None:
    """Write one line, with the time at which this was called."""
    now = time.monotonic_ns()
    line = f"{name} {os.environ['RANK']} {os.environ['TORCHELASTIC_RESTART_COUNT']} {os.getpid()} {now}\n"
    pipe = os.open(os.environ["BENCH_PIPE"], os.O_WRONLY)
    os.write(pipe, line.encode())
    os.close(pipe)
