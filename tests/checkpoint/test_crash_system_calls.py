"""The seam of the other crash tests misses nothing: seen by Python's audit hook, and killed at real system calls."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint.scenarios import SCENARIOS, assert_that_the_next_save_works, found_after

ROOT = Path(__file__).parents[2]
# What changes a folder or puts something on the disk. Opening a file makes it, but empty, and the write comes at once.
SYSTEM_CALLS = ("mkdir", "write", "fsync", "rename", "renameat2", "symlink", "unlink", "rmdir", "flock")

AUDITED = """
import os, sys
from pathlib import Path
from tests.checkpoint.scenarios import OPERATIONS, SCENARIOS
from phalanx.checkpoint.files import RealFiles

name, folder = sys.argv[1], sys.argv[2]
scenario = SCENARIOS[name]
inside = 0
seen = []

class Noted(scenario.files):
    pass

def noted(operation):
    def run(*args, **options):
        global inside
        inside += 1
        try:
            return operation(*args, **options)
        finally:
            inside -= 1
    return run

for operation in (*OPERATIONS, "opened", "hold", "lock"):
    setattr(Noted, operation, noted(getattr(scenario.files, operation)))

EVENTS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.truncate", "os.chmod",
          "os.chown", "os.utime", "os.setxattr", "shutil.", "tempfile.")

def hook(event, args):
    if event == "open":
        path, mode, flags = args
        if not (flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)):
            return
    elif not event.startswith(EVENTS):
        return
    if str(args[0]).startswith(folder) or str(args[-1]).startswith(folder):
        seen.append((event, inside))

files = Noted()
noted_files = files
sys.addaudithook(hook)
scenario.act(Path(folder), noted_files)
print(len(seen), [event for event, depth in seen if not depth])
"""

KILLED = """
import sys
from pathlib import Path
from tests.checkpoint.scenarios import SCENARIOS
scenario = SCENARIOS[sys.argv[1]]
import phalanx.checkpoint.staging, phalanx.checkpoint.saving
scenario.act(Path(sys.argv[2]), scenario.files())
"""


def run(program: str, *args: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    words = [*before, sys.executable, "-B", "-c", program, *args]
    environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=environment)


@pytest.mark.parametrize("name", SCENARIOS)
def test_all_that_changes_the_folder_goes_through_the_seam(name: str, quick_folder: Path) -> None:
    SCENARIOS[name].prepare(quick_folder / "checkpoints")
    done = run(AUDITED, name, str(quick_folder / "checkpoints"))
    assert done.returncode == 0, done.stderr
    count, beside = done.stdout.split(" ", 1)
    assert int(count) > 0
    assert beside == "[]\n", "this was done beside the seam"


def can_trace() -> bool:
    return (
        shutil.which("strace") is not None
        and subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode == 0
    )


@pytest.mark.slow
@pytest.mark.skipif(not can_trace(), reason="strace is not here, or may not trace")
@pytest.mark.parametrize("name", ["replacing", "retention"])
def test_a_kill_at_any_real_system_call_leaves_the_step_before_or_the_new_one(
    name: str, quick_folder: Path
) -> None:
    scenario = SCENARIOS[name]
    start = quick_folder / "start"
    scenario.prepare(start / "checkpoints")
    shutil.copytree(start, quick_folder / "counted", symlinks=True)
    log = quick_folder / "log"
    calls = ",".join(SYSTEM_CALLS)
    done = run(
        KILLED,
        name,
        str(quick_folder / "counted/checkpoints"),
        before=("strace", "-f", "-o", str(log), "-e", f"trace={calls}"),
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(rf"^\d+ +({'|'.join(SYSTEM_CALLS)})\(", log.read_text(), re.MULTILINE)
    counts = {call: found.count(call) for call in SYSTEM_CALLS}
    assert counts["fsync"] > 5
    assert counts["rename"] + counts["renameat2"] >= 2
    seen = set()
    for call, count in counts.items():
        for when in range(1, count + 1):
            root = quick_folder / f"{call}-{when}"
            shutil.copytree(start, root, symlinks=True)
            folder = root / "checkpoints"
            injected = ("-e", f"inject={call}:signal=SIGKILL:when={when}")
            done = run(
                KILLED,
                name,
                str(folder),
                before=("strace", "-f", "-o", "/dev/null", "-e", f"trace={calls}", *injected),
            )
            assert done.returncode in (-9, 137), (call, when, done)
            seen.add(found_after(name, folder))
            assert_that_the_next_save_works(name, folder)
            shutil.rmtree(root)
    assert {scenario.before, scenario.after} <= seen
