"""``SimpleElasticAgent``: the order in which it calls the hooks of a subclass, with torch's own class as the oracle."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx.agent.elastic import (
    ElasticAgent,
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from phalanx.events import handlers
from phalanx.metrics import MetricData, MetricHandler, NullMetricHandler, configure
from phalanx.multiprocessing import SignalException
from phalanx.rendezvous import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

HERE = Path(__file__).parent
State: type[WorkerState] = WorkerState


class Values:
    """As much of a store as one node needs."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.held[key] = value if isinstance(value, bytes) else str(value).encode()

    def get(self, key: str) -> bytes:
        return self.held[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.held for key in keys)


class Handler(RendezvousHandler):
    """A rendezvous with oneself; ``waiting`` is what is found at the next looks."""

    def __init__(self, world_size: int = 1) -> None:
        self.store = Values()
        self.waiting: list[int] = []
        self.rounds = 0
        self.world_size = world_size

    def get_backend(self) -> str:
        return "mine"

    def get_run_id(self) -> str:
        return "job"

    def next_rendezvous(self) -> RendezvousInfo:
        self.rounds += 1
        return RendezvousInfo(self.store, 0, self.world_size, RendezvousStoreInfo("here", 5))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return self.waiting.pop(0) if self.waiting else 0

    def shutdown(self) -> bool:
        return True


class Scripted(SimpleElasticAgent):
    """Its workers are a list of states, found one after the other."""

    def __init__(self, script: list[Any], handler: Handler | None = None, **settings: Any) -> None:
        spec = WorkerSpec(
            "trainer", 2, handler or Handler(), entrypoint="x", monitor_interval=0.01, **settings
        )
        super().__init__(spec)
        self.script = script
        self.calls: list[Any] = []

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.calls.append(f"start {worker_group.state.name}")
        return {worker.local_rank: 100 + worker.local_rank for worker in worker_group.workers}

    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self.calls.append(f"stop {worker_group.state.name}")

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        found = self.script.pop(0)
        self.calls.append(f"monitor {getattr(found, 'name', found)}")
        if isinstance(found, BaseException):
            raise found
        return RunResult(found, {0: None, 1: None} if found == State.SUCCEEDED else {})

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self.calls.append(f"shutdown {death_sig.name}")


SCRIPTS: dict[str, tuple[list[str], list[int]]] = {
    "success": (["HEALTHY", "SUCCEEDED"], []),
    "failures": (["FAILED", "UNHEALTHY", "FAILED"], []),
    "nodes wait": (["HEALTHY", "HEALTHY", "SUCCEEDED"], [0, 1]),
    "a signal": (["HEALTHY", "signal"], []),
    "an exception": (["KeyError"], []),
    "an odd state": (["UNKNOWN"], []),
}


def run_ours(states: list[str], waiting: list[int]) -> dict[str, Any]:
    special: dict[str, Any] = {
        "signal": SignalException("told", signal.SIGINT),
        "KeyError": KeyError("gone"),
    }
    handler = Handler()
    handler.waiting = list(waiting)
    agent = Scripted([special.get(one) or State[one] for one in states], handler, max_restarts=1)
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


