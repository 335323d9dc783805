"""``elastic_launch`` and ``launch_agent``: torchelastic's function API over the hosted agent."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.launcher import elastic_work
from tests.launcher.elastic_work import Locked, Marked, SelfMade, of_rank
from tests.system.launch import two_free_ports

from phalanx.agent import HealthCheckServer
from phalanx.errors import ChildFailedError
from phalanx.launcher import LaunchConfig, elastic_launch, launch_agent
from phalanx.metrics import MetricData, MetricHandler, NullMetricHandler, configure
from phalanx.multiprocessing import DefaultLogsSpecs, Std
from phalanx.rendezvous import (
    RendezvousConnectionError,
    RendezvousTimeoutError,
    rendezvous_handler_registry,
)

pytestmark = pytest.mark.system
PATIENCE_S = 120.0


def a_config(**changes: Any) -> LaunchConfig:
    settings: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": 2,
        "run_id": "job",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "localhost:0",
        "max_restarts": 0,
        "monitor_interval": 3600.0,  # nothing waits for it
    }
    return LaunchConfig(**{**settings, **changes})


def wait_until(done: Any) -> None:
    gives_up_at = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < gives_up_at, "it has not come"
        time.sleep(0.02)


def handles(pid: int, number: int) -> bool:
    """Whether a live process has a handler for this signal."""
    (caught,) = re.findall(r"^SigCgt:\s+(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (number - 1) & 1)


# The configuration


@pytest.mark.torch
@pytest.mark.compat("variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "same")
@shows_names("same", "launcher", "LaunchConfig")
def test_a_configuration_has_torchs_fields_and_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import dataclasses, json, warnings; warnings.simplefilter('ignore')\n"
        "from torch.distributed.launcher.api import LaunchConfig\n"
        "def told(**given):\n"
        "    config = dataclasses.asdict(LaunchConfig(1, 2, 3, **given)); config.pop('logs_specs')\n"
        "    return config\n"
        "print(json.dumps([told(), told(rdzv_timeout=5), told(rdzv_configs={'timeout': 7}), told(shutdown_timeout=1)]))"
    )
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    theirs = json.loads(done.stdout)

    def told(**given: Any) -> dict[str, Any]:
        config = LaunchConfig(1, 2, 3, **given)
        assert isinstance(config.logs_specs, DefaultLogsSpecs)
        return {
            one.name: getattr(config, one.name)
            for one in dataclasses.fields(config)
            if one.name != "logs_specs"
        }

    ours = [told(), told(rdzv_timeout=5), told(rdzv_configs={"timeout": 7}), told(shutdown_timeout=1)]
    assert ours == theirs
    assert [list(one) for one in ours] == [list(one) for one in theirs]
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        told()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node"),
        ({"min_nodes": 3}, "min_nodes"),
        ({"max_restarts": -1}, "max_restarts"),
        ({"shutdown_timeout": -1}, "shutdown_timeout"),
        ({"numa_options": "node"}, "numa_options"),
    ],
    ids=["nproc", "nodes", "restarts", "timeout", "numa"],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=word):
        elastic_launch(a_config(**wrong), "/bin/true")()


def test_without_an_entrypoint_or_with_arguments_that_are_no_texts_nothing_starts() -> None:
    for entrypoint in (None, ""):
        with pytest.raises(ValueError, match="entrypoint"):
            launch_agent(a_config(), entrypoint, [])
    with pytest.raises(TypeError, match="arguments"):
        launch_agent(a_config(), "/bin/true", [7])


# Functions and commands


@pytest.mark.compat("name torch.distributed.launcher.api.elastic_launch", "same")
def test_a_function_runs_in_each_worker_and_its_values_come_back_by_rank() -> None:
    given = "a lambda's own"
    assert elastic_launch(a_config(), lambda: (os.environ["LOCAL_RANK"], given))() == {
        0: ("0", given),
        1: ("1", given),
    }


def test_the_macro_in_arguments_is_replaced_and_nothing_else_is() -> None:
    found = elastic_launch(a_config(), of_rank)("${local_rank}", "$local_rank $$ ${x}", 3)
    assert found == {rank: (rank, (str(rank), "$local_rank $$ ${x}", 3)) for rank in range(2)}


@shows_names(
    "better",
    "launcher",
    "launch_agent",
    how="the agent is a process of its own, which ends with the program",
)
def test_a_command_is_executed_as_it_is_with_its_logs_where_the_configuration_says(tmp_path: Path) -> None:
    specs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects={0: Std.OUT}, tee=Std.NONE)
    arguments = ["-c", "echo rank $RANK of ${local_rank}"]
    assert launch_agent(a_config(logs_specs=specs), "/bin/sh", arguments) == {0: None, 1: None}
    [log] = tmp_path.glob("job_*/attempt_0/0/stdout.log")
    assert log.read_text() == "rank 0 of 0\n"


def test_a_restart_is_counted_and_the_last_round_counts(tmp_path: Path) -> None:
    marker = str(tmp_path / "failed")

    def fail_once() -> str:
        if not os.path.exists(marker) and os.environ["RANK"] == "0":
            Path(marker).touch()
            raise RuntimeError("once")
        while not os.path.exists(marker):
            time.sleep(0.02)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            time.sleep(600)
        return os.environ["TORCHELASTIC_RESTART_COUNT"]

    assert elastic_launch(a_config(max_restarts=1), fail_once)() == {0: "1", 1: "1"}


@pytest.mark.compat(
    "name torch.distributed.launcher.api.elastic_launch",
    "better",
    "the worker's own exception is the cause of the ChildFailedError",
)
def test_a_failure_is_a_child_failed_error_with_its_error_file(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        if os.environ["RANK"] == "1":
            raise KeyError("the key")
        time.sleep(600)

    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(a_config(), fail)()
    error = raised.value
    assert error.name == "fail"
    assert set(error.failures) == {1}
    rank, failure = error.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    assert Path(failure.error_file).exists()
    assert failure.message["message"] == "KeyError: 'the key'"
    assert isinstance(error.__cause__, KeyError)
    # Its report is the exception's; what happened meanwhile was told.
    err = capfd.readouterr().err
    assert "fail FAILED" in str(error)
    assert "fail FAILED" not in err
    assert "phalanx: rank 1 failed: asked 1 other worker to stop" in err
    assert error.__notes__[0].splitlines()[-1].startswith("phalanx: fail failed: rank 1: KeyError")


def test_a_command_that_fails_has_its_exit_code_in_the_error() -> None:
    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(a_config(nproc_per_node=1), "/bin/sh")("-c", "exit 7")
    assert raised.value.failures[0].exitcode == 7
    assert raised.value.name == "/bin/sh"


def test_a_script_for_python_leaves_its_traceback_and_its_name(tmp_path: Path) -> None:
    """As ``config_from_args`` of torchrun has it: the interpreter is the command."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nraise ValueError(sys.argv[1])\n")
    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(a_config(nproc_per_node=1), sys.executable)("-u", str(script), "of ${local_rank}")
    assert raised.value.name == str(script)
    assert raised.value.failures[0].message["message"] == "ValueError: of 0"


