"""What a block with a timer costs a worker: ``python -m bench.timer``.

Both clients enter and leave empty blocks in one thread of a process of its own, against the server of a watchdog in
this one, in pairs. CPU time of the worker: the wall clock shows what else the machine does.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile

from phalanx.timer import FileTimerServer

BUDGET_US = 50.0
PAIRS, BLOCKS = 3, 500
PROGRAM = """
import importlib, sys, time
timer = importlib.import_module(sys.argv[1])
timer.configure(timer.FileTimerClient(sys.argv[2]))
def run(number):
    at = time.process_time()
    for _ in range(number):
        with timer.expires(after=60, scope="forward"):
            pass
    return (time.process_time() - at) / number * 1e6
run(100)
print(run(int(sys.argv[3])))
"""


def microseconds(module: str, fifo: str) -> float:
    """Of one block."""
    words = (sys.executable, "-c", PROGRAM, module, fifo, str(BLOCKS))
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Print a line of the table; 1 if the budget is missed."""
    with tempfile.TemporaryDirectory() as folder:
        server = FileTimerServer(f"{folder}/fifo", "bench")
        server.start()
        try:
            pairs = [
                (microseconds("phalanx.timer", f"{folder}/fifo"), microseconds(THEIRS, f"{folder}/fifo"))
                for _ in range(PAIRS)
            ]
        finally:
            server.stop()
    ours, theirs = (sorted(one) for one in zip(*pairs, strict=True))
    median = statistics.median(ours)
    ratio = statistics.median(theirs) / median
    told = [
        f"{statistics.median(one):.3g} µs ({one[0]:.3g} to {one[-1]:.3g}, n={PAIRS})"
        for one in (ours, theirs)
    ]
    verdict = "kept" if median <= BUDGET_US else "missed"
    print(
        f"| a block of `phalanx.timer` | {told[0]} | {told[1]} | 1/{ratio:.3g} | ≤ {BUDGET_US:g} µs | {verdict} |"
    )
    return int(median > BUDGET_US)


THEIRS = "torch.distributed.elastic.timer"

if __name__ == "__main__":
    sys.exit(main())
