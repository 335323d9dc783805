"""Where others hook in, by torch's names: classes to subclass, things to register, scripts that are installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

Python = Callable[..., str]
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.mark.compat("extension MetricHandler", "same")
@pytest.mark.compat(
    "extension metrics.static_init",
    "not offered",
    "a vendor's module inside torch's package: metrics.configure(), or initialize_metrics() with a name, does the same",
)
def test_a_metric_handler_of_others_gets_the_numbers(python: Python) -> None:
    said = python(
        """
        import sys
        from torch.distributed.elastic.metrics import MetricHandler, MetricsConfig, configure
        from torch.distributed.elastic.metrics import initialize_metrics, put_metric

        class Kept(MetricHandler):
            def emit(self, metric_data):
                print(metric_data.group_name, metric_data.name, metric_data.value)

        configure(Kept())
        initialize_metrics(MetricsConfig())
        put_metric("loss", 3, "job")
        assert "torch.distributed.elastic.metrics.static_init" not in sys.modules
        """,
        compat=True,
    )
    assert said == "job loss 3\n"


@pytest.mark.compat("extension ElasticAgent", "same")
def test_an_agent_of_others_is_one_with_torchs_two_methods(python: Python) -> None:
    said = python(
        """
        from torch.distributed.elastic.agent.server import ElasticAgent, RunResult, WorkerState

        class Mine(ElasticAgent):
            def run(self, role="default"):
                return RunResult(WorkerState.SUCCEEDED, {0: role}, {})
            def get_worker_group(self, role="default"):
                raise NotImplementedError

        print(Mine().run("trainer").return_values, sorted(ElasticAgent.__abstractmethods__))
        """,
        compat=True,
    )
    assert said == "{0: 'trainer'} ['get_worker_group', 'run']\n"


@pytest.mark.compat(
    "extension PContext",
    "better",
    "one method starts a worker, and the base watches, stops and sweeps; torch's private hooks are not called",
)
def test_a_context_of_others_starts_workers_in_its_own_way(python: Python) -> None:
    said = python(
        """
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, SubprocessContext

        class Niced(SubprocessContext):
            def _spawn(self, local_rank, stdout, stderr):
                self.args[local_rank] = ("-n", "7", self.entrypoint, *self.args[local_rank])
                self.entrypoint = "nice"
                return super()._spawn(local_rank, stdout, stderr)

        context = Niced("job", "nice", {0: ()}, {0: {}}, DefaultLogsSpecs("logs", Std.ALL))
        context.start()
        result = context.wait()
        print(result.is_failed(), open(result.stdouts[0]).read().strip())
        """,
        compat=True,
    )
    assert said == "False 7\n"


@pytest.mark.compat("extension RendezvousBackend", "same")
def test_a_rendezvous_backend_of_others_is_met_in(python: Python) -> None:
    said = python(
        """
        import threading
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
        nodes = [DynamicRendezvousHandler.from_backend("job", store, backend, 2, 2) for _ in range(2)]
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
        """,
        compat=True,
    )
    assert said == "[0, 1] in-memory\n"


@pytest.mark.compat("extension TimerClient", "same")
@pytest.mark.compat("extension TimerServer", "same")
@pytest.mark.compat("extension RequestQueue", "same")
def test_timers_of_others_have_a_client_a_queue_and_a_server(python: Python) -> None:
    program = """
        import threading, time
        from torch.distributed.elastic.timer import TimerClient, TimerRequest, TimerServer, configure, expires
        from torch.distributed.elastic.timer.api import RequestQueue

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
        """
    assert python(program, compat=True) == python(program) == "reaped worker\n"


@pytest.mark.compat("extension log_debug_info_for_expired_timers", "same")
def test_what_is_logged_of_expired_timers_can_be_called_as_torchs(python: Python) -> None:
    program = """
        from torch.distributed.elastic.timer.debug_info_logging import log_debug_info_for_expired_timers
        print(log_debug_info_for_expired_timers("job", {1: ["a scope"]}))
        """
    assert python(program, compat=True) == python(program)


@pytest.mark.system
@pytest.mark.compat(
    "extension console script torchrun",
    "better",
    "Phalanx installs phalanx, and leaves torchrun to torch; under PHALANX_COMPAT=1 torchrun runs Phalanx",
)
@pytest.mark.parametrize(("compat", "whose"), [("1", "True"), ("0", "False")])
def test_the_installed_torchrun_runs_phalanx_when_it_is_asked_for(
    tmp_path: Path, compat: str, whose: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nos.write(1, f\"{os.environ['RANK']} {'PHALANX_AGENT' in os.environ}\\n\".encode())\n"
    )
    done = subprocess.run(
        [SCRIPTS / "torchrun", "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_COMPAT": compat},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"0 {whose}", f"1 {whose}"]


@pytest.mark.compat(
    "extension console script torchfrtrace",
    "not offered",
    "it reads NCCL's flight records, which have nothing to do with the launcher; torch's own goes on working",
)
def test_the_installed_torchfrtrace_stays_torchs() -> None:
    said = [
        subprocess.run(
            [SCRIPTS / "torchfrtrace", "--help"],
            env={**os.environ, "PHALANX_COMPAT": compat},
            capture_output=True,
            text=True,
            timeout=120,
        ).stdout
        for compat in ("0", "1")
    ]
    assert said[0] == said[1]
    assert "usage" in said[0]


def test_the_command_of_this_package_is_beside_torchs() -> None:
    assert (SCRIPTS / "phalanx").exists(), sys.executable
