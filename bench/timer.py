"""What a block with a timer costs a worker: ``python -m bench.timer``.

Both clients enter and leave empty blocks in one thread of one process, in turns, against the server of a watchdog in
this one; ours as a worker of an agent of ours does, whose descriptor stays open. CPU time of the worker: the wall clock
shows what else the machine does. Beside other work a block costs more CPU time, too (cold caches, a shared core): the
verdict is that of the turn which was disturbed least.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from phalanx.timer import FileTimerServer

BUDGET_US = 50.0
TURNS, BLOCKS = 9, 200
PROGRAM = """
import json, sys, time
import phalanx.timer, torch.distributed.elastic.timer
timers = phalanx.timer, torch.distributed.elastic.timer
for timer in timers:
    timer.configure(timer.FileTimerClient(sys.argv[1]))
def run(timer, number):
    at = time.process_time()
    for _ in range(number):
        with timer.expires(after=60, scope="forward"):
            pass
    return (time.process_time() - at) / number * 1e6
for timer in timers:
    run(timer, 50)
print(json.dumps([[run(timer, int(sys.argv[3])) for timer in timers] for _ in range(int(sys.argv[2]))]))
"""


def microseconds(fifo: str) -> list[tuple[float, float]]:
    """Of one block, in each turn: ours and theirs."""
    words = (sys.executable, "-c", PROGRAM, fifo, str(TURNS), str(BLOCKS))
    env = {**os.environ, "PHALANX_TIMER_FILE": fifo}
    found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, env=env).stdout)
    return [(ours, theirs) for ours, theirs in found]


def main() -> int:
    """Print a line of the table; 1 if the budget is missed."""
    with tempfile.TemporaryDirectory() as folder:
        server = FileTimerServer(f"{folder}/fifo", "bench")
        server.start()
        try:
            turns = microseconds(f"{folder}/fifo")
        finally:
            server.stop()
    ours, theirs = (sorted(one) for one in zip(*turns, strict=True))
    ratio = statistics.median(theirs) / statistics.median(ours)
    told = [
        f"{statistics.median(one):.3g} µs ({one[0]:.3g} to {one[-1]:.3g}, n={TURNS})"
        for one in (ours, theirs)
    ]
    verdict = "kept" if statistics.median(ours) <= BUDGET_US else "missed"
    print(
        f"| a block of `phalanx.timer` | {told[0]} | {told[1]} | 1/{ratio:.3g} | ≤ {BUDGET_US:g} µs | {verdict} |"
    )
    return int(statistics.median(ours) > BUDGET_US)


if __name__ == "__main__":
    sys.exit(main())