@pytest.mark.torch
@pytest.mark.compat("extension SimpleElasticAgent", "same")
@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.SimpleElasticAgent",
    "better",
    "an unhealthy group that is given up has failed, where torch returns a result that is no failure",
)
@shows_names("same", "elastic.agent.server", "RunResult", "Worker", "WorkerGroup", "WorkerState")
def test_hooks_are_called_as_torch_calls_them() -> None:
    order = json.dumps(SCRIPTS)
    done = subprocess.run(
        [sys.executable, str(HERE / "torch_template.py"), order], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    theirs = json.loads(done.stdout.splitlines()[-1])
    for name, (states, waiting) in SCRIPTS.items():
        ours = run_ours(states, waiting)
        expected = theirs[name]
        if name == "failures":
            assert (expected.pop("end"), ours.pop("end")) == ("UNHEALTHY", "FAILED")
        assert ours == expected, name


@pytest.mark.compat("extension metrics.configure", "same")
def test_a_run_is_told_as_events_and_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(MetricHandler):
        def __init__(self) -> None:
            self.names: dict[str, int] = {}

        def emit(self, metric_data: MetricData) -> None:
            self.names[metric_data.name] = metric_data.value

    class Lines(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.all: list[str] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.all.append(record.getMessage())

    lines = Lines()
    monkeypatch.setitem(handlers.handlers, "lines", lines)
    kept = Kept()
    configure(kept)
    try:
        Scripted([State.FAILED, State.SUCCEEDED], max_restarts=3, event_log_handler="lines").run()
    finally:
        configure(NullMetricHandler())
    assert kept.names["workers.trainer.run_success_with_retries"] == 1
    assert kept.names["workers.trainer.run_success_no_retries"] == 0
    assert kept.names["workers.trainer.flakiness"] == 25
    assert kept.names["workers.trainer.remaining_restarts"] == 2
    for name in ("_rendezvous", "_assign_worker_ranks", "_initialize_workers", "_restart_workers", "run"):
        assert kept.names[f"SimpleElasticAgent.{name}.success"] == 1
    events = [json.loads(line) for line in lines.all]
    states = [event["metadata"]["state"] for event in events]
    one_round = ["RENDEZVOUS", "ASSIGN_WORKER_RANKS", "START", "START"]
    assert states == [*one_round, *one_round, "SUCCEEDED", "SUCCEEDED"]
    inner = json.loads(events[2]["metadata"]["metadata"])
    assert (inner["local_rank"], inner["role_world_size"]) == (0, 2)
    assert all(event["timestamp"] > 1.7e12 for event in events)


@pytest.mark.compat("extension ElasticAgent", "same")
@shows_names("same", "elastic.agent.server", "ElasticAgent")
def test_an_agent_that_is_quite_different_fills_in_two_methods() -> None:
    class Idle(ElasticAgent):
        def run(self, role: str = "default") -> RunResult:
            return RunResult(State.SUCCEEDED, {0: role})

        def get_worker_group(self, role: str = "default") -> WorkerGroup:
            raise KeyError(role)

    assert Idle().run().return_values == {0: "default"}
    with pytest.raises(TypeError, match="abstract"):
        ElasticAgent()  # type: ignore[abstract]


def test_nodes_exchange_their_sizes_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_WORKER_IDENTICAL", "1")
    handler = Handler()
    Scripted([State.SUCCEEDED], handler).run()
    assert "phalanx/call" in handler.store.held


def test_workers_do_not_get_the_store_of_a_handler_that_would_share_it() -> None:
    class Sharing(Handler):
        @property
        def use_agent_store(self) -> bool:
            return True

    agent = Scripted([State.SUCCEEDED], Sharing())
    agent.run()
    assert agent.get_worker_group().master_port not in (None, 5)


def test_a_subclass_can_assign_ranks_itself() -> None:
    class Own(Scripted):
        def _assign_worker_ranks(self, store, group_rank, group_world_size, spec):
            workers = WorkerGroup(spec).workers
            for worker in workers:
                worker.global_rank, worker.world_size = 40 + worker.local_rank, 99
            return workers

    agent = Own([State.SUCCEEDED])
    agent.run()
    group = agent.get_worker_group()
    assert [worker.global_rank for worker in group.workers] == [40, 41]
    assert (group.master_addr, group.master_port) == ("here", 5)


def test_what_the_spec_says_of_the_master_is_stronger_than_the_handler() -> None:
    agent = Scripted([State.SUCCEEDED], master_addr="there", master_port=77)
    agent.run()
    group = agent.get_worker_group()
    assert (group.master_addr, group.master_port) == ("there", 77)


def test_a_node_that_was_never_needed_has_succeeded() -> None:
    class Spare(Handler):
        def next_rendezvous(self) -> RendezvousInfo:
            raise RendezvousGracefulExitError("over")

    agent = Scripted([], Spare())
    assert agent.run().state == State.SUCCEEDED
    assert agent.calls == ["shutdown SIGTERM"]


def test_where_another_node_has_failed_for_good_this_one_does_not_run_on() -> None:
    handler = Handler()
    agent = Scripted([State.HEALTHY] * 3, handler)
    agent._meeting.meet(handler)
    agent._meeting._info = RendezvousInfo(handler.store, 0, 2, None)
    agent._worker_group.state = State.HEALTHY
    agent._look_at_nodes(agent._worker_group)
    handler.store.set("phalanx/agent/failed/1", b"1")
    handler.store.set("phalanx/agent/knows/1/1", b"1")  # as it does then: node 0 waits for that, to go last
    with pytest.raises(RendezvousClosedError):
        agent._look_at_nodes(agent._worker_group)


@shows_names(
    "better",
    "elastic.agent.server",
    "WorkerSpec",
    how="what cannot be run is a ValueError that says why, where torch asserts",
)
def test_a_spec_that_cannot_be_run_is_refused_with_a_sentence() -> None:
    for wrong, word in (
        ({"local_world_size": 0}, "local_world_size"),
        ({"monitor_interval": 0}, "monitor_interval"),
        ({"entrypoint": None}, "entrypoint"),
    ):
        given: dict[str, Any] = {
            "role": "r",
            "local_world_size": 1,
            "rdzv_handler": None,
            "entrypoint": print,
        }
        with pytest.raises(ValueError, match=word):
            WorkerSpec(**{**given, **wrong})
    with pytest.warns(DeprecationWarning, match="entrypoint"):
        spec = WorkerSpec("r", 1, None, fn=print)
    assert spec.entrypoint is print
    assert spec.get_entrypoint_name() == "print"