def test_without_a_run_id_one_is_made_and_said(caplog: pytest.LogCaptureFixture) -> None:
    config = a_config(run_id="")
    with caplog.at_level(logging.WARNING):
        found = elastic_launch(config, lambda: os.environ["TORCHELASTIC_RUN_ID"])()
    assert set(found.values()) == {config.run_id}
    assert config.run_id.isdecimal()
    assert config.run_id in caplog.text


# Rendezvous


def test_nodes_that_do_not_come_are_a_rendezvous_timeout() -> None:
    config = a_config(
        min_nodes=2,
        max_nodes=2,
        rdzv_endpoint=f"127.0.0.1:{two_free_ports()}",
        rdzv_configs={"join_timeout": 1},
    )
    with pytest.raises(RendezvousTimeoutError, match="node"):
        elastic_launch(config, "/bin/true")()


def test_a_store_that_refuses_is_a_rendezvous_connection_error() -> None:
    config = a_config(
        min_nodes=2,
        max_nodes=2,
        rdzv_backend="static",
        rdzv_endpoint="192.0.2.1:29500",  # no address of this machine
        rdzv_configs={"rank": 0, "timeout": 1},
    )
    with pytest.raises(RendezvousConnectionError):
        elastic_launch(config, "/bin/true")()


def test_two_nodes_meet_and_each_gets_the_values_of_its_own_ranks() -> None:
    port = two_free_ports()
    found: list[Any] = [None, None]

    def launch(node: int) -> None:
        config = a_config(
            min_nodes=2,
            max_nodes=2,
            nproc_per_node=1,
            rdzv_backend="static",
            rdzv_endpoint=f"127.0.0.1:{port}",
            rdzv_configs={"rank": node},
        )
        found[node] = elastic_launch(config, of_rank)(node)

    threads = [threading.Thread(target=launch, args=(node,)) for node in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE_S)
    assert found == [{0: (0, (0,))}, {1: (1, (1,))}]


