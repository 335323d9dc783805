"""A job whose workers each see one device, and therefore all have the same LOCAL_RANK, goes back to an older step."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.checkpoint.scenarios import flip_a_bit

from phalanx.checkpoint import Checkpointer

_WORKER = """
    import os, sys
    from phalanx.checkpoint import Checkpointer

    assert os.environ["LOCAL_RANK"] == "0"
    rank = int(os.environ["RANK"])
    whole, parts = Checkpointer(sys.argv[1]), Checkpointer(sys.argv[2], sharded=True)
    loaded = whole.load_latest()
    assert loaded.step == 1, loaded
    for step in (1, 2, 3):
        parts.save(step, {"mine": [rank, step]})
    assert parts.load(1).value == [{"mine": [0, 1]}, {"mine": [1, 1]}]
    parts.save(2, {"mine": [rank, 20]})
    parts.save(3, {"mine": [rank, 30]})
    assert parts.load_latest().value == [{"mine": [0, 30]}, {"mine": [1, 30]}]
"""


def test_each_rank_checks_its_own_share_and_all_go_back_together(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    for step in (
        1,
        2,
    ):  # of two files each rank reads one: who takes itself for local rank 0 reads the first twice
        Checkpointer(whole, world_size=1).save(step, {"a": b"1" * 100, "b": b"2" * 100})
    for name in ("a.bin", "b.bin", "entries.json"):
        damaged = whole / "step-000000002"
        if not damaged.exists():
            (whole / "step-000000002.bad").rename(damaged)
        flip_a_bit(damaged / name)
        (tmp_path / "worker.py").write_text(textwrap.dedent(_WORKER))
        folder = tmp_path / f"parts of {name}"
        command = [sys.executable, "-m", "phalanx", "run", "--nproc-per-node=2", "--virtual-local-rank"]
        done = subprocess.run(
            [*command, str(tmp_path / "worker.py"), str(whole), str(folder)],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert (whole / "step-000000002.bad").exists(), name
        flip_a_bit(whole / "step-000000002.bad" / name)  # good again
        names = {path.name for path in folder.iterdir()}
        assert names >= {"step-000000002.superseded", "step-000000003.superseded", "step-000000003"}
