"""Imported by the scripts that the system tests launch: tells the test what happens inside a worker.

One JSON line per event goes into the named pipe that the test reads; a line is shorter than PIPE_BUF, so
lines of many workers never mix. Works in signal handlers and in forked children.
"""

import json
import os
import time


def tell(event: str, **facts: object) -> None:
    """Send `event` with this worker's identity, a monotonic time in seconds, and `facts`."""
    told = {
        "event": event,
        "rank": int(os.environ.get("RANK", "-1")),
        "restart": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "-1")),
        "pid": os.getpid(),
        "at": time.monotonic(),
        **facts,
    }
    # Non-blocking open: when the test is gone a left-over worker fails here instead of waiting for ever.
    pipe = os.open(os.environ["BLACK_BOX_PIPE"], os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(pipe, True)
    try:
        os.write(pipe, json.dumps(told).encode() + b"\n")
    finally:
        os.close(pipe)


def stay() -> None:
    """Sleep until a signal handler leaves; for longer than any test runs.

    In naps: the interpreter runs a handler between two of its instructions. A signal that comes after its last look and
    before the system call of one long sleep would be heard at the end of that sleep.
    """
    for _ in range(20_000):
        time.sleep(0.05)
