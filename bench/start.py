"""How long a launcher takes for nothing: the whole process, from start to exit, around `true`."""

from __future__ import annotations

from bench.benchmark import Benchmark, Row, Samples, at_most_of_torchrun
from bench.launchers import Job, Launcher


def sample(launcher: Launcher) -> Samples:
    with Job(launcher, "--no-python", "true") as job:
        return {"start": [job.wait() - job.started_at]}


BENCHMARK = Benchmark(
    name="start",
    rows=(Row("start", "start: `--no-python true`, whole process", "s", at_most_of_torchrun(15)),),
    sample=sample,
    runs=15,
    quick_runs=3,
)
