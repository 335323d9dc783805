"""What ``phalanx run`` imports before the first worker runs: little, and nothing that a plain job does not need."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# Each of these costs 20 to 2000 ms of CPU; they load when a plug-in name, --version or a feature asks for them.
DENIED = (
    "argparse",
    "cloudpickle",
    "concurrent.futures.process",
    "google",
    "grpclib",
    "http",
    "importlib.metadata",
    "msgspec",
    "multiprocessing",
    "numpy",
    "opentelemetry",
    "phalanx.agent.elastic",
    "phalanx.agent.processes.terminal",
    "phalanx.agent.watchdog",
    "phalanx.chaos",
    "phalanx.cli.argparse_actions",
    "phalanx.cli.chaos",
    "phalanx.checkpoint",
    "phalanx.cli.checkpoints",
    "phalanx.cli.completion",
    "phalanx.cli.console_script",
    "phalanx.cli.config",
    "phalanx.cli.further",
    "phalanx.cli.legacy",
    "phalanx.cli.preview",
    "phalanx.cli.manual",
    "phalanx.cli.namespace",
    "phalanx.cli.parser",
    "phalanx.cli.showing",
    "phalanx.cli.slips",
    "phalanx.cli.torchrun",
    "phalanx.compat",
    "phalanx.functions",
    "phalanx.launcher.hardware.accelerators",
    "phalanx.launcher.hardware.binding",
    "phalanx.launcher.hardware.cpus",
    "phalanx.launcher.hardware.devices",
    "phalanx.launcher.dry_run",
    "phalanx.launcher.elastic.config_options",
    "phalanx.launcher.outside_checks",
    "phalanx.launcher.hosting.foreground",
    "phalanx.launcher.functions.function_job",
    "phalanx.launcher.functions.order",
    "phalanx.launcher.functions.job",
    "phalanx.launcher.elastic.job_metrics",
    "phalanx.launcher.functions.launch",
    "phalanx.launcher.functions.failure",
    "phalanx.launcher.functions.keywords",
    "phalanx.launcher.functions.result",
    "phalanx.launcher.elastic.launching",
    "phalanx.launcher.elastic.local_launch",
    "phalanx.launcher.log_plugins",
    "phalanx.launcher.functions.output",
    "phalanx.launcher.hosting.sent_objects",
    "phalanx.logger",
    "phalanx.metrics",
    "phalanx.multiprocessing.affinity",
    "phalanx.multiprocessing.numa",
    "phalanx.multiprocessing.topology",
    "phalanx.rendezvous.registry",
    "phalanx.store.client",
    "phalanx.store.collectives",
    "phalanx.store.etcd",
    "phalanx.store.file",
    "phalanx.store.hosting",
    "phalanx.store.server",
    "phalanx.store.synchronous",
    "phalanx.store.tcp",
    "phalanx.store.wire",
    "phalanx.testing",
    "phalanx.timer",
    "prometheus_client",
    "pynvml",
    "rich",
    "ruamel",
    "sqlite3",
    "torch",
    "urllib",
)

# Of a job that nobody looks at; a hosted agent tells its host.
LOOKING_ON = (
    "phalanx.agent.observer",
    "phalanx.agent.observing",
    "phalanx.events",
    "phalanx.launcher.event_sinks",
    "phalanx.launcher.hosting.event_pipe",
)


def imported_by(*words: str, cwd: Path) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Run Python with these words, and return the names of the modules that it imported from start to exit."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words], cwd=cwd, capture_output=True, text=True
    )
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| *(\S+)$", done.stderr, re.MULTILINE)), done


def looking_on(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith(LOOKING_ON)}


def denied(modules: set[str]) -> set[str]:
    return {
        name for name in modules if name.startswith(tuple(f"{root}." for root in DENIED)) or name in DENIED
    }


@pytest.mark.system
@pytest.mark.parametrize("way", [("-m", "phalanx", "run"), ("-m", "phalanx.run")], ids=" ".join)
def test_a_job_of_a_plain_command_loads_nothing_that_it_does_not_need(
    way: tuple[str, ...], tmp_path: Path
) -> None:
    modules, done = imported_by(*way, "--no-python", "true", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "phalanx.cli.words" in modules
    unneeded = {"phalanx.cli.idle", "phalanx.launcher.checks", "phalanx.launcher.ineffective"}
    assert not modules & unneeded, "no option is there that could have no effect"
    assert not denied(modules)


@pytest.mark.system
def test_a_job_of_scripts_with_logs_loads_no_more(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained')\n")
    flags = ["--nproc-per-node", "2", "-t", "3", "--log-dir", "logs", "--max-restarts", "1"]
    modules, done = imported_by("-m", "phalanx", "run", *flags, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not denied(modules) | looking_on(modules)


def test_a_mistake_is_told_before_the_agent_is_imported(tmp_path: Path) -> None:
    modules, done = imported_by("-m", "phalanx", "run", "missing.py", cwd=tmp_path)
    assert done.returncode == 2
    assert not {name for name in modules if name.startswith("phalanx.agent")}
    assert not denied(modules) | modules & {"asyncio", "argparse", "logging"}


def test_the_deny_list_would_notice(tmp_path: Path) -> None:
    modules, _ = imported_by("-c", "import multiprocessing.util, urllib.parse", cwd=tmp_path)
    assert {"multiprocessing.util", "urllib.parse"} <= denied(modules)
    words = ("-m", "phalanx", "run", "--events-file", "events", "--no-python", "true")
    modules, _ = imported_by(*words, cwd=tmp_path)
    assert {"phalanx.agent.observing", "phalanx.events.job", "phalanx.launcher.event_sinks"} <= looking_on(
        modules
    )


def test_importing_the_package_imports_nothing_else(tmp_path: Path) -> None:
    modules, _ = imported_by("-c", "import phalanx", cwd=tmp_path)
    assert {name for name in modules if name.startswith("phalanx")} == {"phalanx", "phalanx.lazy"}


def test_importing_the_checkpointer_loads_little_and_nothing_heavy(tmp_path: Path) -> None:
    modules, done = imported_by("-c", "import phalanx.checkpoint.checkpointer", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    heavy = {
        "asyncio",
        "hashlib",
        "logging",
        "numpy",
        "pathlib",
        "re",
        "socket",
        "threading",
        "torch",
        "typing",
    }
    assert not modules & (heavy | {"ctypes", "xxhash", "subprocess"}), "each of these takes milliseconds"
    ours = {name.rpartition(".")[2] for name in modules if name.startswith("phalanx.checkpoint.")}
    assert ours == {"checkpointer"}
