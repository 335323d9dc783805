"""Ranks of a real job are killed at each file operation of a sharded save; the next round finds a whole step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

LIMIT_S = 170

# In each round all ranks load and check, then save the next step. After the first round one rank, the one that comes
# last and so publishes, is killed before a file operation, further on in each round until it survives.
_WORKER = """
    import json, os, signal, sys, time
    from pathlib import Path
    from phalanx import values
    from phalanx.checkpoint import Checkpointer
    from phalanx.checkpoint.files import RealFiles

    folder, told, victim, background = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    rank, world, restart = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))

    def tell(**what):
        with open(told, "a") as file:
            file.write(json.dumps({"restart": restart, "rank": rank, **what}) + "\\n")

    kill_at = (restart - 1) * (2 if victim else 3) + victim % 2  # rank 0 has many more: it tidies

    class Deadly(RealFiles):
        done = 0

        def __getattribute__(self, name):
            if not name.startswith("_") and name not in ("done", "opened"):
                if Deadly.done == kill_at:
                    tell(killed=name, step=step + 1)
                    os.kill(os.getpid(), signal.SIGKILL)
                Deadly.done += 1
            return object.__getattribute__(self, name)

    checkpointer = Checkpointer(folder, 2, sharded=True, background=background)
    loaded = checkpointer.load_latest()
    step = loaded.step if loaded else 0
    parts = [part["mine"] for part in loaded.value] if loaded else []
    assert parts == [[each, step] for each in range(world if loaded else 0)], parts
    tell(loaded=step)

    def write(place):
        if rank == victim:
            # The second conversation of the first checkpointer of this round: all others have said that they wrote.
            while values().add("phalanx/checkpoint/0/2/done", 0) < world - 1:
                time.sleep(0.01)
        from phalanx.checkpoint.adapters import plain
        plain.write(place, {"mine": [rank, step + 1]})

    if rank == victim and restart:
        checkpointer._settings.directory.files = Deadly()
    checkpointer.save(step + 1, write)
    checkpointer.close()
    if rank == victim:
        tell(survived=step + 1)
    # In the first round the victim alone fails, after it has told: who fails before it would have it ended.
    sys.exit(3 if rank == victim and not restart else 0)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    path = tmp_path / "worker.py"
    path.write_text(textwrap.dedent(_WORKER))
    return path


def _run(worker: Path, folder: Path, victim: int, background: int) -> list[dict[str, Any]]:
    told = worker.parent / "told"
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "--max-restarts",
        "100",
        "--restart-backoff",
        "0",
    ]
    arguments = [str(folder), str(told), str(victim), str(background)]
    done = subprocess.run(
        [*command, str(worker), *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize(("victim", "background"), [(0, 0), (2, 0), (3, 2)])
def test_whenever_a_rank_is_killed_a_whole_step_is_loaded_and_the_next_one_saved(
    worker: Path, quick_folder: Path, victim: int, background: int
) -> None:
    lines = _run(worker, quick_folder / "steps", victim, background)
    killed = [line for line in lines if "killed" in line]
    assert len(killed) >= 8
    before = 0
    for restart in range(max(line["restart"] for line in lines) + 1):
        loaded = {line["loaded"] for line in lines if line["restart"] == restart and "loaded" in line}
        # All ranks that came so far loaded the same, and what was there before is never lost.
        assert len(loaded) == 1, (restart, loaded)
        assert before <= loaded.copy().pop() <= before + 1
        before = loaded.pop()
    _, survived = [line for line in lines if "survived" in line]
    assert survived["survived"] == before + 1
    names = sorted(path.name for path in (quick_folder / "steps").iterdir())
    assert names == ["latest", f"step-{before:09d}", f"step-{before + 1:09d}"]
    published_by_the_dead = sum(
        1 for line in killed if any(each.get("loaded") == line["step"] for each in lines)
    )
    assert published_by_the_dead >= 1, "none was killed after its step had its name"
