"""The numbers of a run that has ended, beside those that torch's agent puts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from phalanx.metrics.run import numbers_of_run

CASES = [(used, most, failed) for most in (0, 1, 3) for used in range(most + 1) for failed in (False, True)]

THEIRS = """
import json, sys
from torch.distributed.elastic import metrics
from torch.distributed.elastic.agent.server.api import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState

class Agent(SimpleElasticAgent):
    def _start_workers(self, worker_group): ...
    def _stop_workers(self, worker_group): ...
    def _monitor_workers(self, worker_group): ...
    def _shutdown(self, death_sig=None): ...

class Kept(metrics.MetricHandler):
    def emit(self, data):
        found.append((data.name, data.value))

metrics.configure(Kept())
everything = []
for used, most, failed in json.loads(sys.argv[1]):
    found = []
    agent = Agent(WorkerSpec(role="r", local_world_size=1, rdzv_handler=None, entrypoint=print, max_restarts=most))
    agent._remaining_restarts = most - used
    agent._record_metrics(RunResult(WorkerState.FAILED if failed else WorkerState.SUCCEEDED))
    everything.append(found)
print(json.dumps(everything))
"""


@pytest.mark.torch
def test_they_are_those_of_torchs_agent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THEIRS, json.dumps(CASES)], capture_output=True, text=True, timeout=160
    )
    assert done.returncode == 0, done.stderr
    theirs = [[(name, value) for name, value in found] for found in json.loads(done.stdout)]
    ours = [numbers_of_run("r", has_failed=failed, used=used, most=most) for used, most, failed in CASES]
    assert ours == theirs
