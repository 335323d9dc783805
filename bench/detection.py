"""From the death of a worker to the moment at which the other worker is asked to stop."""

from __future__ import annotations

import os
import signal
import time

from bench.benchmark import Benchmark, Row, Samples, at_most
from bench.launchers import WORKERS, Job, Launcher

DEATHS = 5  # in each job, one in each attempt


def sample(launcher: Launcher) -> Samples:
    flags = ("--standalone", "--nproc-per-node", 2, "--max-restarts", DEATHS - 1)
    latencies_ms = []
    with Job(launcher, *flags, WORKERS / "asked.py") as job:
        for restart in range(DEATHS):
            victim = next(stamp for stamp in job.stamped("ready", 2, restart=restart) if stamp.rank == 1)
            time.sleep(0.3)  # the victim has become `sleep`, and the launcher is idle
            killed_at = time.monotonic()
            os.kill(victim.pid, signal.SIGKILL)
            (asked,) = job.stamped("asked", 1, restart=restart)
            latencies_ms.append((asked.at - killed_at) * 1000)
        job.wait()
    return {"detection": latencies_ms}


BENCHMARK = Benchmark(
    name="detection",
    rows=(Row("detection", "worker's death → the other is asked to stop", "ms", at_most(5, "ms")),),
    sample=sample,
    runs=5,
)