def test_names_that_nobody_knows_are_told_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="carrier pigeon"):
        elastic_launch(a_config(rdzv_backend="carrier pigeon"), "/bin/true")()
    with pytest.raises(KeyError, match="nowhere"):
        elastic_launch(a_config(event_log_handler="nowhere"), "/bin/true")()


@pytest.fixture
def made_by(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "made_by"
    for name in ("of this program", "of this process"):
        rendezvous_handler_registry._creators.pop(name, None)


@pytest.mark.compat("extension rendezvous_handler_registry.register", "same")
def test_a_backend_that_only_this_program_knows_goes_along_to_the_agent(made_by: Path) -> None:
    rendezvous_handler_registry.register("of this program", SelfMade)
    config = a_config(rdzv_backend="of this program", rdzv_configs={"made_by": str(made_by), "limit": (1, 2)})
    assert elastic_launch(config, of_rank)() == {0: (0, ()), 1: (1, ())}
    pid, _, limit = made_by.read_text().partition(" ")
    assert int(pid) != os.getpid()
    assert limit == "(1, 2)"


def test_a_backend_that_cannot_leave_this_program_runs_the_agent_here_and_says_so(
    made_by: Path, caplog: pytest.LogCaptureFixture
) -> None:
    creator = functools.partial(Locked, lock=threading.Lock())
    rendezvous_handler_registry.register("of this process", creator)
    config = a_config(rdzv_backend="of this process", rdzv_configs={"made_by": str(made_by)})
    assert elastic_launch(config, of_rank)("x") == {0: (0, ("x",)), 1: (1, ("x",))}
    assert int(made_by.read_text().split()[0]) == os.getpid()
    [warning] = [one.getMessage() for one in caplog.records if "cannot be sent" in one.getMessage()]
    assert "'of this process'" in warning
    assert "lock" in warning
    assert "no worker channel" in warning
    with pytest.raises(ChildFailedError) as raised:
        elastic_launch(config, "/bin/false")()
    assert set(raised.value.failures) <= {0, 1}


@pytest.mark.compat("extension LogsSpecs", "same")
@pytest.mark.parametrize("is_here", [False, True], ids=["sent", "kept"])
def test_a_log_layout_of_the_program_is_used(tmp_path: Path, is_here: bool) -> None:
    specs = Marked(str(tmp_path), "mine", threading.Lock() if is_here else None)
    found = elastic_launch(a_config(logs_specs=specs), elastic_work.mark)()
    mark, _, pid = found[0].rpartition(" ")
    assert mark == "mine"
    assert (int(pid) == os.getpid()) is is_here


# What is told


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(json.loads(record.getMessage()))


class Kept(MetricHandler):
    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def emit(self, metric_data: MetricData) -> None:
        self.names[metric_data.name] = metric_data.value


@pytest.mark.compat("extension events.handlers._log_handlers", "same")
def test_events_and_metrics_are_recorded_in_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from phalanx.events import handlers

    lines, kept = Lines(), Kept()
    monkeypatch.setitem(handlers.handlers, "lines", lines)
    configure(kept)
    try:
        elastic_launch(a_config(event_log_handler="lines", role="trainer"), "/bin/true")()
    finally:
        configure(NullMetricHandler())
    states = [(event["source"], event["metadata"]["state"]) for event in lines.all]
    assert states == [
        ("AGENT", "RENDEZVOUS"),
        ("WORKER", "START"),
        ("WORKER", "START"),
        ("WORKER", "SUCCEEDED"),
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ]
    assert lines.all[0]["metadata"]["rdzv_backend"] == "c10d"
    assert kept.names["workers.trainer.run_success_no_retries"] == 1
    assert kept.names["SimpleElasticAgent.run.success"] == 1


def test_the_environment_can_ask_for_health_checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    port = two_free_ports()
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
    end = str(tmp_path / "end")

    def wait() -> None:
        while not os.path.exists(end):
            time.sleep(0.02)

    thread = threading.Thread(target=elastic_launch(a_config(), wait))
    thread.start()

    def is_alive() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    try:
        wait_until(is_alive)
    finally:
        Path(end).touch()
        thread.join(PATIENCE_S)
    assert not is_alive()


def test_a_server_that_was_given_is_stopped_at_the_end_whatever_the_end_is() -> None:
    """As torchelastic has it: whoever gives it has started it."""
    done: list[str] = []

    class Server(HealthCheckServer):
        def start(self) -> None:
            done.append("started")

        def stop(self) -> None:
            done.append("stopped")

    with pytest.raises(ChildFailedError):
        elastic_launch(a_config(), "/bin/false", Server(lambda: 0, 0, 60))()
    assert done == ["stopped"]


# Signals, and scripts

SCRIPT = """
import os, signal, sys, time
from phalanx.launcher import LaunchConfig, elastic_launch
from phalanx.multiprocessing import SignalException

def work(folder):
    open(os.path.join(folder, os.environ["RANK"]), "w").close()
    if folder.endswith("wait"):
        time.sleep(600)
    return int(os.environ["RANK"])

GUARD
config = LaunchConfig(1, 1, 2, run_id="job", rdzv_backend="c10d", max_restarts=0, shutdown_timeout=20)
before = signal.getsignal(signal.SIGTERM)
try:
    print(elastic_launch(config, work)(sys.argv[1]))
except SignalException as stop:
    print("stopped by", int(stop.sigval), signal.getsignal(signal.SIGTERM) is before, flush=True)
"""


@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__':"], ids=["plain", "guarded"])
def test_a_script_works_with_a_guard_or_without(tmp_path: Path, guard: str) -> None:
    head, _, tail = SCRIPT.partition("GUARD\n")
    body = "".join(f"    {line}\n" for line in tail.splitlines()) if guard else tail
    script = tmp_path / "script.py"
    script.write_text(f"{head}{guard}\n{body}")
    folder = tmp_path / "go"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.stdout == "{0: 0, 1: 1}\n", done.stderr


@pytest.mark.compat("variable TORCHELASTIC_SIGNALS_TO_HANDLE", "same")
def test_a_stop_signal_stops_the_job_and_is_raised(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("GUARD", ""))
    folder = tmp_path / "wait"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        wait_until(lambda: len(list(folder.iterdir())) == 2)
        # Workers may be there before their program waits.
        wait_until(lambda: handles(process.pid, signal.SIGTERM))
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=PATIENCE_S)
    assert told == "stopped by 15 True\n"
