"""Where others hook in, by torch's names: classes to subclass, things to register, scripts that are installed.

An interpreter with torch takes seconds to start, so that one program does it all, under torch and under Phalanx.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

import pytest
from tests.compat.marks import shows, shows_names

from phalanx.compat import names

Python = Callable[..., str]

METRICS = """
from torch.distributed.elastic.metrics import MetricHandler, MetricsConfig, configure
from torch.distributed.elastic.metrics import initialize_metrics, put_metric

class Kept(MetricHandler):
    def emit(self, metric_data):
        print(metric_data.group_name, metric_data.name, metric_data.value)

configure(Kept())
initialize_metrics(MetricsConfig())
put_metric("loss", 3, "job")
assert "torch.distributed.elastic.metrics.static_init" not in sys.modules
"""
AGENT = """
from torch.distributed.elastic.agent.server import ElasticAgent, RunResult, WorkerState

class Mine(ElasticAgent):
    def run(self, role="default"):
        return RunResult(WorkerState.SUCCEEDED, {0: role}, {})
    def get_worker_group(self, role="default"):
        raise NotImplementedError

print(Mine().run("trainer").return_values, sorted(ElasticAgent.__abstractmethods__))
"""
RENDEZVOUS = """
from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, RendezvousBackend

class InMemory(RendezvousBackend):
    state, token, lock = None, 0, threading.Lock()
    @property
    def name(self):
        return "in-memory"
    def get_state(self):
        return None if self.state is None else (self.state, self.token)
    def set_state(self, state, token=None):
        with self.lock:
            if token == (self.token or None):
                self.state, self.token = state, self.token + 1
                return self.state, self.token, True
            return self.state, self.token, False

backend, store = InMemory(), HashStore()
nodes = [DynamicRendezvousHandler.from_backend("job", store, backend, 2, 2, "127.0.0.1") for _ in range(2)]
ranks = []
meet = lambda node: ranks.append(node.next_rendezvous().rank)
threads = [threading.Thread(target=meet, args=(node,)) for node in nodes]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(ranks), nodes[0].get_backend())
for node in nodes:
    node.shutdown()
"""
TIMERS = """
from torch.distributed.elastic.timer import TimerClient, TimerRequest, TimerServer, configure, expires
from torch.distributed.elastic.timer.api import RequestQueue
from torch.distributed.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers

kept = []

class Client(TimerClient):
    def acquire(self, scope_id, expiration_time):
        kept.append(TimerRequest("worker", scope_id, expiration_time))
    def release(self, scope_id):
        kept.append(TimerRequest("worker", scope_id, -1))

class Queue(RequestQueue):
    def size(self):
        return len(kept)
    def get(self, size, timeout):
        time.sleep(timeout)
        taken = kept[:size]
        del kept[:size]
        return taken

class Server(TimerServer):
    timers, ended = {}, threading.Event()
    def register_timers(self, timer_requests):
        for request in timer_requests:
            self.timers[request.scope_id] = request
    def clear_timers(self, worker_ids):
        if worker_ids:
            self.timers.clear()
    def get_expired_timers(self, deadline):
        late = [timer for timer in self.timers.values() if 0 < timer.expiration_time <= deadline]
        return {"worker": late} if late else {}
    def _reap_worker(self, worker_id):
        print("reaped", worker_id)
        self.ended.set()
        return True

configure(Client())
with expires(after=100, scope="quick"):
    pass
server = Server(Queue(), max_interval=0.05)
server.start()
with expires(after=0.01, scope="slow"):
    assert server.ended.wait(60)
server.stop()
print(log_debug_info_for_expired_timers("job", {1: ["a scope"]}))
"""


@pytest.mark.torch
@shows("same", *(f"extension {name}" for name in ("MetricHandler", "metrics.configure", "ElasticAgent")))
@shows("same", *(f"extension {name}" for name in ("RendezvousBackend", "TimerClient", "TimerServer")))
@shows("same", "extension RequestQueue", "extension log_debug_info_for_expired_timers")
@shows_names(
    "same", "elastic.timer.api", "RequestQueue", "TimerClient", "TimerRequest", "TimerServer", "expires"
)
@shows_names("same", "elastic.timer.debug_info_logging", "log_debug_info_for_expired_timers")
def test_what_others_have_written_for_torch_does_the_same(python: Python) -> None:
    """A handler of metrics, a kind of agent, a backend to meet in, timers with their queue and server."""
    program = f"import sys, threading, time\n{METRICS}{AGENT}{RENDEZVOUS}{TIMERS}"
    ours = python(program, compat=True)
    assert ours == python(program)
    assert ours.splitlines()[:-1] == [
        "job loss 3",
        "{0: 'trainer'} ['get_worker_group', 'run']",
        "[0, 1] in-memory",
        "reaped worker",
    ]


@pytest.mark.torch
@shows(
    "better",
    "extension PContext",
    how="one method starts a worker, and the base watches, stops and sweeps; torch's private hooks are not called",
)
@shows(
    "not offered",
    "extension get_subprocess_handler",
    how="our contexts start processes with their streams, binding and a watch in one step; subclass SubprocessContext, "
    "or give a plug-in of torchrun.logs_specs. SubprocessHandler and get_subprocess_handler are there for programs that"
    " call them",
)
def test_a_context_of_others_starts_workers_in_its_own_way_and_no_function_that_is_replaced_does(
    python: Python,
) -> None:
    said = python(
        """
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext, start_processes
        import torch.distributed.elastic.multiprocessing.subprocess_handler as place

        place.get_subprocess_handler = None

        class Niced(SubprocessContext):
            def _spawn(self, local_rank, stdout, stderr):
                self.args[local_rank] = ("-n", "7", self.entrypoint, *self.args[local_rank])
                self.entrypoint = "nice"
                return super()._spawn(local_rank, stdout, stderr)

        context = Niced("job", "nice", {0: ()}, {0: {}}, DefaultLogsSpecs("logs", Std.ALL))
        context.start()
        result = context.wait()
        print(result.is_failed(), open(result.stdouts[0]).read().strip())
        print(start_processes("job", "true", {0: ()}, {0: {}}, DefaultLogsSpecs()).wait(60).is_failed())
        """,
        compat=True,
    )
    assert said == "False 7\nFalse\n"


@pytest.mark.torch
@shows(
    "not offered",
    "extension console script torchfrtrace",
    how="it reads NCCL's flight records, which have nothing to do with the launcher; torch's own goes on working",
)
def test_scripts_of_torch_stay_torchs_and_ours_is_beside_them() -> None:
    owners = {
        script.name: script.dist.name
        for script in entry_points(group="console_scripts")
        if script.dist is not None and script.name in ("torchrun", "torchfrtrace", "phalanx")
    }
    assert owners == {"torchrun": "torch", "torchfrtrace": "torch", "phalanx": owners["phalanx"]}
    assert owners["phalanx"] != "torch"
    (script,) = entry_points(group="console_scripts", name="torchfrtrace")
    assert not script.module.startswith(names.ROOTS)
