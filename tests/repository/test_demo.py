from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.system
def test_the_demo_loses_a_worker_and_goes_on_at_the_last_checkpoint() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/demo.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout

    starts = [
        int(step)
        for step in re.findall(
            r"^\[default0\]:starting at step (\d+) with 4 workers$", done.stdout, re.MULTILINE
        )
    ]
    lost = re.findall(r"^phalanx: rank 3 failed: killed by SIGKILL .*$", done.stdout, re.MULTILINE)
    saved = [
        int(step)
        for step in re.findall(r"^\[default0\]:step (\d+): .* checkpoint saved$", done.stdout, re.MULTILINE)
    ]

    assert len(lost) == 1
    assert starts[0] == 0
    # Rank 3 dies at its step 33; rank 0, in step with it but for the scheduler, has saved one of these by then.
    assert starts[1:] in ([10], [20], [30], [40])
    before, after = saved[: saved.index(starts[1]) + 1], saved[saved.index(starts[1]) + 1 :]
    assert before == list(range(10, starts[1] + 1, 10))
    assert after == list(range(starts[1] + 10, 61, 10))
    assert "[default0]:fitted y = 2.99x + 1.00" in done.stdout
