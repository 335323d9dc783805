"""A program that calls ``torch.distributed.run`` sees the same from ``phalanx.run``: ends, exceptions, signals."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.system.launch import Event, Job, Launcher

MODULES = ["torch.distributed.run", "phalanx.run"]
HOST = """
import importlib, os, signal, sys, threading
from telling import tell

module = importlib.import_module(sys.argv.pop(1))
before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
end = {}
try:
    args = module.parse_args(sys.argv[1:])
    if "BY_CONFIG" in os.environ:
        launcher = importlib.import_module(os.environ["BY_CONFIG"])
        config, command, arguments = module.config_from_args(args)
        end["returned"] = repr(launcher.elastic_launch(config=config, entrypoint=command)(*arguments))
    else:
        end["returned"] = repr(module.run(args))
except BaseException as error:
    end["raised"] = type(error).__name__
    end["text"] = str(error)[:300]
    end["sigval"] = int(getattr(error, "sigval", 0))
    if hasattr(error, "get_first_failure"):
        rank, failure = error.get_first_failure()
        message = failure.message
        end["failure"] = [rank, failure.local_rank, failure.exitcode, sorted(error.failures), error.name.split("/")[-1]]
        end["message"] = message["message"] if isinstance(message, dict) else message
end["handlers"] = before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
end["threads"] = [thread.name for thread in threading.enumerate() if thread.name.startswith("phalanx")]
tell("end", **end)
"""


def host(
    module: str,
    tmp_path: Path,
    source: str,
    *words: object,
    act: signal.Signals | None = None,
    env: dict[str, str] | None = None,
) -> Event:
    """Run the host program on a job of this script; what it tells of the end."""
    folder = tmp_path / module
    folder.mkdir()
    program, script = folder / "host.py", folder / "train.py"
    program.write_text(HOST)
    script.write_text(source)
    launcher = Launcher(module, (sys.executable, str(program), module))
    with Job(launcher, (*map(str, words), str(script)), folder=folder, env=env or {}) as job:
        if act is not None:
            job.told("ready", 2)
            job.send(act)
        (end,) = job.told("end")
        assert job.wait() == 0
        job.wait_nobody()
    return end


FLAGS = ("--standalone", "--nproc-per-node", 2)
RECORDED = """
import os, time
if os.environ["RANK"] != "1":
    time.sleep(1000)
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("bad batch 17")
main()
"""
WAITS = """
import time
from telling import tell
tell("ready")
time.sleep(1000)
"""


@pytest.mark.compat(
    "name torch.distributed.run.run", "better", "an agent beside the program; handlers are restored"
)
def test_run_returns_nothing_when_the_job_has_succeeded(tmp_path: Path) -> None:
    ends = [host(module, tmp_path, "print('trained')\n", *FLAGS).facts for module in MODULES]
    assert [end["returned"] for end in ends] == ["None", "None"]


def test_run_raises_the_childs_failure(tmp_path: Path) -> None:
    theirs, ours = (host(module, tmp_path, RECORDED, *FLAGS).facts for module in MODULES)
    assert (ours["raised"], ours["message"]) == (theirs["raised"], theirs["message"])
    assert theirs["raised"] == "ChildFailedError"
    assert theirs["message"] == "ValueError: bad batch 17"
    # torchrun lists the rank that it ended itself, too.
    assert theirs["failure"] == [1, 1, 1, [0, 1], "train.py"]
    assert ours["failure"] == [1, 1, 1, [1], "train.py"]


def test_the_parts_of_run_put_together_by_a_program_give_the_same(tmp_path: Path) -> None:
    """As programs do that change the configuration in between."""
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", 2)
    parts = {"torch.distributed.run": "torch.distributed.launcher.api", "phalanx.run": "phalanx.launcher"}
    theirs, ours = (
        host(module, tmp_path, RECORDED, *meeting, env={"BY_CONFIG": launcher}).facts
        for module, launcher in parts.items()
    )
    for name in "raised", "message":
        assert ours[name] == theirs[name]
    assert theirs["failure"] == [1, 1, 1, [0, 1], "train.py"]
    assert ours["failure"] == [1, 1, 1, [1], "train.py"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_raises_the_signal_that_stopped_it_and_leaves_the_programs_handlers(
    tmp_path: Path, number: signal.Signals
) -> None:
    theirs, ours = (host(module, tmp_path, WAITS, *FLAGS, act=number).facts for module in MODULES)
    for end in theirs, ours:
        assert (end["raised"], end["sigval"]) == ("SignalException", number)
        assert f"got signal: {int(number)}" in end["text"]
    assert ours["handlers"], "torch leaves its own"
    assert ours["threads"] == []


def test_a_warning_signal_reaches_the_workers_of_a_program_without_a_handler_for_it(tmp_path: Path) -> None:
    source = """
import signal
from telling import tell
import threading
done = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: (tell("warned"), done.set()))
tell("ready")
while not done.wait(0.05):
    pass
"""
    end = host("phalanx.run", tmp_path, source, *FLAGS, act=signal.SIGUSR1)
    assert end["returned"] == "None"
    assert end["handlers"]
