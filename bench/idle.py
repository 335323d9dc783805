"""What an agent does while eight workers are quiet: nothing, it should be."""

from __future__ import annotations

import time

from bench import processes
from bench.benchmark import Benchmark, Row, Samples, at_most
from bench.launchers import WORKERS, Job, Launcher

SETTLE_S = 3.0  # what follows a start, such as torchrun's first monitoring, is not idling
WINDOW_S = 10.0


def sample(launcher: Launcher) -> Samples:
    with Job(
        launcher, "--standalone", "--nproc-per-node", 8, "--no-python", "sh", WORKERS / "quiet.sh"
    ) as job:
        workers = {stamp.pid for stamp in job.stamped("ready", 8)}
        time.sleep(SETTLE_S)
        agent = processes.of_agent(job.pid, workers)
        ticks, wake_ups = processes.cpu_ticks(agent), processes.wake_ups(agent)
        time.sleep(WINDOW_S)
        return {
            "ticks": [processes.cpu_ticks(agent) - ticks],
            "wake-ups": [processes.wake_ups(agent) - wake_ups],
        }


BENCHMARK = Benchmark(
    name="idle",
    rows=(
        Row("ticks", "idle agent, 8 quiet workers: CPU ticks in 10 s", "ticks", at_most(0, "")),
        Row("wake-ups", "idle agent, 8 quiet workers: wake-ups in 10 s", "wake-ups", at_most(0, "")),
    ),
    sample=sample,
    runs=3,
    warm_up=False,
)
