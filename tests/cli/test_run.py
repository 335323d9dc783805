from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS
from phalanx.cli.run import launch_values
from phalanx.cli.words import read_words
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.meeting import meeting_of
from phalanx.multiprocessing.std import Std

Values = Callable[..., dict[str, Any]]


def careful(**policy: Any) -> RestartPolicy:
    """What the command line's defaults are, beside torchelastic's plain count."""
    return RestartPolicy(**{"backoff_s": 1.0, "backoff_max_s": 60.0, "tries_hopeless_once": True, **policy})


CAREFUL = careful()


def test_without_flags_the_launcher_gets_the_defaults(values: Values, script: str) -> None:
    assert values() == {
        "nproc": 1,
        "python": None,
        "devices": None,
        "virtual_local_rank": False,
        "omp_threads": None,
        "debug_rank": None,
        "min_nodes": 1,
        "max_nodes": 1,
        "entrypoint": script,
        "args": (),
        "module": False,
        "no_python": False,
        "run_id": None,
        "role": "default",
        "restarts": CAREFUL,
        "restart_scope": "group",
        "restart_grace_s": None,
        "resize_grace_s": None,
        "warn_signal": None,
        "warn_before_s": 0.0,
        "stop_all": False,
        "watchdog": False,
        "report_file": None,
        "exclude_for_s": 600.0,
        "start_method": "spawn",
        "log_dir": None,
        "redirects": Std.NONE,
        "tee": Std.NONE,
        "local_ranks_filter": None,
        "duplicate_stdout_filters": (),
        "duplicate_stderr_filters": (),
        "log_line_prefix_template": None,
        "stderr_tail": 65536,
        "log_max_size": None,
        "stop_signals": (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT),
        "pass_signals": (signal.SIGUSR1, signal.SIGUSR2),
        "grace_s": 30.0,
        "master_addr": None,
        "master_port": None,
        "local_addr": None,
        "rdzv_backend": "static",
        "rdzv_endpoint": "",
        "rdzv_conf": {},
        "standalone": False,
        "error_file": None,
        "error_handler": None,
        "event_log_handler": "null",
        "events_file": None,
        "node_rank": None,
        "secret": None,
        "exit_barrier_s": None,
        "straggler_s": None,
        "numa_binding": None,
        "logs_specs": None,
    }


