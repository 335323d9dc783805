"""``LocalElasticAgent`` with real workers, over our own handlers and torch's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.elastic import workers
from tests.system.launch import two_free_ports

from phalanx.agent.elastic import LocalElasticAgent, RunResult, WorkerSpec, WorkerState
from phalanx.agent.elastic.stuck import StuckWorkers
from phalanx.multiprocessing import DefaultLogsSpecs, Std
from phalanx.multiprocessing.process_state import read_proc_state
from phalanx.rendezvous import RendezvousHandler, RendezvousParameters, rendezvous_handler_registry

pytestmark = pytest.mark.system
PATIENCE_S = 120.0


@contextmanager
def meeting(
    backend: str = "c10d", nodes: tuple[int, int] = (1, 1), **settings: Any
) -> Iterator[RendezvousHandler]:
    handler = a_handler(
        f"127.0.0.1:{settings.pop('port', None) or two_free_ports()}", backend, nodes, **settings
    )
    try:
        yield handler
    finally:
        handler.shutdown()


def a_handler(place: str, backend: str, nodes: tuple[int, int], **settings: Any) -> RendezvousHandler:
    return rendezvous_handler_registry.create_handler(
        RendezvousParameters(backend, place, "job", *nodes, **settings)
    )


def an_agent(
    handler: RendezvousHandler, entrypoint: Any, *args: Any, logs: Path | None = None, **settings: Any
) -> LocalElasticAgent:
    nproc = settings.pop("nproc", 2)
    given = {name: settings.pop(name) for name in tuple(settings) if name in WorkerSpec.__annotations__}
    spec = WorkerSpec("trainer", nproc, handler, entrypoint=entrypoint, args=args, **given)
    specs = DefaultLogsSpecs(log_dir=str(logs or os.devnull), redirects=Std.NONE if logs is None else Std.ALL)
    return LocalElasticAgent(spec, specs, **settings)


def in_threads(*agents: LocalElasticAgent) -> list[RunResult | BaseException]:
    """How each agent's run ended, with all of them at work at once."""
    ends: list[RunResult | BaseException] = [KeyError("it has not ended")] * len(agents)

    def run(number: int) -> None:
        try:
            ends[number] = agents[number].run()
        except Exception as error:  # noqa: BLE001 # an end as any other
            ends[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(agents))]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE_S)
    return ends


def values_of(end: RunResult | BaseException) -> dict[int, Any]:
    assert isinstance(end, RunResult), repr(end)
    assert end.state == WorkerState.SUCCEEDED, end
    return end.return_values


def wait_until(done: Any) -> None:
    gives_up_at = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < gives_up_at, "it has not come"
        time.sleep(0.02)


ENVIRONMENT = (
    "LOCAL_RANK", "RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)  # fmt: skip


@pytest.mark.torch
@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent", "same"
)
def test_workers_find_what_torch_tells_them() -> None:
    """All but the store: torch lets workers share the agent's, in which an earlier round's keys still stand."""
    program = Path(__file__).with_name("torch_local.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    theirs = {int(rank): env for rank, env in json.loads(done.stdout.splitlines()[-1]).items()}
    with meeting() as handler:
        ours = values_of(an_agent(handler, workers.told).run())
    assert ours.keys() == theirs.keys() == {0, 1}
    for rank in (0, 1):
        assert [ours[rank].get(name) for name in ENVIRONMENT] == [
            theirs[rank].get(name) for name in ENVIRONMENT
        ]
        assert ours[rank]["TORCHELASTIC_USE_AGENT_STORE"] == "False"
        assert int(ours[rank]["MASTER_PORT"]) > 0


def test_a_command_gets_its_local_rank_and_returns_nothing(tmp_path: Path) -> None:
    with meeting() as handler:
        agent = an_agent(handler, "/bin/sh", "-c", 'echo "rank ${local_rank} of $WORLD_SIZE"', logs=tmp_path)
        assert values_of(agent.run()) == {0: None, 1: None}
    logs = sorted(tmp_path.glob("*/attempt_0/*/stdout.log"))
    assert [one.read_text() for one in logs] == ["rank 0 of 2\n", "rank 1 of 2\n"]


def test_a_failure_has_its_global_rank_its_error_file_and_its_traceback(tmp_path: Path) -> None:
    with meeting() as handler:
        agent = an_agent(handler, workers.fail_rank, 1, "no data", logs=tmp_path, max_restarts=0)
        result = agent.run()
    assert result.is_failed()
    [(rank, failure)] = result.failures.items()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert failure.message["message"] == "ValueError: no data"
    assert Path(failure.error_file).exists()
    assert agent.get_worker_group().state == WorkerState.FAILED


def test_after_a_failure_all_workers_are_started_anew(tmp_path: Path) -> None:
    with meeting() as handler:
        agent = an_agent(handler, workers.fail_once, str(tmp_path), max_restarts=2)
        assert values_of(agent.run()) == {0: "1", 1: "1"}
    assert agent._remaining_restarts == 1


@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent",
    "better",
    "the shutdown timeout holds for workers that are stopped for a failure, too",
)
def test_a_worker_that_does_not_listen_has_the_shutdown_timeout_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEAF", str(tmp_path / "deaf"))
    with meeting() as handler:
        agent = an_agent(handler, workers.deaf, max_restarts=0, shutdown_timeout=1)
        result = agent.run()
        took_s = time.time() - (tmp_path / "deaf").stat().st_mtime  # rank 1 fails when that is there
    assert set(result.failures) == {1}
    assert result.failures[1].exitcode == 4
    assert took_s < 28  # torchelastic waits for half a minute, whatever the timeout


