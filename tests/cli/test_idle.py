"""Every option, and the company in which it can have no effect: refused, warned about, or never so, with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.idle import FIELDS
from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS
from phalanx.launcher.ineffective import RULES

Values = Callable[..., dict[str, Any]]

ONE_NODE = "has no effect: this job has one node"
ONE_WORKER = "has no effect: this job has one worker"
STANDALONE = "has no effect: with --standalone a node meets nobody"
NO_RESTART = "has no effect: no restart is allowed; raise --max-restarts"
DEV_NULL = "has no effect: --log-dir /dev/null keeps no logs"

# Option → flags with which it has no effect, and what is said of it after its name.
WARNED: dict[str, list[tuple[list[str], str]]] = {
    "module": [(["--module", "--run-path"], "has no effect: --run-path runs a script by its path")],
    "no-python": [(["--no-python", "--run-path"], "has no effect: --run-path runs a script by its path")],
    "start-method": [(["--start-method=fork"], "has no effect: workers are programs here, started by exec")],
    "monitor-interval": [
        (["--monitor-interval=5"], "has no effect: an exit is an event here, nothing is polled")
    ],
    "node-rank": [
        (["--node-rank=1"], ONE_NODE),
        (["--node-rank=1", "--nnodes=1:2", "--standalone"], ONE_NODE),
    ],
    "rdzv-backend": [(["--rdzv-backend=c10d", "--standalone"], STANDALONE)],
    "rdzv-endpoint": [(["--rdzv-endpoint=h:1", "--standalone"], STANDALONE)],
    "rdzv-conf": [
        (["--rdzv-conf=join_timeout=5", "--standalone"], STANDALONE),
        (
            ["--rdzv-conf=store_port=7", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost"],
            ": store_port is for static and has no effect with c10d",
        ),
        (
            ["--rdzv-conf=is_host=1", "--nnodes=2", "--rdzv-backend=static", "--rdzv-endpoint=a:29500"],
            ": is_host is for c10d and has no effect with static",
        ),
    ],
    "stop-all": [(["--stop-all"], ONE_NODE)],
    "resize-timeout": [(["--resize-timeout=5"], ONE_NODE)],
    "exit-barrier-timeout": [(["--exit-barrier-timeout=5"], ONE_NODE)],
    "exclude-on": [(["--exclude-on=42"], ONE_NODE)],
    "exclude-for": [(["--exclude-for=5m"], ONE_NODE)],
    "straggler-timeout": [
        (["--straggler-timeout=5"], ONE_WORKER),
        (
            ["--straggler-timeout=5", "--nproc-per-node=2", "--debug-rank=0"],
            "has no effect: with --debug-rank no worker is late",
        ),
    ],
    "restart-timeout": [(["--restart-timeout=5"], ONE_WORKER)],
    "restart-window": [(["--restart-window=1h"], NO_RESTART)],
    "restart-refill": [(["--restart-refill=1h"], NO_RESTART)],
    "restart-backoff": [
        (["--restart-backoff=2"], NO_RESTART),
        (
            ["--restart-backoff=2", "--max-restarts=1"],
            "has no effect: nothing waits before the first restart, and one is allowed",
        ),
    ],
    "give-up-after": [
        (["--give-up-after=2"], NO_RESTART),
        (
            ["--give-up-after=9", "--max-restarts=3"],
            "has no effect: the budget of --max-restarts ends before",
        ),
    ],
    "restart-on": [(["--restart-on=75"], NO_RESTART)],
    "no-restart-on": [
        (["--no-restart-on=75"], NO_RESTART),
        (
            ["--no-restart-on=3", "--restart-on=75", "--max-restarts=1"],
            "has no effect: --restart-on names all codes that are followed by a restart",
        ),
    ],
    "restart-scope": [(["--restart-scope=worker"], NO_RESTART)],
    "redirects": [
        (["--redirects=3", "--log-dir=/dev/null"], DEV_NULL),
        (
            ["--redirects=0:3,2:1,7:1", "--nproc-per-node=2"],
            "names local ranks 2, 7, and this node has 2 workers, 0 to 1",
        ),
    ],
    "tee": [
        (["--tee=3", "--log-dir=/dev/null"], DEV_NULL),
        (["--tee=0:3,1:1"], "names local rank 1, and this node has one worker, 0"),
    ],
    "local-ranks-filter": [
        (
            ["--local-ranks-filter=0,2", "--nproc-per-node=2"],
            "names local rank 2, and this node has 2 workers, 0 to 1",
        ),
        (
            ["--local-ranks-filter=2", "--nproc-per-node=2"],
            "names local rank 2, and this node has 2 workers, 0 to 1; it shows nobody",
        ),
    ],
    "duplicate-stdout-filters": [
        (
            ["--duplicate-stdout-filters=loss"],
            "has no effect: it is about teed lines, and no stdout is teed; see --tee",
        ),
        (
            ["--duplicate-stdout-filters=loss", "--tee=2"],
            "has no effect: it is about teed lines, and no stdout is teed; see --tee",
        ),
    ],
    "duplicate-stderr-filters": [
        (
            ["--duplicate-stderr-filters=loss", "--redirects=3"],
            "has no effect: it is about teed lines, and no stderr is teed; see --tee",
        )
    ],
    "log-line-prefix-template": [
        (
            ["--log-line-prefix-template=x"],
            "has no effect: it is about teed lines, and no stream is teed; see --tee",
        )
    ],
    "log-max-size": [
        (
            ["--log-max-size=1M"],
            "has no effect: no stream goes to a file; see --redirects and --tee",
        )
    ],
    "watchdog": [
        (["--watchdog", "--debug-rank=0"], "has no effect: with --debug-rank nobody is too slow"),
    ],
    "print-format": [
        (["--print-format=json"], "has no effect: nothing is shown; say --print-config or --dry-run")
    ],
    "master-addr": [
        (
            ["--master-addr=h", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost"],
            ": has no effect with c10d and several nodes, any of which may have rank 0; see --local-addr",
        ),
        (
            ["--master-addr=h", "--rdzv-endpoint=other"],
            "has no effect: --rdzv-endpoint says where rank 0 listens, with static",
        ),
    ],
    "master-port": [
        (
            ["--master-port=7", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost"],
            ": has no effect with c10d and several nodes; --rdzv-conf master_port_range=A-B limits the choice",
        ),
        (
            ["--master-port=7", "--rdzv-endpoint=localhost:8"],
            "has no effect: --rdzv-endpoint says where rank 0 listens, with static",
        ),
    ],
    "secret-file": [(["--secret-file=SECRET", "--standalone"], STANDALONE)],
}

# Option → flags that contradict one another, and the sentence that refuses them.
REFUSED: dict[str, tuple[list[str], str]] = {
    "nnodes": (
        ["--nnodes=2", "--standalone"],
        "--nnodes: at least 2 nodes are asked for, and --standalone is one node",
    ),
    "python": (["--python=python3", "--no-python"], "--python has no effect with --no-python"),
    "debug-rank": (["--debug-rank=1"], "--debug-rank: there is no rank 1; this job has rank 0 alone"),
    "virtual-local-rank": (
        ["--virtual-local-rank", "--devices=0", "--nproc-per-node=2"],
        "each worker gets a device of its own",
    ),
    "warn-signal": (["--warn-signal=SIGTERM"], "--warn-signal: SIGTERM stops the job, so it warns nobody"),
    "signals-to-handle": (["--signals-to-handle=SIGNO"], "--signals-to-handle: this system has no signal"),
    "numa-binding": (["--numa-binding=exclusive", "--nproc-per-node=9000"], "--numa-binding: node "),
}

# Option → why there is no company in which it has no effect.
NEVER: dict[str, str] = {
    "nproc-per-node": "there is always a number of workers",
    "standalone": "it says who is met",
    "run-path": "scripts are run so in any case, and it is stronger than --module and --no-python",
    "role": "workers find it in their environment",
    "devices": "workers find them in their environment, whatever program they run",
    "omp-threads": "the same",
    "max-restarts": "a failure may always come",
    "shutdown-timeout": "a stop may always come",
    "warn-before": "the same",
    "pass-signals": "SIGUSR1 and SIGUSR2 are passed on anyway: whoever names them gets what was asked for",
    "error-file": "a failure may always come",
    "report-file": "a job always ends",
    "error-handler": "any program may have Python in it that records its exception",
    "log-dir": "error files and the account of a failure go there, also if no stream does",
    "stderr-tail": "it is what is kept of streams that go nowhere else",
    "logs-specs": "a plug-in lays out error files, too",
    "event-log-handler": "a job always has events",
    "events-file": "the same",
    "rdzv-id": "workers find it in their environment, and logs are named by it",
    "local-addr": "it is MASTER_ADDR, if this node has rank 0",
    "config": "what is in it counts, or is refused",
    "print-config": "it shows instead of starting",
    "dry-run": "the same",
}


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which no other warning is due: about interpreters, for one."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def test_every_option_is_in_the_list() -> None:
    assert {*WARNED, *REFUSED, *NEVER} == {option.name for option in OPTIONS}


def test_every_rule_is_about_options_that_exist_and_is_in_the_list() -> None:
    options = {field: dest.replace("_", "-") for dest, field in FIELDS.items()}
    about = {
        options[field] for rule in RULES for field in rule.fields if field != "restarts.refill_on_progress"
    }
    assert about <= set(WARNED)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("name", "flags", "sentence"),
    [
        pytest.param(name, flags, sentence, id=" ".join(flags))
        for name, cases in WARNED.items()
        for flags, sentence in cases
    ],
)
def test_an_option_without_effect_is_one_line(
    name: str,
    flags: list[str],
    sentence: str,
    values: Values,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    values(*(flag.replace("SECRET", str(tmp_path / "secret")) for flag in flags))
    said = capsys.readouterr().err.splitlines()
    origin = f"--{name}" + ("" if sentence.startswith(":") else " ")
    others = {
        flag.partition("=")[0] for flag in flags
    }  # the company may be told of itself, in lines of its own
    mine = [line for line in said if line == f"phalanx: warning: {origin}{sentence}"]
    assert len(mine) == 1, said
    rest = [line for line in said if line not in mine]
    assert all(line.split()[2].rstrip(":,") in others for line in rest), rest


@pytest.mark.parametrize(("flags", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_contradiction_is_refused(flags: list[str], sentence: str, values: Values) -> None:
    with pytest.raises(UsageError) as refused:
        values(*flags)
    assert sentence in str(refused.value)


# Keeping quiet


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "flags",
    [
        # What holds anyway, as scripts spell it out.
        ["--start-method=spawn", "--monitor-interval=0.1", "--max-restarts=0", "-r", "0", "-t", "0"],
        ["--restart-scope=group", "--restart-refill=never", "--node-rank=0", "--restart-backoff=1:60"],
        # Templates of clusters, filled in for one node.
        ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=h:29400", "--rdzv-conf=join_timeout=9"],
        ["--nnodes=1", "--node-rank=0", "--master-addr=h", "--master-port=29500", "--rdzv-endpoint=h:29500"],
        ["--standalone", "--rdzv-conf=master_port_range=30000-30100"],
        # Each has its effect.
        ["--duplicate-stdout-filters=loss", "--tee=0:1", "--log-max-size=1M", "--log-line-prefix-template=x"],
        ["--redirects=2", "--log-max-size=1M"],
        ["--give-up-after=9", "--max-restarts=3", "--restart-refill=1h"],
        ["--straggler-timeout=5", "--restart-timeout=5", "--nproc-per-node=2"],
        ["--tee=0:3,1:1", "--nproc-per-node=2", "--local-ranks-filter=1"],
        ["--logs-specs=default"],
    ],
    ids=" ".join,
)
def test_nobody_is_told_of_what_has_its_effect_or_asks_for_nothing(
    flags: list[str], values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    values(*flags)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quiet")
def test_a_word_to_this_launcher_is_answered_by_its_own_name_and_the_site_s_variables_are_not(
    values: Values, capsys: pytest.CaptureFixture[str]
) -> None:
    values(environ={"PET_LOG_LINE_PREFIX_TEMPLATE": "x", "PET_STOP_ALL": "1"})
    assert capsys.readouterr().err.splitlines() == [
        "phalanx: warning: PET_STOP_ALL has no effect: this job has one node",
        (
            "phalanx: warning: PET_LOG_LINE_PREFIX_TEMPLATE has no effect: it is about teed lines, and no stream is "
            "teed; see --tee"
        ),
    ]
    values(environ={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "x"})
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quiet")
def test_one_reason_is_one_line(values: Values, capsys: pytest.CaptureFixture[str]) -> None:
    values("--stop-all", "--node-rank=1", "--restart-on=75", "--give-up-after=3")
    assert capsys.readouterr().err.splitlines() == [
        "phalanx: warning: --node-rank, --stop-all have no effect: this job has one node",
        "phalanx: warning: --give-up-after, --restart-on have no effect: no restart is allowed; raise --max-restarts",
    ]


@pytest.mark.usefixtures("quiet")
def test_a_line_of_a_configuration_file_is_named(
    values: Values, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("logs:\n  log_max_size: 1M\n")
    values(f"--config={tmp_path / 'job.yaml'}")
    said = capsys.readouterr().err
    assert said.endswith("has no effect: no stream goes to a file; see --redirects and --tee\n")
    assert "job.yaml:2" in said