# One value of each option that reaches the launcher: the flag's text, and what the launcher then gets.
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "nnodes": ("1:1", {"min_nodes": 1, "max_nodes": 1}),
    "nproc-per-node": ("3", {"nproc": 3}),
    "standalone": ("1", {"standalone": True}),
    "node-rank": ("0", {"node_rank": 0}),
    "module": ("1", {"module": True}),
    "no-python": ("1", {"no_python": True}),
    "run-path": ("1", {"module": False, "no_python": False}),
    "python": ("/bin/sh", {"python": "/bin/sh"}),
    "debug-rank": ("0", {"debug_rank": 0}),
    "devices": ("1,GPU-8f3b", {"devices": ("1", "GPU-8f3b")}),
    "virtual-local-rank": ("1", {"virtual_local_rank": True}),
    "omp-threads": ("auto", {"omp_threads": 0}),
    "start-method": ("fork", {"start_method": "fork"}),
    "max-restarts": ("5", {"restarts": careful(max_restarts=5)}),
    "restart-window": ("1h", {"restarts": careful(window_s=3600.0)}),
    "restart-refill": ("progress,90m", {"restarts": careful(refill_on_progress=True, refill_after_s=5400.0)}),
    "restart-backoff": ("2:5m", {"restarts": careful(backoff_s=2.0, backoff_max_s=300.0)}),
    "give-up-after": ("3", {"restarts": careful(give_up_after=3)}),
    "restart-on": ("75,SIGKILL", {"restarts": careful(restart_on=(75, 137))}),
    "no-restart-on": ("2,64-66", {"restarts": careful(no_restart_on=(2, 64, 65, 66))}),
    "exclude-on": ("42", {"restarts": careful(exclude_on=(42,))}),
    "exclude-for": ("1d", {"exclude_for_s": 86400.0}),
    "restart-scope": ("worker", {"restart_scope": "worker"}),
    "shutdown-timeout": ("2.5", {"grace_s": 2.5}),
    "restart-timeout": ("1m", {"restart_grace_s": 60.0}),
    "resize-timeout": ("0", {"resize_grace_s": 0.0}),
    "warn-signal": ("SIGUSR2", {"warn_signal": signal.SIGUSR2, "warn_before_s": 30.0}),
    "warn-before": ("120s", {"warn_signal": signal.SIGUSR1, "warn_before_s": 120.0}),
    "stop-all": ("1", {"stop_all": True}),
    "signals-to-handle": ("SIGTERM", {"stop_signals": (signal.SIGTERM,)}),
    "pass-signals": ("SIGCONT", {"pass_signals": (signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)}),
    "straggler-timeout": ("60", {"straggler_s": 60.0}),
    "watchdog": ("1", {"watchdog": True}),
    "exit-barrier-timeout": ("300", {"exit_barrier_s": 300.0}),
    "monitor-interval": ("5", {}),
    "error-file": ("e.json", {"error_file": "e.json"}),
    "report-file": ("r.json", {"report_file": "r.json"}),
    "error-handler": ("pkg.errors:Handler", {"error_handler": "pkg.errors:Handler"}),
    "log-dir": ("/dev/null", {"log_dir": "/dev/null"}),
    "redirects": ("0:3", {"redirects": {0: Std.ALL}}),
    "tee": ("1", {"tee": Std.OUT}),
    "local-ranks-filter": ("0,2", {"local_ranks_filter": {0, 2}}),
    "duplicate-stdout-filters": ("loss,acc", {"duplicate_stdout_filters": ("loss", "acc")}),
    "duplicate-stderr-filters": ("warn", {"duplicate_stderr_filters": ("warn",)}),
    "log-line-prefix-template": ("${rank}:", {"log_line_prefix_template": "${rank}:"}),
    "log-max-size": ("1M", {"log_max_size": 1 << 20}),
    "stderr-tail": ("0", {"stderr_tail": 0}),
    "event-log-handler": ("console", {"event_log_handler": "console"}),
    "events-file": ("/dev/null", {"events_file": "/dev/null"}),
    "rdzv-backend": ("c10d", {"rdzv_backend": "c10d"}),
    "rdzv-endpoint": ("host:1", {"rdzv_endpoint": "host:1"}),
    "rdzv-id": ("job 7", {"run_id": "job 7"}),
    "rdzv-conf": ("a=1", {"rdzv_conf": {"a": "1"}}),
    "secret-file": ("/proc/sys/kernel/ostype", {"secret": b"Linux"}),
    "local-addr": ("10.0.0.1", {"local_addr": "10.0.0.1"}),
    "role": ("trainer", {"role": "trainer"}),
    "master-addr": ("10.0.0.2", {"master_addr": "10.0.0.2"}),
    "master-port": ("29501", {"master_port": 29501}),
    "numa-binding": ("node", {"numa_binding": "node"}),
    "logs-specs": ("default", {"logs_specs": "default"}),
    "config": ("/dev/null", {}),
    "print-config": ("1", {}),
    "dry-run": ("1", {}),
    "print-format": ("json", {}),
}
OFFERED = [option for option in OPTIONS if option.later is None]


def test_each_option_that_is_offered_has_an_example_here() -> None:
    assert EXAMPLES.keys() == {option.name for option in OFFERED}


@pytest.mark.parametrize("option", OFFERED, ids=lambda option: option.name)
def test_a_flag_in_each_spelling_and_each_variable_reach_the_launcher(option: Any, values: Values) -> None:
    text, expected = EXAMPLES[option.name]
    for spelling in option.spellings:
        assert expected.items() <= values(*([spelling] if option.is_switch else [spelling, text])).items()
    for variable in option.variables:
        assert expected.items() <= values(environ={variable: text}).items()


