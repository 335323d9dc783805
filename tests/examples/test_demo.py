"""``make demo``, as plain lines and in a terminal."""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pexpect
import pytest
from tests.system.launch import LIMIT_S, has_ended, survivors_with

from phalanx.events import job

DEMO = Path(__file__).parents[2] / "examples/demo.py"
SHORT = ("--steps", "120", "--at-step", "70", "--step-seconds", "0.02")
# The demo looks at its job ten times a second: one that is late would find it at its end, with nobody left to kill.
WAITS_FOR_THE_KILL = {
    "PYTHONPATH": str(Path(__file__).parent / "worker_side"),
    "BLACK_BOX_LAST_STEP": "110",
}


def test_a_pipe_gets_plain_lines_and_the_same_loss_as_without_a_kill(tmp_path: Path) -> None:
    token = f"PHALANX_DEMO_{uuid.uuid4().hex}"
    done = subprocess.run(
        [sys.executable, DEMO, *SHORT],
        env={**os.environ, **WAITS_FOR_THE_KILL, "TMPDIR": str(tmp_path), "BLACK_BOX_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    (killed,) = [line for line in lines if line.startswith("kill -9 ")]
    assert re.fullmatch(r"kill -9 \d+: the end of rank 2", killed)
    assert "rank 2 was killed by SIGKILL" in lines
    ((step, resumed),) = re.findall(
        r"^had come to step (\d+), resumed at the checkpoint of step (\d+)$", done.stdout, re.MULTILINE
    )
    assert 70 <= int(step) < 120
    told = dict(line.split(maxsplit=1) for line in lines[lines.index("") + 1 :])
    assert told["lost"].startswith("rank 2 (process ")
    assert told["when"].startswith(f"at step {step} of 120, ")
    twice = int(step) - int(resumed)
    assert told["resume"] == f"from the checkpoint of step {resumed}: {twice} steps were done twice"
    assert told["undisturbed"] == f"{told['final'].split()[1]}: the same, to the last bit"
    assert not survivors_with(token)
    assert not list(tmp_path.iterdir())


def test_the_undisturbed_job_too_is_told_of_when_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    demo = importlib.import_module("demo")
    ends = iter(
        [SimpleNamespace(exit_code=0, report=""), SimpleNamespace(exit_code=3, report="rank 1 failed")]
    )
    monkeypatch.setattr(demo, "run", lambda *_, **__: next(ends))
    arguments = argparse.Namespace(steps=120, at_step=70, step_seconds=0.0, lose_rank=2)
    assert demo.play(arguments, tmp_path) == 3
    printed = capsys.readouterr()
    assert (printed.err, "SAME" in printed.out) == ("rank 1 failed\n", False)


def test_a_later_start_of_workers_is_not_the_restart_after_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(DEMO.parent))
    story = importlib.import_module("demo_story").Story(steps=120, curve=tmp_path / "curve.jsonl")
    story._lost_at_ns = 1_000_000_000
    for at_ns in (1_500_000_000, 9_000_000_000):
        story.take(job.WorkersStarted(at_ns=at_ns, round=1, pids={0: 7}))
    assert story.restarted_after_s == 0.5


@pytest.mark.parametrize(("columns", "is_plain"), [(34, False), (100, True)])
def test_a_terminal_gets_a_picture_that_changes_in_place(
    columns: int, is_plain: bool, tmp_path: Path
) -> None:
    env = {**os.environ, **WAITS_FOR_THE_KILL, "TERM": "xterm-256color", "TMPDIR": str(tmp_path)}
    env.pop("NO_COLOR", None)
    if is_plain:
        env["NO_COLOR"] = "1"
    with pexpect.spawn(
        sys.executable,
        [str(DEMO), *SHORT],
        env=env,
        dimensions=(30, columns),
        timeout=LIMIT_S,
        encoding="utf-8",
    ) as demo:
        demo.expect(r"\x1b\[\d*A")  # up again, to draw anew
        demo.expect("running")
        demo.expect("[▁▂▃▄▅▆▇]█|█[▁▂▃▄▅▆▇]")
        demo.expect("kill -9")
        demo.expect(r"\^")  # below the curve
        demo.expect("job succeeded")
        last = str(demo.before).rpartition("Phalanx demo")[2]  # the picture that stays
        demo.expect("the same, to the")
        assert has_ended(demo.pid)  # pexpect waits for that without a limit, or hangs up what is at its end
        demo.expect(pexpect.EOF)
        shown = demo.before
        demo.wait()
    assert demo.exitstatus == 0, shown
    coloured = re.compile(r"\x1b\[[\d;]*3\dm")
    assert shown is not None
    assert not is_plain or not coloured.search(shown)
    flat = " ".join(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", last).split())
    assert "succeeded (0) │" in flat
    assert re.search(r"rank 2 lost \^|\^ rank 2 lost", flat), last
    assert re.search(r"kill -9 \d+: the end of rank 2 at step \d+; resumed at step \d+", flat), last


def test_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    token = f"PHALANX_DEMO_{uuid.uuid4().hex}"
    env = {**os.environ, "TERM": "xterm", "TMPDIR": str(tmp_path), "BLACK_BOX_TOKEN": token}
    with pexpect.spawn(sys.executable, [str(DEMO)], env=env, timeout=LIMIT_S, encoding="utf-8") as demo:
        demo.expect("checkpoint of step 20 saved")
        demo.sendintr()
        demo.expect("interrupted; the job was stopped, and nothing of it is left")
        assert has_ended(demo.pid)
        demo.expect(pexpect.EOF)
        demo.wait()
    assert demo.exitstatus == 128 + signal.SIGINT
    assert not survivors_with(token)
    assert not list(tmp_path.iterdir())
