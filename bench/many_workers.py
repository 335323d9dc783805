"""256 workers: until the last one runs, and until the last one is gone after SIGTERM."""

from __future__ import annotations

from bench.benchmark import Benchmark, Row, Samples, at_most
from bench.launchers import WORKERS, Job, Launcher

COUNT = 256


def sample(launcher: Launcher) -> Samples:
    with Job(
        launcher, "--standalone", "--nproc-per-node", COUNT, "--no-python", "sh", WORKERS / "quiet.sh"
    ) as job:
        job.stamped("ready", COUNT)
        up_s = max(stamp.at for stamp in job.stamps) - job.started_at
        return {"up": [up_s], "down": [job.stop()]}


BENCHMARK = Benchmark(
    name="many-workers",
    rows=(
        Row("up", "256 workers: start → all run", "s", at_most(10, "s")),
        Row("down", "256 workers: SIGTERM → all gone", "s", at_most(10, "s")),
    ),
    sample=sample,
    runs=5,
)
