"""The same scripts as ``test_template`` runs, run by torch's own class: a program, which prints what it saw as JSON."""

from __future__ import annotations

import json
import signal
import sys
import warnings
from typing import Any

warnings.simplefilter("ignore")

from torch.distributed import HashStore  # noqa: E402
from torch.distributed.elastic.agent.server import api  # noqa: E402
from torch.distributed.elastic.rendezvous import (  # noqa: E402
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)


class Handler(RendezvousHandler):  # type: ignore[misc] # torch is not read by the type checker
    use_agent_store = False

    def __init__(self, waiting):
        self.waiting = list(waiting)

    def get_backend(self):
        return "mine"

    def get_run_id(self):
        return "job"

    def next_rendezvous(self):
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("here", 5))

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return self.waiting.pop(0) if self.waiting else 0

    def shutdown(self):
        return True


class Scripted(api.SimpleElasticAgent):  # type: ignore[misc] # as above
    def __init__(self, script, waiting):
        super().__init__(
            api.WorkerSpec(
                "trainer", 2, Handler(waiting), entrypoint="x", monitor_interval=0.01, max_restarts=1
            )
        )
        self.script = script
        self.calls: list[Any] = []

    def _start_workers(self, worker_group):
        self.calls.append(f"start {worker_group.state.name}")
        return {worker.local_rank: 100 + worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.calls.append(f"stop {worker_group.state.name}")

    def _monitor_workers(self, worker_group):
        found = self.script.pop(0)
        self.calls.append(f"monitor {getattr(found, 'name', found)}")
        if isinstance(found, BaseException):
            raise found
        values = {0: None, 1: None} if found == api.WorkerState.SUCCEEDED else {}
        return api.RunResult(found, values)

    def _shutdown(self, death_sig=signal.SIGTERM, timeout=30):
        self.calls.append(f"shutdown {death_sig.name}")


def run(states, waiting):
    special = {"signal": api.SignalException("told", signal.SIGINT), "KeyError": KeyError("gone")}
    agent = Scripted([special.get(one) or api.WorkerState[one] for one in states], waiting)
    try:
        end = agent.run().state.name
    except Exception:  # noqa: BLE001 # what comes out is compared
        end = "raised"
    group = agent.get_worker_group()
    workers = [
        [one.local_rank, one.global_rank, one.role_rank, one.world_size, one.role_world_size, one.id]
        for one in group.workers
    ]
    return {
        "calls": agent.calls,
        "end": end,
        "state": group.state.name,
        "left": agent._remaining_restarts,
        "workers": workers,
        "master": [group.master_addr, group.master_port, group.group_rank, group.group_world_size],
    }


print(json.dumps({name: run(*one) for name, one in json.loads(sys.argv[1]).items()}))