def test_a_flag_wins_over_its_variable_and_the_first_variable_over_the_second(values: Values) -> None:
    environ = {"PET_SHUTDOWN_TIMEOUT": "7", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert values("--shutdown-timeout", "5", environ=environ)["grace_s"] == 5
    assert values(environ=environ)["grace_s"] == 7
    assert values(environ={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"})["grace_s"] == 9


def test_an_empty_variable_counts_as_not_set(values: Values) -> None:
    assert values(environ={"PET_NNODES": "", "PET_MAX_RESTARTS": "", "PET_STANDALONE": ""}) == values()


def test_a_flag_wins_over_a_variable_that_is_wrong(values: Values) -> None:
    assert values("--max-restarts", "2", environ={"PET_MAX_RESTARTS": "two"})["restarts"].max_restarts == 2


@pytest.mark.parametrize("variable", ["PET_STANDALONE", "PET_MODULE", "PET_NO_PYTHON"])
@pytest.mark.parametrize(
    ("text", "meant"), [("True", True), ("yes", True), ("1", True), ("off", False), ("0", False)]
)
def test_a_variable_of_a_switch_is_read_in_every_usual_spelling(
    variable: str, text: str, meant: bool, values: Values
) -> None:
    assert values(environ={variable: text})[variable.removeprefix("PET_").lower()] is meant


def test_the_arguments_of_the_script_arrive_as_they_are(script: str) -> None:
    tail = ["--r=16", "--log", "x", "--no", "y", "--local", "3", "--nnodes=9", "-h", "--version", "--", "-t"]
    assert launch_values(read_words(["-r", "3", script, *tail]), {})["args"] == tuple(tail)


def test_a_range_of_nodes_on_a_standalone_node_is_one_node_that_meets_nobody(
    values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    found = values("--standalone", "--nnodes", "1:4")
    assert (found["min_nodes"], found["max_nodes"]) == (1, 4)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (
            ["--nnodes", "1:4", "--rdzv-endpoint", "a:29500"],
            "--nnodes: with the static backend all 4 nodes are waited for, and none may leave",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "c10d"],
            "--rdzv-endpoint: not given: nodes meet on localhost:29400, which this machine alone can reach",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0", "--master-addr", "node0"],
            "--master-addr: has no effect with c10d and several nodes, any of which may have rank 0; see --local-addr",
        ),
        (
            ["--rdzv-conf", "last_cal_timeout=3"],
            "--rdzv-conf: nobody knows the key 'last_cal_timeout', perhaps last_call_timeout; it has no effect",
        ),
        (["--rdzv-conf", "zzz=3"], "--rdzv-conf: nobody knows the key 'zzz'; it has no effect"),
        (["--node-rank", "1"], "--node-rank has no effect: this job has one node"),
        (
            ["--signals-to-handle", "SIGTERM,SIGBREAK"],
            "--signals-to-handle: this system has no signal 'SIGBREAK'; the others are handled",
        ),
    ],
)
def test_what_torchrun_takes_and_has_no_effect_here_is_one_line_of_warning(
    flags: list[str], warning: str, values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    values(*flags)
    assert capsys.readouterr().err == f"phalanx: warning: {warning}\n"


def test_a_secret_may_be_in_a_variable_which_a_file_overrules(values: Values) -> None:
    assert values(environ={"PHALANX_SECRET": "s3cret"})["secret"] == b"s3cret"
    found = values("--secret-file", "/proc/sys/kernel/ostype", environ={"PHALANX_SECRET": "s3cret"})
    assert found["secret"] == b"Linux"


def test_an_empty_job_id_counts_as_not_given(values: Values) -> None:
    assert values("--rdzv-id=")["run_id"] is None


@pytest.mark.parametrize(
    "flags",
    [
        # One node has nobody to meet, whatever else stands there: templates of clusters are filled in so.
        ["--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400", "--rdzv-id", "7"],
        ["--nnodes", "1:1", "--rdzv-backend", "etcd", "--rdzv-endpoint", "etcd:2379"],
        ["--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"],
        ["--nnodes", "1:4", "--standalone", "--rdzv-id", "7"],
        ["--nnodes", "2", "--node-rank", "1", "--master-addr", "node0", "--master-port", "29501"],
        ["--nnodes", "2:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0", "--node-rank", "9"],
        ["--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=https://h0:2379", "--rdzv-id=7"],
    ],
    ids=" ".join,
)
def test_what_people_type_is_taken_without_a_word(
    flags: list[str], values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    values(*flags)
    assert capsys.readouterr().err == ""


def test_user_signals_in_the_list_of_stop_signals_are_passed_on(values: Values) -> None:
    found = values("--signals-to-handle", "SIGTERM,SIGUSR1,SIGUSR2")
    assert found["stop_signals"] == (signal.SIGTERM,)
    assert found["pass_signals"] == (signal.SIGUSR1, signal.SIGUSR2)


def test_a_signal_that_is_to_be_passed_on_leaves_the_default_stop_signals(values: Values) -> None:
    found = values("--pass-signals", "SIGHUP")
    assert found["stop_signals"] == (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
    assert signal.SIGHUP in found["pass_signals"]


def test_run_path_wins_over_the_other_kinds_of_program_as_in_torchrun(values: Values) -> None:
    found = values("--run-path", "--no-python")
    assert (found["module"], found["no_python"]) == (False, False)


@pytest.mark.parametrize(
    ("flags", "environ", "sentence"),
    [
        (["--nproc-per-node", "two"], {}, "--nproc-per-node: 'two' is no number of workers"),
        ([], {"PET_NPROC_PER_NODE": "two"}, "PET_NPROC_PER_NODE: 'two' is no number of workers"),
        (["--max_restarts", "-1"], {}, "--max-restarts: '-1' is negative; write 0 or more"),
        (
            [],
            {"PET_START_METHOD": "spoon"},
            "PET_START_METHOD: 'spoon' is not one of spawn, fork, forkserver",
        ),
        (["--start-method", "forkserve"], {}, "; did you mean forkserver?"),
        ([], {"PET_STANDALONE": "maybe"}, "PET_STANDALONE: 'maybe' is neither yes nor no"),
        (
            [],
            {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"},
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x' is no time; write seconds",
        ),
        (["--tee", "9"], {}, "--tee: '9' names no streams"),
        (
            ["--restart-window", "soon"],
            {},
            "--restart-window: 'soon' is no time; write seconds, or a number with a",
        ),
        (["--restart-window", "0"], {}, "--restart-window: '0' is no time at all"),
        (
            ["--restart-refill", "never,1h"],
            {},
            "--restart-refill: 'never' is not progress, nor a time such as 1h; or write never",
        ),
        (
            ["--restart-backoff", "5:1"],
            {},
            "--restart-backoff: '5:1': the longest wait is shorter than the first one",
        ),
        (["--restart-refill", "1h,2h"], {}, "--restart-refill: '1h,2h' has two times; write one"),
        (["--restart-on", ","], {}, "--restart-on: ',' names no exit code"),
        (
            ["--signals-to-handle", "FOO"],
            {},
            "--signals-to-handle: this system has no signal 'FOO', and no other",
        ),
        (["--warn-signal", "SIGTERM"], {}, "--warn-signal: SIGTERM stops the job, so it warns nobody"),
        (["--restart-on", "0"], {}, "--restart-on: '0' is no exit code of a failure; those are 1 to 255"),
        (["--no-restart-on", "7-3"], {}, "--no-restart-on: '7-3' is no exit code of a failure"),
        (
            ["--exclude-on", "bad"],
            {},
            "--exclude-on: 'bad' is no exit code; write numbers, 64-78, or SIGKILL",
        ),
        (["--give-up-after", "1"], {}, "--give-up-after: '1' is too few; write 2 or more"),
        (["--warn-signal", "SIGKILL"], {}, "--warn-signal: no program can catch SIGKILL; leave it out"),
        (["--warn-signal", "NOPE"], {}, "--warn-signal: 'NOPE' is no signal of this system"),
        (
            ["--restart-window", "1h", "--max-restarts", "33"],
            {},
            "--restart-window: with a window --max-restarts can be 32 at most; 33 were asked for",
        ),
        (
            ["--restart-on", "1-9", "--no-restart-on", "9,10"],
            {},
            "exit code 9 is in --restart-on and in --no-restart-on; it cannot do both",
        ),
        (
            ["--rdzv-backend", "c10"],
            {},
            "--rdzv-backend: 'c10' is not one of static, c10d, etcd, etcd-v2, file; did you",
        ),
        (
            ["--nnodes", "2", "--node-rank", "2"],
            {},
            "--node-rank: there is no node 2 among 2; ranks go from 0 to 1",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "etcd"],
            {},
            "--rdzv-id: not given, and jobs share an etcd; give every node of the job the same id",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "file", "--rdzv-id", "7"],
            {},
            "--rdzv-endpoint: not given; name a folder that every node sees",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "c10d"],
            {"PET_RDZV_ENDPOINT": "node0:port"},
            "PET_RDZV_ENDPOINT: 'port' is no port",
        ),
        (
            ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h0,h1"],
            {},
            "--rdzv-endpoint: 2 endpoints cannot outvote one another; name one, three or five hosts",
        ),
        (["--rdzv-conf", "timeout=soon"], {}, "--rdzv-conf: timeout must be a time in seconds, not 'soon'"),
        (["--rdzv-conf", "run_id=7"], {}, "--rdzv-conf: run_id is no key of it; --rdzv-id says it"),
        (["--secret-file", "/no/such"], {}, "--secret-file: cannot read the file '/no/such': No such file"),
        (["--secret-file", "/dev/null"], {}, "--secret-file: the file '/dev/null' is empty"),
        (
            ["--secret-file", "/dev/zero"],
            {},
            "--secret-file: the file '/dev/zero' is no secret: it has more than",
        ),
        (
            ["--nnodes", "2:4", "--standalone"],
            {},
            "at least 2 nodes are asked for, and --standalone is one",
        ),
        (["--rdzv-conf", "master_port_range=9"], {}, "--rdzv-conf: master_port_range must be two ports"),
        (["-m", "--no-python"], {}, "--module and --no-python exclude each other"),
        (["--logs-specs", "mine"], {}, "--logs-specs: no log plug-in is called 'mine'"),
        (["--numa-binding", "nod"], {}, "--numa-binding: 'nod' is not one of node, socket, exclusive"),
        (
            ["--virtual-local-rank", "--nproc-per-node", "2"],
            {"CUDA_VISIBLE_DEVICES": "3"},
            "--virtual-local-rank: each worker gets a device of its own, and CUDA_VISIBLE_DEVICES=3 has 1 device",
        ),
        ([], {"PET_DEVICES": "0,0"}, "PET_DEVICES: '0' is named twice; each device once"),
        (
            ["--devices", "0"],
            {"CUDA_VISIBLE_DEVICES": "3"},
            "--devices: '0' is not in CUDA_VISIBLE_DEVICES=3",
        ),
        (["--omp-threads", "0"], {}, "--omp-threads: '0' is no number of threads; write 1 or more, or auto"),
        ([], {"PYTHON_EXEC": "/nowhere"}, "PYTHON_EXEC: there is no '/nowhere'; give the path"),
        (["--python", "python3", "--no-python"], {}, "--python has no effect with --no-python"),
        (
            ["--debug-rank", "2", "--nproc-per-node", "2"],
            {},
            "--debug-rank: there is no rank 2; this job has ranks 0 to 1",
        ),
        (["--error-handler", "nobody"], {}, "--error-handler: no error handler is called 'nobody'"),
        (["--pass-signals", "SIGFOO"], {}, "--pass-signals: this system has no signal 'SIGFOO'"),
        (["--pass-signals", "KILL"], {}, "--pass-signals: no program can catch SIGKILL"),
        (
            ["--pass-signals", "SIGHUP", "--signals-to-handle", "SIGHUP,SIGTERM"],
            {},
            "SIGHUP is in --signals-to-handle and in --pass-signals; it cannot do both",
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_flag_or_the_variable(
    flags: list[str], environ: dict[str, str], sentence: str, values: Values
) -> None:
    with pytest.raises(UsageError) as caught:
        values(*flags, environ=environ)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_switch_of_a_later_version_may_be_switched_off(values: Values) -> None:
    assert values(environ={"PET_VIRTUAL_LOCAL_RANK": "false"}) == values()


def test_a_program_must_be_named() -> None:
    with pytest.raises(UsageError, match=r"no program was named; write phalanx run \[flags\] SCRIPT"):
        launch_values(read_words(["--nproc-per-node", "2"]), {})


def test_a_script_that_is_not_there_is_a_mistake_but_a_module_or_a_command_is_looked_up_later() -> None:
    with pytest.raises(UsageError, match=r"there is no script 'no/such.py' in /.*; -m runs a module"):
        launch_values(read_words(["no/such.py"]), {})
    for flag in ("-m", "--no-python"):
        assert launch_values(read_words([flag, "no.such"]), {})["entrypoint"] == "no.such"


def test_a_missing_script_in_a_folder_that_is_gone_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(
        UsageError, match=r"there is no script 'x.py', and the current folder has been deleted"
    ):
        launch_values(read_words(["x.py"]), {})


def test_no_log_folder_is_made_for_a_job_that_is_refused(values: Values, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        values("--log-dir", str(tmp_path / "logs"), "--nnodes", "2", "--node-rank", "2")
    assert not (tmp_path / "logs").exists()


def test_a_folder_is_a_script_if_it_has_a_main_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder without a __main__\.py"):
        launch_values(read_words([str(tmp_path)]), {})
    (tmp_path / "__main__.py").touch()
    assert launch_values(read_words([str(tmp_path)]), {})["entrypoint"] == str(tmp_path)


def test_the_log_folder_is_made_with_its_parents(values: Values, tmp_path: Path) -> None:
    values("--log-dir", str(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_log_folder_that_cannot_be_made_is_a_mistake(values: Values, script: str) -> None:
    with pytest.raises(UsageError, match=r"--log-dir: cannot make the folder '.*/logs': Not a directory"):
        values("--log-dir", f"{script}/logs")
    with pytest.raises(UsageError, match=r"--log-dir: cannot make the folder '.*': File exists"):
        values("--log-dir", script)


@pytest.fixture
def folder_of_root() -> Iterator[Path]:
    """A folder in which a user who is not root may look and not write; the test runs as such a user."""
    folder = Path(tempfile.mkdtemp())  # not below tmp_path, whose parents are closed to others
    (folder / "train.py").touch()
    (folder / "secret.py").touch(mode=0)
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.setresuid(65534, 65534, 0)
    try:
        yield folder
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_script_that_cannot_be_read_is_a_mistake(folder_of_root: Path) -> None:
    with pytest.raises(UsageError, match=r"secret\.py' cannot be read; check its permissions"):
        launch_values(read_words([f"{folder_of_root}/secret.py"]), {})


def test_a_log_folder_that_cannot_be_written_is_a_mistake(folder_of_root: Path) -> None:
    with pytest.raises(UsageError, match="cannot write into the folder"):
        launch_values(read_words(["--log-dir", str(folder_of_root), f"{folder_of_root}/train.py"]), {})


@pytest.mark.parametrize(
    ("words", "master"),
    [
        (["--rdzv-endpoint=localhost:29511"], ("localhost", 29511)),
        (["--rdzv-endpoint=[::1]:29511"], ("::1", 29511)),
        (["--rdzv-endpoint=node0", "--master-port=7"], ("node0", 7)),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:29511"], ("127.0.0.1", None)),
        (["--standalone", "--rdzv-endpoint=localhost:29511"], ("127.0.0.1", None)),
    ],
)
def test_the_static_backend_takes_rank_0s_address_from_its_endpoint(
    words: list[str], master: tuple[str, int | None], values: Values
) -> None:
    found = meeting_of(RunOptions(**values(*words))).membership
    assert (found.master_addr, found.master_port) == master


def test_rules_about_restarts_have_no_effect_without_any_and_that_is_said(
    values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    values("--restart-on", "75", "--give-up-after", "3")
    said = "--give-up-after, --restart-on have no effect: no restart is allowed; raise --max-restarts"
    assert said in capsys.readouterr().err
    values("--restart-on", "75", "--max-restarts", "1")
    values()
    assert capsys.readouterr().err == ""