def test_the_agent_wakes_when_a_worker_ends_whatever_the_interval_is() -> None:
    with meeting() as handler:
        agent = an_agent(handler, "/bin/true", monitor_interval=3600.0)
        assert values_of(agent.run()) == {0: None, 1: None}


def test_two_static_nodes_with_two_roles() -> None:
    port = two_free_ports()
    with (
        meeting("static", (2, 2), port=port, rank=0) as first,
        meeting("static", (2, 2), port=port, rank=1) as second,
    ):
        one = an_agent(first, workers.told, nproc=2)
        other = an_agent(second, workers.told, nproc=1)
        other._worker_group.spec.role = "evaluator"
        ends = [values_of(end) for end in in_threads(one, other)]
    assert [sorted(end) for end in ends] == [[0, 1], [2]]
    found = {rank: env for end in ends for rank, env in end.items()}
    names = ("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "LOCAL_RANK")
    assert {rank: [env[name] for name in names] for rank, env in found.items()} == {
        0: ["0", "0", "2", "3", "2", "0"],
        1: ["0", "1", "2", "3", "2", "1"],
        2: ["1", "0", "1", "3", "2", "0"],
    }
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found.values()}) == 1


@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent",
    "better",
    "one budget of restarts for all nodes",
)
def test_a_failure_on_one_node_restarts_both_and_both_count_it(tmp_path: Path) -> None:
    port = two_free_ports()
    with meeting("c10d", (2, 2), port=port) as first, meeting("c10d", (2, 2), port=port) as second:
        agents = [an_agent(one, workers.fail_once, str(tmp_path), nproc=1) for one in (first, second)]
        ends = [values_of(end) for end in in_threads(*agents)]
    assert sorted(rank for end in ends for rank in end) == [0, 1]
    assert {value for end in ends for value in end.values()} == {"1"}
    assert [one._remaining_restarts for one in agents] == [2, 2]


def test_a_node_that_joins_brings_a_new_round_without_a_charge(tmp_path: Path) -> None:
    port = two_free_ports()
    settings = {"port": port, "last_call_timeout": 1, "keep_alive_interval": 2}
    logs = tmp_path / "logs"
    logs.mkdir()
    with meeting("c10d", (1, 2), **settings) as first:
        one = an_agent(first, workers.wait_for_world, 2, str(tmp_path), nproc=1, logs=logs)
        ends: list[Any] = []
        thread = threading.Thread(target=lambda: ends.append(one.run()))
        thread.start()
        wait_until(lambda: list(tmp_path.glob("*-0-*")))
        with meeting("c10d", (1, 2), **settings) as second:
            other = an_agent(second, workers.wait_for_world, 2, str(tmp_path), nproc=1)
            late = values_of(other.run())
            thread.join(PATIENCE_S)
    early = values_of(ends[0])
    assert sorted([*early, *late]) == [0, 1]
    both = [*early.values(), *late.values()]
    assert {env["TORCHELASTIC_RESTART_COUNT"] for env in both} == {"0"}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in both}) == 1
    assert one._remaining_restarts == 3
    # The first round's logs are still there. There may be a third round: who pauses at the last call comes after it.
    assert len(list(logs.glob("*/attempt_*"))) == one._meeting.round_number >= 2


@pytest.mark.torch
def test_two_agents_over_torchs_own_handler(tmp_path: Path) -> None:
    """In a process of its own: this one imports no torch."""
    program = Path(__file__).with_name("over_torch.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told == {"ranks": [0, 1], "counts": ["1"], "masters": 1, "left": [2, 2], "store": ["False"]}


@pytest.mark.torch
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.local_elastic_agent.LocalElasticAgent",
    "better",
    "a node can join a running c10d job, also as rank 0; under torch the job dies after a minute",
)
def test_a_node_that_joins_over_torchs_own_handler_meets_the_other(tmp_path: Path, order: str) -> None:
    addresses = ("localhost", "127.0.0.1") if order == "first" else ("127.0.0.1", "localhost")
    program = Path(__file__).with_name("joining_torch.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path), *addresses],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    ranks = [[1], [0]] if order == "first" else [[0], [1]]
    assert told == {"ranks": ranks, "counts": [["0", "2"]]}


SIGNALLED = """
import sys
from phalanx.multiprocessing import SignalException
from tests.agent.elastic import test_local_agent as here
with here.meeting() as handler:
    agent = here.an_agent(handler, "/bin/sh", "-c", "touch $DONE.${local_rank}; exec sleep 600", shutdown_timeout=20)
    try:
        agent.run()
    except SignalException as stop:
        print("stopped by", int(stop.sigval), agent._pcontext.stuck(), flush=True)
"""


def test_a_stop_signal_stops_the_workers_and_is_raised(tmp_path: Path) -> None:
    env = {**os.environ, "DONE": str(tmp_path / "up"), "PYTHONPATH": os.getcwd()}
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=PATIENCE_S)
    assert told == "stopped by 15 []\n"
    assert process.returncode == 0


