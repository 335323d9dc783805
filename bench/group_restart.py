"""From the death of one of four workers to the beginning of all four of the next attempt, in an elastic job."""

from __future__ import annotations

import os
import signal
import time

from bench.benchmark import Benchmark, Row, Samples, at_most_of_torchrun
from bench.launchers import WORKERS, Job, Launcher


def sample(launcher: Launcher) -> Samples:
    flags = ("--standalone", "--nnodes", "1:2", "--nproc-per-node", 4, "--max-restarts", 1)
    with Job(launcher, *flags, WORKERS / "begun.py") as job:
        victim = job.stamped("begun", 4)[-1]
        time.sleep(0.5)
        killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        again = job.stamped("begun", 4, restart=1)
        return {"restart": [max(stamp.at for stamp in again) - killed_at]}


BENCHMARK = Benchmark(
    name="group-restart",
    # torchrun waits the 30 s of its last call for a second node, at the start and at each restart.
    rows=(
        Row("restart", "group restart: 4 workers, `--standalone --nnodes 1:2`", "s", at_most_of_torchrun(50)),
    ),
    sample=sample,
    runs=3,
    warm_up=False,
)
