"""``make demo``: a job of four workers loses one in the middle, recovers, and goes on where it was."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).parent


def main() -> int:
    """Run the job in a folder of its own, and return its exit code."""
    command = ["phalanx", "run", "--nproc-per-node", "4", "--max-restarts", "1", "--tee", "3"]
    command += ["--log-dir", "logs"]
    script = [str(EXAMPLES / "train.py"), "--steps", "60", "--lose-worker-at", "33"]
    print("$", shlex.join([*command, "examples/train.py", *script[1:]]), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", *command]
        return subprocess.run([*launcher, *map(str, script)], cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