def test_a_virtual_local_rank_shows_each_worker_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8f3b,7")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "4,6")
    told = ("LOCAL_RANK", "PHALANX_LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    with meeting() as handler:
        found = values_of(an_agent(handler, workers.told, virtual_local_rank=True).run())
    assert {rank: tuple(env[name] for name in told) for rank, env in found.items()} == {
        0: ("0", "0", "3", "4"),
        1: ("0", "1", "GPU-8f3b", "6"),
    }


def test_too_few_devices_for_virtual_local_ranks_are_told_before_a_worker_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with meeting() as handler, pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES=3 has 1 device for 2"):
        an_agent(handler, workers.told, virtual_local_rank=True).run()


@pytest.mark.compat(
    "variable TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "better",
    "the job has failed, where torchrun's exit code is 0",
)
def test_a_worker_that_no_signal_can_end_fails_the_job() -> None:
    """A stopped process stands for one that waits in the kernel, which no test can make at will."""
    with meeting() as handler:
        agent = an_agent(
            handler,
            "/bin/sh",
            "-c",
            "kill -STOP $$",
            uninterruptible_state_timeout=3600,
            shutdown_timeout=0,
        )
        agent._stuck = StuckWorkers(0.2, lambda pid: read_proc_state(pid) == "T")
        result = agent.run()
    assert result.is_failed()
    assert result.failures.keys() <= {0, 1}
    assert result.failures
    assert all("uninterruptible" in str(one.message) for one in result.failures.values())
    assert agent._remaining_restarts == 0


@pytest.mark.compat("variable TORCHELASTIC_ENABLE_FILE_TIMER", "same")
@pytest.mark.compat("variable TORCHELASTIC_TIMER_FILE", "same")
def test_with_the_file_timer_a_worker_that_is_too_slow_is_killed_and_the_agent_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", str(tmp_path / "timer"))
    with meeting() as handler:
        result = an_agent(handler, workers.too_slow, nproc=1, max_restarts=0).run()
    assert result.failures[0].exitcode == -signal.SIGKILL
    assert not (tmp_path / "timer").exists()


def test_a_timer_ends_what_descends_from_this_program_and_nobody_else() -> None:
    with meeting() as handler:
        agent = an_agent(handler, "/bin/true")
    with subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        within = int(shell.stdout.readline())
        try:
            assert [agent._is_of_a_worker(pid) for pid in (shell.pid, within)] == [True, True]
            assert [agent._is_of_a_worker(pid) for pid in (os.getpid(), os.getppid(), 1)] == [False] * 3
        finally:
            os.kill(within, signal.SIGKILL)
    assert not agent._is_of_a_worker(within)


BOTH_FAIL = """
import sys
from phalanx.agent.elastic import LocalElasticAgent, WorkerSpec
from phalanx.multiprocessing import DefaultLogsSpecs
from phalanx.rendezvous import RendezvousClosedError, RendezvousParameters, rendezvous_handler_registry

handler = rendezvous_handler_registry.create_handler(
    RendezvousParameters("c10d", sys.argv[1], "both fail", 2, 2)
)
spec = WorkerSpec("w", 2, handler, entrypoint="/bin/sh", args=("-c", "sleep 1; exit 3"), max_restarts=1)
try:
    print(LocalElasticAgent(spec, DefaultLogsSpecs()).run().state.name)
except RendezvousClosedError:
    print("CLOSED")
print(handler.shutdown())
"""


def test_nodes_that_fail_at_the_same_time_wait_for_no_store_that_has_gone() -> None:
    place = f"127.0.0.1:{two_free_ports()}"
    nodes = [
        subprocess.Popen([sys.executable, "-c", BOTH_FAIL, place], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    told = [node.communicate(timeout=PATIENCE_S)[0].split() for node in nodes]
    # The store is one node's: the other's shutdown says False when it is gone, 30 s later.
    assert [is_closed for _, is_closed in told] == ["True", "True"]
    assert {end for end, _ in told} <= {"FAILED", "CLOSED"}
    assert "FAILED" in {end for end, _ in told}
