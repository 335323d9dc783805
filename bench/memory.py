"""What an agent holds in memory while eight workers run: the launcher, and its helpers' private pages."""

from __future__ import annotations

from bench import processes
from bench.benchmark import Benchmark, Row, Samples, at_most
from bench.launchers import WORKERS, Job, Launcher


def sample(launcher: Launcher) -> Samples:
    with Job(
        launcher, "--standalone", "--nproc-per-node", 8, "--no-python", "sh", WORKERS / "quiet.sh"
    ) as job:
        workers = {stamp.pid for stamp in job.stamped("ready", 8)}
        return {"memory": [processes.memory_mib(processes.of_agent(job.pid, workers))]}


BENCHMARK = Benchmark(
    name="memory",
    rows=(Row("memory", "memory of the agent, 8 workers", "MiB", at_most(40, "MiB")),),
    sample=sample,
    runs=5,
)
